//! Charges that a stock serves, which mark nothing themselves, against flushes, drains and
//! closings that take their attempts.

use memgroup_sync::loom::thread;

use crate::base::mutation::{self, Mutation};
use crate::charge::loom::{UNIT, charges_counted, counted_group, drain_all, explore};
use crate::charge::miss::charge_miss;
use crate::control::freeze::FrozenLevel;
use crate::state::stats::Reach;
use crate::state::stats::builtin::MEMORY;
use crate::state::stats::builtin::memory::{CHARGES, STOCK_MISSES};
use crate::stats::flush;
use crate::stock::Stock;
use crate::tree::node::Node;

/// A group with two units in its stock. One charge was made, and its miss is counted in the node.
fn stocked_group() -> &'static Node {
    stocked(counted_group(1, 64 * UNIT))
}

/// The same with a record, in which the miss is counted.
fn recorded_group() -> &'static Node {
    let group = counted_group(1, 64 * UNIT);
    {
        let _tree = group.shared().tree.lock();
        group.find_entry(MEMORY).unwrap().alloc_record(group.id().0, 0);
    }
    stocked(group)
}

fn stocked(group: &'static Node) -> &'static Node {
    group.charge_at(0, UNIT).unwrap();
    group.uncharge_at(0, UNIT);
    group
}

/// The same, after a flush.
fn flushed_group() -> &'static Node {
    let group = stocked_group();
    assert_eq!(charges_counted(group), 1);
    group
}

fn refresh(group: &'static Node) {
    flush::refresh(group.shared().statistics.store(MEMORY), group);
}

fn a_hit_against(group: &'static Node, other: fn(&'static Node)) {
    let user = thread::spawn(move || {
        group.charge_at(0, UNIT).unwrap();
        assert_eq!(charges_counted(group), 2, "a read contains the thread's own charge");
    });
    other(group);
    user.join().unwrap();
    assert_eq!(charges_counted(group), 2, "every charge is counted once");
}

#[test]
fn flushes_or_marks_each_hit() {
    explore(|| a_hit_against(stocked_group(), refresh));
    explore(|| a_hit_against(recorded_group(), refresh));
    explore(|| a_hit_against(flushed_group(), refresh));
}

#[test]
fn reads_a_hit_while_its_stock_is_drained_or_closed() {
    for take in [
        |group: &'static Node| {
            drain_all(group);
        },
        |group: &'static Node| {
            let _frozen = FrozenLevel::new(group);
        },
    ] {
        explore(move || a_hit_against(stocked_group(), take));
    }
}

#[test]
#[should_panic(expected = "a read contains the thread's own charge")]
fn catches_a_drain_that_takes_attempts() {
    mutation::with(Mutation::DrainTakesAttempts, || {
        explore(|| {
            a_hit_against(stocked_group(), |group: &'static Node| {
                drain_all(group);
            })
        })
    });
}

#[test]
#[should_panic(expected = "a read contains the thread's own charge")]
fn catches_a_hit_that_never_marks() {
    mutation::with(Mutation::HitNeverMarks, || {
        explore(|| {
            let group = recorded_group();
            assert_eq!(charges_counted(group), 1, "the miss has marked");
            a_hit_against(group, refresh);
        })
    });
}

#[test]
#[should_panic(expected = "a read contains the thread's own charge")]
fn catches_a_harvest_that_leaves_stocks_listed() {
    mutation::with(Mutation::HarvestLeavesListed, || explore(|| a_hit_against(flushed_group(), refresh)));
}

/// A charge that misses, by an attempt or without one, while another thread reads its statistics.
fn a_miss_against_a_reader(group: &'static Node, bytes: u64) {
    let reader = thread::spawn(move || {
        refresh(group);
        let mut seen = [0; STOCK_MISSES.index() + 1];
        let memory = group.shared().statistics.store(MEMORY);
        group.entry(memory).flushed().copy(Reach::Local, &mut seen);
        let (charges, misses) = (seen[CHARGES.index()], seen[STOCK_MISSES.index()]);
        assert!(misses <= charges, "no miss is read before its charge, and {misses} of {charges} were");
    });
    group.charge_at(0, bytes).unwrap();
    reader.join().unwrap();
    assert_eq!(charges_counted(group), 2, "every charge is counted once");
}

#[test]
fn reads_no_miss_before_its_charge() {
    for bytes in [3 * UNIT, 8 * UNIT] {
        explore(move || a_miss_against_a_reader(stocked_group(), bytes));
        explore(move || a_miss_against_a_reader(recorded_group(), bytes));
    }
}

#[test]
#[should_panic(expected = "no miss is read before its charge")]
fn catches_a_flush_that_takes_the_first_words_first() {
    mutation::with(Mutation::FlushTakesFirstWordsFirst, || {
        explore(|| a_miss_against_a_reader(recorded_group(), 8 * UNIT))
    });
}

#[test]
#[should_panic(expected = "no miss is read before its charge")]
fn catches_a_flush_that_takes_the_miss_counts_last() {
    mutation::with(Mutation::FlushTakesMissesLast, || {
        explore(|| a_miss_against_a_reader(stocked_group(), 3 * UNIT))
    });
}

/// B1 of `listed`, step by step: loom finds no such execution by itself.
#[test]
fn counts_late_when_a_word_looks_unchanged() {
    explore(|| {
        let group = stocked_group();
        group.charge_at(0, UNIT).unwrap();
        group.uncharge_at(0, UNIT);
        assert_eq!(charges_counted(group), 2);
        // One charge has marked, and is about to list its stock, when a flush comes and clears the
        // mark.
        let one = Stock::of(group, 0).unwrap();
        one.attempt(UNIT);
        let seen = one.look();
        group.find_entry(MEMORY).unwrap().mark(group.id()).set(0);
        assert_eq!(charges_counted(group), 3);
        // Another makes the word look as before, and is about to mark.
        group.uncharge_at(0, UNIT);
        let other = Stock::of(group, 0).unwrap();
        let found = other.attempt(UNIT);
        assert!(one.change(seen, seen.listed()), "it looks the same");
        drop(one);
        // A charge now finds the stock listed, and is counted late until the other thread
        // continues.
        group.charge_at(0, UNIT / 2).unwrap();
        assert_eq!(charges_counted(group), 3);
        charge_miss(other, UNIT, found, crate::base::effort::Means::PLAIN).unwrap();
        assert_eq!(charges_counted(group), 5, "every charge is counted once");
    });
}
