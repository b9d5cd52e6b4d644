//! Models of the queue: every interleaving of a few calls, with up to three preemptions. Each
//! fault of `mutation` must make its model fail. Loom reports a waiter that no thread serves as a
//! deadlock.

use std::time::{Duration, Instant};

use memgroup_sync::loom::thread;

use crate::base::mutation::{self, Mutation};
use crate::charge::loom::{
    UNIT, assert_conserved, charge_counters, config, explore, explore_up_to, lone_group, obtain,
};
use crate::charge::wait::{Left, WaitSession};
use crate::control::aftermath;
use crate::counter::chain::Refused;
use crate::observe::wait::charges::Want;
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

/// A thread waits for bytes that another one uncharges on the stock's slow path.
fn one_waits_and_another_uncharges() {
    let group = lone_group(1, UNIT);
    charge_counters(group, UNIT).ok().unwrap();
    let user = thread::spawn(move || group.uncharge_at(0, UNIT));
    wait_for_a_unit(group, group);
    user.join().unwrap();
    assert!(!group.waiting.is_held() && !group.counter.read().over);
    assert_conserved(group);
}

/// A thread waits for room alone. Another one makes the room, and then waits for a charge of the
/// same bytes.
fn one_waits_for_room() {
    let group = lone_group(1, UNIT);
    charge_counters(group, UNIT).ok().unwrap();
    let other = thread::spawn(move || {
        let left = WaitSession::begin(group, UNIT, far(), Want::Room).in_line(group);
        assert!(matches!(left, Ok(Left::Handed)), "nothing else ends the wait");
    });
    aftermath::uncharge_counters(group, UNIT);
    wait_for_a_unit(group, group);
    other.join().unwrap();
    assert!(group.counter.usage() == 0 && !group.waiting.is_held(), "nothing is charged for room");
    assert_conserved(group);
}

/// Two threads wait for the same bytes. The first one uncharges them for the second.
fn two_wait() {
    let group = lone_group(1, UNIT);
    charge_counters(group, UNIT).ok().unwrap();
    let other = thread::spawn(move || wait_for_a_unit(group, group));
    aftermath::uncharge_counters(group, UNIT);
    wait_for_a_unit(group, group);
    other.join().unwrap();
    assert_conserved(group);
}

/// An uncharge hands a charge over while the waiter's deadline has passed.
fn one_whose_deadline_has_passed() {
    let group = lone_group(1, UNIT);
    charge_counters(group, UNIT).ok().unwrap();
    let user = thread::spawn(move || aftermath::uncharge_counters(group, UNIT));
    match WaitSession::begin(group, UNIT, Instant::now(), Want::Charge).in_line(group) {
        Ok(Left::Handed) => aftermath::uncharge_counters(group, UNIT),
        Ok(Left::Over(_)) => {}
        Ok(Left::Again(_)) | Err(_) => unreachable!("the group is online, and has a level of its own alone"),
    }
    user.join().unwrap();
    assert_eq!(group.counter.usage(), 0, "a charge that was handed over is not lost");
    assert_conserved(group);
}

/// A charge takes room of its own level for a moment, and a level above refuses it.
fn one_is_refused_higher_up(charge: fn(&'static Node) -> Result<(), Refused>) {
    let shared = obtain(config(1, 4));
    let above = shared.create(shared.root(), "above").unwrap();
    let (group, other) = (shared.create(above, "group").unwrap(), shared.create(above, "other").unwrap());
    above.counter.set_max(2 * UNIT);
    group.counter.set_max(2 * UNIT);
    charge_counters(other, UNIT).ok().unwrap();
    let charger = thread::spawn(move || assert!(charge(group).is_err()));
    wait_for_a_unit(group, group);
    charger.join().unwrap();
    aftermath::uncharge_counters(other, UNIT);
    assert_eq!((group.counter.usage(), above.counter.usage()), (0, 0));
}

fn two_units(group: &'static Node) -> Result<(), Refused> {
    charge_counters(group, 2 * UNIT)
}

/// A forced charge within the limits, like a charge from a reserve.
fn two_units_forced(group: &'static Node) -> Result<(), Refused> {
    aftermath::charge_forced(group, 2 * UNIT, 0, false)
}

#[test]
fn an_uncharge_serves_the_waiter() {
    explore(one_waits_and_another_uncharges);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_waiter_that_looks_only_before_it_queues_is_caught() {
    mutation::with(Mutation::WaiterDoesNotLookAgain, || explore(one_waits_and_another_uncharges));
}

#[test]
#[should_panic]
fn a_waiter_whose_bytes_are_told_after_its_look_is_caught() {
    mutation::with(Mutation::WaiterIsToldLate, || explore(one_waits_and_another_uncharges));
}

#[test]
#[should_panic(expected = "deadlock")]
fn an_uncharge_that_does_not_see_that_a_waiter_fits_is_caught() {
    mutation::with(Mutation::FallFindsNoWaiter, || explore(one_waits_and_another_uncharges));
}

#[test]
fn a_waiter_for_room_leaves_the_room_to_the_next_waiter() {
    explore_up_to(2, one_waits_for_room);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_waiter_for_room_that_looks_only_before_it_queues_is_caught() {
    mutation::with(Mutation::WaiterDoesNotLookAgain, || explore(one_waits_for_room));
}

#[test]
fn two_waiters_for_the_same_bytes_are_both_served() {
    explore_up_to(2, two_wait);
}

#[test]
fn a_charge_that_is_handed_over_at_the_deadline_is_not_lost() {
    explore(one_whose_deadline_has_passed);
}

#[test]
#[should_panic(expected = "a charge that was handed over is not lost")]
fn a_waiter_that_leaves_without_its_charge_is_caught() {
    mutation::with(Mutation::WaiterGoesWithoutTheCharge, || explore(one_whose_deadline_has_passed));
}

#[test]
fn a_charge_refused_higher_up_leaves_its_room_to_the_waiter() {
    explore(|| one_is_refused_higher_up(two_units));
}

#[test]
fn a_forced_charge_refused_higher_up_leaves_its_room_too() {
    explore(|| one_is_refused_higher_up(two_units_forced));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_refused_charge_that_does_not_serve_waiters_is_caught() {
    mutation::with(Mutation::TakenBackWithoutALook, || explore(|| one_is_refused_higher_up(two_units)));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_refused_forced_charge_that_does_not_serve_is_caught() {
    mutation::with(Mutation::TakenBackWithoutALook, || {
        explore(|| one_is_refused_higher_up(two_units_forced));
    });
}
