//! Slots: the bytes that one thread holds back. Each slot is one word with a group and its bytes.
//!
//! ```text
//!   63                                         22 21                   0
//!  ┌─────────────────────────────────────────────┬──────────────────────┐
//!  │ key: address of the owner / 64; 0: no owner │ held back, in units  │
//!  └─────────────────────────────────────────────┴──────────────────────┘
//! ```
//!
//! Held back bytes are charged to the group, and no block uses them. A new block takes its bytes
//! from them, and a freed one adds its bytes, by one store each, in a line that only this thread
//! writes. Other threads write a word only to take its bytes out for the engine. They first stop
//! the stores (`records`), and both sides then change the word by compare-and-swap.
//!
//! - I1. The bytes in a word are charged to the word's owner, so a word with bytes keeps its
//!   owner's group alive.
//! - I2. Every change of a word is one RMW, or a store while no other thread may change it
//!   (`records` I3). The word is the whole state, so an equal word is an equal state, and bytes
//!   that leave a word leave it once. Loom: `loom_two_refusers_take_one_delta_once`.
//! - I3. One thread at a time opens slots of a record, so no owner has two slots in it.
//! - E1. open ↔ close: the opening thread stores the owner, fences, and checks whether the group
//!   may have a slot. The engine marks the group, fences, and reads the words. One sees the other.
//!   Loom: `loom_no_slot_stays_open_after_a_removal`.

use memgroup_sync::atomic::{AtomicU64, Ordering};

use crate::mutation::{self, Mutation};

/// Bytes of a unit. Blocks are charged in whole units.
pub(crate) const UNIT: u64 = 16;

/// The most units that a slot holds back: 64 KiB.
pub(crate) const UNITS_MOST: u64 = (64 << 10) / UNIT;

/// The number of slots of a thread: one cache line.
pub(crate) const SLOTS: usize = if cfg!(memgroup_loom) { 1 } else { 8 };

const UNIT_BITS: u32 = 22;

/// The bits of the units in a word.
const UNITS_MASK: u64 = (1 << UNIT_BITS) - 1;

/// The most units in a word: half of what its bits could express, so a word that gains or loses a
/// small block's units keeps its key.
pub(crate) const HELD_MOST: u64 = UNITS_MASK / 2;

const _: () = assert!(UNITS_MOST <= HELD_MOST);

/// The number of an owner, which is not 0, shifted to its position in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(u64);

impl Key {
    /// The bits of a number.
    pub(crate) const BITS: u32 = u64::BITS - UNIT_BITS;

    /// Returns the key of a number, which is not 0 and has at most `BITS` bits.
    #[inline(always)]
    pub(crate) const fn of(number: u64) -> Key {
        Key(number << UNIT_BITS)
    }

    pub(crate) fn number(self) -> u64 {
        self.0 >> UNIT_BITS
    }
}

/// The answer of [`Slots::visit`]'s caller.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Keep,
    /// Take the units. The slot stays open.
    Empty,
    /// Take the units and the slot's owner.
    Close,
    /// The same, but the slot's thread may do it, at its next block.
    CloseSoon,
}

impl Answer {
    /// The answer if the units can be taken at once.
    pub(crate) fn at_once(self, units: u64) -> Answer {
        match self {
            Answer::Empty if units == 0 => Answer::Keep,
            Answer::CloseSoon => Answer::Close,
            other => other,
        }
    }
}

/// The fate of units that were put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    Kept,
    /// The slot had too many. These units left it, including the caller's.
    Left(u64),
    NoSlot,
}

/// A slot after [`Slots::open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    /// The units that it holds back.
    pub(crate) units: u64,
    /// The slot belonged to the owner before, and no thread has closed it since.
    pub(crate) was_open: bool,
    /// The units that left it, with their owner. They are those of another owner, or of the same
    /// one if there were too many for a word.
    pub(crate) left: Option<(Key, u64)>,
}

/// The slots of one thread.
#[repr(align(64))]
pub(crate) struct Slots {
    slots: [Slot; SLOTS],
}

fn has_key(word: u64, key: Key) -> bool {
    word & !UNITS_MASK == key.0
}

fn word_of(key: Key, units: u64) -> u64 {
    key.0 | units
}

fn parts(word: u64) -> Option<(Key, u64)> {
    (word != 0).then_some((Key(word & !UNITS_MASK), word & UNITS_MASK))
}

/// One slot.
pub(crate) struct Slot {
    word: AtomicU64,
}

impl Slot {
    /// A slot without an owner.
    #[cfg(not(memgroup_loom))]
    pub(crate) const fn new() -> Slot {
        Slot { word: AtomicU64::new(0) }
    }

    /// A slot without an owner.
    #[cfg(memgroup_loom)]
    pub(crate) fn new() -> Slot {
        Slot { word: AtomicU64::new(0) }
    }

