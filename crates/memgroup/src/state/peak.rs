//! Peak: the highest usage, of all time and for each reader since its last reset.
//!
//! ```text
//!   peak      the highest usage ever                                 one reader's answer:
//!   recent    the highest since any reader's last reset                never reset    peak
//!   stored    for each reader: the highest of the times from its       has been       max(stored, recent)
//!             reset to the last reset of another
//! ```
//!
//! A charge that the counters saw compares its usage with `recent` alone: without any reset, that is the peak. A reset takes the lock of the
//! group's readers and begins a new `recent`. It raises the stored peak of every other reader to the old one. The kernel's `memory.peak`
//! raises it to the usage of that moment instead, so a reader loses the peak between its own reset and another's.
//!
//! - I1. `recent` ≤ `peak`: a charge raises `peak` first, and a reset goes no higher. Else a charge could find `recent` high enough, and leave
//!   `peak` below its usage.
//! - I2. A reader's answer is at least the highest usage that a charge brought about which began after its reset, and that usage at the reset.
//! - B1. Usage includes the bytes prepaid in the stocks of the subtree. So a peak exceeds that of live charges by as much as [`Group::usage`]
//!   does. That is at most half of the room that the limits leave, and the slots' budgets. After [`Group::drain`] a reset begins with live charges. A
//!   hierarchy without stock ([`Config::stock_cap_bytes`](crate::Config::stock_cap_bytes)) has no such excess.
//! - B2. A charge that is under way during a reset may count on either side of it. The new peak may be a usage that ended just before.
//! - E1. reset → charge: the reset empties `recent` and then looks at the usage by an RMW. A charge changes the usage by an RMW and then looks at
//!   `recent`. Of two RMWs on one word the later sees the earlier: the reset sees the usage, or the charge an empty `recent`.
//!   No fence is needed where a charge pays. Loom: `a_reset_loses_no_charge`.

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
    /// A charge that succeeded at every level took usage there.
    #[inline]
    pub(crate) fn raise(&self, usage: u64) {
        // ORDERING: Acquire; pairs with the Release below: a charge that finds `recent` high enough leaves `peak` alone, and has it as high.
        if self.recent.load(Ordering::Acquire) < usage {
            self.raise_both(usage);
        }
    }

    #[cold]
    fn raise_both(&self, usage: u64) {
        // ORDERING: Relaxed; published by the next line (I1).
        self.peak.fetch_max(usage, Ordering::Relaxed);
        interleave::point();
        // ORDERING: Release; pairs with the Acquire in `raise`, and with that of a reset.
        self.recent.fetch_max(usage, Ordering::Release);
    }

    /// The highest usage of all.
    pub(crate) fn highest(&self) -> u64 {
        // ORDERING: Relaxed; a report.
        self.peak.load(Ordering::Relaxed)
    }

    pub(crate) fn recent(&self) -> u64 {
        // ORDERING: Acquire; pairs with the Release in `raise_both`.
        self.recent.load(Ordering::Acquire)
    }

    /// Begins anew with the usage of now; the highest until now. The caller has the lock of the readers.
    pub(crate) fn restart(&self, counter: &Counter) -> u64 {
        // ORDERING: AcqRel; published by the RMW on the counter's word (E1).
        let before = self.recent.swap(0, Ordering::AcqRel);
        interleave::point();
        let usage =
            if mutation::active(Mutation::ResetLoadsUsage) { counter.usage() } else { counter.usage_now() };
        interleave::point();
        // A charge under way is in usage and not yet in the peak; it raises both when it has succeeded, if it does.
        let most = if mutation::active(Mutation::ResetGoesAboveThePeak) { u64::MAX } else { self.highest() };
        // ORDERING: Release; as in `raise_both`.
        self.recent.fetch_max(usage.min(most), Ordering::Release);
        before
    }

    /// For a new group in the place.
    pub(crate) fn reset(&self) {
        // ORDERING: Relaxed, both; there is no handle yet.
        self.peak.store(0, Ordering::Relaxed);
        // ORDERING: as above.
        self.recent.store(0, Ordering::Relaxed);
    }
}
