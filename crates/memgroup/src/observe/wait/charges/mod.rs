//! Charges: every charge that waits in a hierarchy, from the beginning of its wait to its end, and the queues in which they wait.
//!
//! ```text
//!   list ─▶ Idle ── join a queue ─▶ Waiting ── settle ─▶ Handed | Again | Woken | Deserted ── unlist
//!                                   │     ▲                  └─ a thread: unparked at once
//!                                   ▼     │                  └─ a task: untold, until its waker is taken, and called without the lock
//!                                 Away: room is made for it
//! ```
//!
//! A wait is a thread that is parked, or a task: a future with a waker. Each wait has a place, which it keeps. So its ticket is a number, and neither a
//! queue nor the list of waits that are to be told takes further memory. The queue of a group is a tree (`order`).
//!
//! - I1. All of it is under one lock, which is taken before the list of other waits, and after the tree lock.
//! - I2. A thread that holds the lock neither allocates nor frees: places come in chunks, which `reserve` makes without the lock. It
//!   unparks threads, and calls, clones and drops no waker of a task: those are the user's code.
//! - I3. A wait that is settled is in no queue. Its outcome stays until its party leaves, or joins another queue.
//! - I4. A task that was settled is untold until a thread takes its waker. A thread that leaves tasks untold has a reclaimer do it.
//! - E1. A removal marks the group offline, then goes through the waits. A wait is listed, then checks the mark. Both are under the lock, so no wait
//!   of a removed group sleeps.

pub(crate) mod deadlines;
pub(crate) mod duties;
mod places;
mod wakers;

use std::collections::VecDeque;
use std::task::Waker;
use std::time::{Duration, Instant};

use memgroup_sync::Mutex;

use crate::observe::wait::charges::duties::Registered;
use crate::observe::wait::charges::places::{CHUNK, Chunk, Slot};
use crate::observe::wait::order::{self, Links, NONE, Places};
pub(crate) use crate::observe::wait::party::Party;
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
    /// Room for one byte more, for a group that may be above its limit by forced charges. Nothing stays charged, but groups may be killed.
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
    /// Another level refuses, or this level always will. The party tries again itself; `at` is the level that refuses.
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
    /// Its place in the order of a queue: its weight, and then its number.
    pub(crate) key: u64,
    party: Party,
    pub(crate) state: State,
    pub(crate) want: Want,
    /// How many were served before it while it was the first.
    pub(crate) passed: u8,
    /// A reclaimer has tried to make room for it since it is in this queue.
    pub(crate) is_reviewed: bool,
    is_untold: bool,
    /// It is in the order of deadlines.
    is_timed: bool,
}

impl Entry {
    pub(crate) fn is_task(&self) -> bool {
        matches!(self.party, Party::Task(_))
    }

    /// The number by which no other wait is called.
    pub(crate) fn number(&self) -> u64 {
        self.key & ((1 << NUMBER_BITS) - 1)
    }

    /// Whether it is in a queue.
    pub(crate) fn is_in_queue(&self) -> bool {
        matches!(self.state, State::Waiting | State::Away)
    }

    /// Whether its waker wakes the same task.
    pub(crate) fn wakes(&self, waker: &Waker) -> bool {
        matches!(&self.party, Party::Task(own) if own.will_wake(waker))
    }

    /// Gives it another waker, and returns the one before, for a drop without the lock.
    pub(crate) fn set_party(&mut self, party: Party) -> Party {
        std::mem::replace(&mut self.party, party)
    }
}

fn key(weight: u32, number: u64) -> u64 {
    (u64::from(u16::MAX >> 2) - u64::from(weight)) << NUMBER_BITS | number
}

/// The queue of one group, and its place in the work of reclaimers.
pub(crate) struct Queue {
    pub(crate) at: &'static Node,
    pub(crate) root: u32,
    /// Tasks in it.
    tasks: u32,
    /// A reclaimer is to look after it: it holds the group, and has it marked.
    pub(crate) is_served: bool,
    /// It is to be reviewed at once.
    is_due: bool,
    is_in_review: bool,
    /// It is among those that are reviewed again later.
    is_later: bool,
    /// The last review found that a reclaimer can make no room here. So it is reviewed only later.
    is_in_vain: bool,
    /// No group has it any more.
    is_detached: bool,
    /// It holds the mark of its group.
    pub(crate) is_marked: bool,
}

/// All waiting charges of one hierarchy.
pub(crate) struct ChargeQueue {
    chunks: Vec<Box<Chunk>>,
    free: u32,
    /// The first chunk of those with waits.
    used_chunks: u32,
    next: u64,
    began: Instant,
    /// The first and the last of the tasks that are untold. They are linked by their `links`.
    untold: (u32, u32),
    /// The tasks with a deadline, in its order.
    timed: u32,
    queues: Vec<Queue>,
    free_queues: Vec<u32>,
    due: VecDeque<u32>,
    later: VecDeque<(Instant, u32)>,
    reclaimers: Vec<Registered>,
    /// Chunks that were visited.
    #[cfg(test)]
    visits: u64,
}

