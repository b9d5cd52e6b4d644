use std::collections::BTreeSet;

use memgroup_sync::Erasable;
use memgroup_sync::atomic::Ordering;

use super::*;
use crate::arena::os::{Call, inject};
use crate::slot::source::SlotSource;

fn table(slots: usize) -> &'static Words {
    memgroup_sync::keep(Box::new(Words::new(slots)))
}

fn cell(words: &'static Words, place: u32) -> WordCell {
    let cell = WordCell::zero();
    cell.set(words, place);
    cell
}

/// What a section and the caller's promises need no proof for here: no other thread has the cell.
fn retire(cell: &WordCell) {
    // SAFETY: this is the only owner, and it calls once.
    unsafe { cell.retire() };
}

#[test]
fn each_place_has_a_word_of_its_own_on_each_slot() {
    for slots in [1, 2, 8, 128, 512] {
        let words = table(slots);
        let places = [0, 1, PLACES - 1, PLACES, 3 * PLACES + 7];
        let mut seen = BTreeSet::new();
        for place in places {
            words.reserve(place).unwrap();
            let cell = cell(words, place);
            for slot in 0..slots {
                let word = cell.get(slot).unwrap();
                // ORDERING: Relaxed, here and below; one thread.
                assert_eq!(word.load(Ordering::Relaxed), 0);
                word.store(1, Ordering::Relaxed);
                assert!(seen.insert(core::ptr::from_ref(word).addr()), "{slots} slots, place {place}");
                assert!(cell.leads_to(slot, word) && !cell.leads_to((slot + 1) % (slots + 1), word));
            }
            assert!(cell.get(slots).is_none() && cell.get(usize::MAX).is_none());
        }
        let ranges = words.ranges();
        assert!(seen.iter().all(|at| ranges.iter().any(|range| range.contains(at))));
        assert_eq!(words.stats().blocks, 3);
    }
}

#[test]
fn words_of_two_slots_share_no_pair_of_lines() {
    let words = table(128);
    words.reserve(0).unwrap();
    let pair = |place, slot| core::ptr::from_ref(cell(words, place).get(slot).unwrap()).addr() / 128;
    let pairs_of = |slot| (0..PLACES).map(|place| pair(place, slot)).collect::<BTreeSet<_>>();
    for slot in 1..128 {
        assert!(pairs_of(slot - 1).is_disjoint(&pairs_of(slot)), "slot {slot}");
    }
    // So many sets of lines has a level-1 cache of 64-byte lines, and pages of 4 KiB, at least.
    let sets = (0..128).map(|slot| pair(0, slot) % 32).collect::<BTreeSet<_>>();
    assert_eq!(sets.len(), 32, "one place's words are in all of them");
}

#[test]
fn a_block_goes_back_with_its_last_place_and_begins_with_zeros() {
    let words = table(2);
    words.reserve(5).unwrap();
    words.reserve(6).unwrap();
    let (five, six) = (cell(words, 5), cell(words, 6));
    let word = six.get(1).unwrap();
    // ORDERING: Relaxed, here and below; one thread.
    word.store(7, Ordering::Relaxed);
    retire(&six);
    assert!(six.get(0).is_none() && five.get(0).is_some());
    words.release(6);
    assert_eq!(word.load(Ordering::Relaxed), 7, "place 5 has the page");
    retire(&five);
    assert_eq!(words.returned_bytes_total(), 0);
    words.release(5);
    let bytes = words.returned_bytes_total();
    assert!(bytes > 0 && bytes <= words.stats().reserved_bytes, "{bytes}");
    assert_eq!(word.load(Ordering::Relaxed), 0, "the address is good, and the word is zero");
    let before = words.ranges();
    words.reserve(7).unwrap();
    assert_eq!(words.ranges(), before, "the address space is used again");
}

#[test]
fn slots_are_noted_once_they_may_have_been_used() {
    let words = table(200);
    assert_eq!(words.used().count(), 0);
    for slot in [130, 3, 130] {
        words.note(slot);
    }
    assert_eq!(words.used().collect::<Vec<_>>(), [3, 130]);
}

#[test]
fn the_current_slot_needs_a_source_in_the_rseq_area() {
    let words = table(SlotSource::detect().slots());
    words.reserve(0).unwrap();
    let (cell, source) = (cell(words, 0), SlotSource::detect().fast());
    if let Some((slot, word)) = cell.get_current(&source) {
        assert!(cell.leads_to(slot, word));
    }
    let hashed = SlotSource::thread_hash(1).unwrap().fast();
    assert!(cell.get_current(&hashed).is_none());
    assert!(WordCell::zero().get_current(&source).is_none());
}

#[test]
fn a_refusal_of_the_system_is_an_error_and_costs_nothing() {
    let words = table(3);
    let refused = inject::fail_at(Call::Map, 1..=u64::MAX);
    let error = words.reserve(0).unwrap_err().to_string();
    assert!(error.contains("raise RLIMIT_AS"), "{error}");
    assert_eq!(words.stats(), WordsStats::default());
    drop(refused);
    words.reserve(0).unwrap();
    // ORDERING: Relaxed, here and below; one thread.
    cell(words, 0).get(2).unwrap().store(9, Ordering::Relaxed);
    let refused = inject::fail_at(Call::Discard, 1..=u64::MAX);
    words.release(0);
    assert_eq!(words.returned_bytes_total(), 0);
    drop(refused);
    words.reserve(0).unwrap();
    assert_eq!(cell(words, 0).get(2).unwrap().load(Ordering::Relaxed), 0, "it was set to zero by hand");
}

#[test]
#[should_panic(expected = "place 600 has no words to release")]
fn a_place_that_is_not_reserved_is_not_released() {
    let words = table(1);
    words.reserve(0).unwrap();
    words.release(600);
}

#[test]
#[should_panic(expected = "place 1024 has no words")]
fn a_cell_leads_to_a_reserved_place_only() {
    let words = table(1);
    words.reserve(1023).unwrap();
    cell(words, 1024);
}
