//! List of waits: every wait of a thread in a hierarchy, from its beginning to its end, except charges that wait for room (`charges`).
//!
//! ```text
//!   begin ──▶ in the list ── park ──▶ Notified | All | Deadline ── park ... ──▶ dropped: out of the list
//!                  ▲
//!                  └── notify (one wait) · wake_armed (waits for events) · wake_within (all waits of a subtree)
//!
//!   event    counts ── fence ── is a wait armed? ── no: done
//!                                        └───────── yes: the list, under its lock ── disarm, notify
//!   waiter   armed ── fence ── counts ── park ── ...
//! ```
//!
//! A wait for events is armed for one notice. So a storm of events takes the lock once for each wait, and not once for each event.
//!
//! - I1. A wait is in the list from `begin` to the drop of its `Listed`, and has a deadline.
//! - I2. `Wake::All` stays: each further `park` returns it at once. A notice is for one `park`.
//! - I3. The list has room for 1,024 waits of a hierarchy at a time. It grows for further ones, without its lock.
//! - I4. The lock of the list is the last in the order of locks. A thread that holds it unparks threads, and calls, locks, allocates and frees
//!   nothing else. So an event may be counted, and a waiter notified, inside an allocator and under the tree lock. The one exception is
//!   `Hierarchy::waits`, which allocates its reports under both locks.
//! - E1. `notify`, `wake_within` → `park`: the notice is under the lock, and the thread is unparked after it is there. Loom: the models of
//!   `reclaim::queue`.
//! - E2. A removal marks the group offline, then goes through the list. A wait enters the list, then checks the mark. Both are under the lock, so no
//!   wait of a removed group sleeps.
//! - E3. An event ↔ `Listed::arm`: see `event` E1.

use std::marker::PhantomData;
use std::time::Instant;

use memgroup_sync::atomic::{AtomicU32, Ordering, fence};
use memgroup_sync::thread::{self, Thread};
use memgroup_sync::{Mutex, depth, interleave};

use crate::base::mutation::{self, Mutation};
use crate::observe::pressure::{self, Stall};
use crate::observe::wait::{WaitKind, Wake};
use crate::state::stats::Reach;
use crate::tree::node::Node;
use crate::tree::parts::{Key, Part};
use crate::tree::shared::Shared;

/// Waits for which the list allocates in advance.
const PLACES: usize = if cfg!(memgroup_loom) { 4 } else { 1024 };

/// The events that notify a wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// Events of its group.
    Group(Reach),
    /// Every event that a callback could be due for. Such a wait is of the hierarchy, and in no report.
    Callbacks,
}

/// One wait.
pub(crate) struct Entry {
    pub(crate) node: &'static Node,
    /// The group at which it waits: its own, or one above that has no room.
    pub(crate) at: &'static Node,
    pub(crate) kind: WaitKind,
    pub(crate) bytes: u64,
    pub(crate) since: Instant,
    pub(crate) deadline: Instant,
    target: Option<Target>,
    is_armed: bool,
    number: u64,
    thread: Thread,
    told: Option<Wake>,
}

impl Entry {
    /// Tells the waiting thread. Returns whether it had not been told so.
    fn tell(&mut self, wake: Wake) -> bool {
        let is_news = self.told.is_none() || (self.told == Some(Wake::Notified) && wake == Wake::All);
        if is_news {
            self.told = Some(wake);
            self.thread.unpark();
        }
        is_news
    }

    fn take_told(&mut self) -> Option<Wake> {
        let told = self.told;
        self.told = told.filter(|wake| *wake != Wake::Notified);
        told
    }
}

/// A place of the list; a free one knows the next that is free.
enum Slot {
    Free(Option<usize>),
    Used(Entry),
}

impl Slot {
    fn entry(&mut self) -> Option<&mut Entry> {
        match self {
            Slot::Used(entry) if entry.target != Some(Target::Callbacks) => Some(entry),
            Slot::Used(_) | Slot::Free(_) => None,
        }
    }
}

struct List {
    slots: Vec<Slot>,
    free: Option<usize>,
    next: u64,
}

impl List {
    fn is_full(&self) -> bool {
        self.free.is_none() && self.slots.len() == self.slots.capacity()
    }

    /// Adds a wait. The caller has seen that the list is not full.
    fn put(&mut self, mut entry: Entry) -> Ticket {
        let number = self.next;
        self.next += 1;
        entry.number = number;
        let place = self.free.unwrap_or(self.slots.len());
        match self.slots.get_mut(place) {
            Some(slot) => {
                let taken = std::mem::replace(slot, Slot::Used(entry));
                self.free = if let Slot::Free(next) = taken { next } else { None };
            }
            None => self.slots.push(Slot::Used(entry)),
        }
        Ticket { number, place }
    }

    fn entry(&mut self, ticket: Ticket) -> Option<&mut Entry> {
        match self.slots.get_mut(ticket.place)? {
            Slot::Used(entry) => Some(entry).filter(|entry| entry.number == ticket.number),
            Slot::Free(_) => None,
        }
    }
}

