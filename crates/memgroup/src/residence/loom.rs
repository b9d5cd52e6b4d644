//! Models of stock records that move, go and come back under charges: every interleaving of a few calls, with up to
//! three preemptions. Each fault of `mutation` must make its model fail. Few of them count: what flushes make of moves is modelled in
//! `rstat`.

use memgroup_percpu::Wait;
use memgroup_sync::atomic::Ordering;
use memgroup_sync::grace::{self, Form};
use memgroup_sync::loom::thread;

use crate::error::ChargeErrorKind;
use crate::mutation::{self, Mutation};
use crate::node::Node;
use crate::overrun;
use crate::shared::Shared;
use crate::stock::loom::{
    UNIT, assert_conserved, charges_counted, config, counted_group, explore, explore_up_to, lone_group,
};
use crate::stock::{Stock, WORD, consume, drain};

fn relocate(node: &'static Node) {
    let _layout = node.shared.layout.write();
    let _tree = node.shared.tree.lock();
    let fresh = node.shared.memory.stocks.allocate(node.id.0, Wait::May).unwrap();
    super::move_held(node, fresh);
}

fn demote(node: &'static Node) {
    let layout = node.shared.layout.write();
    let _tree = node.shared.tree.lock();
    super::demote_held(node, &layout);
}

fn promote(node: &'static Node) {
    let _tree = node.shared.tree.lock();
    if !node.record.is_linked() {
        super::promote_held(node, Wait::May).unwrap();
    }
}

/// What was left behind gets its last look.
fn settle(shared: &'static Shared) {
    grace::synchronize(Form::Quiet);
    shared.memory.stocks.reclaim(|old, tag| super::last_look(shared, old, tag));
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
    settle(group.shared);
    group.uncharge_at(0, 2 * UNIT);
    assert_conserved(group);
}

#[test]
fn a_move_loses_no_charge() {
    explore(|| charges_against(relocate));
    explore_up_to(2, || counted_charges_against(relocate));
}

#[test]
#[should_panic(expected = "a stock that was left behind")]
fn a_move_that_leaves_stocks_open_is_caught() {
    mutation::with(Mutation::MoveLeavesStocksOpen, || explore(|| charges_against(relocate)));
}

#[test]
fn a_demotion_loses_no_charge() {
    explore(|| charges_against(demote));
    explore_up_to(1, || counted_charges_against(demote));
}

#[test]
#[should_panic(expected = "a stock that was left behind")]
fn a_demotion_that_leaves_stocks_open_is_caught() {
    mutation::with(Mutation::MoveLeavesStocksOpen, || explore(|| charges_against(demote)));
}

fn demote_and_promote(group: &'static Node) {
    demote(group);
    promote(group);
}

#[test]
fn a_demotion_and_a_return_lose_no_charge() {
    explore_up_to(2, || charges_against(demote_and_promote));
}

/// What was left behind is free, and written by its next owner, as soon as its grace period is over; the charge may be late.
fn a_charge_while_its_words_are_used_again(change: fn(&'static Node)) {
    let group = lone_group(1, 64 * UNIT);
    let hot = &group.shared.memory.stocks;
    let user = thread::spawn(move || {
        group.charge_at(0, UNIT).unwrap();
        group.uncharge_at(0, UNIT);
    });
    change(group);
    settle(group.shared);
    let again = hot.allocate(0, Wait::May).unwrap();
    // Under loom a block that is free, or a plain write that is not ordered against an access, is a panic.
    let word = hot.fresh_word(&again, 0, WORD).unwrap();
    // ORDERING: Relaxed; that nobody else is here is what is modelled.
    assert_eq!(word.fetch_add(1, Ordering::Relaxed), 0, "nobody writes into what another owns");
    user.join().unwrap();
    assert_eq!(word.load(Ordering::Relaxed), 1, "nobody writes into what another owns");
    hot.discard(again);
    settle(group.shared);
    assert_conserved(group);
}

#[test]
fn what_is_left_behind_is_used_again_when_no_charge_can_reach_it() {
    // The wait for the grace period has many states of its own.
    explore_up_to(2, || a_charge_while_its_words_are_used_again(relocate));
    explore_up_to(2, || a_charge_while_its_words_are_used_again(demote));
}

/// A batch is in flight when its record moves; then all that is left is asked for.
fn a_batch_a_move_and_a_large_charge() {
    let group = lone_group(1, 6 * UNIT);
    let small = thread::spawn(move || {
        group.charge_at(0, UNIT).expect("one of six units is always free for it");
    });
    relocate(group);
    group.charge_at(0, 5 * UNIT).expect("five of six units are always free for it");
    small.join().unwrap();
    group.uncharge_at(0, 5 * UNIT);
    group.uncharge_at(0, UNIT);
    settle(group.shared);
    assert_conserved(group);
}

#[test]
fn a_refusal_is_never_caused_by_a_stock_that_moved() {
    explore(a_batch_a_move_and_a_large_charge);
}

#[test]
#[should_panic(expected = "are always free for it")]
fn a_move_that_does_not_wait_for_batches_is_caught() {
    mutation::with(Mutation::MoveIgnoresPending, || explore(a_batch_a_move_and_a_large_charge));
}

/// A group above its limit is freed from while its record moves.
fn a_move_above_the_limit() {
    let group = lone_group(1, 64 * UNIT);
    group.charge_at(0, 2 * UNIT).unwrap();
    {
        let tree = group.shared.tree.lock();
        group.counter.set_max(UNIT / 2);
        overrun::settle(&tree, group);
    }
    let freeing = thread::spawn(move || group.uncharge_at(0, UNIT));
    relocate(group);
    assert!(group.charge_at(0, UNIT / 4).is_err(), "a unit is live, more than the limit");
    freeing.join().unwrap();
    assert!(group.charge_at(0, UNIT / 4).is_err(), "a unit is live, more than the limit");
    group.uncharge_at(0, UNIT);
    group.charge_at(0, UNIT / 4).expect("within the limit again");
    group.uncharge_at(0, UNIT / 4);
    settle(group.shared);
    assert_conserved(group);
}

#[test]
fn a_group_above_its_limit_has_no_stock_where_it_moved_to() {
    explore(a_move_above_the_limit);
}

#[test]
#[should_panic(expected = "a unit is live, more than the limit")]
fn a_move_that_opens_stocks_is_caught() {
    mutation::with(Mutation::MoveOpensStocks, || explore(a_move_above_the_limit));
}

/// A group that may have no stock any more is freed from in a slot that nobody has used.
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
    group.shared.remove(group).unwrap();
    assert_eq!(group.charge_at(0, UNIT).unwrap_err().kind(), ChargeErrorKind::Offline);
}

