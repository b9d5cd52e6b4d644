//! Copies of values while they are written, of one group and of a tree.

use memgroup_sync::loom::thread;

use crate::base::mutation::{self, Mutation};
use crate::charge::loom::{explore, explore_up_to};
use crate::stats::loom::{NUMBER, Reach, add, child, entry, hierarchy, refresh, store, total};
use crate::stats::{copy, update};
use crate::tree::handle::Group;
use crate::tree::node::Node;

/// Both statistics always have the same value when they are flushed.
fn a_copy_against_a_flush(reach: Reach) {
    let group = child(hierarchy(1, 2).root(), "group");
    let both = |delta| {
        update::add(group, NUMBER, 0, delta);
        update::add(group, NUMBER, 1, delta);
    };
    both(1);
    refresh(group);
    both(2);
    let reader = thread::spawn(move || {
        let mut seen = [0; 2];
        entry(group).flushed().copy(reach, &mut seen);
        assert!(seen == [1, 1] || seen == [3, 3], "a copy is of one moment, not {seen:?}");
    });
    refresh(group);
    reader.join().unwrap();
}

/// A releasing thread writes values of the group into its parent, beside the threads that flush.
fn a_copy_against_a_release() {
    let parent = child(hierarchy(1, 4).root(), "parent");
    let group = child(parent, "child");
    update::add(group, NUMBER, 0, 1);
    update::add(group, NUMBER, 1, 1);
    group.shared().remove(group).unwrap();
    let reader = thread::spawn(move || {
        let mut seen = [0; 2];
        entry(parent).flushed().copy(Reach::Subtree, &mut seen);
        assert!(seen == [0, 0] || seen == [1, 1], "a copy is of one moment, not {seen:?}");
    });
    drop(Group::adopted(group));
    reader.join().unwrap();
}

/// The local and the total value of each of these groups, copied one group at a time, the first
/// one last.
fn copied(nodes: [&'static Node; 3]) -> [[i64; 2]; 3] {
    let values = copy::copy(store(nodes[0]), Some(nodes[0].shared().root()), 1, &nodes);
    let rows = [0, 2, 4].map(|at| [values[at], values[at + 1]]);
    let totals = rows.map(|[_, total]| total);
    assert!(
        totals.is_sorted_by(|above, below| above >= below),
        "a total is at least those below it, not {rows:?}"
    );
    rows
}

/// Another thread adds to a group, and flushes it or the whole tree, while the tree is copied.
fn a_tree_copy_against_a_flush(is_whole: bool) {
    let root = hierarchy(1, 4).root();
    let parent = child(root, "parent");
    let group = child(parent, "child");
    add(parent, 1);
    add(group, 2);
    let other = thread::spawn(move || {
        add(group, 4);
        refresh(if is_whole { root } else { group });
    });
    let rows = copied([root, parent, group]);
    let [[0, total_of_root], [1, total_of_parent], [local, total_of_group]] = rows else {
        panic!("{rows:?}")
    };
    assert!(local == 2 || local == 6, "a copy of a tree has all that was added before it, not {rows:?}");
    assert!(total_of_group == local && total_of_parent > local && total_of_root > local, "{rows:?}");
    other.join().unwrap();
    assert_eq!((total(group), total(root)), (6, 7), "every addition is flushed once");
}

/// Another thread releases a group below while the tree is copied. The group itself is not copied.
fn a_tree_copy_against_a_release() {
    let root = hierarchy(1, 5).root();
    let parent = child(root, "parent");
    let sibling = child(parent, "sibling");
    let group = child(parent, "child");
    add(sibling, 1);
    add(group, 2);
    group.shared().remove(group).unwrap();
    let other = thread::spawn(move || {
        add(group, 4);
        drop(Group::adopted(group));
    });
    let rows = copied([root, parent, sibling]);
    assert!(rows[1..].iter().all(|row| matches!(row, [0, 3 | 7] | [1, 1])), "{rows:?}");
    other.join().unwrap();
    assert_eq!((total(parent), total(root)), (7, 7), "every addition is flushed once");
}

#[test]
fn copies_a_group_after_those_below_it() {
    explore_up_to(2, || a_tree_copy_against_a_flush(false));
    explore_up_to(2, || a_tree_copy_against_a_flush(true));
    explore_up_to(2, a_tree_copy_against_a_release);
}

#[test]
#[should_panic(expected = "a total is at least those below it")]
fn catches_a_copy_that_begins_at_the_top_beside_a_flush() {
    mutation::with(Mutation::CopyBeginsAtTheTop, || {
        explore_up_to(2, || a_tree_copy_against_a_flush(false));
    });
}

#[test]
#[should_panic(expected = "a total is at least those below it")]
fn catches_a_copy_that_begins_at_the_top_beside_a_release() {
    mutation::with(Mutation::CopyBeginsAtTheTop, || explore_up_to(2, a_tree_copy_against_a_release));
}

#[test]
fn copies_values_of_one_moment() {
    explore(|| a_copy_against_a_flush(Reach::Local));
    explore(|| a_copy_against_a_flush(Reach::Subtree));
    explore(a_copy_against_a_release);
}

#[test]
#[should_panic(expected = "a copy is of one moment")]
fn catches_a_copy_without_a_sequence() {
    mutation::with(Mutation::CopyIsNotOfOneMoment, || explore(|| a_copy_against_a_flush(Reach::Local)));
}

#[test]
#[should_panic(expected = "a copy is of one moment")]
fn catches_a_subtree_copy_without_a_sequence() {
    mutation::with(Mutation::CopyIsNotOfOneMoment, || explore(|| a_copy_against_a_flush(Reach::Subtree)));
}

#[test]
#[should_panic(expected = "a copy is of one moment")]
fn catches_a_copy_during_a_release_without_a_sequence() {
    mutation::with(Mutation::CopyIsNotOfOneMoment, || explore(a_copy_against_a_release));
}
