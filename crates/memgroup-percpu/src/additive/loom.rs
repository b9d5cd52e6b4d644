//! Models of additive words: every interleaving of a few calls, with up to three preemptions. The oracle is a sum at rest.

use std::sync::Arc;

use memgroup_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use memgroup_sync::thread;

use super::{add, bury, read};
use crate::models::explore;
use crate::mutation::{self, Mutation};

/// Two words, and which of them additions go to.
struct Words {
    at: AtomicUsize,
    words: [AtomicU64; 2],
}

impl Words {
    /// Adds one where the handle leads; after a tombstone it leads elsewhere.
    fn add_one(&self) {
        // ORDERING: Acquire; pairs with the Release in `moves`.
        while !add(&self.words[self.at.load(Ordering::Acquire)], 1) {}
    }

    fn moves(&self) {
        // ORDERING: AcqRel; before the tombstone, so that who finds that finds the other word.
        self.at.swap(1, Ordering::AcqRel);
        let value = bury(&self.words[0]);
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
    mutation::with(Mutation::BuryByStore, || explore(3, additions_against_a_move));
}

#[test]
#[should_panic(expected = "7 are counted")]
fn loom_an_addition_that_ignores_the_tombstone_is_caught() {
    mutation::with(Mutation::AddIgnoresTombstone, || explore(3, additions_against_a_move));
}
