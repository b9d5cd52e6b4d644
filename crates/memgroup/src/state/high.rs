//! High: the debt of a group, and the usage at which its shrinkers gave nothing. The limit itself is in the counter.

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::erasable;

use crate::state::debt::Debt;

erasable! {
    /// The state of a group that belongs to `high`.
    pub(crate) struct HighState {
        pub(crate) debt: Debt,
        /// The usage plus one at which shrinkers gave nothing when they were last asked because of this group's `high`; 0 where they gave.
        fruitless_at: AtomicU64,
    }
}

impl HighState {
    /// Whether shrinkers are to be asked at this usage. Where they gave nothing they are not, until usage is another by `slack` bytes.
    pub(crate) fn is_fruitful(&self, usage: u64, slack: u64) -> bool {
        // ORDERING: Relaxed; a hint, of which one may be lost.
        let at = self.fruitless_at.load(Ordering::Relaxed).checked_sub(1);
        at.is_none_or(|at| usage.abs_diff(at) >= slack)
    }

    /// Shrinkers gave nothing at this usage.
    pub(crate) fn set_fruitless_at(&self, usage: u64) {
        // ORDERING: Relaxed; as in `is_fruitful`.
        self.fruitless_at.store(usage + 1, Ordering::Relaxed);
    }

    /// Shrinkers gave something, or the limit is another.
    pub(crate) fn set_fruitful(&self) {
        // ORDERING: Relaxed; as in `is_fruitful`.
        self.fruitless_at.store(0, Ordering::Relaxed);
    }

    /// For a new group in the node; the caller holds the tree lock.
    pub(crate) fn reset(&self) {
        self.debt.forgive();
        self.set_fruitful();
    }
}
