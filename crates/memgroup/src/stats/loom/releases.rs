//! The release of a removed group, which moves its statistics to its ancestors, against flushes.

use memgroup_sync::loom::thread;

use crate::base::mutation::{self, Mutation};
use crate::charge::loom::{UNIT, explore, explore_up_to};
use crate::state::stats::builtin::{MEMORY, memory};
use crate::stats::loom::{Reach, add, child, flush, fresh, hierarchy, total};
use crate::stats::update;
use crate::tree::handle::Group;
use crate::tree::node::Node;
use crate::tree::shared::Shared;

/// A group and a removed one below it, on which there is one handle and in which something was
/// added.
fn parent_and_removed_child() -> (&'static Node, &'static Node) {
    let parent = child(hierarchy(1, 4).root(), "parent");
    let group = child(parent, "child");
    add(group, 5);
    group.shared().remove(group).unwrap();
    (parent, group)
}

fn groups(shared: &'static Shared) -> u32 {
    shared.tree.lock().in_use()
}

fn a_flush_against_the_last_handle() {
    let (parent, group) = parent_and_removed_child();
    let last = thread::spawn(move || {
        add(group, 2);
        drop(Group::adopted(group));
        assert_eq!(total(parent), 7, "everything is counted once, in reads of the parent too");
    });
    let seen = total(parent);
    assert!(seen == 5 || seen == 7, "everything is counted once, not {seen}");
    last.join().unwrap();
    assert_eq!(groups(parent.shared()), 2, "the group is released");
    assert_eq!((total(parent), total(parent.shared().root())), (7, 7), "everything is counted once");
    let next = child(parent.shared().root(), "next");
    assert!(core::ptr::eq(next, group), "the place is used again");
    assert_eq!((fresh(next, Reach::Local), total(next)), (0, 0), "a new group begins at zero");
    add(next, 1);
    assert_eq!((total(next), total(parent), total(parent.shared().root())), (1, 7, 8));
}

#[test]
fn counts_once_in_a_flush_and_a_release() {
    explore(a_flush_against_the_last_handle);
}

#[test]
#[should_panic(expected = "counted once")]
fn catches_a_release_that_ignores_a_flush() {
    mutation::with(Mutation::ReleaseIgnoresFlush, || explore(a_flush_against_the_last_handle));
}

#[test]
#[should_panic(expected = "a new group begins at zero")]
fn catches_a_release_that_looks_at_marks_alone() {
    mutation::with(Mutation::ReleaseLooksAtMarksAlone, || explore(a_flush_against_the_last_handle));
}

#[test]
#[should_panic(expected = "the group is released")]
fn catches_a_flush_that_leaves_releases() {
    mutation::with(Mutation::FlushLeavesReleases, || explore(a_flush_against_the_last_handle));
}

/// Two threads have the turns of two subsystems, one after the other or both at once; a release is
/// left to either.
#[test]
fn finishes_a_release_deferred_to_two_flushes() {
    explore_up_to(2, || {
        let (parent, group) = parent_and_removed_child();
        // A release takes no turn of a subsystem in which nothing was added.
        update::add(group, MEMORY, 0, 1);
        let other = thread::spawn(move || {
            let memory = parent.shared().statistics.store(MEMORY);
            drop(flush::lock(memory.updates, parent.shared()));
        });
        let last = thread::spawn(move || drop(Group::adopted(group)));
        assert_eq!(total(parent), 5, "everything is counted once");
        last.join().unwrap();
        other.join().unwrap();
        assert_eq!(groups(parent.shared()), 2, "the group is released");
        assert_eq!(total(parent.shared().root()), 5, "everything is counted once");
    });
}

/// The last byte of a removed group is returned, in a slot that has no stock any more.
#[test]
fn counts_once_in_a_flush_and_at_the_last_byte() {
    explore(|| {
        let parent = child(hierarchy(1, 4).root(), "parent");
        let group = child(parent, "child");
        group.charge_at(0, UNIT).unwrap();
        add(group, 5);
        group.shared().remove(group).unwrap();
        drop(Group::adopted(group));
        let last = thread::spawn(move || group.uncharge_at(0, UNIT));
        assert_eq!(total(parent), 5, "everything is counted once");
        last.join().unwrap();
        assert_eq!(groups(parent.shared()), 2, "the group is released");
        let charges = |node: &'static Node| {
            let memory = parent.shared().statistics.store(MEMORY);
            flush::refresh(memory, node);
            node.entry(memory).flushed().peek(Reach::Subtree, memory::CHARGES.index())
        };
        assert_eq!((total(parent), charges(parent)), (5, 1), "everything is counted once");
    });
}
