//! Flushes against each other, and against groups that are being made.

use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memgroup_sync::loom::thread;

use crate::base::mutation::{self, Mutation};
use crate::charge::loom::{explore, explore_up_to};
use crate::stats::flush::Freshness;
use crate::stats::loom::{Reach, add, child, entry, flush, hierarchy, refresh, store, total};
use crate::tree::handle::Group;

fn two_readers_of_one_group() {
    let group = child(hierarchy(1, 2).root(), "group");
    add(group, 1);
    let reader = thread::spawn(move || {
        add(group, 2);
        assert_eq!(total(group) & 3, 3, "a read contains all additions before it");
    });
    add(group, 4);
    let seen = total(group.shared().root());
    assert_eq!(seen & 5, 5, "a read contains all additions before it");
    reader.join().unwrap();
    assert_eq!(total(group.shared().root()), 7, "every addition is flushed once");
}

#[test]
fn shares_a_flush_between_readers_in_time() {
    explore(two_readers_of_one_group);
    // Seen by no model: it tells whether in some execution two readers came and one flush was made.
    let is_shared = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&is_shared);
    explore(move || {
        let group = child(hierarchy(1, 2).root(), "group");
        add(group, 1);
        let read = move || {
            let _guard = flush::flush(store(group), group);
            entry(group).flushed().peek(Reach::Subtree, 0)
        };
        let reader = thread::spawn(read);
        assert_eq!((read(), reader.join().unwrap()), (1, 1), "both reads contain all additions before them");
        let flushes = store(group).updates.begin() - 1;
        assert!((1..=2).contains(&flushes), "{flushes} flushes for two readers");
        // ORDERING: Relaxed; executions come one after the other.
        shared.fetch_or(flushes == 1, Ordering::Relaxed);
    });
    // ORDERING: Relaxed, as above.
    assert!(is_shared.load(Ordering::Relaxed), "no reader ever shared a flush");
}

#[test]
#[should_panic(expected = "a read contains all additions before it")]
fn catches_a_reader_that_uses_an_earlier_flush() {
    mutation::with(Mutation::ReaderTakesAFlushThatHadBegun, || explore(two_readers_of_one_group));
}

/// A flush of the root takes two pieces. Another thread adds to the group of the second one, and
/// reads the root, too.
fn two_readers_of_a_flush_in_pieces() {
    let shared = hierarchy(1, 5);
    let groups = ["a", "b", "c"].map(|name| child(shared.root(), name));
    add(groups[0], 1);
    add(groups[1], 2);
    let reader = thread::spawn(move || {
        add(groups[2], 4);
        assert_eq!(total(shared.root()) & 4, 4, "a read contains all additions before it");
    });
    let seen = total(shared.root());
    assert!(seen == 3 || seen == 7, "every addition is flushed once, not {seen}");
    reader.join().unwrap();
    assert_eq!(groups.map(total), [1, 2, 4], "every addition is flushed once");
    assert_eq!(total(shared.root()), 7, "every addition is flushed once");
}

#[test]
fn flushes_in_pieces_for_two_readers() {
    explore_up_to(2, two_readers_of_a_flush_in_pieces);
}

#[test]
#[should_panic(expected = "a read contains all additions before it")]
fn catches_a_flush_that_ends_with_its_first_piece() {
    mutation::with(Mutation::PieceEndsTheFlush, || explore_up_to(2, two_readers_of_a_flush_in_pieces));
}

/// As above, with all three groups marked. The other thread adds to a group of the first piece.
fn an_addition_behind_a_piece() {
    let shared = hierarchy(1, 5);
    let groups = ["a", "b", "c"].map(|name| child(shared.root(), name));
    groups.into_iter().zip([1, 2, 4]).for_each(|(group, value)| add(group, value));
    let reader = thread::spawn(move || {
        add(groups[0], 8);
        let seen = total(shared.root());
        assert!(seen == 15, "a read contains all additions before it, not {seen}");
    });
    let seen = total(shared.root());
    assert!(seen == 7 || seen == 15, "every addition is flushed once, not {seen}");
    reader.join().unwrap();
    assert_eq!(total(shared.root()), 15, "every addition is flushed once");
}

#[test]
fn flushes_in_pieces_for_a_reader_that_adds_behind_one() {
    explore_up_to(2, an_addition_behind_a_piece);
}

#[test]
#[should_panic(expected = "a read contains all additions before it")]
fn catches_a_flush_that_begins_with_its_last_piece() {
    mutation::with(Mutation::PieceBeginsTheFlush, || explore_up_to(2, an_addition_behind_a_piece));
}

/// The other thread takes the values of a flush that began any time ago: after the additions.
fn a_read_of_any_age_beside_pieces() {
    let shared = hierarchy(1, 5);
    let groups = ["a", "b", "c"].map(|name| child(shared.root(), name));
    groups.into_iter().zip([1, 2, 4]).for_each(|(group, value)| add(group, value));
    store(groups[0]).updates.date();
    let reader = thread::spawn(move || {
        flush::refresh_as(store(shared.root()), shared.root(), Freshness::AtMost(Duration::MAX));
        let seen = entry(shared.root()).flushed().peek(Reach::Subtree, 0);
        assert!(seen == 7, "a read contains all additions before the flush, not {seen}");
    });
    refresh(shared.root());
    reader.join().unwrap();
    assert_eq!(total(shared.root()), 7, "every addition is flushed once");
}

