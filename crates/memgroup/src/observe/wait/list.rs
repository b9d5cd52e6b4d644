//! List of waits: every wait in a hierarchy, from its beginning to its end, except charges that wait for room (`charges`).
//!
//! ```text
//!   begin ──▶ in the list ── park ──▶ Notified | All | Deadline ── park ... ──▶ dropped: out of the list
//!                  ▲
//!                  └── notify (one wait) · wake_armed (waits for events) · wake_within (all waits of a subtree)
//!
//!   told: a thread is unparked at once; a task is untold, until a reclaimer takes its waker and calls it without the lock (`tasks`)
//!
//!   event    counts ── fence ── is a wait armed? ── no: done
//!                                        └───────── yes: the list, under its lock ── disarm, notify
//!   waiter   armed ── fence ── counts ── park ── ...
//! ```
//!
//! A wait for events or for a trigger is armed for one notice. So a storm of events takes the lock once for each wait, and not once for each event.
//!
//! - I1. A wait is in the list from `begin` to the drop of its `Place`, and has a deadline.
//! - I2. `Wake::All` stays: each further `park` returns it at once. A notice is for one `park`, or for one poll of a task.
//! - I3. The list has room for 1,024 waits of a hierarchy at a time. It grows for further ones, without its lock.
//! - I4. The lock of the list is the last in the order of locks. A thread that holds it unparks threads, and calls, locks, allocates and frees
//!   nothing else. It calls, clones and drops no waker of a task: those are the user's code. So an event may be counted, and a waiter notified, inside an allocator and under the tree lock.
//! - E1. `notify`, `wake_within` → `park`: the notice is under the lock, and the thread is unparked after it is there. Loom: the models of
//!   `reclaim::queue`.
//! - E2. A removal marks the group offline, then goes through the list. A wait enters the list, then checks the mark. Both are under the lock, so no
//!   wait of a removed group sleeps.
//! - E3. An event ↔ `Place::arm`: see `event` E1. A firing ↔ `Place::arm`: see `pressure::trigger` I3.

mod place;

use std::time::Instant;

use memgroup_sync::atomic::{AtomicU32, Ordering, fence};
use memgroup_sync::{Mutex, depth};

use crate::base::mutation::{self, Mutation};
#[cfg(test)]
pub(crate) use crate::observe::wait::list::place::begin;
pub(crate) use crate::observe::wait::list::place::{Listed, Place, Wait, begin_at, begin_for_events};
use crate::observe::wait::party::{Party, Wakers};
use crate::observe::wait::{WaitKind, Wake};
use crate::state::stats::Reach;
use crate::tree::node::Node;
use crate::tree::parts::{HierarchyPart, Key, Part};
use crate::tree::shared::Shared;

/// Waits for which the list allocates in advance.
const PLACES: usize = if cfg!(memgroup_loom) { 4 } else { 1024 };

/// The events that notify a wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// Events of its group.
    Group(Reach),
    /// The firing of the trigger with its state at this address, or the begin of a stall for which it dozes.
    Trigger(usize),
    /// Tasks that are untold. Such a wait is of a reclaimer, and in no report.
    Untold,
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
    party: Party,
    told: Option<Wake>,
    /// A task that was told. A reclaimer is to call its waker.
    is_untold: bool,
    /// When a reclaimer tells the task to look again.
    look_at: Option<Instant>,
    /// The waits that began just before and just after it, of those that are not over.
    older: usize,
    newer: usize,
}

/// No place of the list.
const NONE: usize = usize::MAX;

impl Entry {
    /// Tells the party that waits. Returns whether it had not been told so.
    fn tell(&mut self, wake: Wake) -> bool {
        let is_news = self.told.is_none() || (self.told == Some(Wake::Notified) && wake != Wake::Notified);
        if is_news {
            self.told = Some(wake);
            match &self.party {
                Party::Thread(thread) => thread.unpark(),
                Party::Task(_) => self.is_untold = true,
            }
        }
        is_news
    }

