//! The release of a removed group, whose statistics go to its ancestors, against flushes.

use memgroup_sync::grace;
use memgroup_sync::loom::thread;

use super::{Reach, add, child, flush, fresh, hierarchy, total};
use crate::mutation::{self, Mutation};
use crate::node::Node;
use crate::rstat::builtin::{MEMORY, memory};
use crate::shared::Shared;
use crate::stock::loom::{UNIT, explore, explore_up_to};

/// A group and a removed one below it, on which there is one handle and in which something was added.
fn parent_and_removed_child() -> (&'static Node, &'static Node) {
    let parent = child(hierarchy(1, 4).root(), "parent");
    let group = child(parent, "child");
    add(group, 5);
    group.shared.remove(group).unwrap();
    (parent, group)
}

fn groups(shared: &'static Shared) -> u32 {
    shared.tree.lock().in_use()
}

fn a_flush_against_the_last_handle() {
    let (parent, group) = parent_and_removed_child();
    let last = thread::spawn(move || {
        add(group, 2);
        group.unpin();
        assert_eq!(total(parent), 7, "everything is counted once, in what a parent reads too");
    });
    let seen = total(parent);
    assert!(seen == 5 || seen == 7, "everything is counted once, not {seen}");
    last.join().unwrap();
    assert_eq!(groups(parent.shared), 2, "the group is released");
    assert_eq!((total(parent), total(parent.shared.root())), (7, 7), "everything is counted once");
    let next = child(parent.shared.root(), "next");
    assert!(core::ptr::eq(next, group), "the place is used again");
    assert_eq!((fresh(next, Reach::Local), total(next)), (0, 0), "a new group begins at zero");
    add(next, 1);
    assert_eq!((total(next), total(parent), total(parent.shared.root())), (1, 7, 8));
}

#[test]
fn a_flush_and_a_release_count_once() {
    explore(a_flush_against_the_last_handle);
}

#[test]
#[should_panic(expected = "counted once")]
fn a_release_that_ignores_a_flush_is_caught() {
    mutation::with(Mutation::ReleaseIgnoresFlush, || explore(a_flush_against_the_last_handle));
}

#[test]
#[should_panic(expected = "the group is released")]
fn a_flush_that_leaves_releases_is_caught() {
    mutation::with(Mutation::FlushLeavesReleases, || explore(a_flush_against_the_last_handle));
}

/// Two flushes of two subsystems hold the layout, one after the other or both at once; a release is left to either.
#[test]
fn a_release_that_is_left_to_two_flushes_is_finished() {
    explore_up_to(2, || {
        let (parent, group) = parent_and_removed_child();
        let other = thread::spawn(move || {
            let memory = parent.shared.statistics.store(MEMORY);
            flush::hold_still(memory, parent.shared, |_| ());
        });
        let last = thread::spawn(move || group.unpin());
        assert_eq!(total(parent), 5, "everything is counted once");
        last.join().unwrap();
        other.join().unwrap();
        assert_eq!(groups(parent.shared), 2, "the group is released");
        assert_eq!(total(parent.shared.root()), 5, "everything is counted once");
    });
}

/// The last byte of a removed group is returned, in a slot that has no stock any more.
#[test]
fn a_flush_and_the_last_byte_count_once() {
    explore(|| {
        let parent = child(hierarchy(1, 4).root(), "parent");
        let group = child(parent, "child");
        group.charge_at(0, UNIT).unwrap();
        add(group, 5);
        group.shared.remove(group).unwrap();
        group.unpin();
        let last = thread::spawn(move || group.uncharge_at(0, UNIT));
        assert_eq!(total(parent), 5, "everything is counted once");
        last.join().unwrap();
        assert_eq!(groups(parent.shared), 2, "the group is released");
        let charges = |node: &'static Node| {
            let memory = parent.shared.statistics.store(MEMORY);
            flush::refresh(memory, node);
            node.entry(memory).side(&grace::enter()).peek(Reach::Subtree, memory::CHARGES)
        };
        assert_eq!((total(parent), charges(parent)), (5, 1), "everything is counted once");
    });
}