impl Places for ChargeQueue {
    fn links(&self, place: u32) -> &Links {
        &self.chunks[place as usize / CHUNK].links[place as usize % CHUNK]
    }

    fn links_mut(&mut self, place: u32) -> &mut Links {
        &mut self.chunks[place as usize / CHUNK].links[place as usize % CHUNK]
    }
}

impl ChargeQueue {
    pub(crate) fn new() -> ChargeQueue {
        ChargeQueue {
            chunks: Vec::new(),
            free: NONE,
            used_chunks: NONE,
            next: 0,
            began: Instant::now(),
            untold: (NONE, NONE),
            timed: NONE,
            queues: Vec::new(),
            free_queues: Vec::new(),
            due: VecDeque::new(),
            later: VecDeque::new(),
            reclaimers: Vec::new(),
            #[cfg(test)]
            visits: 0,
        }
    }

    fn nanos(&self, instant: Instant) -> u64 {
        instant.saturating_duration_since(self.began).as_nanos().try_into().unwrap_or(u64::MAX)
    }

    /// Begins a wait, in no queue yet. The caller has taken the lock by `reserve`, and holds the node until the wait is over.
    pub(crate) fn list(
        &mut self,
        node: &'static Node,
        bytes: u64,
        deadline: Instant,
        want: Want,
        party: Party,
    ) -> u32 {
        let (place, number) = (self.free, self.next);
        self.next += 1;
        // The mark is read under the lock (E1).
        let state = if node.counter.is_offline() { State::Woken } else { State::Idle };
        let entry = Entry {
            node,
            at: node,
            bytes,
            since: self.nanos(Instant::now()),
            deadline: self.nanos(deadline),
            key: key(0, number),
            party,
            state,
            want,
            passed: 0,
            is_reviewed: false,
            is_untold: false,
            is_timed: false,
        };
        let taken = std::mem::replace(self.slot(place), Slot::Used(entry));
        self.free = if let Slot::Free(next) = taken { next } else { NONE };
        self.note_used(place);
        let words = &node.rare().queue;
        words.set_charges(words.charges() + 1);
        place
    }

    /// Ends a wait. Returns its party, for a drop without the lock.
    pub(crate) fn unlist(&mut self, place: u32) -> Party {
        self.leave_queue(place);
        self.take_untold(place);
        self.take_timed(place);
        let free = self.free;
        let taken = std::mem::replace(self.slot(place), Slot::Free(free));
        self.free = place;
        self.note_free(place);
        let Slot::Used(entry) = taken else { unreachable!("a wait has its place until it ends") };
        let words = &entry.node.rare().queue;
        words.set_charges(words.charges() - 1);
        entry.party
    }

    pub(crate) fn since(&self, place: u32) -> Instant {
        self.began + Duration::from_nanos(self.entry(place).since)
    }

    pub(crate) fn deadline(&self, place: u32) -> Instant {
        self.began + Duration::from_nanos(self.entry(place).deadline)
    }
}

/// Queues.
impl ChargeQueue {
    pub(crate) fn queue(&self, number: u32) -> &Queue {
        &self.queues[number as usize]
    }

    pub(crate) fn queue_mut(&mut self, number: u32) -> &mut Queue {
        &mut self.queues[number as usize]
    }

    /// The queue of a group, which is made if there is none. The caller has taken the lock by `reserve`.
    fn make_queue(&mut self, at: &'static Node) -> u32 {
        if let Some(number) = at.rare().queue.queue() {
            return number;
        }
        let queue = Queue {
            at,
            root: NONE,
            tasks: 0,
            is_served: false,
            is_due: false,
            is_in_review: false,
            is_later: false,
            is_in_vain: false,
            is_detached: false,
            is_marked: false,
        };
        let number = match self.free_queues.pop() {
            Some(number) => {
                self.queues[number as usize] = queue;
                number
            }
            None => {
                self.queues.push(queue);
                (self.queues.len() - 1) as u32
            }
        };
        at.rare().queue.set_queue(Some(number));
        number
    }

    /// Takes the queue from its group, if neither a wait nor a reclaimer needs it.
    fn detach_if_idle(&mut self, number: u32) {
        let queue = &mut self.queues[number as usize];
        if queue.root != NONE || queue.is_served || queue.is_in_review {
            return;
        }
        if !std::mem::replace(&mut queue.is_detached, true) {
            queue.at.rare().queue.set_queue(None);
        }
        if !queue.is_due && !queue.is_later {
            self.free_queues.push(number);
        }
    }

    /// Puts a wait into the queue of `at`, in the order of weight and arrival.
    pub(crate) fn join(&mut self, place: u32, at: &'static Node) {
        // Its links are those of the list of untold tasks until here. A task that was told to try again may come before its waker was taken.
        self.take_untold(place);
        let number = self.make_queue(at);
        let entry = self.entry_mut(place);
        let weight = entry.node.waiting.weight();
        (entry.at, entry.state, entry.passed, entry.is_reviewed) = (at, State::Waiting, 0, false);
        entry.key = key(weight, entry.number());
        let (is_task, links) = (entry.is_task(), Links::new(entry.key, entry.bytes));
        *self.links_mut(place) = links;
        let root = order::insert(self, self.queue(number).root, place);
        let queue = self.queue_mut(number);
        queue.root = root;
        queue.tasks += u32::from(is_task);
    }