#[test]
fn notes_a_flush_in_pieces_at_its_end() {
    explore_up_to(2, a_read_of_any_age_beside_pieces);
}

#[test]
#[should_panic(expected = "a read contains all additions before the flush")]
fn catches_a_flush_that_is_noted_with_its_first_piece() {
    mutation::with(Mutation::PieceEndsTheFlush, || explore_up_to(2, a_read_of_any_age_beside_pieces));
}

#[test]
fn lets_another_thread_in_between_two_pieces() {
    // Seen by no model: it tells whether in some execution the other thread came between the two
    // pieces.
    let was_between = Arc::new(AtomicBool::new(false));
    let between = Arc::clone(&was_between);
    explore_up_to(2, move || {
        let shared = hierarchy(1, 5);
        let groups = ["a", "b", "c"].map(|name| child(shared.root(), name));
        groups.into_iter().zip([1, 2, 4]).for_each(|(group, value)| add(group, value));
        let other = thread::spawn(move || {
            let _turn = flush::lock(store(shared.root()).updates, shared);
            entry(shared.root()).flushed().peek(Reach::Subtree, 0)
        });
        assert_eq!(total(shared.root()), 7, "every addition is flushed once");
        // ORDERING: Relaxed; executions come one after the other.
        between.fetch_or(other.join().unwrap() == 3, Ordering::Relaxed);
    });
    // ORDERING: Relaxed, as above.
    assert!(was_between.load(Ordering::Relaxed), "a flush never freed the turn between two pieces");
}

/// A group goes between two pieces of a flush, and its place is given to a new group.
fn a_flush_in_pieces_against_a_new_group_in_an_old_place() {
    let shared = hierarchy(1, 5);
    let parents = ["a", "b"].map(|name| child(shared.root(), name));
    let old = child(parents[1], "old");
    add(parents[0], 1);
    add(parents[1], 2);
    add(old, 4);
    // Loom does not know the lock by which a chunk of marks is published. The new group may get a
    // place in the next chunk.
    store(old).updates.marks.provide(old.id().0 + 1);
    shared.remove(old).unwrap();
    let other = thread::spawn(move || {
        drop(Group::adopted(old));
        let new = shared.create(parents[0], "new").unwrap();
        add(new, 8);
        assert_eq!(total(parents[0]), 9, "every addition is flushed once, to the groups above its own");
        new
    });
    let seen = total(shared.root());
    assert!(seen == 7 || seen == 15, "every addition is flushed once, not {seen}");
    let new = other.join().unwrap();
    assert_eq!(parents.map(total), [9, 6], "every addition is flushed once");
    assert_eq!(total(shared.root()), 15, "every addition is flushed once");
    assert_eq!(total(new), 8, "every addition is flushed once, and counted for its own group");
}

#[test]
fn flushes_in_pieces_beside_a_place_that_is_given_away() {
    explore_up_to(2, a_flush_in_pieces_against_a_new_group_in_an_old_place);
}

#[test]
#[should_panic(expected = "every addition is flushed once")]
fn catches_a_release_that_ignores_a_piece() {
    mutation::with(Mutation::ReleaseIgnoresFlush, || {
        explore_up_to(2, a_flush_in_pieces_against_a_new_group_in_an_old_place);
    });
}

/// Two readers of two subtrees, and each adds where the other reads.
fn two_readers_of_two_subtrees() {
    let shared = hierarchy(1, 4);
    let parents = ["one", "other"].map(|name| child(shared.root(), name));
    // With a group below it: the marks of the parent do not show its changes.
    let below = child(parents[0], "below");
    add(below, 1);
    let reader = thread::spawn(move || {
        add(parents[1], 2);
        assert_eq!(total(parents[1]) & 2, 2, "a read contains all additions before it");
    });
    add(below, 4);
    assert_eq!(total(parents[0]), 5, "a read contains all additions before it");
    reader.join().unwrap();
    assert_eq!(parents.map(total), [5, 2]);
    assert_eq!(total(shared.root()), 7, "every addition is flushed once");
}

#[test]
fn flushes_two_subtrees_for_two_readers() {
    explore(two_readers_of_two_subtrees);
}

#[test]
#[should_panic(expected = "a read contains all additions before it")]
fn catches_a_reader_that_uses_a_flush_of_another_subtree() {
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
        assert_eq!(total(shared.root()), 3, "a read of the root contains additions of a new group");
        new
    });
    let seen = total(shared.root());
    assert!(seen == 1 || seen == 3, "every addition is flushed once, not {seen}");
    let new = maker.join().unwrap();
    assert_eq!([new, parent, shared.root()].map(total), [2, 3, 3], "every addition is flushed once");
}

#[test]
fn flushes_additions_of_a_new_group() {
    explore(a_flush_against_a_new_group);
}

#[test]
#[should_panic(expected = "a read of the root contains")]
fn catches_a_flush_that_stops_below_the_root() {
    mutation::with(Mutation::FlushStopsBelowTheRoot, || explore(a_flush_against_a_new_group));
}
