//! List of waits: every wait in a hierarchy, from its beginning to its end, except charges that
//! wait for room (`charges`).
//!
//! ```text
//!   begin ──▶ in the list ── park ──▶ Notified | All | Deadline ── park ... ──▶ dropped: out of the list
//!                  ▲
//!                  └── notify (one wait) · wake_armed (waits for events) · wake_within (all waits of a subtree)
//!
//!   notified: a thread is unparked at once; the waker of a task goes to a queue, and a reclaimer calls it
//!
//!   event    counts ── fence ── is a wait armed? ── no: done
//!                                        └───────── yes: the list, under its lock ── disarm, notify
//!   waiter   armed ── fence ── counts ── park ── ...
//! ```
//!
//! A wait for events or for a trigger is armed for one notice. So a storm of events takes the lock
//! once for each wait, and not once for each event.
//!
//! - I1. A wait is in the list from `begin` to the drop of its `Place`, and has a deadline.
//! - I2. `Wake::All` stays: each further `park` returns it at once. A notice is for one `park`, or
//!   for one poll of a task.
//! - I3. An event may be counted, and a waiter notified, inside an allocator and under the tree
//!   lock. So a notice allocates nothing, and under the lock no waker is called, cloned or
//!   dropped: those are the user's code. Only the lock of the reclaimers is taken under it.
//! - E1. `notify`, `wake_within` → `park`: the notice is under the lock, and the thread is
//!   unparked after it is there. Loom: the models of `reclaim::queue`.
//! - E2. A removal marks the group offline, then goes through the list. A wait enters the list,
//!   then checks the mark. Both are under the lock, so no wait of a removed group sleeps.
//! - E3. An event ↔ `Place::arm`: see `event` E1. A firing ↔ `Place::arm`: see `pressure::trigger`
//!   I3.

mod place;

use std::collections::BTreeSet;
use std::time::Instant;

use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicU32, Ordering, fence};

use crate::base::mutation::{self, Mutation};
#[cfg(test)]
pub(crate) use crate::observe::wait::list::place::begin;
pub(crate) use crate::observe::wait::list::place::{Listed, Place, Wait, begin_at, wait_for};
use crate::observe::wait::party::{Party, WakeQueue, Wakers};
use crate::observe::wait::reclaimers::Reclaimers;
use crate::observe::wait::table::Table;
use crate::observe::wait::{WaitKind, Wake};
use crate::tree::node::Node;
use crate::tree::parts::{HierarchyPart, Key, Part};
use crate::tree::shared::Shared;

/// The events that notify a wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// Events of its group and of those below it.
    Group,
    /// The firing of the trigger with its state at this address, or the begin of a stall for which
    /// it dozes.
    Trigger(usize),
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
    party: Party,
    wake: Option<Wake>,
    /// When a reclaimer has the task look again.
    look_at: Option<Instant>,
}

impl Entry {
    /// Notifies the party that waits. Returns whether it had not been notified so.
    fn notify(&mut self, wake: Wake, wakers: &mut WakeQueue) -> bool {
        let is_news = self.wake.is_none() || (self.wake == Some(Wake::Notified) && wake != Wake::Notified);
        if is_news {
            self.wake = Some(wake);
            wakers.notify(&mut self.party);
        }
        is_news
    }

    fn take_wake(&mut self) -> Option<Wake> {
        let wake = self.wake;
        self.wake = wake.filter(|wake| *wake != Wake::Notified);
        wake
    }
}

struct List {
    waits: Table<Entry>,
    wakers: WakeQueue,
    /// The tasks that a reclaimer has look again, and when.
    looks: BTreeSet<(Instant, Ticket)>,
}

impl List {
    /// Returns a wait that is not over.
    fn listed(&mut self, Ticket(number): Ticket) -> &mut Entry {
        self.waits.get_mut(number).expect("a wait is in the list until its end")
    }

    /// Takes a wait off the list.
    fn end(&mut self, ticket: Ticket) -> Option<Entry> {
        self.looks_no_more(ticket);
        self.waits.remove(ticket.0)
    }

    /// Has a reclaimer notify the task at that moment, or earlier.
    fn look_again(&mut self, ticket: Ticket, at: Instant) {
        let entry = self.listed(ticket);
        if entry.look_at.is_none_or(|before| at < before) {
            self.looks_no_more(ticket);
            self.listed(ticket).look_at = Some(at);
            self.looks.insert((at, ticket));
        }
    }

    fn looks_no_more(&mut self, ticket: Ticket) {
        let at = self.listed(ticket).look_at.take();
        at.into_iter().for_each(|at| _ = self.looks.remove(&(at, ticket)));
    }

    /// A task that polls has another waker, and looks itself. Returns the waker before, and the
    /// reason why it was woken.
    fn renew(&mut self, ticket: Ticket, waker: Party) -> (Party, Option<Wake>) {
        self.wakers.reserve(self.waits.len());
        self.looks_no_more(ticket);
        let entry = self.listed(ticket);
        let wake = entry.take_wake();
        let keeps = mutation::active(Mutation::FutureKeepsItsFirstWaker);
        let before = if keeps { waker } else { std::mem::replace(&mut entry.party, waker) };
        (before, wake)
    }
}

