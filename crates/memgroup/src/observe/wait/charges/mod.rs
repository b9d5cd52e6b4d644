//! Charges: every charge that waits in a hierarchy, from the beginning of its wait to its end, and
//! the queues in which they wait.
//!
//! ```text
//!   list ─▶ Idle ── join a queue ─▶ Waiting ── settle ─▶ Handed | Again | Woken | Deserted | Late ── unlist
//!                                   │     ▲                  └─ a thread: unparked at once
//!                                   ▼     │                  └─ a task: its waker is called without the lock
//!                                 Away: room is made for it
//! ```
//!
//! A wait is a thread that is parked, or a task: a future with a waker. It is known by its number.
//! A queue has the numbers in the order of weight, then of arrival.
//!
//! - I1. All of it is under one lock, which is taken before the list of other waits, and after the
//!   tree lock.
//! - I2. Under the lock no waker of a task is called, cloned or dropped: those are the user's
//!   code. A wait that begins or joins a queue may allocate, before it changes anything. To serve,
//!   settle or end a wait allocates nothing.
//! - I3. A wait that is settled is in no queue. Its outcome stays until its party leaves, or joins
//!   another queue.
//! - I4. The thread that settled a task calls its waker, or has a reclaimer do it.
//! - I5. No wait looks for fewer bytes than its queue says (`least`). It may say too few: a search
//!   in vain, which visits all, corrects it.
//! - E1. A removal marks the group offline, then goes through the waits. A wait is listed, then
//!   checks the mark. Both are under the lock, so no wait of a removed group sleeps.

pub(crate) mod deadlines;
pub(crate) mod duties;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::task::Waker;
use std::time::{Duration, Instant};

use memgroup_sync::{Mutex, MutexGuard};

use crate::base::id::NodeId;
use crate::base::mutation::{self, Mutation};
use crate::observe::wait::charges::duties::Service;
pub(crate) use crate::observe::wait::party::Party;
use crate::observe::wait::party::{WakeQueue, Wakers};
use crate::observe::wait::table::Table;
use crate::tree::node::Node;
use crate::tree::parts::{HierarchyPart, Key, Part};
use crate::tree::shared::Shared;

/// Bits of a key that are the number of the wait. Those above are the weight, the heaviest first.
const NUMBER_BITS: u32 = 50;

/// The purpose of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    Charge,
    /// Room alone: nothing is charged, and no group is killed.
    Room,
    /// Room for one byte more, for a group that may be above its limit by forced charges. Nothing
    /// stays charged, but groups may be killed.
    Checkpoint,
}

/// The state of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// In no queue.
    Idle,
    Waiting,
    /// Room is made for it, and others do not serve it.
    Away,
    /// Its charge was made; if it waits for room alone, there was room.
    Handed,
    /// Another level refuses, or this level always will. The party tries again itself; `at` is the
    /// level that refuses.
    Again,
    /// All waits of the group were ended, or it was removed.
    Woken,
    /// No reclaimer is left for a task.
    Deserted,
    /// A task's deadline has passed.
    Late,
}

/// One wait.
pub(crate) struct Entry {
    pub(crate) node: &'static Node,
    /// The group at which it waits: its own, or one above that has no room.
    pub(crate) at: &'static Node,
    pub(crate) bytes: u64,
    /// Nanoseconds of the queues' clock.
    since: u64,
    deadline: u64,
    party: Party,
    /// The weight by which it is in its queue.
    weight: u32,
    pub(crate) state: State,
    pub(crate) want: Want,
    /// How many were served before it while it was the first.
    pub(crate) passed: u8,
    /// A reclaimer has tried to make room for it since it is in this queue.
    pub(crate) is_reviewed: bool,
    /// It is in the order of deadlines.
    is_timed: bool,
}

impl Entry {
    pub(crate) fn is_task(&self) -> bool {
        self.party.is_task()
    }

    pub(crate) fn is_in_queue(&self) -> bool {
        matches!(self.state, State::Waiting | State::Away)
    }

    /// Returns whether `waker` wakes its task.
    pub(crate) fn is_woken_by(&self, waker: &Waker) -> bool {
        self.party.is_woken_by(waker)
    }

    /// Its place in the order of a queue.
    pub(crate) fn key(&self, number: u64) -> u64 {
        (u64::from(u16::MAX >> 2) - u64::from(self.weight)) << NUMBER_BITS | number
    }
}

