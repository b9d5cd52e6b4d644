//! Models of stock records that move, go and come back under charges: every interleaving of a few calls, with up to
//! three preemptions. Each fault of `mutation` must make its model fail. Few of them count, because flushes of moves are modelled in
//! `stats::loom`.

use memgroup_percpu::Wait;
use memgroup_sync::atomic::Ordering;
use memgroup_sync::grace::{self, Form};
use memgroup_sync::loom::thread;

use crate::base::mutation::{self, Mutation};
use crate::charge::batch;
use crate::charge::loom::{
    UNIT, assert_conserved, charges_counted, config, counted_group, explore, explore_up_to, lone_group,
    obtain,
};
use crate::control::over_limit;
use crate::lifecycle::residence::stock_turn;
use crate::stock::{Stock, WORD, drain};
use crate::tree::error::ChargeErrorKind;
use crate::tree::handle::Group;
use crate::tree::node::Node;
use crate::tree::shared::Shared;

fn relocate(node: &'static Node) {
    let _turn = stock_turn(node.shared());
    let _tree = node.shared().tree.lock();
    let fresh = node.shared().memory.stocks.allocate(node.id().0, Wait::May).unwrap();
    crate::lifecycle::residence::move_held(node, fresh);
}

fn demote(node: &'static Node) {
    let turn = stock_turn(node.shared());
    let _tree = node.shared().tree.lock();
    crate::lifecycle::residence::demote_held(node, turn.as_ref());
}

fn promote(node: &'static Node) {
    let _tree = node.shared().tree.lock();
    if !node.record.is_linked() {
        crate::lifecycle::residence::promote_held(node, Wait::May).unwrap();
    }
}

/// Waits for a grace period, and takes the last look at records left behind.
fn settle(shared: &'static Shared) {
    grace::synchronize(Form::Quiet);
    shared.memory.stocks.reclaim(|old, tag| crate::lifecycle::residence::last_look(shared, old, tag));
    for store in shared.statistics.stores() {
        store.records.reclaim(|_, _| ());
    }
}

