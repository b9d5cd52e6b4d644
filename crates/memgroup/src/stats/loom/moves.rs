//! UpdateTree and flushes against records that move, go and come back.

use memgroup_sync::loom::thread;

use crate::base::mutation::{self, Mutation};
use crate::charge::loom::{explore, explore_up_to};
use crate::stats::loom::{add, child, entry, hierarchy, refresh, store, total};
use crate::stats::{flush, moves};
use crate::tree::node::Node;

fn relocate(node: &'static Node) {
    let turn = flush::lock(store(node).updates, node.shared());
    let _tree = node.shared().tree.lock();
    let target = store(node).records.allocate(node.id().0).unwrap();
    moves::move_to(entry(node), node, target, &turn);
}

fn give_up(node: &'static Node) {
    let turn = flush::lock(store(node).updates, node.shared());
    let _tree = node.shared().tree.lock();
    moves::move_to_base(entry(node), node, &turn);
}

/// The record has a value when it goes. Two threads add meanwhile. One is the mover, which brings
/// a record back if there is none.
fn an_update_against(change: fn(&'static Node)) {
    let group = child(hierarchy(1, 2).root(), "group");
    add(group, 4);
    let updater = thread::spawn(move || {
        add(group, 1);
        assert_eq!(total(group) & 5, 5, "a read contains the thread's own additions");
    });
    change(group);
    add(group, 2);
    updater.join().unwrap();
    assert_eq!(total(group.shared().root()), 7, "every addition is flushed once");
}

/// One adds, another flushes, a third moves.
fn an_update_and_a_flush_against(change: fn(&'static Node)) {
    let group = child(hierarchy(1, 2).root(), "group");
    add(group, 4);
    let updater = thread::spawn(move || {
        add(group, 1);
        assert_eq!(total(group), 5, "a read contains the thread's own additions");
    });
    let flusher = thread::spawn(move || refresh(group.shared().root()));
    change(group);
    updater.join().unwrap();
    flusher.join().unwrap();
    assert_eq!(total(group.shared().root()), 5, "every addition is flushed once");
}

#[test]
fn flushes_values_that_move() {
    explore(|| an_update_against(relocate));
    explore(|| an_update_against(give_up));
    explore_up_to(2, || an_update_and_a_flush_against(relocate));
    explore_up_to(1, || an_update_and_a_flush_against(give_up));
}

#[test]
#[should_panic(expected = "a read contains")]
fn catches_a_mover_that_does_not_mark() {
    mutation::with(Mutation::MoverDoesNotMark, || explore_up_to(2, || an_update_against(give_up)));
}

#[test]
#[should_panic(expected = "a read contains")]
fn catches_a_move_that_copies_values() {
    mutation::with(Mutation::FoldLeavesCountsLive, || explore_up_to(2, || an_update_against(relocate)));
}

/// A value that the reader knows of is on its way from one record to another.
fn a_reader_against(change: fn(&'static Node)) {
    let group = child(hierarchy(1, 2).root(), "group");
    add(group, 4);
    let reader =
        thread::spawn(move || assert_eq!(total(group), 4, "a fresh read contains earlier additions"));
    change(group);
    reader.join().unwrap();
    assert_eq!(total(group), 4);
}

#[test]
fn reads_all_values_during_a_move() {
    explore(|| a_reader_against(relocate));
    explore(|| a_reader_against(give_up));
}

/// The record is gone, and its slot marked still, when it comes back with an update.
fn an_update_that_brings_the_record_back() {
    let group = child(hierarchy(1, 2).root(), "group");
    add(group, 4);
    give_up(group);
    let updater = thread::spawn(move || {
        add(group, 1);
        assert_eq!(total(group), 5, "a read contains the thread's own additions");
    });
    refresh(group.shared().root());
    updater.join().unwrap();
    assert_eq!(total(group.shared().root()), 5, "every addition is flushed once");
}

#[test]
fn flushes_a_record_that_comes_back() {
    explore_up_to(2, an_update_that_brings_the_record_back);
}

#[test]
#[should_panic(expected = "a read contains")]
fn catches_a_flush_that_skips_a_returning_record() {
    mutation::with(Mutation::FlushTakesUnfoundForNone, || {
        explore_up_to(2, an_update_that_brings_the_record_back)
    });
}

/// One thread finds a record's slots enabled and its words moved on, while another brings the
/// record back.
#[test]
#[should_panic(expected = "a read contains")]
fn catches_a_flush_that_skips_a_record_on_its_way() {
    mutation::with(Mutation::FlushTakesUnfoundForNone, || explore_up_to(2, || an_update_against(give_up)));
}
