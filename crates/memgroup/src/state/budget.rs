//! Budget: how many bytes all groups together may prepay in one slot.
//!
//! A stock reserves its cap here before it holds a byte, and keeps it reserved until it is evicted
//! or its group is removed. So the prepaid total of a slot never exceeds the budget. A drain takes
//! the bytes but leaves the cap reserved, because returning it would touch a second remote line
//! for every slot. Reserved bytes move on misses only. When none are left, a clock hand visits a
//! few of the slot's stocks. It spares a stock that has served charges since its last visit, and
//! harvests the attempts. It returns the bytes of any other stock to the counters, and passes the
//! cap on.
//!
//! - I1. Σ bytes of a slot's words ≤ Σ caps of its words ≤ `reserved` of the slot ≤ budget.
//! - P1. A miss visits at most two stocks and takes no lock. With more, the hand would lap itself
//!   within one round of many busy groups, and would spare none of them.

use memgroup_sync::FixedU64;
use memgroup_sync::atomic::{AtomicU64, Ordering};

/// The reserved bytes of every slot of one hierarchy.
pub(crate) struct Budget {
    slots: Box<[SlotBudget]>,
    limit_bytes: FixedU64,
}

/// The words of one slot, on a pair of lines of their own: processors fetch lines in pairs.
#[repr(align(128))]
struct SlotBudget {
    reserved: AtomicU64,
    hand: AtomicU64,
}

impl Budget {
    pub(crate) fn new(slots: usize, limit_bytes: u64) -> Budget {
        let slot = |_| SlotBudget { reserved: AtomicU64::new(0), hand: AtomicU64::new(0) };
        Budget { slots: (0..slots).map(slot).collect(), limit_bytes: FixedU64::new(limit_bytes) }
    }

    /// The number of the place that the clock hand of a slot visits next.
    pub(crate) fn hand(&self, slot: usize) -> &AtomicU64 {
        &self.slots[slot].hand
    }

    /// Sets the budget of each slot. Nothing may be reserved at that moment.
    pub(crate) fn set_limit(&self, bytes: u64) {
        self.limit_bytes.set(bytes);
    }

    /// Reserves `bytes` in the slot's budget, if all of them fit. Returns whether it did.
    pub(crate) fn reserve(&self, slot: usize, bytes: u64) -> bool {
        let (reserved, limit_bytes) = (&self.slots[slot].reserved, self.limit_bytes.get());
        // ORDERING: Relaxed, here and below, because the sum alone matters and every change is an
        // RMW on it (I1).
        reserved
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
                now.checked_add(bytes).filter(|&sum| sum <= limit_bytes)
            })
            .is_ok()
    }

    pub(crate) fn give_back(&self, slot: usize, bytes: u64) {
        if bytes > 0 {
            let before = self.slots[slot].reserved.fetch_sub(bytes, Ordering::Relaxed);
            debug_assert!(before >= bytes);
        }
    }

    /// Returns the bytes that are reserved now in each slot.
    pub(crate) fn reserved(&self) -> impl Iterator<Item = u64> + '_ {
        self.slots.iter().map(|slot| slot.reserved.load(Ordering::Relaxed))
    }
}