fn charges_against(change: fn(&'static Node)) {
    a_charge_against(lone_group(1, 64 * UNIT), change);
}

fn counted_charges_against(change: fn(&'static Node)) {
    let group = counted_group(1, 64 * UNIT);
    a_charge_against(group, change);
    assert_eq!(charges_counted(group), 2, "each charge is a hit or a miss");
}

fn a_charge_against(group: &'static Node, change: fn(&'static Node)) {
    // Two units are live, and some are prepaid.
    group.charge_at(0, 2 * UNIT).unwrap();
    assert!(drain::prepaid(group) > 0);
    let user = thread::spawn(move || {
        group.charge_at(0, UNIT).unwrap();
        group.uncharge_at(0, UNIT);
    });
    change(group);
    user.join().unwrap();
    settle(group.shared());
    group.uncharge_at(0, 2 * UNIT);
    assert_conserved(group);
}

#[test]
fn moves_a_record_without_losing_a_charge() {
    explore(|| charges_against(relocate));
    explore_up_to(2, || counted_charges_against(relocate));
}

#[test]
#[should_panic(expected = "a stock that was left behind")]
fn catches_a_move_that_leaves_stocks_open() {
    mutation::with(Mutation::MoveLeavesStocksOpen, || explore(|| charges_against(relocate)));
}

#[test]
fn demotes_a_group_without_losing_a_charge() {
    explore(|| charges_against(demote));
    explore_up_to(1, || counted_charges_against(demote));
}

#[test]
#[should_panic(expected = "a stock that was left behind")]
fn catches_a_demotion_that_leaves_stocks_open() {
    mutation::with(Mutation::MoveLeavesStocksOpen, || explore(|| charges_against(demote)));
}

fn demote_and_promote(group: &'static Node) {
    demote(group);
    promote(group);
}

#[test]
fn demotes_and_restores_without_losing_a_charge() {
    explore_up_to(2, || charges_against(demote_and_promote));
}

/// Old memory is free, and its next owner writes it, as soon as its grace period has passed. The charge may be late.
fn a_charge_while_its_words_are_used_again(change: fn(&'static Node)) {
    let group = lone_group(1, 64 * UNIT);
    let hot = &group.shared().memory.stocks;
    let user = thread::spawn(move || {
        group.charge_at(0, UNIT).unwrap();
        group.uncharge_at(0, UNIT);
    });
    change(group);
    settle(group.shared());
    let again = hot.allocate(0, Wait::May).unwrap();
    // Under loom a block that is free, or a plain write that is not ordered against an access, is a panic.
    let word = hot.fresh_word(&again, 0, WORD).unwrap();
    // ORDERING: Relaxed; the model checks that no other thread is here.
    assert_eq!(word.fetch_add(1, Ordering::Relaxed), 0, "no thread writes into memory of another owner");
    user.join().unwrap();
    assert_eq!(word.load(Ordering::Relaxed), 1, "no thread writes into memory of another owner");
    hot.discard(again);
    settle(group.shared());
    assert_conserved(group);
}

#[test]
fn reuses_old_memory_when_no_charge_can_reach_it() {
    // The wait for the grace period has many states of its own.
    explore_up_to(2, || a_charge_while_its_words_are_used_again(relocate));
    explore_up_to(2, || a_charge_while_its_words_are_used_again(demote));
}

/// A batch is in flight when its record moves; then all that is left is asked for.
fn a_batch_a_move_and_a_large_charge() {
    let shared = obtain(config(1, 2).stock_cap_bytes(2 * UNIT));
    let group = shared.create(shared.root(), "group").unwrap();
    group.counter.set_max(8 * UNIT);
    // The stock has its largest cap, and is empty: the next batch needs no grant.
    group.charge_at(0, UNIT).unwrap();
    group.charge_at(0, UNIT).unwrap();
    let small = thread::spawn(move || {
        group.charge_at(0, UNIT).expect("one of eight units is always free for it");
    });
    relocate(group);
    group.charge_at(0, 5 * UNIT).expect("five of eight units are always free for it");
    small.join().unwrap();
    group.uncharge_at(0, 5 * UNIT);
    group.uncharge_at(0, 3 * UNIT);
    settle(group.shared());
    assert_conserved(group);
}

#[test]
fn refuses_no_charge_because_a_stock_moved() {
    explore(a_batch_a_move_and_a_large_charge);
}

#[test]
#[should_panic(expected = "are always free for it")]
fn catches_a_move_that_does_not_wait_for_batches() {
    mutation::with(Mutation::MoveIgnoresPending, || explore(a_batch_a_move_and_a_large_charge));
}

/// A group above its limit is freed from while its record moves.
fn a_move_above_the_limit() {
    let group = lone_group(1, 64 * UNIT);
    group.charge_at(0, 2 * UNIT).unwrap();
    {
        over_limit::change(group, |group| group.counter.set_max(UNIT / 2));
    }
    let freeing = thread::spawn(move || group.uncharge_at(0, UNIT));
    relocate(group);
    assert!(group.charge_at(0, UNIT / 4).is_err(), "a unit is live, more than the limit");
    freeing.join().unwrap();
    assert!(group.charge_at(0, UNIT / 4).is_err(), "a unit is live, more than the limit");
    group.uncharge_at(0, UNIT);
    group.charge_at(0, UNIT / 4).expect("within the limit again");
    group.uncharge_at(0, UNIT / 4);
    settle(group.shared());
    assert_conserved(group);
}

#[test]
fn keeps_stocks_closed_in_a_new_record_above_the_limit() {
    explore(a_move_above_the_limit);
}

/// Bytes are uncharged from a group that may have no stock, on a slot that no thread has used.
fn an_admission_against(close: fn(&'static Node)) {
    let shared = Shared::obtain(config(2, 2).checked().unwrap()).unwrap();
    let group = shared.create(shared.root(), "group").unwrap();
    group.charge_at(0, 2 * UNIT).unwrap();
    assert!(shared.memory.is_admitted(0) && !shared.memory.is_admitted(1));
    let freeing = thread::spawn(move || group.uncharge_at(1, UNIT));
    close(group);
    freeing.join().unwrap();
    assert!(shared.memory.is_admitted(1));
    assert_eq!((group.counter.usage(), drain::prepaid(group)), (UNIT, 0), "nothing is stocked");
    group.uncharge_at(1, UNIT);
    assert_eq!((group.counter.usage(), drain::prepaid(group)), (0, 0));
}

fn remove(group: &'static Node) {
    group.shared().remove(group).unwrap();
    assert_eq!(group.charge_at(0, UNIT).unwrap_err().kind(), ChargeErrorKind::Offline);
}

fn lower_the_limit(group: &'static Node) {
    over_limit::change(group, |group| group.counter.set_max(UNIT / 2));
}

#[test]
fn admits_a_slot_without_stock_for_a_removed_group() {
    explore(|| an_admission_against(remove));
}

#[test]
fn admits_a_slot_without_stock_above_the_limit() {
    explore(|| an_admission_against(lower_the_limit));
}

#[test]
fn keeps_no_credit_after_a_move_and_a_removal() {
    explore(|| {
        let group = lone_group(1, 64 * UNIT);
        let shared = group.shared();
        let user = thread::spawn(move || match group.charge_at(0, UNIT) {
            Ok(()) => group.uncharge_at(0, UNIT),
            Err(error) => assert_eq!(error.kind(), ChargeErrorKind::Offline),
        });
        relocate(group);
        shared.remove(group).unwrap();
        user.join().unwrap();
        assert_eq!((group.counter.usage(), drain::prepaid(group)), (0, 0));
        drop(Group::adopted(group));
        assert_eq!(shared.tree.lock().in_use(), 1, "the place is free");
        settle(shared);
    });
}

/// A charge comes late to a record that was left behind. While the record gets its last look, its group goes and another one gets
/// the place.
fn a_late_charge_and_the_next_group_of_the_place() {
    let group = counted_group(1, 64 * UNIT);
    let shared = group.shared();
    let late = Stock::enter(group, 0).unwrap();
    relocate(group);
    let found = late.attempt(UNIT);
    batch::charge_miss(late, UNIT, found, crate::base::effort::Means::PLAIN).unwrap();
    group.uncharge_at(0, UNIT);
    shared.remove(group).unwrap();
    let keeper = thread::spawn(move || settle(shared));
    drop(Group::adopted(group));
    let next = shared.create(shared.root(), "next").unwrap();
    assert!(core::ptr::eq(next, group));
    keeper.join().unwrap();
    assert_eq!(charges_counted(next), 0, "the charges of another group are not its own");
}

#[test]
fn counts_a_late_charge_for_its_own_group() {
    explore_up_to(2, a_late_charge_and_the_next_group_of_the_place);
}

#[test]
#[should_panic(expected = "the charges of another group are not its own")]
fn catches_a_last_look_that_ignores_the_generation() {
    mutation::with(Mutation::LastLookIgnoresGeneration, || {
        explore_up_to(2, a_late_charge_and_the_next_group_of_the_place)
    });
}
