//! Budget: how much all groups together may prepay in one slot.
//!
//! A stock reserves its cap here before it holds a byte, and keeps it until it is evicted or its group removed. So the
//! prepaid total of a slot never exceeds the budget. A drain takes the bytes and leaves the cap: giving that back would
//! touch a second remote line for every slot. The reserve moves on misses only. When nothing is left, a clock hand visits a
//! few of the slot's stocks. It spares a stock that served charges since its last visit, and harvests the attempts. It
//! returns the bytes of any other stock to the counters, and passes the reserve on.
//!
//! - I1. Σ bytes of a slot's words ≤ Σ caps of its words ≤ `reserved` of the slot ≤ budget.
//! - P1. A miss visits two stocks at the most and takes no lock. More would lap the hand within one round of many busy groups, and
//!   spare none of them.

use memgroup_percpu::{OutOfMemory, PerCpu};
use memgroup_sync::FixedU64;
use memgroup_sync::atomic::{AtomicU64, Ordering};

/// The reserves of every slot of one hierarchy.
pub(crate) struct Budget {
    reserved: PerCpu<AtomicU64>,
    pub(crate) hand: PerCpu<AtomicU64>,
    limit_bytes: FixedU64,
}

impl Budget {
    pub(crate) fn new(slots: usize, limit_bytes: u64) -> Result<Budget, OutOfMemory> {
        let limit_bytes = FixedU64::new(limit_bytes);
        Ok(Budget { reserved: PerCpu::try_new(slots)?, hand: PerCpu::try_new(slots)?, limit_bytes })
    }

    /// Sets the most bytes of a slot, while nothing is reserved.
    pub(crate) fn set_limit(&self, bytes: u64) {
        self.limit_bytes.set(bytes);
    }

    /// Takes `bytes` out of the slot's budget, all or nothing.
    pub(crate) fn reserve(&self, slot: usize, bytes: u64) -> bool {
        let (reserved, limit_bytes) = (self.reserved.get(slot), self.limit_bytes.get());
        // ORDERING: Relaxed throughout; the sum alone matters, every change is an RMW on it (I1).
        reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
                now.checked_add(bytes).filter(|&sum| sum <= limit_bytes)
            })
            .is_ok()
    }

    pub(crate) fn give_back(&self, slot: usize, bytes: u64) {
        if bytes > 0 {
            // ORDERING: Relaxed, as in `reserve`.
            let before = self.reserved.get(slot).fetch_sub(bytes, Ordering::Relaxed);
            debug_assert!(before >= bytes);
        }
    }

    /// Bytes reserved now, slot by slot.
    pub(crate) fn reserved(&self) -> impl Iterator<Item = u64> + '_ {
        // ORDERING: Relaxed; a report.
        self.reserved.iter().map(|reserved| reserved.load(Ordering::Relaxed))
    }
}
