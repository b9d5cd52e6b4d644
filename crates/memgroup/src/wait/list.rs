//! List: every wait there is in a hierarchy, from its beginning to its end.
//!
//! ```text
//!   begin ──▶ in the list ── park ──▶ Notified | All | Deadline ── park ... ──▶ dropped: out of the list
//!                  ▲
//!                  └── notify (one wait) · wake_within (all of a subtree)
//! ```
//!
//! - I1. A wait is in the list from `begin` to the drop of its `Listed`, and has a deadline.
//! - I2. Being woken with all others is for good: each further `park` returns it at once. A notice is for one `park`.
//! - I3. A wait of a seat allocates nothing: it takes a place of those that the list was made with. Where they are taken it is counted, is not woken with others, and
//!   ends with its deadline. The list grows for all other kinds, whose caller has said that it may wait.
//! - I4. The lock of the list is taken last of all: nothing is called and nothing else is locked under it.
//! - E1. `notify`, `wake_within` → `park`: what is told is under the lock, and the thread is unparked after it is there. Loom: the models of `line`.
//! - E2. A group that is removed: mark offline → look through the list; put into the list → look for the mark. Both under the lock, so no wait of a removed group sleeps.

use std::marker::PhantomData;
use std::time::Instant;

use memgroup_sync::Mutex;
use memgroup_sync::thread::{self, Thread};

use super::line::Line;
use super::{WaitKind, Wake, count_unlisted};
use crate::node::Node;
use crate::pressure::{self, Stall};
use crate::shared::Shared;

/// Places for waits that must not allocate.
const PLACES: usize = if cfg!(memgroup_loom) { 4 } else { 1024 };

/// One wait.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) node: &'static Node,
    /// The group at which it waits: its own, or one above that has no room.
    pub(super) at: &'static Node,
    pub(super) kind: WaitKind,
    pub(super) bytes: u64,
    pub(super) since: Instant,
    pub(super) deadline: Instant,
    number: u64,
    thread: Thread,
    told: Option<Wake>,
}

impl Entry {
    /// Tells the waiting thread; whether that is news to it. Where another way to be notified is wanted, as a task's waker, it belongs here.
    fn tell(&mut self, wake: Wake) -> bool {
        let is_news = self.told.is_none() || (self.told == Some(Wake::Notified) && wake == Wake::All);
        if is_news {
            self.told = Some(wake);
            self.thread.unpark();
        }
        is_news
    }
}

/// The waits of one hierarchy.
struct List {
    entries: Vec<Option<Entry>>,
    /// Places of `entries` that nobody has; it has room for all.
    free: Vec<usize>,
    next: u64,
}

impl List {
    /// A place for one more; `None` if there is none and none may be made.
    fn place(&mut self, may_grow: bool) -> Option<usize> {
        if let Some(place) = self.free.pop() {
            return Some(place);
        }
        if self.entries.len() == self.entries.capacity() && !may_grow {
            return None;
        }
        self.entries.push(None);
        self.free.reserve(self.entries.len());
        Some(self.entries.len() - 1)
    }

    fn entry(&mut self, ticket: Ticket) -> Option<&mut Entry> {
        self.entries.get_mut(ticket.place)?.as_mut().filter(|entry| entry.number == ticket.number)
    }
}

/// See the module.
pub(crate) struct Waits {
    list: Mutex<List>,
    /// Charges that wait for room. Locked before the list.
    pub(super) line: Mutex<Line>,
}

impl Waits {
    pub(crate) fn new() -> Waits {
        let (entries, free) = (Vec::with_capacity(PLACES), Vec::with_capacity(PLACES));
        Waits { list: Mutex::new(List { entries, free, next: 0 }), line: Line::new() }
    }

    /// The waits of `top` and of the groups below, and those at `top`; how many were told now.
    pub(super) fn wake_within(&self, top: &'static Node) -> usize {
        let mut list = self.list.lock();
        let waits = list.entries.iter_mut().flatten();
        let ours = waits.filter(|entry| entry.node.is_within(top) || std::ptr::eq(entry.at, top));
        ours.map(|entry| usize::from(entry.tell(Wake::All))).sum()
    }

    /// Looks at each wait, under the lock.
    pub(super) fn each(&self, look: impl FnMut(&Entry)) {
        self.list.lock().entries.iter().flatten().for_each(look);
    }
}

/// Names one wait, also when it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    place: usize,
    number: u64,
}

impl Ticket {
    /// Ends the wait's `park`, this one or the next; nothing, if it is over.
    pub(crate) fn notify(self, shared: &'static Shared) {
        if let Some(entry) = shared.waits.list.lock().entry(self) {
            entry.tell(Wake::Notified);
        }
    }
}

/// A wait of this thread; it is over when this is dropped.
pub(crate) struct Listed {
    node: &'static Node,
    /// `None`: there was no place for it.
    ticket: Option<Ticket>,
    deadline: Instant,
    /// The thread is stalled meanwhile; not who waits for news.
    _stall: Option<Stall>,
    here: PhantomData<*const ()>,
}