    /// Does the work of `take` for a small block, by a store, on a thread that no other thread
    /// disturbs.
    #[inline(always)]
    pub(crate) fn take_alone(&self, key: Key, units: u64) -> bool {
        // ORDERING: Relaxed, because only this thread changes the word now.
        let word = self.word.load(Ordering::Relaxed);
        debug_assert!(units <= UNITS_MOST);
        // If the key differs or there are too few units, the difference is more than any word can
        // have.
        let is_there = word.wrapping_sub(key.0).wrapping_sub(units) <= HELD_MOST;
        if is_there {
            // ORDERING: Relaxed; published by `Record::leave`.
            self.word.store(word - units, Ordering::Relaxed);
        }
        is_there
    }

    /// Does the work of `put` for a small block, by a store, on a thread that no other thread
    /// disturbs. Returns whether the slot has the units now. Otherwise the caller must call `put`.
    #[inline(always)]
    pub(crate) fn put_alone(&self, key: Key, units: u64, most: u64) -> bool {
        // ORDERING: Relaxed, because only this thread changes the word now.
        let word = self.word.load(Ordering::Relaxed);
        debug_assert!(units <= UNITS_MOST);
        // As in `take_alone`.
        let is_put = word.wrapping_sub(key.0).wrapping_add(units) <= most;
        if is_put {
            // ORDERING: Relaxed; published by `Record::leave`.
            self.word.store(word + units, Ordering::Relaxed);
        }
        is_put
    }

    /// Takes `units` for a block, if this is its owner's slot and has enough.
    #[inline(always)]
    pub(crate) fn take(&self, key: Key, units: u64) -> bool {
        let cell = &self.word;
        // ORDERING: Relaxed, because the compare-and-swap decides.
        let mut word = cell.load(Ordering::Relaxed);
        while has_key(word, key) {
            if word & UNITS_MASK < units {
                return false;
            }
            // ORDERING: Relaxed, both, because this thread, or the previous owner of the record,
            // put the bytes there. As an RMW it continues the release sequence of the put, which a
            // collecting thread acquires.
            match cell.compare_exchange_weak(word, word - units, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(newer) => word = newer,
            }
        }
        false
    }

    /// Puts the `units` of a freed block into this slot, if it is its owner's. Above `most` units
    /// the slot is halved.
    #[inline(always)]
    pub(crate) fn put(&self, key: Key, units: u64, most: u64) -> Put {
        let cell = &self.word;
        // ORDERING: Relaxed, because the compare-and-swap decides.
        let mut word = cell.load(Ordering::Relaxed);
        while has_key(word, key) {
            let sum = (word & UNITS_MASK) + units;
            let kept = if sum > most { most / 2 } else { sum };
            if mutation::active(Mutation::PutsByStore) {
                // ORDERING: Release, for the reason below (a fault for the models only).
                cell.store(word_of(key, kept), Ordering::Release);
                return Put::Kept;
            }
            // ORDERING: Release; pairs with the Acquire of a thread that takes the bytes out: they
            // were charged before.
            let swapped =
                cell.compare_exchange_weak(word, word_of(key, kept), Ordering::Release, Ordering::Relaxed);
            match swapped {
                Ok(_) if kept == sum => return Put::Kept,
                Ok(_) => return Put::Left(sum - kept),
                Err(newer) => word = newer,
            }
        }
        Put::NoSlot
    }
}

impl Slots {
    /// Slots without an owner.
    #[cfg(not(memgroup_loom))]
    pub(crate) const fn new() -> Slots {
        Slots { slots: [const { Slot::new() }; SLOTS] }
    }

    /// Slots without an owner.
    #[cfg(memgroup_loom)]
    pub(crate) fn new() -> Slots {
        Slots { slots: core::array::from_fn(|_| Slot::new()) }
    }

    /// Returns the slot with this index, which is below `SLOTS`. The remainder makes a bounds check
    /// unnecessary.
    #[inline(always)]
    pub(crate) fn at(&self, at: usize) -> &Slot {
        &self.slots[at % SLOTS]
    }

    /// Returns the index of the slot of `key`, or of one without an owner.
    pub(crate) fn find(&self, key: Key) -> Option<usize> {
        // ORDERING: Relaxed, because only this thread stores owners (I3).
        let words = || self.slots.iter().map(|slot| slot.word.load(Ordering::Relaxed));
        words().position(|word| has_key(word, key)).or_else(|| words().position(|word| word == 0))
    }

    /// Puts `units`, which are at most `HELD_MOST`, into slot `at`, with their owner.
    pub(crate) fn open(&self, at: usize, key: Key, units: u64) -> Opened {
        let cell = &self.slots[at].word;
        // ORDERING: Relaxed, because the compare-and-swap decides.
        let mut word = cell.load(Ordering::Relaxed);
        loop {
            let sum = units + (word & UNITS_MASK);
            let stays = has_key(word, key) && sum <= HELD_MOST;
            let kept = if stays { sum } else { units };
            let left = parts(word).filter(|_| !stays);
            let opened = Opened { units: kept, was_open: has_key(word, key), left };
            // ORDERING: AcqRel; Release as in `put`. Acquire: the bytes of the other owner, which
            // this thread uncharges now.
            match cell.compare_exchange_weak(word, word_of(key, kept), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return opened,
                Err(newer) => word = newer,
            }
        }
    }

