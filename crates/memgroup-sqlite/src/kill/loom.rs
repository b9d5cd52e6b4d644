//! A model of a connection whose uses follow one another while another thread tells it to stop: every interleaving. The fault of
//! `mutation` must make it fail.

use std::sync::Arc;

use loom::thread;
use memgroup_sync::atomic::{AtomicBool, Ordering};

use super::uses::{Interrupt, Use, Uses};
use crate::mutation::{self, Mutation};

/// SQLite's flag.
struct Flag(AtomicBool);

impl Interrupt for Flag {
    fn interrupt(&self) {
        // ORDERING: Relaxed; as SQLite's own.
        self.0.store(true, Ordering::Relaxed);
    }

    fn forget(&self) {
        // ORDERING: as above.
        self.0.store(false, Ordering::Relaxed);
    }
}

fn uses_follow_one_another() {
    let uses = Arc::new(Uses::<Flag, ()>::new());
    let one = Arc::new(Use::new(Flag(AtomicBool::new(false))));
    uses.enlist(&one);
    let stopping = thread::spawn({
        let uses = Arc::clone(&uses);
        move || uses.try_stop(|| ())
    });
    for _ in 0..2 {
        // ORDERING: Relaxed; as SQLite's own.
        assert!(!one.connection.0.load(Ordering::Relaxed), "an interrupt has outlived its use");
        assert!(one.begin());
        // ORDERING: as above.
        let is_interrupted = one.connection.0.load(Ordering::Relaxed);
        let mut was_told = false;
        uses.end(&one, || was_told = true);
        assert!(!is_interrupted || was_told, "an interrupt came from nowhere");
    }
    // ORDERING: as above.
    assert!(!one.connection.0.load(Ordering::Relaxed), "an interrupt has outlived its use");
    uses.delist(&one);
    stopping.join().expect("it only tells");
}

#[test]
fn loom_an_interrupt_hits_the_use_that_it_was_meant_for() {
    loom::model(uses_follow_one_another);
}

#[test]
#[should_panic(expected = "an interrupt has outlived its use")]
fn loom_an_end_that_does_not_wait_for_the_interrupt_is_caught() {
    mutation::with(Mutation::KilledEndsUnlocked, || loom::model(uses_follow_one_another));
}
