//! Models of words: every interleaving of a few calls, with up to three preemptions.
//!
//! The oracle is that of the model's memory (`arena/os/model.rs`): pages that go back are a plain
//! write, which must be ordered against every access.

use std::sync::Arc;

use memgroup_sync::atomic::Ordering;
use memgroup_sync::grace::{self, Form};
use memgroup_sync::{Erasable, thread};

use super::{WordCell, Words};
use crate::models::explore;
use crate::mutation::{self, Mutation};

/// A thread that holds nothing finds a cell in a section, while its place is retired and released.
fn a_word_is_taken_back(waits: bool) {
    let words: &'static Words = memgroup_sync::keep(Box::new(Words::new(1)));
    words.reserve(0).expect("loom has memory");
    let cell = Arc::new(WordCell::zero());
    cell.set(words, 0);
    let late = Arc::clone(&cell);
    let other = thread::spawn(move || {
        let _section = grace::enter();
        if let Some(word) = late.get(0) {
            // ORDERING: Relaxed; the model is about the memory.
            word.fetch_add(1, Ordering::Relaxed);
            word.fetch_sub(1, Ordering::Relaxed);
        }
    });
    // SAFETY: the only owner retires it once.
    unsafe { cell.retire() };
    if waits {
        grace::synchronize(Form::Quiet);
    }
    words.release(0);
    words.reserve(1).expect("loom has memory");
    other.join().unwrap();
    cell.set(words, 0);
    // ORDERING: Relaxed; at rest.
    assert_eq!(cell.get(0).map(|word| word.load(Ordering::Relaxed)), Some(0));
}

#[test]
fn loom_a_word_is_not_taken_back_under_a_section() {
    explore(3, || a_word_is_taken_back(true));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_a_retired_cell_that_leads_to_its_word_is_caught() {
    mutation::with(Mutation::RetireLeavesTheWord, || explore(3, || a_word_is_taken_back(true)));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn loom_pages_that_go_back_without_a_grace_period_are_caught() {
    explore(3, || a_word_is_taken_back(false));
}
