//! Models of the queue for a shrinker slot: every interleaving of a few calls, with up to three
//! preemptions. Each fault of `mutation` must make its model fail. Loom reports a waiter that no
//! thread wakes as a deadlock.

use std::sync::Arc;
use std::time::Duration;

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::keep;
use memgroup_sync::loom::thread;

use crate::base::mutation::{self, Mutation};
use crate::charge::loom::{config, explore, obtain};
use crate::observe::wait::{self, WaitKind};
use crate::reclaim::entry::empty_place;
use crate::reclaim::queue;
use crate::reclaim::slot::{Ended, SlotState};
use crate::tree::shared::Shared;

const LONG: Duration = Duration::from_secs(3600);

/// A slot that is seized.
#[derive(Clone, Copy)]
struct Fixture {
    shared: &'static Shared,
    slot: &'static SlotState,
}

impl Fixture {
    fn new() -> Fixture {
        let slot: &'static SlotState = keep(Box::new(SlotState::new()));
        slot.occupy(empty_place(), 0, 0);
        assert!(slot.seize(1, false));
        Fixture { shared: obtain(config(1, 2)), slot }
    }

    fn seize(self, patience: Duration) -> bool {
        let listed = wait::list::begin(self.shared.root(), WaitKind::Shrinker, 0, wait::after(patience));
        queue::seize(self.shared, self.slot, &listed, patience, None)
    }

    fn release(self) -> Ended {
        queue::release(self.shared, self.slot)
    }
}

/// A scan: only the owner of the slot makes one.
fn scan(scans: &AtomicU64) {
    // ORDERING: Relaxed, both; the slot makes this one thread's at a time, and shows it the scans
    // before.
    let before = scans.load(Ordering::Relaxed);
    scans.store(before + 1, Ordering::Relaxed);
}

/// Two wait for a slot that is released.
fn two_wait() {
    let (fixture, scans) = (Fixture::new(), Arc::new(AtomicU64::new(0)));
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            let scans = Arc::clone(&scans);
            thread::spawn(move || {
                assert!(fixture.seize(LONG), "it can be had");
                scan(&scans);
                assert!(!fixture.release().is_given_up);
            })
        })
        .collect();
    scan(&scans);
    assert!(!fixture.release().is_given_up);
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    // ORDERING: Relaxed; after the joins.
    assert_eq!(scans.load(Ordering::Relaxed), 3, "times that a thread had the slot");
    assert!(fixture.slot.seize(1, false), "it is free");
}

/// One waits for a slot that is given up.
fn one_waits_for_a_slot_that_is_given_up() {
    let (fixture, returns) = (Fixture::new(), Arc::new(AtomicU64::new(0)));
    let count = |returns: &AtomicU64, is_mine: bool| {
        // ORDERING: Relaxed; a number by itself, and read after the joins.
        returns.fetch_add(u64::from(is_mine), Ordering::Relaxed);
    };
    let waiter = {
        let returns = Arc::clone(&returns);
        thread::spawn(move || {
            if fixture.seize(LONG) {
                count(&returns, fixture.release().is_given_up);
            }
        })
    };
    let leaver = {
        let returns = Arc::clone(&returns);
        thread::spawn(move || {
            fixture.slot.vacate();
            count(&returns, fixture.slot.give_up());
        })
    };
    count(&returns, fixture.release().is_given_up);
    waiter.join().unwrap();
    leaver.join().unwrap();
    // ORDERING: Relaxed; after the joins.
    assert_eq!(returns.load(Ordering::Relaxed), 1, "times that the slot is returned");
}

/// One has waited for long enough when the slot is released.
fn one_loses_patience() {
    let fixture = Fixture::new();
    let waiter = thread::spawn(move || {
        if fixture.seize(Duration::from_nanos(1)) {
            assert!(!fixture.release().is_given_up);
        }
    });
    assert!(!fixture.release().is_given_up);
    waiter.join().unwrap();
    assert!(fixture.slot.seize(1, false), "the slot is free when no waiter is left");
}

#[test]
fn hands_the_slot_to_every_waiter() {
    explore(two_wait);
}

#[test]
fn ends_the_wait_when_the_slot_is_given_up_and_returns_it_once() {
    explore(one_waits_for_a_slot_that_is_given_up);
}

#[test]
fn loses_no_slot_when_the_patience_ends_with_the_hand_over() {
    explore(one_loses_patience);
}

#[test]
#[should_panic(expected = "deadlock")]
fn catches_a_release_that_does_not_look_for_waiters() {
    mutation::with(Mutation::LetGoIgnoresWaiters, || explore(two_wait));
}

#[test]
#[should_panic(expected = "deadlock")]
fn catches_a_hand_over_that_forgets_further_waiters() {
    mutation::with(Mutation::HandOnForgetsTheRest, || explore(two_wait));
}

#[test]
#[should_panic(expected = "the slot is free")]
fn catches_a_waiter_that_leaves_with_the_slot() {
    mutation::with(Mutation::WaiterLeavesWithTheSlot, || explore(one_loses_patience));
}
