//! The slots that were admitted.
//!
//! - I1. A slot that was admitted stays admitted.
//! - E1. Admission of a slot → a thread that takes memory back from an object used on it. The user
//!   saw the bit set before it used the slot, and its use happens before the object is freed. By
//!   coherence of the one word the freeing thread, and each thread that takes the lock after it,
//!   sees the bit too.

use memgroup_sync::atomic::{AtomicU64, Ordering};

use crate::bits::places;
pub(crate) use crate::slot::error::SLOTS_MAX;

/// A set of slots that only grows.
///
/// In a normal build its words lie within it, so that a test for a slot is one load from a known
/// place.
#[derive(Debug)]
pub(crate) struct SlotSet {
    #[cfg(not(memgroup_loom))]
    words: [AtomicU64; SLOTS_MAX / 64],
    #[cfg(memgroup_loom)]
    words: Box<[AtomicU64]>,
    slots: usize,
}

impl SlotSet {
    /// No slot of `slots`, which is at most [`SLOTS_MAX`].
    pub(crate) fn new(slots: usize) -> Self {
        Self {
            #[cfg(not(memgroup_loom))]
            words: [const { AtomicU64::new(0) }; SLOTS_MAX / 64],
            #[cfg(memgroup_loom)]
            words: (0..slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            slots,
        }
    }

    /// Returns whether `slot` was admitted; `false` for a slot that does not exist.
    #[inline(always)]
    pub(crate) fn contains(&self, slot: usize) -> bool {
        match self.words.get(slot / 64) {
            // ORDERING: Acquire; pairs with the Release in `insert`. For E1 coherence alone would
            // do.
            Some(word) => word.load(Ordering::Acquire) >> (slot % 64) & 1 != 0,
            None => false,
        }
    }

    /// Adds `slot`, which is below the number of slots; returns whether it is new.
    pub(crate) fn insert(&self, slot: usize) -> bool {
        assert!(slot < self.slots, "slot {slot} of an arena with {} slots", self.slots);
        // ORDERING: AcqRel, as in `contains`. An RMW, because the word's other slots are admitted
        // at the same time.
        self.words[slot / 64].fetch_or(1 << (slot % 64), Ordering::AcqRel) >> (slot % 64) & 1 == 0
    }

    /// The admitted slots, in order; those admitted meanwhile may be missing.
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + Clone {
        self.words[..self.slots.div_ceil(64)].iter().enumerate().flat_map(|(index, word)| {
            // ORDERING: Relaxed, as in `contains`.
            places(word.load(Ordering::Relaxed)).map(move |place| index * 64 + place)
        })
    }

    /// How many slots were admitted.
    pub(crate) fn len(&self) -> usize {
        // ORDERING: Relaxed, as in `contains`.
        self.words.iter().map(|word| word.load(Ordering::Relaxed).count_ones() as usize).sum()
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;

    #[test]
    fn admitted_slots_stay_and_come_in_order() {
        let set = SlotSet::new(200);
        assert_eq!(set.len(), 0);
        for slot in [130, 0, 63, 64, 199, 130] {
            set.insert(slot);
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 64, 130, 199]);
        assert_eq!(set.len(), 5);
        assert!(set.contains(63) && !set.contains(62) && !set.contains(usize::MAX));
        assert!(!set.insert(0) && set.insert(1));
    }

    #[test]
    #[should_panic(expected = "slot 200 of an arena with 200 slots")]
    fn refuses_a_slot_that_does_not_exist() {
        SlotSet::new(200).insert(200);
    }
}