fn number_of(key: u64) -> u64 {
    key & ((1 << NUMBER_BITS) - 1)
}

/// The queue of one group, and its part in the work of reclaimers.
struct Queue {
    at: &'static Node,
    /// The keys of its waits, and for how many bytes each looks: `u64::MAX` for one that is away.
    order: BTreeMap<u64, u64>,
    /// No wait looks for less (I5).
    least: u64,
    /// Tasks in it.
    tasks: u32,
    service: Service,
    /// It is among those that are reviewed again later.
    is_later: bool,
    /// It holds the mark of its group.
    is_marked: bool,
}

impl Queue {
    /// Makes `least` exact. It looks at the waits up to the first that looks for as little as it
    /// says.
    fn count_least(&mut self) {
        let mut least = u64::MAX;
        for &asks in self.order.values() {
            least = least.min(asks);
            if least <= self.least {
                break;
            }
        }
        self.least = least;
        self.at.counter.set_least_waiting(least);
    }
}

/// All waiting charges of one hierarchy.
pub(crate) struct ChargeQueue {
    waits: Table<Entry>,
    queues: BTreeMap<NodeId, Queue>,
    wakers: WakeQueue,
    /// The tasks with a deadline, in its order.
    timed: BTreeSet<(u64, u64)>,
    due: VecDeque<NodeId>,
    later: VecDeque<(Instant, NodeId)>,
    began: Instant,
}

/// Waits.
impl ChargeQueue {
    pub(crate) fn new() -> ChargeQueue {
        ChargeQueue {
            waits: Table::new(),
            queues: BTreeMap::new(),
            wakers: WakeQueue::new(),
            timed: BTreeSet::new(),
            due: VecDeque::new(),
            later: VecDeque::new(),
            began: Instant::now(),
        }
    }

    fn nanos(&self, instant: Instant) -> u64 {
        instant.saturating_duration_since(self.began).as_nanos().try_into().unwrap_or(u64::MAX)
    }

    /// Begins a wait, in no queue yet, and returns its number. The caller holds the node until the
    /// wait is over.
    pub(crate) fn list(
        &mut self,
        node: &'static Node,
        bytes: u64,
        deadline: Instant,
        want: Want,
        party: Party,
    ) -> u64 {
        self.wakers.reserve(self.waits.len() + 1);
        let number = self.waits.add(Entry {
            node,
            at: node,
            bytes,
            since: self.nanos(Instant::now()),
            deadline: self.nanos(deadline),
            party,
            weight: 0,
            // The mark is read under the lock (E1).
            state: if node.counter.is_offline() { State::Woken } else { State::Idle },
            want,
            passed: 0,
            is_reviewed: false,
            is_timed: false,
        });
        let words = &node.rare().queue;
        words.set_charges(words.charges() + 1);
        number
    }

    /// Ends a wait. Returns its party, for a drop without the lock.
    pub(crate) fn unlist(&mut self, number: u64) -> Party {
        self.leave_queue(number);
        self.take_timed(number);
        let entry = self.waits.remove(number).expect(LISTED);
        let words = &entry.node.rare().queue;
        words.set_charges(words.charges() - 1);
        entry.party
    }

    pub(crate) fn entry(&self, number: u64) -> &Entry {
        self.waits.get(number).expect(LISTED)
    }

    pub(crate) fn entry_mut(&mut self, number: u64) -> &mut Entry {
        self.waits.get_mut(number).expect(LISTED)
    }

    pub(crate) fn is_listed(&self, number: u64) -> bool {
        self.waits.get(number).is_some()
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.waits.values()
    }

    /// Calls `visit` with the number of each wait. It may change any wait, but neither begins nor
    /// ends one.
    fn each(&mut self, mut visit: impl FnMut(&mut ChargeQueue, u64)) {
        let mut next = 0;
        while let Some(number) = self.waits.first_from(next) {
            visit(self, number);
            next = number + 1;
        }
    }

    pub(crate) fn since(&self, entry: &Entry) -> Instant {
        self.began + Duration::from_nanos(entry.since)
    }

    pub(crate) fn deadline(&self, entry: &Entry) -> Instant {
        self.began + Duration::from_nanos(entry.deadline)
    }