/// The waits of one hierarchy, and its reclaimers.
pub(crate) struct Waits {
    list: Mutex<List>,
    /// Waits that are armed.
    armed: AtomicU32,
    pub(crate) reclaimers: Reclaimers,
}

impl Waits {
    pub(crate) fn new() -> Waits {
        let list = List { waits: Table::new(), wakers: WakeQueue::new(), looks: BTreeSet::new() };
        Waits { list: Mutex::new(list), armed: AtomicU32::new(0), reclaimers: Reclaimers::new() }
    }

    /// Adds a wait.
    fn put(&self, mut entry: Entry) -> Ticket {
        let mut list = self.list.lock();
        // Read under the lock (E2).
        entry.wake = entry.node.counter.is_offline().then_some(Wake::All);
        Ticket(list.waits.add(entry))
    }

    /// Notifies the waits that are meant, and a reclaimer if tasks are among them. Returns how
    /// many had not been notified so.
    fn notify(&self, wake: Wake, mut is_meant: impl FnMut(&mut Entry) -> bool) -> usize {
        let mut list = self.list.lock();
        let List { waits, wakers, .. } = &mut *list;
        let notified =
            waits.values_mut().filter_map(|entry| is_meant(entry).then(|| entry.notify(wake, wakers)));
        let notified = notified.filter(|is_news| *is_news).count();
        if !list.wakers.is_empty() {
            self.reclaimers.wake_one();
        }
        notified
    }

    /// Ends the waits of `top`, of the groups below, and those at `top`. Returns how many were
    /// ended now.
    pub(crate) fn wake_within(&self, top: &'static Node) -> usize {
        self.notify(Wake::All, |entry| entry.node.is_within(top) || std::ptr::eq(entry.at, top))
    }

    /// No reclaimer is left: ends the waits of all tasks, and calls their wakers. The caller holds
    /// no other lock.
    pub(crate) fn desert_tasks(&self) {
        if !mutation::active(Mutation::LastReclaimerLeavesTasks) {
            self.notify(Wake::Deserted, |entry| entry.party.is_task());
        }
        self.call_wakers();
    }

    /// Calls `visit` with each wait, under the lock.
    pub(crate) fn each(&self, visit: impl FnMut(&Entry)) {
        self.list.lock().waits.values().for_each(visit);
    }

    /// Returns whether a wait is armed. A wait that is not seen here sees the counts that the
    /// caller wrote before.
    pub(crate) fn is_armed(&self) -> bool {
        if !mutation::active(Mutation::EventLooksWithoutFence) {
            // ORDERING: SeqCst fence; pairs with the one in `Place::arm` (E3). Weaker, this load
            // could come before the caller's counts can be seen. The waiter would then see no count
            // and the event no waiter, and the waiter would sleep on.
            fence(Ordering::SeqCst);
        }
        // ORDERING: Relaxed; after the fence.
        self.armed.load(Ordering::Relaxed) > 0
    }

    /// Disarms and notifies the armed waits that `concerns` names, by their group and target.
    pub(crate) fn wake_armed(&self, concerns: impl Fn(&'static Node, Target) -> bool) {
        self.notify(Wake::Notified, |entry| {
            let is_meant = entry.is_armed && entry.target.is_some_and(|target| concerns(entry.node, target));
            if is_meant {
                self.disarm(entry);
            }
            is_meant
        });
    }

    fn disarm(&self, entry: &mut Entry) {
        if std::mem::replace(&mut entry.is_armed, false) {
            // ORDERING: Relaxed; changed under the lock. An event that does not see it yet takes
            // the lock in vain.
            self.armed.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Notifies the tasks that were to look again by `now`. Takes wakers of tasks that were
    /// notified, and returns when the next one looks again.
    pub(crate) fn take_wakers(&self, now: Instant) -> (Wakers, Option<Instant>) {
        let mut list = self.list.lock();
        while let Some(&(at, ticket)) = list.looks.first()
            && at <= now
        {
            list.looks_no_more(ticket);
            let List { waits, wakers, .. } = &mut *list;
            waits.get_mut(ticket.0).into_iter().for_each(|entry| _ = entry.notify(Wake::Notified, wakers));
        }
        (list.wakers.take(), list.looks.first().map(|&(at, _)| at))
    }

    /// Calls the wakers of all tasks that were notified. The caller holds no lock.
    pub(crate) fn call_wakers(&self) {
        loop {
            let wakers = self.list.lock().wakers.take();
            if wakers.is_empty() {
                return;
            }
            wakers.call();
        }
    }

    #[cfg(all(test, memgroup_loom))]
    pub(crate) fn is_empty(&self) -> bool {
        let list = self.list.lock();
        // ORDERING: Relaxed; changed under the lock.
        list.waits.len() == 0 && list.looks.is_empty() && self.armed.load(Ordering::Relaxed) == 0
    }
}

/// Names one wait, also after its end. An earlier wait has the lesser ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

impl Ticket {
    /// Ends one `park` of the wait: this one or the next. Does nothing after the end of the wait.
    pub(crate) fn notify(self, shared: &'static Shared) {
        let mut list = shared.waits().list.lock();
        let List { waits, wakers, .. } = &mut *list;
        waits.get_mut(self.0).into_iter().for_each(|entry| _ = entry.notify(Wake::Notified, wakers));
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