fn lower_the_limit(group: &'static Node) {
    let tree = group.shared.tree.lock();
    group.counter.set_max(UNIT / 2);
    overrun::settle(&tree, group);
}

#[test]
fn a_slot_is_admitted_without_stock_for_a_removed_group() {
    explore(|| an_admission_against(remove));
}

#[test]
fn a_slot_is_admitted_without_stock_for_a_group_above_its_limit() {
    explore(|| an_admission_against(lower_the_limit));
}

#[test]
#[should_panic(expected = "nothing is stocked")]
fn an_admission_that_opens_the_stock_of_a_removed_group_is_caught() {
    mutation::with(Mutation::AdmissionOpensStocks, || explore(|| an_admission_against(remove)));
}

#[test]
#[should_panic(expected = "nothing is stocked")]
fn an_admission_that_opens_the_stock_of_a_group_above_its_limit_is_caught() {
    mutation::with(Mutation::AdmissionOpensStocks, || explore(|| an_admission_against(lower_the_limit)));
}

#[test]
fn a_group_that_moved_and_was_removed_keeps_no_credit() {
    explore(|| {
        let group = lone_group(1, 64 * UNIT);
        let shared = group.shared;
        let user = thread::spawn(move || match group.charge_at(0, UNIT) {
            Ok(()) => group.uncharge_at(0, UNIT),
            Err(error) => assert_eq!(error.kind(), ChargeErrorKind::Offline),
        });
        relocate(group);
        shared.remove(group).unwrap();
        user.join().unwrap();
        assert_eq!((group.counter.usage(), drain::prepaid(group)), (0, 0));
        group.unpin();
        assert_eq!(shared.tree.lock().in_use(), 1, "the place is free");
        settle(shared);
    });
}

/// A charge comes late to a record that was left behind; its group goes, and another gets the place, while the record gets
/// its last look.
fn a_late_charge_and_the_next_group_of_the_place() {
    let group = counted_group(1, 64 * UNIT);
    let shared = group.shared;
    let late = Stock::enter(group, 0).unwrap();
    relocate(group);
    let found = late.attempt(UNIT);
    consume::charge_miss(late, UNIT, found).unwrap();
    group.uncharge_at(0, UNIT);
    shared.remove(group).unwrap();
    let keeper = thread::spawn(move || settle(shared));
    group.unpin();
    let next = shared.create(shared.root(), "next").unwrap();
    assert!(core::ptr::eq(next, group));
    keeper.join().unwrap();
    assert_eq!(charges_counted(next), 0, "the charges of another group are not its own");
}

#[test]
fn a_late_charge_is_counted_for_its_own_group_only() {
    explore_up_to(2, a_late_charge_and_the_next_group_of_the_place);
}

#[test]
#[should_panic(expected = "the charges of another group are not its own")]
fn a_last_look_that_ignores_the_generation_is_caught() {
    mutation::with(Mutation::LastLookIgnoresGeneration, || {
        explore_up_to(2, a_late_charge_and_the_next_group_of_the_place)
    });
}