/// The waits of one hierarchy.
pub(crate) struct Waits {
    list: Mutex<List>,
    /// Waits that are armed.
    armed: AtomicU32,
}

impl Waits {
    pub(crate) fn new() -> Waits {
        let list = List { slots: Vec::with_capacity(PLACES), free: None, next: 0 };
        Waits { list: Mutex::new(list), armed: AtomicU32::new(0) }
    }

    /// Adds a wait. The list grows without the lock: an allocator may charge. It outlives the wait, so no group is charged for it.
    fn put(&self, entry: Entry) -> Ticket {
        let mut spare = Vec::new();
        let mut list = self.list.lock();
        while list.is_full() {
            let capacity = 2 * list.slots.capacity();
            drop(list);
            if spare.capacity() < capacity {
                let _inside = depth::enter();
                spare = Vec::with_capacity(capacity);
            }
            list = self.list.lock();
            if spare.capacity() > list.slots.capacity() {
                spare.append(&mut list.slots);
                std::mem::swap(&mut list.slots, &mut spare);
            }
        }
        // Read under the lock (E2).
        let told = entry.node.counter.is_offline().then_some(Wake::All);
        let ticket = list.put(Entry { told, ..entry });
        // Before the old places are freed.
        drop(list);
        ticket
    }

    /// Ends the waits of `top`, of the groups below, and those at `top`. Returns how many were told now.
    pub(crate) fn wake_within(&self, top: &'static Node) -> usize {
        let mut list = self.list.lock();
        let waits = list.slots.iter_mut().filter_map(Slot::entry);
        let ours = waits.filter(|entry| entry.node.is_within(top) || std::ptr::eq(entry.at, top));
        ours.map(|entry| usize::from(entry.tell(Wake::All))).sum()
    }

    /// Calls `visit` with each wait, under the lock.
    pub(crate) fn each(&self, visit: impl FnMut(&mut Entry)) {
        self.list.lock().slots.iter_mut().filter_map(Slot::entry).for_each(visit);
    }

    /// Whether a wait is armed. A wait that is not seen here sees the counts that the caller wrote before.
    pub(crate) fn is_armed(&self) -> bool {
        if !mutation::active(Mutation::EventLooksWithoutFence) {
            // ORDERING: SeqCst fence; pairs with the one in `Listed::arm` (E3). Weaker, this load could come before the caller's counts can
            // be seen. The waiter would then see no count and the event no waiter, and the waiter would sleep on.
            fence(Ordering::SeqCst);
        }
        // ORDERING: Relaxed; after the fence.
        self.armed.load(Ordering::Relaxed) > 0
    }

