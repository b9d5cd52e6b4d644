//! Wait queue: waits in the order in which they are served.
//!
//! ```text
//!   key A   [weight 500, ticket 3] [weight 100, ticket 1] [weight 100, ticket 2]     by weight, then by arrival
//!   key B   [weight 100, ticket 4]
//! ```
//!
//! One `WaitQueue` holds a queue for each key. The key of a waiting charge is the group that has no room. The key of a wait for a
//! cache is the shrinker slot.
//!
//! - I1. A thread parks by its wait in the list (`list`). The serving thread stores the outcome in the item under the queue's lock,
//!   and notifies the ticket before it unlocks.
//! - I2. A wait leaves the queue under the lock, and takes the outcome with it. Of a hand-over and a deadline at the same moment
//!   exactly one counts.

use core::cmp::Reverse;

use crate::observe::wait::list::Ticket;

/// The waits for several keys.
pub(crate) struct WaitQueue<K, T> {
    waits: Vec<Queued<K, T>>,
}

/// One wait in a queue.
pub(crate) struct Queued<K, T> {
    key: K,
    weight: u32,
    pub(crate) ticket: Ticket,
    pub(crate) item: T,
}

impl<K: Copy + Ord, T> Queued<K, T> {
    fn order(&self) -> (K, Reverse<u32>, Ticket) {
        (self.key, Reverse(self.weight), self.ticket)
    }
}

impl<K: Copy + Ord, T> WaitQueue<K, T> {
    pub(crate) fn new() -> WaitQueue<K, T> {
        WaitQueue { waits: Vec::new() }
    }

    /// Puts a wait into the queue of `key`, behind those that are as heavy and came earlier.
    pub(crate) fn insert(&mut self, key: K, weight: u32, ticket: Ticket, item: T) {
        let wait = Queued { key, weight, ticket, item };
        let place = self.waits.partition_point(|other| other.order() < wait.order());
        self.waits.insert(place, wait);
    }

    /// The waits for one key, in order.
    pub(crate) fn of(&mut self, key: K) -> &mut [Queued<K, T>] {
        let begin = self.waits.partition_point(|wait| wait.key < key);
        let count = self.waits[begin..].partition_point(|wait| wait.key == key);
        &mut self.waits[begin..begin + count]
    }

    fn place(&self, ticket: Ticket) -> usize {
        let place = self.waits.iter().position(|wait| wait.ticket == ticket);
        place.expect("a wait is in its queue until it leaves")
    }

    pub(crate) fn get(&mut self, ticket: Ticket) -> &mut T {
        let place = self.place(ticket);
        &mut self.waits[place].item
    }

    /// Takes a wait out of its queue.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> T {
        self.waits.remove(self.place(ticket)).item
    }

    /// Gives the waits for which `is_changed` holds another weight.
    pub(crate) fn reweigh(&mut self, weight: u32, is_changed: impl Fn(&T) -> bool) {
        self.waits.iter_mut().filter(|wait| is_changed(&wait.item)).for_each(|wait| wait.weight = weight);
        self.waits.sort_unstable_by_key(Queued::order);
    }
}
