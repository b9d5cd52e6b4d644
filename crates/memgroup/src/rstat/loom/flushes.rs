//! Flushes against each other, and against groups that are being made.

use memgroup_sync::grace;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memgroup_sync::loom::thread;

use super::{Reach, add, child, entry, flush, hierarchy, store, total};
use crate::mutation::{self, Mutation};
use crate::stock::loom::explore;

fn two_readers_of_one_group() {
    let group = child(hierarchy(1, 2).root(), "group");
    add(group, 1);
    let reader = thread::spawn(move || {
        add(group, 2);
        assert_eq!(total(group) & 3, 3, "what was added before a reader came is in what it reads");
    });
    add(group, 4);
    let seen = total(group.shared.root());
    assert_eq!(seen & 5, 5, "what was added before a reader came is in what it reads");
    reader.join().unwrap();
    assert_eq!(total(group.shared.root()), 7, "every addition is flushed once");
}

#[test]
fn readers_share_a_flush_and_none_is_late() {
    explore(two_readers_of_one_group);
    // Seen by no model: it tells whether in some execution two readers came and one flush was made.
    let is_shared = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&is_shared);
    explore(move || {
        let group = child(hierarchy(1, 2).root(), "group");
        add(group, 1);
        let still = move || {
            flush::flush(store(group), group, |_| entry(group).side(&grace::enter()).peek(Reach::Subtree, 0))
        };
        let reader = thread::spawn(still);
        assert_eq!((still(), reader.join().unwrap()), (1, 1), "what was added before is in what they read");
        let flushes = store(group).updates.begin() - 1;
        assert!((1..=2).contains(&flushes), "{flushes} flushes for two readers");
        // ORDERING: Relaxed; executions come one after the other.
        shared.fetch_or(flushes == 1, Ordering::Relaxed);
    });
    // ORDERING: Relaxed, as above.
    assert!(is_shared.load(Ordering::Relaxed), "no reader ever shared a flush");
}

#[test]
#[should_panic(expected = "what was added before a reader came is in what it reads")]
fn a_reader_that_takes_a_flush_that_had_begun_is_caught() {
    mutation::with(Mutation::ReaderTakesAFlushThatHadBegun, || explore(two_readers_of_one_group));
}

/// Two readers of two subtrees, and each adds where the other reads.
fn two_readers_of_two_subtrees() {
    let shared = hierarchy(1, 4);
    let parents = ["one", "other"].map(|name| child(shared.root(), name));
    // With a group below it, whose changes the marks of the parent do not tell.
    let below = child(parents[0], "below");
    add(below, 1);
    let reader = thread::spawn(move || {
        add(parents[1], 2);
        assert_eq!(total(parents[1]) & 2, 2, "what was added before a reader came is in what it reads");
    });
    add(below, 4);
    assert_eq!(total(parents[0]), 5, "what was added before a reader came is in what it reads");
    reader.join().unwrap();
    assert_eq!(parents.map(total), [5, 2]);
    assert_eq!(total(shared.root()), 7, "every addition is flushed once");
}

#[test]
fn readers_of_other_subtrees_are_not_late() {
    explore(two_readers_of_two_subtrees);
}

#[test]
#[should_panic(expected = "what was added before a reader came is in what it reads")]
fn a_reader_that_takes_a_flush_of_others_is_caught() {
    mutation::with(Mutation::ReaderTakesAFlushOfOthers, || explore(two_readers_of_two_subtrees));
}

/// A group is made below another, and added to, while the root is flushed.
fn a_flush_against_a_new_group() {
    let shared = hierarchy(1, 4);
    let parent = child(shared.root(), "parent");
    add(parent, 1);
    let maker = thread::spawn(move || {
        let new = shared.create(parent, "new").unwrap();
        add(new, 2);
        assert_eq!(total(shared.root()), 3, "what a new group has added is in what the root reads");
        new
    });
    let seen = total(shared.root());
    assert!(seen == 1 || seen == 3, "every addition is flushed once, not {seen}");
    let new = maker.join().unwrap();
    assert_eq!([new, parent, shared.root()].map(total), [2, 3, 3], "every addition is flushed once");
}

#[test]
fn a_flush_finds_what_a_new_group_has_added() {
    explore(a_flush_against_a_new_group);
}

#[test]
#[should_panic(expected = "is in what the root reads")]
fn a_flush_that_stops_below_the_root_is_caught() {
    mutation::with(Mutation::FlushStopsBelowTheRoot, || explore(a_flush_against_a_new_group));
}
