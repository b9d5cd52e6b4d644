//! Past: counts of refusals and of charges that went over the limit, for reports.

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::erasable;

use crate::state::counter::Reading;

erasable! {
    /// What has happened at a group's limit.
    pub(crate) struct Past {
        over_bytes_max: AtomicU64,
        refusals: AtomicU64,
        overdraft_charges: AtomicU64,
        overdraft_bytes: AtomicU64,
    }
}

impl Past {
    /// Records by how much a forced charge of `bytes`, which succeeded at every level, took this
    /// level over its limit. `with_it` was read after the charge, and is above the limit. Returns
    /// whether the limit is one that refuses.
    pub(crate) fn record_overdraft(&self, with_it: Reading, bytes: u64) -> bool {
        let over_bytes = with_it.usage.saturating_sub(with_it.max);
        if with_it.is_dry_run {
            self.raise_over(over_bytes);
        } else {
            // ORDERING: Relaxed, here and below, because these are figures of reports. Two of them
            // may be a moment apart.
            self.overdraft_charges.fetch_add(1, Ordering::Relaxed);
            self.overdraft_bytes.fetch_add(over_bytes.min(bytes), Ordering::Relaxed);
        }
        !with_it.is_dry_run
    }

    /// Records that usage was `over_bytes` above the limit of a dry run.
    pub(crate) fn raise_over(&self, over_bytes: u64) {
        self.over_bytes_max.fetch_max(over_bytes, Ordering::Relaxed);
    }

    /// Returns the most bytes by which usage was above such a limit.
    pub(crate) fn over_bytes_max(&self) -> u64 {
        self.over_bytes_max.load(Ordering::Relaxed)
    }

    pub(crate) fn count_refusal(&self) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    /// Returns the number of forced charges that went over the limit, and the bytes by which they
    /// did, together.
    pub(crate) fn overdraft(&self) -> (u64, u64) {
        let charges = self.overdraft_charges.load(Ordering::Relaxed);
        (charges, self.overdraft_bytes.load(Ordering::Relaxed))
    }

    /// Forgets all of it, for a new group in the node. Words that are zero are not written to.
    pub(crate) fn reset(&self) {
        for word in [&self.over_bytes_max, &self.refusals, &self.overdraft_charges, &self.overdraft_bytes] {
            // ORDERING: Relaxed, both, because there is no handle yet. The new one is given out
            // under the tree lock.
            if word.load(Ordering::Relaxed) != 0 {
                word.store(0, Ordering::Relaxed);
            }
        }
    }
}
