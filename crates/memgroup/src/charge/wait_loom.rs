//! Models of the queue: every interleaving of a few calls, with up to three preemptions. Each fault of `mutation` must make its model fail; a waiter that no thread
//! serves is one that loom finds.

use std::time::{Duration, Instant};

use memgroup_sync::loom::thread;

use crate::base::mutation;
use crate::base::mutation::Mutation;
use crate::charge::loom::{UNIT, assert_conserved, charge_counters, config, explore, lone_group, obtain};
use crate::charge::wait::{Left, WaitSession};
use crate::control::aftermath;
use crate::control::waiters::Want;
use crate::counter::chain::Refused;
use crate::state::counter::Verdict;
use crate::tree::node::Node;

fn far() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

/// Waits at `at` for a unit, until it is there, and uncharges it again.
fn wait_for_a_unit(node: &'static Node, at: &'static Node) {
    let left = WaitSession::begin(node, UNIT, far(), Want::Charge).in_line(at);
    assert!(matches!(left, Ok(Left::Handed)), "nothing else ends the wait");
    aftermath::uncharge_counters(node, UNIT);
}

/// One waits for bytes that another uncharges from the stock's slow path.
fn one_waits_and_another_uncharges() {
    let group = lone_group(1, UNIT);
    charge_counters(group, UNIT, Verdict::Hint).ok().unwrap();
    let user = thread::spawn(move || group.uncharge_at(0, UNIT));
    wait_for_a_unit(group, group);
    user.join().unwrap();
    assert!(!group.waiting().is_held() && !group.counter.read().over);
    assert_conserved(group);
}

/// One waits for room that another makes, and a third waits for the rest.
fn one_waits_for_room() {
    let group = lone_group(1, UNIT);
    charge_counters(group, UNIT, Verdict::Hint).ok().unwrap();
    let other = thread::spawn(move || {
        let left = WaitSession::begin(group, UNIT, far(), Want::Room).in_line(group);
        assert!(matches!(left, Ok(Left::Handed)), "nothing else ends the wait");
    });
    aftermath::uncharge_counters(group, UNIT);
    wait_for_a_unit(group, group);
    other.join().unwrap();
    assert!(group.counter.usage() == 0 && !group.waiting().is_held(), "nothing is charged for room");
    assert_conserved(group);
}

/// Two wait for the same bytes, one after the other.
fn two_wait() {
    let group = lone_group(1, UNIT);
    charge_counters(group, UNIT, Verdict::Hint).ok().unwrap();
    let other = thread::spawn(move || wait_for_a_unit(group, group));
    aftermath::uncharge_counters(group, UNIT);
    wait_for_a_unit(group, group);
    other.join().unwrap();
    assert_conserved(group);
}

/// A charge is handed over, or the deadline is there.
fn one_whose_deadline_has_passed() {
    let group = lone_group(1, UNIT);
    charge_counters(group, UNIT, Verdict::Hint).ok().unwrap();
    let user = thread::spawn(move || aftermath::uncharge_counters(group, UNIT));
    match WaitSession::begin(group, UNIT, Instant::now(), Want::Charge).in_line(group) {
        Ok(Left::Handed) => aftermath::uncharge_counters(group, UNIT),
        Ok(Left::Over(_)) => {}
        Ok(Left::Again(_)) | Err(_) => unreachable!("the group is online, and has a level of its own alone"),
    }
    user.join().unwrap();
    assert_eq!(group.counter.usage(), 0, "what was handed over is somebody's");
    assert_conserved(group);
}

/// A charge takes room for a moment that a level above does not have.
fn one_is_refused_higher_up(charge: fn(&'static Node) -> Result<(), Refused>) {
    let shared = obtain(config(1, 4));
    let above = shared.create(shared.root(), "above").unwrap();
    let (group, other) = (shared.create(above, "group").unwrap(), shared.create(above, "other").unwrap());
    above.counter.set_max(2 * UNIT);
    group.counter.set_max(2 * UNIT);
    charge_counters(other, UNIT, Verdict::Hint).ok().unwrap();
    let charger = thread::spawn(move || assert!(charge(group).is_err()));
    wait_for_a_unit(group, group);
    charger.join().unwrap();
    aftermath::uncharge_counters(other, UNIT);
    assert_eq!((group.counter.usage(), above.counter.usage()), (0, 0));
}

fn two_units(group: &'static Node) -> Result<(), Refused> {
    charge_counters(group, 2 * UNIT, Verdict::Hint)
}

/// Within the limits, as those of a reserve are.
fn two_units_forced(group: &'static Node) -> Result<(), Refused> {
    aftermath::charge_forced(group, 2 * UNIT, 0, false)
}

#[test]
fn an_uncharge_finds_who_waits() {
    explore(one_waits_and_another_uncharges);
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_looks_for_room_only_before_it_is_in_the_line_is_never_served() {
    mutation::with(Mutation::WaiterDoesNotLookAgain, || explore(one_waits_and_another_uncharges));
}

#[test]
fn an_uncharge_finds_who_waits_for_room_and_what_it_set_free_is_had_by_another() {
    explore(one_waits_for_room);
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_looks_for_room_alone_before_it_is_in_the_line_is_never_told() {
    mutation::with(Mutation::WaiterDoesNotLookAgain, || explore(one_waits_for_room));
}

#[test]
fn everybody_who_waits_is_served() {
    explore(two_wait);
}

#[test]
fn a_charge_that_is_handed_over_at_the_deadline_is_not_lost() {
    explore(one_whose_deadline_has_passed);
}

#[test]
#[should_panic(expected = "what was handed over is somebody's")]
fn a_charge_is_lost_where_who_has_waited_goes_without_a_look() {
    mutation::with(Mutation::WaiterGoesWithoutTheCharge, || explore(one_whose_deadline_has_passed));
}

#[test]
fn what_a_charge_takes_that_is_refused_higher_up_is_room_again_for_who_waits() {
    explore(|| one_is_refused_higher_up(two_units));
}

#[test]
fn what_a_forced_charge_takes_that_is_refused_higher_up_is_room_again_too() {
    explore(|| one_is_refused_higher_up(two_units_forced));
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_waits_is_never_served_where_a_charge_that_is_taken_back_does_not_look() {
    mutation::with(Mutation::TakenBackWithoutALook, || explore(|| one_is_refused_higher_up(two_units)));
}

#[test]
#[should_panic(expected = "deadlock")]
fn nor_where_a_forced_charge_does_not() {
    mutation::with(Mutation::TakenBackWithoutALook, || {
        explore(|| one_is_refused_higher_up(two_units_forced));
    });
}