    /// Takes a wait out of its queue, if it is in one. It is idle then.
    pub(crate) fn leave_queue(&mut self, place: u32) {
        let at = self.entry(place).at;
        if !self.entry(place).is_in_queue() {
            return;
        }
        let Some(number) = at.rare().queue.queue() else { return };
        let root = order::remove(self, self.queue(number).root, place);
        let entry = self.entry_mut(place);
        entry.state = State::Idle;
        let is_task = entry.is_task();
        let queue = self.queue_mut(number);
        queue.root = root;
        queue.tasks -= u32::from(is_task);
        at.counter.set_least_waiting(order::least_of(self, root));
        self.review_first(number);
        self.detach_if_idle(number);
    }

    /// Changes a wait in a queue between `Waiting` and `Away`.
    pub(crate) fn set_away(&mut self, place: u32, is_away: bool) {
        let entry = self.entry_mut(place);
        entry.state = if is_away { State::Away } else { State::Waiting };
        let (at, bytes) = (entry.at, entry.bytes);
        if let Some(number) = at.rare().queue.queue() {
            let root = self.queue(number).root;
            order::set_asks(self, place, if is_away { u64::MAX } else { bytes });
            at.counter.set_least_waiting(order::least_of(self, root));
        }
    }

    /// Tells a wait how it ended. A thread is unparked; a task is untold until its waker is taken.
    pub(crate) fn settle(&mut self, place: u32, state: State) {
        self.leave_queue(place);
        let entry = self.entry_mut(place);
        entry.state = state;
        match &entry.party {
            Party::Thread(thread) => thread.unpark(),
            Party::Task(_) if entry.is_untold => {}
            Party::Task(_) => {
                let (_, last) = self.untold;
                self.entry_mut(place).is_untold = true;
                self.links_mut(place).link(last, NONE);
                match last {
                    NONE => self.untold.0 = place,
                    last => self.links_mut(last).set_next(place),
                }
                self.untold.1 = place;
            }
        }
    }

    /// The task is not to be told any more.
    pub(crate) fn take_untold(&mut self, place: u32) {
        let entry = self.entry_mut(place);
        if !std::mem::replace(&mut entry.is_untold, false) {
            return;
        }
        let (before, next) = self.links(place).linked();
        match before {
            NONE => self.untold.0 = next,
            before => self.links_mut(before).set_next(next),
        }
        match next {
            NONE => self.untold.1 = before,
            next => self.links_mut(next).set_before(before),
        }
    }

    /// The first wait in the queue of `at`.
    pub(crate) fn first(&self, at: &'static Node) -> Option<u32> {
        at.rare().queue.queue().and_then(|number| order::first(self, self.queue(number).root))
    }

    /// The first wait behind `after` in the queue of `at` that asks for at most `room` bytes.
    pub(crate) fn first_fit(&self, at: &'static Node, after: Option<u64>, room: u64) -> Option<u32> {
        let number = at.rare().queue.queue()?;
        order::first_fit(self, self.queue(number).root, after, room)
    }

    /// The least bytes for which a wait at `at` looks.
    pub(crate) fn least(&self, at: &'static Node) -> u64 {
        at.rare().queue.queue().map_or(u64::MAX, |number| order::least_of(self, self.queue(number).root))
    }

    /// Gives the charges of `node` another weight.
    pub(crate) fn reweigh(&mut self, node: &'static Node, weight: u32) {
        if node.rare().queue.charges() == 0 {
            return;
        }
        self.each(|queues, place| {
            let entry = queues.entry(place);
            let &Entry { at, bytes, state, .. } = entry;
            let is_meant = std::ptr::eq(entry.node, node) && entry.is_in_queue();
            let Some(number) = at.rare().queue.queue().filter(|_| is_meant) else { return };
            let root = order::remove(queues, queues.queue(number).root, place);
            let entry = queues.entry_mut(place);
            entry.key = key(weight, entry.number());
            let asks = if state == State::Away { u64::MAX } else { bytes };
            *queues.links_mut(place) = Links::new(queues.entry(place).key, asks);
            let root = order::insert(queues, root, place);
            queues.queue_mut(number).root = root;
        });
    }

    /// Ends the waits of `top`, of the groups below, and those at `top`. Returns how many were told now.
    pub(crate) fn wake_within(&mut self, top: &'static Node) -> usize {
        let mut told = 0;
        self.each(|queues, place| {
            let entry = queues.entry(place);
            let is_meant = entry.node.is_within(top) || std::ptr::eq(entry.at, top);
            if is_meant && !matches!(entry.state, State::Woken | State::Handed) {
                queues.settle(place, State::Woken);
                told += 1;
            }
        });
        told
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
