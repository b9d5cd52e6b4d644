//! Wait queue: waits in the order of arrival, a queue for each key. The key of a wait for a cache
//! is the shrinker slot. Charges that wait for room have a structure of their own (`charges`).
//!
//! - I1. A thread parks by its wait in the list (`list`). The serving thread stores the outcome in
//!   the item under the queue's lock, and notifies the ticket before it unlocks.
//! - I2. A wait leaves the queue under the lock, and takes the outcome with it. Of a hand-over and
//!   a deadline at the same moment exactly one counts.

use crate::observe::wait::list::Ticket;

/// The waits for several keys.
pub(crate) struct WaitQueue<K, T> {
    waits: Vec<Queued<K, T>>,
}

/// One wait in a queue.
pub(crate) struct Queued<K, T> {
    key: K,
    pub(crate) ticket: Ticket,
    pub(crate) item: T,
}

impl<K: Copy + Ord, T> Queued<K, T> {
    fn order(&self) -> (K, Ticket) {
        (self.key, self.ticket)
    }
}

impl<K: Copy + Ord, T> WaitQueue<K, T> {
    pub(crate) fn new() -> WaitQueue<K, T> {
        WaitQueue { waits: Vec::new() }
    }

    /// Puts a wait into the queue of `key`, behind those that came earlier.
    pub(crate) fn insert(&mut self, key: K, ticket: Ticket, item: T) {
        let wait = Queued { key, ticket, item };
        let place = self.waits.partition_point(|other| other.order() < wait.order());
        self.waits.insert(place, wait);
    }

    /// The waits for one key, in order.
    pub(crate) fn of(&mut self, key: K) -> &mut [Queued<K, T>] {
        let begin = self.waits.partition_point(|wait| wait.key < key);
        let count = self.waits[begin..].partition_point(|wait| wait.key == key);
        &mut self.waits[begin..begin + count]
    }

    /// Takes a wait out of its queue.
    pub(crate) fn remove(&mut self, ticket: Ticket) -> T {
        let place = self.waits.iter().position(|wait| wait.ticket == ticket);
        self.waits.remove(place.expect("a wait is in its queue until it leaves")).item
    }
}
