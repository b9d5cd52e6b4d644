//! Models of tables of counters: every interleaving of a few calls, with up to three preemptions.

use memgroup_sync::thread;

use super::{CounterId, Counters};
use crate::arena::block::Wait;
use crate::models::explore;
use crate::mutation::{self, Mutation};
use crate::slot::number::pin_virtual;
use crate::slot::source::SlotSource;

/// Runs `model` with a table of single counters on `slots` slots, and a set that counts 5.
fn with_set(slots: usize, model: impl FnOnce(&'static Counters, CounterId)) {
    let source = SlotSource::virtual_slots(slots).expect("a few slots");
    let table = Counters::new(source, 1).expect("one counter on a few slots is allowed");
    let set = table.create().expect("loom has memory");
    let pinned = pin_virtual(0);
    table.add(set, 0, 5).expect("the set is there");
    model(table, set);
    drop(pinned);
}

/// Adds one on `slot`; what became of it.
fn adder(table: &'static Counters, set: CounterId, slot: usize) -> thread::JoinHandle<bool> {
    thread::spawn(move || {
        let _pinned = pin_virtual(slot);
        table.add(set, 0, 1).is_ok()
    })
}

impl Counters {
    /// Moves a set to a block of its own choice, as `maintain` does with one that the arena offers.
    fn moves(&'static self, set: CounterId) {
        let _places = self.places.lock();
        let entry = self.entry(set.index).expect("the set is there");
        let target = self.records.allocate(set.index, Wait::May).expect("loom has memory");
        self.relocate(entry, target);
    }
}

/// A set is removed and another one gets its place while an addition to the first is under way.
fn a_place_changes_hands() {
    with_set(1, |table, set| {
        let other = adder(table, set, 0);
        let sums = table.remove(set).expect("the set is there");
        let next = table.create().expect("loom has memory");
        let added = other.join().unwrap();
        assert!(next.index == set.index, "the next set has the place");
        let theirs = table.sum(next, 0).expect("the set is there");
        assert!(theirs == 0, "the next set counts {theirs} that are not its own");
        assert!(sums[0] == 5 + i64::from(added), "the first set counted {} with {added}", sums[0]);
        assert!(table.add(set, 0, 1).is_err(), "the first set is not there any more");
    });
}

#[test]
fn loom_an_addition_never_reaches_another_owner() {
    explore(3, a_place_changes_hands);
}

#[test]
#[should_panic(expected = "that are not its own")]
fn loom_a_generation_that_is_looked_at_before_the_record_is_caught() {
    mutation::with(Mutation::GenerationBeforeRecord, || explore(3, a_place_changes_hands));
}

#[test]
#[should_panic(expected = "that are not its own")]
fn loom_a_generation_that_changes_after_the_next_record_is_caught() {
    mutation::with(Mutation::GenerationAfterNextRecord, || explore(3, a_place_changes_hands));
}

#[test]
#[should_panic(expected = "the first set counted")]
fn loom_a_removal_that_buries_by_a_store_is_caught() {
    mutation::with(Mutation::BuryByStore, || explore(3, a_place_changes_hands));
}

/// A set moves while one thread adds to it and another takes its sum.
fn a_set_moves() {
    with_set(2, |table, set| {
        let other = adder(table, set, 1);
        let reader = thread::spawn(move || table.sum(set, 0).expect("the set is there"));
        table.moves(set);
        let seen = reader.join().unwrap();
        assert!(seen == 5 || seen == 6, "a sum of 5 or 6 is seen as {seen}");
        assert!(other.join().unwrap(), "the set is there");
        let sum = table.sum(set, 0).expect("the set is there");
        assert!(sum == 6, "a sum of 6 is {sum} at rest");
    });
}

#[test]
fn loom_a_sum_neither_misses_nor_doubles_what_is_moved() {
    explore(3, a_set_moves);
}

#[test]
#[should_panic(expected = "a sum of 5 or 6 is seen as")]
fn loom_a_sum_that_ignores_moves_is_caught() {
    mutation::with(Mutation::SumIgnoresMoves, || explore(3, a_set_moves));
}

/// A set moves twice while additions to it are under way on the slot that it moves on.
fn additions_against_moves() {
    with_set(1, |table, set| {
        let other = adder(table, set, 0);
        table.moves(set);
        table.moves(set);
        assert!(other.join().unwrap(), "the set is there");
        let sum = table.sum(set, 0).expect("the set is there");
        assert!(sum == 6, "a sum of 6 is {sum} at rest");
    });
}

#[test]
fn loom_an_addition_in_flight_is_not_lost_by_moves() {
    explore(3, additions_against_moves);
}

#[test]
#[should_panic(expected = "a sum of 6 is")]
fn loom_a_move_that_buries_by_a_store_is_caught() {
    mutation::with(Mutation::BuryByStore, || explore(3, additions_against_moves));
}
