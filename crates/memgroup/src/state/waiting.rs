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
