//! Which slots ever ran.
//!
//! - I1. A slot that was admitted stays admitted.
//! - E1. Admission of a slot → whoever takes memory back from an object that was used on it. The user saw the bit set
//!   before it used the slot, and its use happens before the object is freed; so by coherence of the one word the
//!   freeing thread, and whoever takes the lock after it, sees the bit too. No stronger order than Relaxed is needed.

use memgroup_sync::atomic::{AtomicU64, Ordering};

/// The most slots an arena can have.
pub(crate) const SLOTS_MAX: usize = 8192;

/// A set of slots that only grows.
///
/// In a normal build its words lie within it, so that looking a slot up is one load from a known place.
#[derive(Debug)]
pub struct SlotSet {
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

    /// Whether `slot` was admitted; `false` for a slot that is not there.
    #[inline(always)]
    #[must_use]
    pub fn contains(&self, slot: usize) -> bool {
        match self.words.get(slot / 64) {
            // ORDERING: Acquire; pairs with the Release in `insert`: marks that were put into the slot's copies before it was
            // opened are seen (`record.rs`). For E1 coherence alone would do.
            Some(word) => word.load(Ordering::Acquire) >> (slot % 64) & 1 != 0,
            None => false,
        }
    }

    /// Adds `slot`, which is below the number of slots; whether it is new.
    pub(crate) fn insert(&self, slot: usize) -> bool {
        assert!(slot < self.slots, "slot {slot} of an arena with {} slots", self.slots);
        // ORDERING: AcqRel, as in `contains`. An RMW, because the word's other slots are admitted at the same time.
        self.words[slot / 64].fetch_or(1 << (slot % 64), Ordering::AcqRel) >> (slot % 64) & 1 == 0
    }

    /// The slots admitted, in order; those admitted meanwhile may be missing.
    pub fn iter(&self) -> impl Iterator<Item = usize> + Clone {
        self.words[..self.slots.div_ceil(64)].iter().enumerate().flat_map(|(index, word)| {
            // ORDERING: Relaxed, as in `contains`.
            let mut bits = word.load(Ordering::Relaxed);
            core::iter::from_fn(move || {
                let bit = bits.trailing_zeros() as usize;
                bits &= bits.wrapping_sub(1);
                (bit < 64).then_some(index * 64 + bit)
            })
        })
    }

    /// How many slots were admitted.
    #[must_use]
    pub fn len(&self) -> usize {
        // ORDERING: Relaxed, as in `contains`.
        self.words.iter().map(|word| word.load(Ordering::Relaxed).count_ones() as usize).sum()
    }

    /// Whether no slot was admitted yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_was_admitted_stays_and_comes_in_order() {
        let set = SlotSet::new(200);
        assert!(set.is_empty());
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
    fn a_slot_that_is_not_there_is_not_admitted() {
        SlotSet::new(200).insert(200);
    }
}