    /// Gives a task another waker. Returns the party before, for a drop without the lock.
    pub(crate) fn set_waker(&mut self, number: u64, waker: Waker) -> Party {
        self.wakers.reserve(self.waits.len());
        std::mem::replace(&mut self.entry_mut(number).party, Party::Task(waker))
    }

    /// Notifies a wait how it ended.
    pub(crate) fn settle(&mut self, number: u64, state: State) {
        self.leave_queue(number);
        let entry = self.waits.get_mut(number).expect(LISTED);
        entry.state = state;
        self.wakers.notify(&mut entry.party);
    }

    /// Ends the waits that are meant. Returns how many.
    fn settle_all(&mut self, state: State, is_meant: impl Fn(&Entry) -> bool) -> usize {
        let mut settled = 0;
        self.each(|queues, number| {
            if is_meant(queues.entry(number)) {
                queues.settle(number, state);
                settled += 1;
            }
        });
        settled
    }

    /// Ends the waits of `top`, of the groups below, and those at `top`. Returns how many were
    /// ended now.
    pub(crate) fn wake_within(&mut self, top: &'static Node) -> usize {
        self.settle_all(State::Woken, |entry| {
            let is_meant = entry.node.is_within(top) || std::ptr::eq(entry.at, top);
            is_meant && !matches!(entry.state, State::Woken | State::Handed)
        })
    }

    /// Ends all waits, when the hierarchy goes.
    pub(crate) fn end_all(&mut self) {
        self.settle_all(State::Woken, |entry| entry.state != State::Handed);
    }
}

const LISTED: &str = "a wait is listed until its end";

/// Wakers of tasks that were settled.
impl ChargeQueue {
    /// Calls the wakers without the lock, as many as one thread calls after an operation, and
    /// leaves the others to a reclaimer. If the thread may not run a user's code, a reclaimer
    /// calls all.
    pub(crate) fn call_some(
        mut queues: MutexGuard<'_, ChargeQueue>,
        shared: &'static Shared,
        may_call: bool,
    ) {
        // Mostly; the room for wakers costs more than the rest.
        if queues.wakers.is_empty() {
            return;
        }
        let wakers = may_call.then(|| queues.wakers.take());
        if !queues.wakers.is_empty() {
            shared.waits().reclaimers.wake_one();
        }
        let kept = mutation::active(Mutation::WakersAreCalledUnderTheLock).then_some(queues);
        wakers.into_iter().for_each(Wakers::call);
        drop(kept);
    }

    /// Takes as many wakers as a thread calls at a time.
    pub(crate) fn take_wakers(&mut self) -> Wakers {
        self.wakers.take()
    }

    /// Calls the wakers of all: those of an operation which may end many waits. The caller holds
    /// no other lock.
    pub(crate) fn call_wakers<'a>(mut queues: MutexGuard<'a, ChargeQueue>, lock: &'a Mutex<ChargeQueue>) {
        loop {
            let wakers = queues.wakers.take();
            drop(queues);
            if wakers.is_empty() {
                return;
            }
            wakers.call();
            queues = lock.lock();
        }
    }
}

/// Queues.
impl ChargeQueue {
    fn queue_mut(&mut self, at: &'static Node) -> Option<&mut Queue> {
        self.queues.get_mut(&at.id())
    }

    #[cfg(all(test, not(memgroup_loom)))]
    pub(crate) fn has_queue(&self, at: &'static Node) -> bool {
        self.queues.contains_key(&at.id())
    }

    /// The queue of a group, which is made if there is none.
    fn make_queue(&mut self, at: &'static Node) -> &mut Queue {
        let queues = self.queues.len();
        self.queues.entry(at.id()).or_insert_with(|| {
            // So that a release may make any queue due.
            self.due.reserve(queues + 1);
            Queue {
                at,
                order: BTreeMap::new(),
                least: u64::MAX,
                tasks: 0,
                service: Service::Unserved,
                is_later: false,
                is_marked: false,
            }
        })
    }

    /// Removes the queue, if neither a wait nor a reclaimer needs it.
    fn drop_if_idle(&mut self, at: &'static Node) {
        let is_idle = |queue: &mut Queue| queue.order.is_empty() && queue.service == Service::Unserved;
        if self.queue_mut(at).is_some_and(is_idle) {
            self.queues.remove(&at.id());
        }
    }

