//! High: the debt of a group, and the usage at which its shrinkers last gave nothing. The limit
//! itself is in the counter.

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::erasable;

use crate::state::debt::Debt;

erasable! {
    /// The part of a group's state that belongs to `high`.
    pub(crate) struct HighState {
        pub(crate) debt: Debt,
        /// One more than the usage at which shrinkers gave nothing when they were last asked
        /// because of this group's `high`; 0 if they gave something.
        fruitless_at: AtomicU64,
    }
}

impl HighState {
    /// Returns whether it is worth asking shrinkers at this usage. After they gave nothing, it is
    /// not until the usage has changed by `slack` bytes.
    pub(crate) fn is_fruitful(&self, usage: u64, slack: u64) -> bool {
        // ORDERING: Relaxed, here and below, because this is a hint. A lost one does no harm.
        let at = self.fruitless_at.load(Ordering::Relaxed).checked_sub(1);
        at.is_none_or(|at| usage.abs_diff(at) >= slack)
    }

    /// Remembers that shrinkers gave nothing at this usage.
    pub(crate) fn set_fruitless_at(&self, usage: u64) {
        self.fruitless_at.store(usage + 1, Ordering::Relaxed);
    }

    /// Forgets that usage, because shrinkers gave something or the limit has changed.
    pub(crate) fn set_fruitful(&self) {
        self.fruitless_at.store(0, Ordering::Relaxed);
    }

    /// Resets the state for a new group in the node. Words that are zero are not written to. The
    /// caller must hold the tree lock.
    pub(crate) fn reset(&self) {
        if self.debt.bytes() > 0 {
            self.debt.forgive();
        }
        if self.fruitless_at.load(Ordering::Relaxed) != 0 {
            self.set_fruitful();
        }
    }
}
