//! Copies of values while they are written.

use memgroup_sync::loom::thread;

use crate::base::mutation::{self, Mutation};
use crate::charge::loom::explore;
use crate::stats::loom::{NUMBER, Reach, child, entry, hierarchy, refresh};
use crate::stats::update;
use crate::tree::handle::Group;

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