    /// Takes out all units of `key`, and closes its slot.
    pub(crate) fn close(&self, key: Key) -> u64 {
        let mut all = 0;
        let ask = |owner, _| if owner == key { Answer::Close } else { Answer::Keep };
        self.visit(ask, |_, units| all += units);
        all
    }

    /// Calls `ask` for each slot with an owner. If the answer says so, takes out the slot's units
    /// and passes them to `taken`.
    pub(crate) fn visit(&self, mut ask: impl FnMut(Key, u64) -> Answer, mut taken: impl FnMut(Key, u64)) {
        for Slot { word: cell } in &self.slots {
            loop {
                // ORDERING: Acquire; pairs with the Release in `put` and `open`, for a caller that
                // only reads.
                let word = cell.load(Ordering::Acquire);
                let Some((key, units)) = parts(word) else { break };
                let left = match ask(key, units) {
                    Answer::Keep => break,
                    Answer::Empty => word_of(key, 0),
                    Answer::Close | Answer::CloseSoon => 0,
                };
                if mutation::active(Mutation::CollectsByStore) {
                    // ORDERING: Release (a fault for the models only).
                    cell.store(left, Ordering::Release);
                    taken(key, units);
                    break;
                }
                // ORDERING: AcqRel; Acquire pairs with the Release in `put` and `open`: the bytes
                // were charged before they are uncharged. Release: an opening thread that finds the
                // slot gone sees the mark of the group that closed it (E1).
                if cell.compare_exchange(word, left, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    if units > 0 {
                        taken(key, units);
                    }
                    break;
                }
            }
        }
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;

    const A: Key = Key::of(7);
    const B: Key = Key::of(8);

    #[test]
    fn a_slot_gives_no_more_than_it_has() {
        let slots = Slots::new();
        assert_eq!(slots.open(0, A, 10), Opened { units: 10, was_open: false, left: None });
        let slot = slots.at(0);
        assert!(!slot.take(B, 1) && !slot.take(A, 11) && slot.take(A, 9) && !slot.take(A, 2));
        assert!(!slot.take_alone(B, 1) && !slot.take_alone(A, 2) && slot.take_alone(A, 1));
        assert!(!slot.put_alone(B, 1, 5) && !slot.put_alone(A, 6, 5) && slot.put_alone(A, 5, 5));
        assert_eq!(slots.close(A), 5);
        slots.open(0, B, 0);
        assert!(
            !slots.at(0).take_alone(A, 1) && !slots.at(0).put_alone(A, 1, UNITS_MOST),
            "of the key before"
        );
    }

    #[test]
    fn a_full_slot_is_halved() {
        let slots = Slots::new();
        slots.open(0, A, 90);
        let slot = slots.at(0);
        assert_eq!((slot.put(A, 10, 100), slot.put(A, 1, 100)), (Put::Kept, Put::Left(51)));
        assert_eq!((slots.close(A), slot.put(A, 1, 100)), (50, Put::NoSlot));
    }

    #[test]
    fn a_slot_that_goes_to_another_owner_gives_its_units_back() {
        let slots = Slots::new();
        (0..SLOTS).for_each(|at| assert_eq!(slots.open(at, Key::of(at as u64 + 1), 5).left, None));
        assert_eq!((slots.find(Key::of(3)), slots.find(Key::of(100))), (Some(2), None));
        let opened = slots.open(2, Key::of(100), 1);
        assert_eq!((opened.was_open, opened.left), (false, Some((Key::of(3), 5))));
        assert_eq!(slots.open(2, Key::of(100), 1), Opened { units: 2, was_open: true, left: None });
        assert_eq!(slots.close(Key::of(100)), 2);
        assert_eq!(slots.find(Key::of(101)), Some(2));
        slots.open(0, A, HELD_MOST);
        assert_eq!(slots.open(0, A, 1).left, Some((A, HELD_MOST)), "too many for a word");
    }

    #[test]
    fn a_visit_takes_what_the_answers_say() {
        let slots = Slots::new();
        slots.open(0, A, 5);
        slots.open(1, B, 6);
        let mut seen = Vec::new();
        let answer = |key, _| if key == A { Answer::Empty } else { Answer::Keep };
        slots.visit(answer, |key, units| seen.push((key, units)));
        assert_eq!(seen, [(A, 5)]);
        assert_eq!((slots.find(A), slots.close(A), slots.close(B)), (Some(0), 0, 6));
    }
}