    /// Disarms and notifies the armed waits that `concerns` names, by their group and target.
    pub(crate) fn wake_armed(&self, concerns: impl Fn(&'static Node, Target) -> bool) {
        for slot in &mut self.list.lock().slots {
            if let Slot::Used(entry) = slot
                && entry.is_armed
                && entry.target.is_some_and(|target| concerns(entry.node, target))
            {
                self.disarm(entry);
                entry.tell(Wake::Notified);
            }
        }
    }

    fn disarm(&self, entry: &mut Entry) {
        if std::mem::replace(&mut entry.is_armed, false) {
            // ORDERING: Relaxed; changed under the lock. An event that does not see it yet takes the lock in vain.
            self.armed.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Names one wait, also after its end. An earlier wait has the lesser ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket {
    number: u64,
    place: usize,
}

impl Ticket {
    /// Ends one `park` of the wait: this one or the next. Does nothing after the end of the wait.
    pub(crate) fn notify(self, shared: &'static Shared) {
        if let Some(entry) = shared.waits().list.lock().entry(self) {
            entry.tell(Wake::Notified);
        }
    }
}

/// A wait of this thread, which is over when this is dropped.
pub(crate) struct Listed {
    node: &'static Node,
    ticket: Ticket,
    deadline: Instant,
    target: Option<Target>,
    /// The thread is stalled meanwhile, unless it waits for events.
    _stall: Option<Stall>,
    here: PhantomData<*const ()>,
}

/// Begins a wait of this thread for a group, at that group.
#[cfg(test)]
pub(crate) fn begin(node: &'static Node, kind: WaitKind, bytes: u64, deadline: Instant) -> Listed {
    begin_at(node, node, kind, bytes, deadline)
}

/// Begins a wait of this thread for a group, at that group or one above. The caller holds the node until the wait is over.
pub(crate) fn begin_at(
    node: &'static Node,
    at: &'static Node,
    kind: WaitKind,
    bytes: u64,
    deadline: Instant,
) -> Listed {
    begin_for(node, at, kind, bytes, deadline, None)
}

/// Begins a wait of this thread for events, which is not armed yet.
pub(crate) fn begin_for_events(node: &'static Node, target: Target, deadline: Instant) -> Listed {
    begin_for(node, node, WaitKind::Event, 0, deadline, Some(target))
}

fn begin_for(
    node: &'static Node,
    at: &'static Node,
    kind: WaitKind,
    bytes: u64,
    deadline: Instant,
    target: Option<Target>,
) -> Listed {
    let (thread, since) = (thread::current(), Instant::now());
    let entry = Entry {
        node,
        at,
        kind,
        bytes,
        since,
        deadline,
        target,
        is_armed: false,
        number: 0,
        thread,
        told: None,
    };
    let ticket = node.shared().waits().put(entry);
    if let Some(Target::Group(_)) = target {
        node.events().watch();
    }
    let stall = (kind != WaitKind::Event).then(|| pressure::stall_that_lasts(node));
    Listed { node, ticket, deadline, target, _stall: stall, here: PhantomData }
}

impl Listed {
    /// Sets another deadline.
    pub(crate) fn postpone(&self, deadline: Instant) {
        self.with(|entry| entry.deadline = deadline);
    }

    /// The ticket by which others notify it.
    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Whether all waits of the group were ended.
    pub(crate) fn is_called_off(&self) -> bool {
        self.with(|entry| entry.told == Some(Wake::All))
    }

    /// From now on the next event notifies it. The caller looks at the counts afterwards.
    pub(crate) fn arm(&self) {
        self.with(|entry| {
            if !std::mem::replace(&mut entry.is_armed, true) {
                // ORDERING: Relaxed; before the fence below.
                self.node.shared().waits().armed.fetch_add(1, Ordering::Relaxed);
            }
        });
        interleave::point();
        // ORDERING: SeqCst fence; pairs with the one in `Waits::is_armed` (E3). Weaker, the caller's look at the counts could come before this
        // wait can be seen.
        fence(Ordering::SeqCst);
    }

    /// Sleeps until it is notified, woken with all others, or the earlier of `until` and its deadline.
    pub(crate) fn park(&self, until: Instant) -> Wake {
        let until = until.min(self.deadline);
        loop {
            if let Some(wake) = self.with(Entry::take_told) {
                return wake;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Wake::Deadline;
            }
            thread::park_timeout(left);
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Entry) -> T) -> T {
        let mut list = self.node.shared().waits().list.lock();
        act(list.entry(self.ticket).expect("a wait is in the list until its end"))
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        if crate::observe::wait::is_model_failing() {
            return;
        }
        if let Some(Target::Group(_)) = self.target {
            self.node.events().unwatch();
        }
        let waits = self.node.shared().waits();
        let mut list = waits.list.lock();
        list.entry(self.ticket).into_iter().for_each(|entry| waits.disarm(entry));
        let free = list.free.replace(self.ticket.place);
        let ended = std::mem::replace(&mut list.slots[self.ticket.place], Slot::Free(free));
        drop(list);
        // The thread's handle is freed without the lock (I4).
        drop(ended);
    }
}

impl Part for Waits {}

static WAITS: Key<Waits> = Key::new(2, Waits::new);

impl Shared {
    /// The list of waits.
    pub(crate) fn waits(&self) -> &Waits {
        self.parts.get(&WAITS)
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use std::time::Duration;

    use crate::observe::wait::list::*;
    use crate::{Config, Hierarchy};

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(5)
    }

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    #[test]
    fn does_not_sleep_when_notified_before_and_once_for_each_notice() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let group = hierarchy.create("/group").unwrap();
        let listed = begin(group.node(), WaitKind::Event, 0, far());
        let ticket = listed.ticket();
        ticket.notify(group.node().shared());
        ticket.notify(group.node().shared());
        assert_eq!(listed.park(far()), Wake::Notified);
        assert_eq!(listed.park(soon()), Wake::Deadline);
        drop(listed);
        let next = begin(group.node(), WaitKind::Event, 0, soon());
        ticket.notify(group.node().shared());
        assert_eq!(next.park(soon()), Wake::Deadline, "the notice is of a wait that is over");
    }

    #[test]
    fn sleeps_on_when_unparked_for_another_reason() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let listed = begin(hierarchy.root().node(), WaitKind::Event, 0, soon());
        thread::current().unpark();
        let until = soon();
        assert_eq!(listed.park(until), Wake::Deadline);
        assert!(Instant::now() >= until.min(listed.deadline));
    }

    #[test]
    fn ends_with_a_removal_before_or_after_it_begins() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let group = hierarchy.create("/group").unwrap();
        let before = begin(group.node(), WaitKind::Throttle, 0, far());
        group.remove().unwrap();
        let after = begin(group.node(), WaitKind::Throttle, 0, far());
        for listed in [before, after] {
            assert!(listed.is_called_off());
            assert_eq!([listed.park(far()), listed.park(far())], [Wake::All; 2]);
        }
    }

    #[test]
    fn grows_beyond_its_first_places() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let group = hierarchy.create("/group").unwrap();
        let places = hierarchy.root().node().shared().waits().list.lock().slots.capacity();
        let waits: Vec<Listed> =
            (0..places + 3).map(|_| begin(group.node(), WaitKind::Shrinker, 7, far())).collect();
        assert_eq!((group.waiters().now, hierarchy.root().waiters().now), (places + 3, places + 3));
        assert_eq!((hierarchy.waits().len(), group.wake_waiters()), (places + 3, places + 3));
        drop(waits);
        assert_eq!((hierarchy.waits().len(), hierarchy.root().waiters().now), (0, 0));
    }
}
