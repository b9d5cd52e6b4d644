//! A model of a connection with two successive runs while another thread tells it to stop, in every
//! interleaving. The fault of `mutation` must make it fail.

use std::sync::Arc;

use loom::thread;
use memgroup_sync::atomic::{AtomicBool, Ordering};

use super::{Interrupt, KillTarget, KillTargets};
use crate::mutation::{self, Mutation};

/// SQLite's interrupt flag.
struct Flag(AtomicBool);

impl Interrupt for Flag {
    fn interrupt(&self) {
        // ORDERING: Relaxed; as in SQLite.
        self.0.store(true, Ordering::Relaxed);
    }

    fn clear_interrupt(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

fn two_runs_while_another_thread_stops() {
    let targets = Arc::new(KillTargets::<Flag, ()>::new());
    let target = Arc::new(KillTarget::new(Flag(AtomicBool::new(false))));
    targets.add(&target);
    let stopping = thread::spawn({
        let targets = Arc::clone(&targets);
        move || targets.try_stop(|| ())
    });
    for _ in 0..2 {
        // ORDERING: Relaxed; as in SQLite.
        assert!(!target.connection.0.load(Ordering::Relaxed), "an interrupt has outlived its run");
        assert!(target.begin());
        let is_interrupted = target.connection.0.load(Ordering::Relaxed);
        let mut was_killed = false;
        targets.end(&target, || was_killed = true);
        assert!(!is_interrupted || was_killed, "a run was interrupted that was not killed");
    }
    assert!(!target.connection.0.load(Ordering::Relaxed), "an interrupt has outlived its run");
    targets.remove(&target);
    stopping.join().expect("the other thread cannot fail");
}

#[test]
fn loom_interrupts_only_the_run_that_was_running() {
    loom::model(two_runs_while_another_thread_stops);
}

#[test]
#[should_panic(expected = "an interrupt has outlived its run")]
fn loom_catches_an_end_that_does_not_wait_for_the_interrupt() {
    mutation::with(Mutation::KilledEndsUnlocked, || loom::model(two_runs_while_another_thread_stops));
}