    /// Puts a wait into the queue of `at`, in the order of weight and arrival.
    pub(crate) fn join(&mut self, number: u64, at: &'static Node) {
        self.make_queue(at);
        let entry = self.entry_mut(number);
        entry.weight = entry.node.waiting.weight();
        (entry.at, entry.state, entry.passed, entry.is_reviewed) = (at, State::Waiting, 0, false);
        let (key, bytes, is_task) = (entry.key(number), entry.bytes, entry.is_task());
        let queue = self.make_queue(at);
        queue.order.insert(key, bytes);
        queue.tasks += u32::from(is_task);
        queue.least = queue.least.min(bytes);
    }

    /// Takes a wait out of its queue, if it is in one. It is idle then.
    pub(crate) fn leave_queue(&mut self, number: u64) {
        let entry = self.entry_mut(number);
        if !entry.is_in_queue() {
            return;
        }
        entry.state = State::Idle;
        let (at, key, is_task) = (entry.at, entry.key(number), entry.is_task());
        let Some(queue) = self.queue_mut(at) else { return };
        queue.order.remove(&key);
        queue.tasks -= u32::from(is_task);
        if queue.order.is_empty() {
            queue.count_least();
        }
        self.review_first(at);
        self.drop_if_idle(at);
    }

    /// Changes a wait in a queue between `Waiting` and `Away`.
    pub(crate) fn set_away(&mut self, number: u64, is_away: bool) {
        let entry = self.entry_mut(number);
        entry.state = if is_away { State::Away } else { State::Waiting };
        let (at, key, asks) = (entry.at, entry.key(number), if is_away { u64::MAX } else { entry.bytes });
        if let Some(queue) = self.queue_mut(at) {
            queue.order.insert(key, asks);
            queue.least = queue.least.min(asks);
            queue.count_least();
        }
    }

    /// Returns the first wait in the queue of `at` behind the key `after`: its key, its number and
    /// the bytes for which it looks.
    pub(crate) fn next(&self, at: &'static Node, after: Option<u64>) -> Option<(u64, u64, u64)> {
        let behind = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let (&key, &asks) = self.queues.get(&at.id())?.order.range(behind).next()?;
        Some((key, number_of(key), asks))
    }

    /// Returns whether a wait at `at` may look for at most `room` bytes.
    pub(crate) fn may_fit(&self, at: &'static Node, room: u64) -> bool {
        self.queues.get(&at.id()).is_some_and(|queue| queue.least <= room)
    }

    /// As [`next`](Self::next), the first that looks for at most `room` bytes.
    pub(crate) fn next_fit(
        &mut self,
        at: &'static Node,
        after: Option<u64>,
        room: u64,
    ) -> Option<(u64, u64)> {
        let queue = self.queue_mut(at)?;
        let behind = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let found = queue.order.range(behind).find(|&(_, &asks)| asks <= room).map(|(&key, _)| key);
        if found.is_none() && after.is_none() {
            queue.count_least();
        }
        found.map(|key| (key, number_of(key)))
    }

    /// Has uncharging threads look whether as many bytes are free as a wait at `at` looks for.
    pub(crate) fn publish_least(&self, at: &'static Node) {
        at.counter.set_least_waiting(self.queues.get(&at.id()).map_or(u64::MAX, |queue| queue.least));
    }

    /// Gives the charges of `node` another weight.
    pub(crate) fn reweigh(&mut self, node: &'static Node, weight: u32) {
        if node.rare().queue.charges() == 0 {
            return;
        }
        self.each(|queues, number| {
            let entry = queues.entry_mut(number);
            if !std::ptr::eq(entry.node, node) || !entry.is_in_queue() {
                return;
            }
            let (at, before) = (entry.at, entry.key(number));
            entry.weight = weight;
            let after = entry.key(number);
            if let Some(queue) = queues.queue_mut(at)
                && let Some(asks) = queue.order.remove(&before)
            {
                queue.order.insert(after, asks);
            }
        });
    }
}

impl Part for Mutex<ChargeQueue> {}

static QUEUE: Key<HierarchyPart, Mutex<ChargeQueue>> =
    Key::new(HierarchyPart::WaitQueue, || Mutex::new(ChargeQueue::new()));

impl Shared {
    /// The charges that wait for room, and their queues.
    pub(crate) fn wait_queue(&self) -> &Mutex<ChargeQueue> {
        self.parts.get(&QUEUE)
    }
}
