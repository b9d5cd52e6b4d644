//! A subsystem that is registered while groups are made and statistics flushed.

use memgroup_sync::loom::thread;

use crate::base::mutation::{self, Mutation};
use crate::charge::loom::{config, explore, explore_up_to, obtain};
use crate::state::config::Config;
use crate::state::stats::stat::{Stat, Subsystem};
use crate::state::tuning::Tuning;
use crate::stats::loom::{Reach, SUBSYSTEMS, add, child, flush, hierarchy, total, update};
use crate::stats::register;
use crate::tree::handle::Group;
use crate::tree::node::Node;
use crate::tree::shared::Shared;

const LATE: Subsystem = Subsystem { name: "late", stats: &[Stat::gauge("third")] };

/// Registers the subsystem, adds to it in `group`, and reads.
fn register_and_add(group: &'static Node, delta: i64) {
    let store = register::register(group.shared(), LATE).unwrap();
    update::add(group, store.number, 0, delta);
    flush::refresh(store, group);
    let seen = group.entry(store).flushed().peek(Reach::Local, 0);
    assert_eq!(seen & delta, delta, "a read contains the thread's own additions");
}

fn late_total(shared: &'static Shared) -> i64 {
    let store = shared.statistics.find(LATE.name).unwrap();
    flush::refresh(store, shared.root());
    shared.root().entry(store).flushed().peek(Reach::Subtree, 0)
}

/// A group that is made meanwhile has its place too.
fn a_registration_against_a_new_group() {
    let shared = hierarchy(1, 4);
    let group = child(shared.root(), "group");
    let other = thread::spawn(move || register_and_add(group, 1));
    let new = shared.create(shared.root(), "new").unwrap();
    register_and_add(new, 2);
    other.join().unwrap();
    assert_eq!(late_total(shared), 3, "every addition is flushed once");
}

#[test]
fn gives_a_new_group_an_entry_in_a_late_subsystem() {
    explore_up_to(2, a_registration_against_a_new_group);
}

/// Those that there were are flushed meanwhile; with one tree for all the late one joins it.
fn a_registration_against_a_flush(separate_trees: bool) {
    let config = Config { builtin: &SUBSYSTEMS, ..config(1, 2) };
    let shared = obtain(config.separate_trees(separate_trees));
    let group = child(shared.root(), "group");
    add(group, 4);
    let other = thread::spawn(move || register_and_add(group, 1));
    assert_eq!(total(shared.root()), 4, "every addition is flushed once");
    other.join().unwrap();
    assert_eq!((total(shared.root()), late_total(shared)), (4, 1), "every addition is flushed once");
}

#[test]
fn registers_a_subsystem_during_a_flush() {
    explore(|| a_registration_against_a_flush(true));
    explore(|| a_registration_against_a_flush(false));
}

/// The last handle of a removed group goes meanwhile. No flush comes after.
fn a_registration_against_a_release(separate_trees: bool) {
    let config = Config { builtin: &SUBSYSTEMS, ..config(1, 2) };
    let shared = obtain(config.separate_trees(separate_trees));
    let group = child(shared.root(), "group");
    // A release takes no turn of a subsystem in which nothing was added.
    add(group, 1);
    shared.remove(group).unwrap();
    let other = thread::spawn(move || _ = register::register(shared, LATE).unwrap());
    drop(Group::adopted(group));
    other.join().unwrap();
    assert_eq!(shared.tree.lock().in_use(), 1, "the group is released");
}

#[test]
fn finishes_a_release_left_to_a_registration() {
    explore(|| a_registration_against_a_release(true));
    explore(|| a_registration_against_a_release(false));
}

#[test]
#[should_panic(expected = "the group is released")]
fn catches_a_registration_that_leaves_releases() {
    mutation::with(Mutation::FlushLeavesReleases, || explore(|| a_registration_against_a_release(false)));
}
