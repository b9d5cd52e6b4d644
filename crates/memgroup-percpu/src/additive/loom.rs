//! Models of additive words: every interleaving of a few calls, with up to three preemptions. The
//! oracle is a sum at rest.

use std::sync::Arc;

use memgroup_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use memgroup_sync::thread;

use super::{add, read, take, take_final};
use crate::models::explore;
use crate::mutation::{self, Mutation};

/// Two words, and which of them additions go to.
struct Words {
    at: AtomicUsize,
    words: [AtomicU64; 2],
}

impl Words {
    /// Adds one to the word that the handle names, and again after a tombstone.
    fn add_one(&self) {
        // ORDERING: Acquire; pairs with the Release in `moves`.
        while !add(&self.words[self.at.load(Ordering::Acquire)], 1) {}
    }

    fn moves(&self) {
        // ORDERING: AcqRel; before the tombstone, so that an addition that finds it finds the other
        // word.
        self.at.swap(1, Ordering::AcqRel);
        let value = take_final(&self.words[0]);
        assert!(add(&self.words[1], value), "the second word lives");
    }
}

fn additions_against_a_move() {
    let words = Arc::new(Words { at: AtomicUsize::new(0), words: [AtomicU64::new(5), AtomicU64::new(0)] });
    let other = thread::spawn({
        let words = Arc::clone(&words);
        move || {
            words.add_one();
            words.add_one();
        }
    });
    words.moves();
    other.join().unwrap();
    let sum = read(&words.words[1]);
    assert!(sum == 7, "7 are counted, not {sum}");
    assert!(read(&words.words[0]) == 0, "a dead word holds nothing");
}

#[test]
fn loom_an_addition_is_moved_or_made_again() {
    explore(3, additions_against_a_move);
}

#[test]
#[should_panic(expected = "7 are counted")]
fn loom_a_word_buried_by_a_store_is_caught() {
    mutation::with(Mutation::TakeFinalByStore, || explore(3, additions_against_a_move));
}

#[test]
#[should_panic(expected = "7 are counted")]
fn loom_an_addition_that_ignores_the_tombstone_is_caught() {
    mutation::with(Mutation::AddIgnoresTombstone, || explore(3, additions_against_a_move));
}

/// A word, and a mark for the taker. An addition that finds the mark set does not set it.
fn an_addition_against_a_taker() {
    let shared = Arc::new((AtomicU64::new(0), AtomicBool::new(true)));
    let other = thread::spawn({
        let shared = Arc::clone(&shared);
        move || {
            assert!(add(&shared.0, 1), "the word lives");
            // ORDERING: Relaxed; the addition before it orders it (E2).
            if !shared.1.load(Ordering::Relaxed) {
                // ORDERING: Relaxed; the oracle joins.
                shared.1.store(true, Ordering::Relaxed);
            }
        }
    });
    // ORDERING: Relaxed; `take` publishes it (E2).
    shared.1.store(false, Ordering::Relaxed);
    let taken = take(&shared.0);
    other.join().unwrap();
    // ORDERING: Relaxed; joined.
    let marked = shared.1.load(Ordering::Relaxed);
    assert!(taken + read(&shared.0) == 1, "one is counted");
    assert!(taken == 1 || marked, "an addition is taken or marked");
}

#[test]
fn loom_an_addition_is_taken_or_finds_the_takers_writes() {
    explore(3, an_addition_against_a_taker);
}

#[test]
#[should_panic(expected = "an addition is taken or marked")]
fn loom_a_zero_that_is_not_taken_is_caught() {
    mutation::with(Mutation::TakeSkipsZero, || explore(3, an_addition_against_a_taker));
}

fn a_taker_against_a_move() {
    let words = Arc::new(Words { at: AtomicUsize::new(0), words: [AtomicU64::new(5), AtomicU64::new(0)] });
    let adder = thread::spawn({
        let words = Arc::clone(&words);
        move || words.add_one()
    });
    let taker = thread::spawn({
        let words = Arc::clone(&words);
        move || take(&words.words[0])
    });
    words.moves();
    adder.join().unwrap();
    let sum = taker.join().unwrap() + read(&words.words[1]);
    assert!(sum == 6, "6 are counted, not {sum}");
    assert!(read(&words.words[0]) == 0, "a dead word holds nothing");
}

#[test]
fn loom_taken_values_do_not_move_and_dead_words_stay_dead() {
    explore(3, a_taker_against_a_move);
}

#[test]
#[should_panic(expected = "6 are counted")]
fn loom_a_swap_that_removes_a_tombstone_is_caught() {
    mutation::with(Mutation::TakeBySwap, || explore(3, a_taker_against_a_move));
}
