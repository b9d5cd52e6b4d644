//! Models of the queue for a seat: every interleaving of a few calls, with up to three preemptions. Each fault of `mutation` must make its
//! model fail; a waiter that nobody wakes is one that loom finds.

use std::sync::Arc;
use std::time::Duration;

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::keep;
use memgroup_sync::loom::thread;

use super::{let_go, seize};
use crate::mutation::{self, Mutation};
use crate::shrink::cell::Cell;
use crate::shrink::entry::nobody;
use crate::stock::loom::explore;

const LONG: Duration = Duration::from_secs(3600);

fn seized() -> &'static Cell {
    let cell: &'static Cell = keep(Box::new(Cell::new()));
    cell.occupy(nobody(), 0, 0);
    assert!(cell.seize(1, false));
    cell
}

/// What only who has the seat may do.
fn serve(served: &AtomicU64) {
    // ORDERING: Relaxed, both; the seat is to make this one thread's at a time, and to show it what those before did.
    let before = served.load(Ordering::Relaxed);
    served.store(before + 1, Ordering::Relaxed);
}

/// Two wait for a seat that is let go.
fn two_wait() {
    let (cell, served) = (seized(), Arc::new(AtomicU64::new(0)));
    let waiters: Vec<_> = (0..2)
        .map(|_| {
            let served = Arc::clone(&served);
            thread::spawn(move || {
                assert!(seize(cell, LONG, || 1, |_| true), "it is to be had");
                serve(&served);
                assert!(!let_go(cell, || 1).is_given_up);
            })
        })
        .collect();
    serve(&served);
    assert!(!let_go(cell, || 1).is_given_up);
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    // ORDERING: Relaxed; after the joins.
    assert_eq!(served.load(Ordering::Relaxed), 3, "times that somebody had the seat");
    assert!(cell.seize(1, false), "it is free");
}

/// One waits for a seat that is given up.
fn one_waits_for_a_seat_that_is_given_up() {
    let (cell, given_back) = (seized(), Arc::new(AtomicU64::new(0)));
    let count = |given_back: &AtomicU64, is_mine: bool| {
        // ORDERING: Relaxed; a number by itself, and read after the joins.
        given_back.fetch_add(u64::from(is_mine), Ordering::Relaxed);
    };
    let waiter = {
        let given_back = Arc::clone(&given_back);
        thread::spawn(move || {
            if seize(cell, LONG, || 1, |_| true) {
                count(&given_back, let_go(cell, || 1).is_given_up);
            }
        })
    };
    let leaver = {
        let given_back = Arc::clone(&given_back);
        thread::spawn(move || {
            cell.vacate();
            count(&given_back, cell.give_up());
        })
    };
    count(&given_back, let_go(cell, || 1).is_given_up);
    waiter.join().unwrap();
    leaver.join().unwrap();
    // ORDERING: Relaxed; after the joins.
    assert_eq!(given_back.load(Ordering::Relaxed), 1, "times that the seat is given back");
}

/// One has waited for long enough when the seat is let go.
fn one_goes() {
    let cell = seized();
    let waiter = thread::spawn(move || {
        if seize(cell, Duration::from_nanos(1), || 10, |_| true) {
            assert!(!let_go(cell, || 1).is_given_up);
        }
    });
    assert!(!let_go(cell, || 10).is_given_up);
    waiter.join().unwrap();
    assert!(cell.seize(1, false), "the seat is free when nobody is left");
}

#[test]
fn a_seat_is_handed_to_everybody_who_waits_for_it() {
    explore(two_wait);
}

#[test]
fn who_waits_for_a_seat_that_is_given_up_is_told_and_it_is_given_back_once() {
    explore(one_waits_for_a_seat_that_is_given_up);
}

#[test]
fn who_has_waited_for_long_enough_does_not_go_with_the_seat() {
    explore(one_goes);
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_waits_is_never_woken_where_who_lets_go_does_not_look() {
    mutation::with(Mutation::LetGoIgnoresWaiters, || explore(two_wait));
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_waits_behind_another_is_never_woken_where_who_hands_on_forgets_the_rest() {
    mutation::with(Mutation::HandOnForgetsTheRest, || explore(two_wait));
}

#[test]
#[should_panic(expected = "the seat is free")]
fn a_seat_is_lost_where_who_has_waited_goes_without_a_look() {
    mutation::with(Mutation::WaiterGoesWithTheSeat, || explore(one_goes));
}