/// A wait of this thread begins: of `node`, and at it unless [`Listed::at`] says otherwise. The caller holds the node until it is over.
pub(crate) fn begin(node: &'static Node, kind: WaitKind, bytes: u64, deadline: Instant) -> Listed {
    let (thread, since) = (thread::current(), Instant::now());
    let mut list = node.shared.waits.list.lock();
    let ticket = list.place(kind != WaitKind::Seat).map(|place| {
        let number = list.next;
        list.next += 1;
        // Looked at under the lock (E2).
        let told = node.counter.is_offline().then_some(Wake::All);
        list.entries[place] =
            Some(Entry { node, at: node, kind, bytes, since, deadline, number, thread, told });
        Ticket { place, number }
    });
    drop(list);
    if ticket.is_none() {
        count_unlisted(node, true);
    }
    let stall = (kind != WaitKind::Event).then(|| pressure::stall_that_lasts(node));
    Listed { node, ticket, deadline, _stall: stall, here: PhantomData }
}

impl Listed {
    /// It waits at `at` from now on.
    pub(crate) fn at(&self, at: &'static Node) {
        self.with(|entry| entry.at = at);
    }

    /// Its deadline is another from now on.
    pub(crate) fn postpone(&self, deadline: Instant) {
        self.with(|entry| entry.deadline = deadline);
    }

    /// What others notify it by; `None` where it has no place in the list.
    pub(crate) fn ticket(&self) -> Option<Ticket> {
        self.ticket
    }

    /// Whether all waits of the group were ended.
    pub(crate) fn is_called_off(&self) -> bool {
        self.with(|entry| entry.told == Some(Wake::All)).unwrap_or(false)
    }

    /// Sleeps until it is notified, woken with all others, or the earlier of `until` and its deadline.
    pub(crate) fn park(&self, until: Instant) -> Wake {
        let until = until.min(self.deadline);
        loop {
            if let Some(wake) = self.with(Entry::take_told).flatten() {
                return wake;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Wake::Deadline;
            }
            thread::park_timeout(left);
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        let ticket = self.ticket?;
        self.node.shared.waits.list.lock().entry(ticket).map(act)
    }
}

impl Entry {
    fn take_told(&mut self) -> Option<Wake> {
        let told = self.told;
        if told == Some(Wake::Notified) {
            self.told = None;
        }
        told
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        if super::is_model_failing() {
            return;
        }
        let Some(ticket) = self.ticket else { return count_unlisted(self.node, false) };
        let mut list = self.node.shared.waits.list.lock();
        list.entries[ticket.place] = None;
        list.free.push(ticket.place);
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Config, Hierarchy};

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(5)
    }

    #[test]
    fn a_wait_that_is_notified_before_it_sleeps_does_not_sleep_and_one_notice_is_for_one_wait() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let group = hierarchy.create("/group").unwrap();
        let listed = begin(group.node(), WaitKind::Event, 0, Instant::now() + Duration::from_secs(3600));
        let ticket = listed.ticket().unwrap();
        ticket.notify(group.node().shared);
        ticket.notify(group.node().shared);
        assert_eq!(listed.park(Instant::now() + Duration::from_secs(3600)), Wake::Notified);
        assert_eq!(listed.park(soon()), Wake::Deadline);
        drop(listed);
        let next = begin(group.node(), WaitKind::Event, 0, soon());
        ticket.notify(group.node().shared);
        assert_eq!(next.park(soon()), Wake::Deadline, "the notice is of a wait that is over");
    }

    #[test]
    fn a_thread_that_is_unparked_for_another_reason_sleeps_on() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let listed = begin(hierarchy.root().node(), WaitKind::Event, 0, soon());
        thread::current().unpark();
        let until = soon();
        assert_eq!(listed.park(until), Wake::Deadline);
        assert!(Instant::now() >= until.min(listed.deadline));
    }

    #[test]
    fn a_wait_of_a_removed_group_is_called_off_whether_it_begins_before_or_after() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let group = hierarchy.create("/group").unwrap();
        let far = Instant::now() + Duration::from_secs(3600);
        let before = begin(group.node(), WaitKind::Throttle, 0, far);
        group.remove().unwrap();
        let after = begin(group.node(), WaitKind::Throttle, 0, far);
        for listed in [before, after] {
            assert!(listed.is_called_off());
            assert_eq!([listed.park(far), listed.park(far)], [Wake::All; 2]);
        }
    }

    #[test]
    fn waits_for_a_seat_take_no_more_places_than_there_are_and_the_rest_is_counted() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let (group, far) = (hierarchy.create("/group").unwrap(), Instant::now() + Duration::from_secs(3600));
        let places = hierarchy.root().node().shared.waits.list.lock().entries.capacity();
        let waits: Vec<Listed> =
            (0..places + 3).map(|_| begin(group.node(), WaitKind::Seat, 7, far)).collect();
        assert_eq!(waits.iter().filter(|wait| wait.ticket().is_none()).count(), 3);
        assert_eq!((group.waiters().now, hierarchy.root().waiters().now), (places + 3, places + 3));
        let grows = begin(group.node(), WaitKind::Event, 0, far);
        assert!(grows.ticket().is_some(), "who said it may wait may allocate");
        assert_eq!((hierarchy.waits().len(), group.wake_waiters()), (places + 1, places + 1));
        drop((waits, grows));
        assert_eq!((hierarchy.waits().len(), hierarchy.root().waiters().now), (0, 0));
        let again = begin(group.node(), WaitKind::Seat, 7, far);
        assert!(again.ticket().is_some(), "the places are there again");
    }
}
