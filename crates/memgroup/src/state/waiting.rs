//! Waiting: the charges that wait for room at a group, and its weight among those that wait.

use memgroup_sync::atomic::{AtomicU32, Ordering};
use memgroup_sync::erasable;

/// The weight of a group for which none was set.
const WEIGHT_DEFAULT: u32 = 100;

erasable! {
    /// The state of a group that belongs to waits.
    pub(crate) struct Waiting {
        /// Charges that wait at this group, of any group below it; changed under the lock of its level.
        pub(crate) held: AtomicU32,
        pub(crate) weight: AtomicU32,
    }
}

erasable! {
    /// The words of a group that the queues of waiting charges use, under their lock. They are zero where no charge waits.
    pub(crate) struct QueueWords {
        /// The number of the queue at this group, plus one; 0 without one.
        queue: AtomicU32,
        /// Charges of this group that wait, at any level.
        charges: AtomicU32,
    }
}

impl QueueWords {
    pub(crate) fn queue(&self) -> Option<u32> {
        // ORDERING: Relaxed, here and below; under the lock of the queues.
        self.queue.load(Ordering::Relaxed).checked_sub(1)
    }

    pub(crate) fn set_queue(&self, queue: Option<u32>) {
        // ORDERING: Relaxed; as above.
        self.queue.store(queue.map_or(0, |queue| queue + 1), Ordering::Relaxed);
    }

    pub(crate) fn charges(&self) -> u32 {
        // ORDERING: Relaxed; as above.
        self.charges.load(Ordering::Relaxed)
    }

    pub(crate) fn set_charges(&self, charges: u32) {
        // ORDERING: Relaxed; as above.
        self.charges.store(charges, Ordering::Relaxed);
    }
}

impl Waiting {
    /// Whether a charge waits at the group. Then its counter has the OVER mark, and its subtree no stock.
    pub(crate) fn is_held(&self) -> bool {
        // ORDERING: Relaxed. The caller has made an RMW of the counter. If that found the mark, or followed it, the caller has acquired the count
        // with the mark (`counter::mark_over`).
        self.held.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn weight(&self) -> u32 {
        // ORDERING: Relaxed; under the lock of the queue, or a number for reports.
        self.weight.load(Ordering::Relaxed)
    }

    /// For a new group in the node, where no charge waits.
    pub(crate) fn reset(&self) {
        // ORDERING: Relaxed; no thread has a handle yet.
        self.weight.store(WEIGHT_DEFAULT, Ordering::Relaxed);
    }
}
