//! Peak: the highest usage ever, and the highest for each reader since its last reset.
//!
//! ```text
//!   peak      the highest usage ever                         one reader's answer:
//!   recent    the highest since any reader's last reset        never reset    peak
//!   stored    for each reader: the highest between its         has been       max(stored, recent)
//!             reset and the last reset of another
//! ```
//!
//! A charge that goes to the counters compares its usage with `recent` alone, which is the peak if
//! there never was a reset. A reset takes the lock of the group's readers and starts a new
//! `recent`. It raises the stored peak of every other reader to the old `recent`. The kernel
//! raises the peak of a `memory.peak` to the usage at that moment instead, so a reader loses the
//! peak between its own reset and another reader's.
//!
//! - I1. `recent` ≤ `peak`: a charge raises `peak` first, and a reset sets `recent` no higher than
//!   that. Otherwise a charge could find `recent` high enough, and leave `peak` below its usage.
//! - I2. A reader's answer is at least the usage at its reset, and at least the highest usage that
//!   was reached by a charge which began after the reset.
//! - B1. Usage includes the bytes that are prepaid in the stocks of the subtree. So a peak exceeds
//!   the peak of live charges by as much as [`Group::usage`] exceeds live charges. That is at most
//!   the budgets of the slots, and at most half of the headroom that the limits leave. After
//!   [`Group::drain`] a reset starts with the live charges. A hierarchy without stocks
//!   ([`Config::stock_cap_bytes`](crate::Config::stock_cap_bytes)) has no such excess.
//! - B2. A charge that is under way during a reset may count on either side of it. The new peak
//!   may be a usage that ended just before the reset.
//! - E1. reset → charge: the reset empties `recent` and then reads the usage by an RMW. A charge
//!   changes the usage by an RMW and then reads `recent`. The later of two RMWs on one word sees
//!   the earlier, so either the reset sees the usage, or the charge sees an empty `recent`. This
//!   needs no fence on the path of a charge. Loom: `a_reset_loses_no_charge`.

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::{erasable, interleave};

use crate::base::mutation::{self, Mutation};
use crate::state::counter::Counter;

erasable! {
    /// The peaks of one counter.
    pub(crate) struct Peak {
        peak: AtomicU64,
        recent: AtomicU64,
    }
}

impl Peak {
    /// Raises the peaks to the `usage` after a charge that succeeded at every level.
    #[inline]
    pub(crate) fn raise(&self, usage: u64) {
        // ORDERING: Acquire pairs with the Release in `raise_both`. A charge that finds `recent`
        // high enough leaves `peak` alone, so it must see a `peak` that is as high (I1).
        if self.recent.load(Ordering::Acquire) < usage {
            self.raise_both(usage);
        }
    }

    #[cold]
    fn raise_both(&self, usage: u64) {
        // ORDERING: Relaxed for `peak`, because the Release on `recent` publishes it. That pairs
        // with the Acquire loads in `raise` and `recent`. Weaker, a thread could see `recent`
        // before `peak` (I1).
        self.peak.fetch_max(usage, Ordering::Relaxed);
        interleave::point();
        self.recent.fetch_max(usage, Ordering::Release);
    }

    /// Returns the highest usage ever.
    pub(crate) fn highest(&self) -> u64 {
        // ORDERING: Relaxed, because this is a report.
        self.peak.load(Ordering::Relaxed)
    }

    pub(crate) fn recent(&self) -> u64 {
        // ORDERING: Acquire pairs with the Release in `raise_both`.
        self.recent.load(Ordering::Acquire)
    }

    /// Restarts `recent` with the present usage. Returns its value before. The caller must hold
    /// the lock of the readers.
    pub(crate) fn restart(&self, counter: &Counter) -> u64 {
        // ORDERING: AcqRel; the Release part pairs with charges through the RMW on the counter's
        // word that follows (E1), the Acquire part with the Release in `raise_both`.
        let before = self.recent.swap(0, Ordering::AcqRel);
        interleave::point();
        let usage =
            if mutation::active(Mutation::ResetLoadsUsage) { counter.usage() } else { counter.usage_now() };
        interleave::point();
        // A charge under way is in the usage and not yet in the peak. It raises both peaks itself
        // if it succeeds.
        let most = if mutation::active(Mutation::ResetGoesAboveThePeak) { u64::MAX } else { self.highest() };
        // ORDERING: Release, as in `raise_both`.
        self.recent.fetch_max(usage.min(most), Ordering::Release);
        before
    }

    /// Resets the peaks for a new group in the node.
    pub(crate) fn reset(&self) {
        // ORDERING: Relaxed, both, because there is no handle yet.
        self.peak.store(0, Ordering::Relaxed);
        self.recent.store(0, Ordering::Relaxed);
    }
}