    /// Whether it is of a group, and not of the whole hierarchy.
    fn is_of_a_group(&self) -> bool {
        self.target != Some(Target::Untold)
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
    fn any(&mut self) -> Option<&mut Entry> {
        match self {
            Slot::Used(entry) => Some(entry),
            Slot::Free(_) => None,
        }
    }
}

pub(super) struct List {
    slots: Vec<Slot>,
    free: Option<usize>,
    next: u64,
    /// The waits that are not over, linked by their places: others are not visited, however many there were.
    oldest: usize,
    newest: usize,
    /// How many tasks are untold, and the wait at which the search for the next one begins; the oldest where there is none.
    untold: usize,
    cursor: usize,
    /// Waits that were visited.
    #[cfg(test)]
    visits: u64,
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
        (entry.older, entry.newer) = (self.newest, NONE);
        match self.newest {
            NONE => self.oldest = place,
            newest => self.link(newest, |entry| entry.newer = place),
        }
        self.newest = place;
        match self.slots.get_mut(place) {
            Some(slot) => {
                let taken = std::mem::replace(slot, Slot::Used(entry));
                self.free = if let Slot::Free(next) = taken { next } else { None };
            }
            None => self.slots.push(Slot::Used(entry)),
        }
        Ticket { number, place }
    }

    fn link(&mut self, place: usize, change: impl Fn(&mut Entry)) {
        self.slots.get_mut(place).and_then(Slot::any).into_iter().for_each(change);
    }

    /// Visits the waits, the oldest first, until `visit` returns `false`.
    fn each(&mut self, mut visit: impl FnMut(&mut Entry) -> bool) {
        let mut place = self.oldest;
        while let Some(entry) = self.slots.get_mut(place).and_then(Slot::any) {
            #[cfg(test)]
            (self.visits += 1);
            if !visit(entry) {
                return;
            }
            place = entry.newer;
        }
    }

    fn entry(&mut self, ticket: Ticket) -> Option<&mut Entry> {
        match self.slots.get_mut(ticket.place)? {
            Slot::Used(entry) => Some(entry).filter(|entry| entry.number == ticket.number),
            Slot::Free(_) => None,
        }
    }

    /// A wait that is not over.
    fn listed(&mut self, ticket: Ticket) -> &mut Entry {
        self.entry(ticket).expect("a wait is in the list until its end")
    }

    /// Tells the waits that are meant, and a reclaimer if tasks are among them. Returns how many were told now.
    fn tell(&mut self, wake: Wake, mut is_meant: impl FnMut(&mut Entry) -> bool) -> usize {
        let (mut told, mut untold) = (0, 0);
        self.each(|entry| {
            if is_meant(entry) {
                let was_untold = entry.is_untold;
                told += usize::from(entry.tell(wake));
                untold += usize::from(entry.is_untold && !was_untold);
            }
            true
        });
        self.untold += untold;
        if self.untold > 0 {
            self.wake_reclaimer();
        }
        told
    }

    /// Wakes a reclaimer that sleeps, if one does. The others look for untold tasks before they sleep.
    fn wake_reclaimer(&mut self) {
        self.each(|entry| {
            let sleeps = entry.target == Some(Target::Untold) && entry.told.is_none();
            if sleeps {
                entry.tell(Wake::Notified);
            }
            !sleeps
        });
    }

    /// Takes the wakers of tasks that are untold, as many as are called at a time.
    pub(super) fn take_wakers(&mut self) -> Wakers {
        let mut wakers = Wakers::new();
        while self.untold > 0 && !wakers.is_full() {
            if self.cursor == NONE {
                self.cursor = self.oldest;
            }
            let Some(entry) = self.slots.get_mut(self.cursor).and_then(Slot::any) else { break };
            self.cursor = entry.newer;
            if std::mem::take(&mut entry.is_untold) {
                self.untold -= 1;
                wakers.push(std::mem::replace(&mut entry.party, Party::told()));
            }
        }
        wakers
    }

    /// Tells the tasks that were to look again by `now`. Returns when the next one is.
    pub(super) fn tell_late(&mut self, now: Instant) -> Option<Instant> {
        self.tell(Wake::Notified, |entry| entry.look_at.take_if(|at| *at <= now).is_some());
        let mut first: Option<Instant> = None;
        self.each(|entry| {
            first = first.into_iter().chain(entry.look_at).min();
            true
        });
        first
    }

    /// Takes a wait off the list.
    fn end(&mut self, ticket: Ticket, waits: &Waits) -> Slot {
        let free = self.free.replace(ticket.place);
        let mut ended = std::mem::replace(&mut self.slots[ticket.place], Slot::Free(free));
        if let Slot::Used(entry) = &mut ended {
            waits.disarm(entry);
            self.untold -= usize::from(entry.is_untold);
            let &mut Entry { older, newer, .. } = entry;
            if self.cursor == ticket.place {
                self.cursor = newer;
            }
            match older {
                NONE => self.oldest = newer,
                older => self.link(older, |entry| entry.newer = newer),
            }
            match newer {
                NONE => self.newest = older,
                newer => self.link(newer, |entry| entry.older = older),
            }
        }
        ended
    }

