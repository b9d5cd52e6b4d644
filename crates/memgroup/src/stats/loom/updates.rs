//! An update against a flush that takes from the same words.

use memgroup_percpu::faults;
use memgroup_sync::loom::thread;

use crate::base::mutation::{self, Mutation};
use crate::charge::loom::{explore, explore_up_to};
use crate::stats::loom::{add, child, hierarchy, refresh, total};
use crate::tree::node::Node;

/// A group with a change that waits, which may be zero, and a mark that says so.
fn marked_group(value: i64) -> &'static Node {
    let group = child(hierarchy(1, 2).root(), "group");
    add(group, 1);
    add(group, value - 1);
    group
}

fn an_update_against_a_flush(before: i64) {
    let group = marked_group(before);
    let updater = thread::spawn(move || {
        add(group, 2);
        assert_eq!(total(group), before + 2, "a read contains the thread's own additions");
    });
    refresh(group.shared().root());
    updater.join().unwrap();
    assert_eq!(total(group.shared().root()), before + 2, "every addition is flushed");
}

/// A flush works on a group when it comes to the next: with another one behind it, while marks are
/// handed out still.
fn an_update_beside_another_group_against_a_flush() {
    let shared = hierarchy(1, 4);
    // The last two share a word of marks.
    let [_, group, next] = ["first", "group", "next"].map(|name| child(shared.root(), name));
    [group, next].into_iter().for_each(|group| add(group, 1));
    let updater = thread::spawn(move || {
        add(group, 2);
        assert_eq!(total(group), 3, "a read contains the thread's own additions");
    });
    refresh(shared.root());
    updater.join().unwrap();
    assert_eq!(total(shared.root()), 4, "every addition is flushed");
}

#[test]
fn flushes_or_marks_each_update() {
    explore_up_to(2, an_update_beside_another_group_against_a_flush);
    explore(|| an_update_against_a_flush(1));
    explore(|| an_update_against_a_flush(0));
}

#[test]
#[should_panic(expected = "a read contains the thread's own additions")]
fn catches_a_flush_that_does_not_take_zeros() {
    faults::zeros_are_not_taken(|| explore(|| an_update_against_a_flush(0)));
}

#[test]
#[should_panic(expected = "a read contains the thread's own additions")]
fn catches_a_flush_that_clears_marks_late() {
    faults::marks_are_cleared_late(|| explore(an_update_beside_another_group_against_a_flush));
}

#[test]
#[should_panic(expected = "a read contains the thread's own additions")]
fn catches_an_update_that_never_marks() {
    mutation::with(Mutation::UpdateNeverMarks, || explore(|| an_update_against_a_flush(1)));
}

/// Each relies on a mark that the other may have made, after a flush that has cleared it.
fn two_updates_after_a_flush() {
    let group = marked_group(1);
    let other = thread::spawn(move || {
        add(group, 2);
        assert_eq!(total(group) & 3, 3, "a read contains the thread's own additions");
    });
    refresh(group.shared().root());
    add(group, 4);
    assert_eq!(total(group) & 5, 5, "a read contains the thread's own additions");
    other.join().unwrap();
    assert_eq!(total(group.shared().root()), 7, "every addition is flushed once");
}

/// The same, each in a thread of its own.
fn two_updates_against_a_flush() {
    let group = marked_group(1);
    let others = [2, 4].map(|delta| {
        thread::spawn(move || {
            add(group, delta);
            let known = delta + 1;
            assert_eq!(total(group) & known, known, "a read contains the thread's own additions");
        })
    });
    refresh(group.shared().root());
    others.into_iter().for_each(|other| other.join().unwrap());
    assert_eq!(total(group.shared().root()), 7, "every addition is flushed once");
}

#[test]
fn an_update_relies_on_a_mark_of_another_thread() {
    explore_up_to(2, two_updates_after_a_flush);
    explore_up_to(1, two_updates_against_a_flush);
}

#[test]
#[should_panic(expected = "a read contains the thread's own additions")]
fn marks_that_are_set_from_below_are_caught() {
    faults::marks_are_set_from_below(|| explore_up_to(2, two_updates_after_a_flush));
}

#[test]
#[should_panic(expected = "a read contains the thread's own additions")]
fn a_clean_look_without_a_second_is_caught() {
    faults::clean_is_asked_once(|| explore(|| an_update_against_a_flush(1)));
}
