//! The store-buffering test: can a withdrawal miss a pin that has found the value, and can the
//! leaving thread miss that another one waits?
//!
//! ```text
//!   walker                                writer
//!   pin (its record)                      the place is emptied, and LEAVING
//!   read the place                        barrier
//!   .. until the writer has scanned       scan the records
//! ```
//!
//! Forbidden: the walker has the value, and the writer found no user. Then the pin ends while the
//! writer detaches; forbidden: no thread runs the detached closure. The control leaves the barrier
//! out, and must meet the first of the two; it takes an optimised build:
//!
//! ```text
//! cargo test --release -p memgroup-sync --lib litmus
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::{Domain, Place, WaitError};
use crate::grace::barrier::{barrier, report};
use crate::grace::litmus::{Line, PROCESSORS, TIME, allowed, can_run, jitter, pin, wait_for};
use crate::grace::{Evidence, Form};

/// A value in a place, and the progress of the round.
struct Shared {
    domain: &'static Domain,
    place: &'static Place<u64>,
    round: Line,
    scanned: Line,
    /// Whether the walker had the value, plus twice the round.
    seen: Line,
    /// The last round with a detached closure that has run.
    done: Arc<AtomicU64>,
    over: AtomicBool,
}

#[derive(Debug, Default)]
struct Outcome {
    rounds: u64,
    pinned: u64,
    missed: u64,
}

fn walk(shared: &Shared, cpu: usize) {
    pin(cpu);
    let mut state = 0x9E37_79B9_7F4A_7C15;
    let mut lease = shared.domain.lease();
    for round in 1.. {
        // ORDERING: Acquire, all rounds are handed over by Release and Acquire.
        wait_for(|| shared.round.0.load(Ordering::Acquire) >= round || shared.over.load(Ordering::Acquire));
        // ORDERING: Acquire, as above.
        if shared.over.load(Ordering::Acquire) {
            return;
        }
        jitter(&mut state);
        let pinned = lease.pin(shared.place);
        let seen = u64::from(pinned.is_some());
        // ORDERING: Acquire, as above.
        wait_for(|| shared.scanned.0.load(Ordering::Acquire) >= round);
        jitter(&mut state);
        drop(pinned);
        // ORDERING: Release, as above.
        shared.seen.0.store(round << 1 | seen, Ordering::Release);
    }
}

fn write(shared: &Shared, cpu: usize, with_barrier: bool, enough: u64) -> Outcome {
    pin(cpu);
    let begun = Instant::now();
    let mut outcome = Outcome::default();
    let mut state = 0xD1B5_4A32_D192_ED03;
    while begun.elapsed() < TIME && outcome.missed < enough {
        outcome.rounds += 1;
        let round = outcome.rounds;
        shared.place.put(Box::new(round));
        // ORDERING: Release, the start of the round.
        shared.round.0.store(round, Ordering::Release);
        // The walker has to fetch the words written here, so the place is emptied some time later.
        (0..round % 16).for_each(|_| jitter(&mut state));
        let made = || if with_barrier { barrier(Form::Expedited) } else { Evidence::Loads };
        let withdrawn = shared.place.take(made).expect("this thread has put it there");
        let waited = withdrawn.wait_until(begun);
        // ORDERING: Release, the pin may end.
        shared.scanned.0.store(round, Ordering::Release);
        let found = match waited {
            Err(WaitError::Deadline(withdrawn) | WaitError::UsedHere(withdrawn)) => {
                jitter(&mut state);
                let done = Arc::clone(&shared.done);
                // ORDERING: Release; read below.
                withdrawn.detach(move |value| done.store(*value, Ordering::Release));
                true
            }
            Ok(_) => false,
        };
        // ORDERING: Acquire, the end of the round.
        wait_for(|| shared.seen.0.load(Ordering::Acquire) >> 1 == round);
        // ORDERING: Relaxed; read after the wait above.
        let seen = shared.seen.0.load(Ordering::Relaxed) & 1 == 1;
        // ORDERING: Acquire; pairs with the store in the detached closure.
        assert!(!found || shared.done.load(Ordering::Acquire) == round, "nobody did what was detached");
        outcome.pinned += u64::from(seen);
        outcome.missed += u64::from(seen && !found);
    }
    // ORDERING: Release, the end.
    shared.over.store(true, Ordering::Release);
    outcome
}

/// Runs rounds for `TIME`, or until `enough` forbidden outcomes.
fn run(with_barrier: bool, enough: u64) -> Outcome {
    let cpus = allowed();
    let domain: &'static Domain = crate::keep(Box::new(Domain::new()));
    let shared = Arc::new(Shared {
        domain,
        place: crate::keep(Box::new(Place::empty(domain))),
        round: Line::default(),
        scanned: Line::default(),
        seen: Line::default(),
        done: Arc::default(),
        over: AtomicBool::new(false),
    });
    // Before the first lease, which is pinned by a store then where that can be.
    report();
    let walking = std::thread::spawn({
        let (shared, cpu) = (Arc::clone(&shared), cpus[1]);
        move || walk(&shared, cpu)
    });
    let writing = std::thread::spawn(move || write(&shared, cpus[0], with_barrier, enough));
    let outcome = writing.join().unwrap();
    walking.join().unwrap();
    outcome
}

#[test]
#[cfg_attr(debug_assertions, ignore = "an unoptimised build hides the race; run it with --release")]
fn no_pin_that_has_found_the_value_is_missed_by_the_withdrawal() {
    let _processors = PROCESSORS.lock();
    if can_run() {
        let outcome = run(true, 1);
        println!("LITMUS {outcome:?}");
        assert!(outcome.rounds > 3, "{outcome:?}");
        assert_eq!(outcome.missed, 0, "{outcome:?}");
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "an unoptimised build hides the race; run it with --release")]
fn without_a_barrier_the_withdrawal_misses_pins_that_are_made_by_a_store() {
    let _processors = PROCESSORS.lock();
    if !report().enters_by_store() {
        println!("skipped: places are pinned by a swap here: {}", report());
    } else if cfg!(debug_assertions) {
        println!(
            "skipped: so many instructions lie between the store and the load that the store is done by then"
        );
    } else if can_run() {
        let outcome = (0..100).map(|_| run(false, 1)).find(|outcome| outcome.missed > 0);
        println!("CONTROL {:?}", outcome.expect("the control meets the forbidden outcome within 100 s"));
    }
}