    /// Tells all tasks.
    pub(super) fn tell_tasks(&mut self, wake: Wake) {
        self.tell(wake, |entry| matches!(entry.party, Party::Task(_)));
    }

    /// A reclaimer is told of untold tasks from now on, or is awake.
    pub(super) fn set_asleep(&mut self, ticket: Ticket, is_asleep: bool) {
        self.listed(ticket).told = (!is_asleep).then_some(Wake::Notified);
    }

    /// Wakes a reclaimer that sleeps, if a task is to look again later.
    pub(super) fn hand_on(&mut self) {
        let mut is_any = false;
        self.each(|entry| {
            is_any |= entry.look_at.is_some();
            !is_any
        });
        if is_any {
            self.wake_reclaimer();
        }
    }

    /// Has a reclaimer tell the task at that moment, or earlier.
    fn look_again(&mut self, ticket: Ticket, at: Instant) {
        let entry = self.listed(ticket);
        entry.look_at = entry.look_at.into_iter().chain([at]).min();
        self.wake_reclaimer();
    }

    /// A task that polls has another waker, and is told no more: it looks itself. Returns the waker before, and the reason why it was woken.
    fn renew(&mut self, ticket: Ticket, waker: Party) -> (Party, Option<Wake>) {
        let entry = self.listed(ticket);
        let was_untold = std::mem::take(&mut entry.is_untold);
        entry.look_at = None;
        let told = entry.take_told();
        let keeps = mutation::active(Mutation::FutureKeepsItsFirstWaker);
        let before = if keeps { waker } else { std::mem::replace(&mut entry.party, waker) };
        self.untold -= usize::from(was_untold);
        (before, told)
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
        let list = List {
            slots: Vec::with_capacity(PLACES),
            free: None,
            next: 0,
            oldest: NONE,
            newest: NONE,
            untold: 0,
            cursor: NONE,
            #[cfg(test)]
            visits: 0,
        };
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
        self.list.lock().tell(Wake::All, |entry| {
            entry.is_of_a_group() && (entry.node.is_within(top) || std::ptr::eq(entry.at, top))
        })
    }

    /// Calls `visit` with each wait, under the lock.
    pub(crate) fn each(&self, mut visit: impl FnMut(&mut Entry)) {
        self.list.lock().each(|entry| {
            if entry.is_of_a_group() {
                visit(entry);
            }
            true
        });
    }

    /// Whether a wait is armed. A wait that is not seen here sees the counts that the caller wrote before.
    pub(crate) fn is_armed(&self) -> bool {
        if !mutation::active(Mutation::EventLooksWithoutFence) {
            // ORDERING: SeqCst fence; pairs with the one in `Place::arm` (E3). Weaker, this load could come before the caller's counts can
            // be seen. The waiter would then see no count and the event no waiter, and the waiter would sleep on.
            fence(Ordering::SeqCst);
        }
        // ORDERING: Relaxed; after the fence.
        self.armed.load(Ordering::Relaxed) > 0
    }

    /// Disarms and notifies the armed waits that `concerns` names, by their group and target.
    pub(crate) fn wake_armed(&self, concerns: impl Fn(&'static Node, Target) -> bool) {
        self.list.lock().tell(Wake::Notified, |entry| {
            let is_meant = entry.is_armed && entry.target.is_some_and(|target| concerns(entry.node, target));
            if is_meant {
                self.disarm(entry);
            }
            is_meant
        });
    }

    #[cfg(all(test, memgroup_loom))]
    pub(crate) fn is_empty(&self) -> bool {
        let list = self.list.lock();
        let is_free = list.slots.iter().all(|slot| matches!(slot, Slot::Free(_)));
        // ORDERING: Relaxed; changed under the lock.
        is_free && list.untold == 0 && self.armed.load(Ordering::Relaxed) == 0
    }

    /// Acts on the list, under its lock.
    pub(super) fn with_list<T>(&self, act: impl FnOnce(&mut List) -> T) -> T {
        act(&mut self.list.lock())
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

impl Part for Waits {}

static WAITS: Key<HierarchyPart, Waits> = Key::new(HierarchyPart::Waits, Waits::new);

impl Shared {
    /// The list of waits.
    pub(crate) fn waits(&self) -> &Waits {
        self.parts.get(&WAITS)
    }
}

#[cfg(all(test, not(memgroup_loom)))]
#[path = "list/tests.rs"]
mod tests;
