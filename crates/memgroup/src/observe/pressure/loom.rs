//! Models of threads at work: every interleaving of a few changes of scope and stalls, with up to
//! three preemptions. Each fault of `mutation` must make its model fail.
//!
//! Every change is looked at. At the end the group is full exactly if no thread is at work.

use memgroup_sync::loom::thread;

use crate::base::mutation::{self, Mutation};
use crate::charge::loom::{config, explore, obtain};
use crate::observe::pressure::record::{self, Record};
use crate::observe::pressure::stall;
use crate::tree::node::Node;

/// Changes the scope of the thread of `record`.
fn change(record: &'static Record, before: Option<&'static Node>, after: Option<&'static Node>) {
    record.put(after, after.map_or(0, Node::generation));
    stall::after_scope_change(record, before, after);
}

/// A group in which a thread is stalled, and the records of two more threads, which are at work
/// there or not.
fn stalled(at_work: [bool; 2]) -> (&'static Node, [&'static Record; 2]) {
    let group = obtain(config(1, 1)).root();
    let records = [(); 2].map(|()| record::claim().unwrap());
    for (record, is_at_work) in records.into_iter().zip(at_work) {
        if is_at_work {
            record.put(Some(group), group.generation());
        }
    }
    stall::begin_at(group, None);
    (group, records)
}

/// Compares the meter of the group with the records.
fn check(group: &'static Node, records: [&'static Record; 2]) {
    let is_any = records.iter().any(|record| record.works_in(group));
    let meter = &group.pressure();
    assert!(meter.has_witness() == is_any, "a witness is there exactly if a thread is at work");
    assert!(meter.is_full() != is_any, "it is full exactly if no thread is at work");
}

fn a_witness_leaves_while_another_enters() {
    let (group, [leaves, enters]) = stalled([true, false]);
    let other = thread::spawn(move || change(enters, None, Some(group)));
    change(leaves, Some(group), None);
    other.join().unwrap();
    check(group, [leaves, enters]);
}

#[test]
fn e1_a_witness_leaves_while_another_enters() {
    explore(a_witness_leaves_while_another_enters);
}

#[test]
#[should_panic(expected = "a witness is there")]
fn misses_a_thread_that_enters_when_the_look_does_not_fence() {
    mutation::with(Mutation::LookWithoutFence, || explore(a_witness_leaves_while_another_enters));
}

#[test]
#[should_panic(expected = "a witness is there")]
fn misses_a_thread_that_enters_when_the_change_does_not_fence() {
    mutation::with(Mutation::MoveWithoutFence, || explore(a_witness_leaves_while_another_enters));
}

fn two_witnesses_leave() {
    let (group, records) = stalled([true, true]);
    let [one, two] = records;
    let other = thread::spawn(move || change(two, Some(group), None));
    change(one, Some(group), None);
    other.join().unwrap();
    check(group, records);
}

#[test]
fn e1_two_witnesses_leave() {
    explore(two_witnesses_leave);
}

#[test]
#[should_panic(expected = "a witness is there")]
fn keeps_a_witness_that_left_when_it_is_not_checked_again() {
    mutation::with(Mutation::WitnessIsTakenAtItsWord, || explore(two_witnesses_leave));
}

fn the_witness_stalls_while_another_enters() {
    let (group, [stalls, enters]) = stalled([true, false]);
    let other = thread::spawn(move || change(enters, None, Some(group)));
    stall::begin_at(group, Some(stalls));
    other.join().unwrap();
    check(group, [stalls, enters]);
}

#[test]
fn e1_the_witness_stalls_while_another_enters() {
    explore(the_witness_stalls_while_another_enters);
}

fn a_stall_ends_while_the_witness_leaves() {
    let (group, [ends, leaves]) = stalled([true, true]);
    stall::begin_at(group, Some(ends));
    let other = thread::spawn(move || change(leaves, Some(group), None));
    stall::end_at(group, group.generation(), Some(ends));
    other.join().unwrap();
    check(group, [ends, leaves]);
}

#[test]
fn e1_a_stall_ends_while_the_witness_leaves() {
    explore(a_stall_ends_while_the_witness_leaves);
}

fn a_stall_begins_while_a_scope_is_entered() {
    let (group, records) = stalled([false, false]);
    let generation = group.generation();
    stall::end_at(group, generation, None);
    let [enters, _] = records;
    let other = thread::spawn(move || change(enters, None, Some(group)));
    stall::begin_at(group, None);
    other.join().unwrap();
    check(group, records);
}

#[test]
fn e1_a_stall_begins_while_a_scope_is_entered() {
    explore(a_stall_begins_while_a_scope_is_entered);
}
