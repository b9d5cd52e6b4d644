//! Waiting: the number of charges that wait at a group, and the group's weight among those that
//! wait.

use memgroup_sync::atomic::{AtomicU32, Ordering};
use memgroup_sync::erasable;

/// The weight of a group that has none set.
const WEIGHT_DEFAULT: u32 = 100;

erasable! {
    /// The part of a group's state that belongs to waits.
    pub(crate) struct Waiting {
        /// The number of charges that wait at this group, of any group below it. It changes under
        /// the lock of its level.
        pub(crate) held: AtomicU32,
        pub(crate) weight: AtomicU32,
    }
}

erasable! {
    /// The word of a group that the queues of waiting charges use, under their lock.
    pub(crate) struct QueueWords {
        /// The number of charges of this group that wait, at any level.
        charges: AtomicU32,
    }
}

impl QueueWords {
    pub(crate) fn charges(&self) -> u32 {
        // ORDERING: Relaxed, here and below, because the lock of the queues orders the accesses.
        self.charges.load(Ordering::Relaxed)
    }

    pub(crate) fn set_charges(&self, charges: u32) {
        self.charges.store(charges, Ordering::Relaxed);
    }
}

impl Waiting {
    /// Returns whether a charge waits at the group. If one does, the group's counter has the OVER
    /// mark, and its subtree has no stock.
    pub(crate) fn is_held(&self) -> bool {
        // ORDERING: Relaxed, because the caller has made an RMW of the counter before. If that RMW
        // found the mark or followed it, the caller has acquired the count together with the mark
        // (`counter::mark_over`).
        self.held.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn weight(&self) -> u32 {
        // ORDERING: Relaxed, because the caller holds the lock of the queue, or wants a number for
        // a report.
        self.weight.load(Ordering::Relaxed)
    }

    /// Resets the weight for a new group in the node, where no charge waits.
    pub(crate) fn reset(&self) {
        // ORDERING: Relaxed, because no thread has a handle yet.
        self.weight.store(WEIGHT_DEFAULT, Ordering::Relaxed);
    }
}
