//! Models of the stock: every interleaving of a few calls, with up to three preemptions.
//!
//! The models check the contrapositive of G1: if live bytes, bytes in flight and requested bytes
//! fit below the limit at every moment, no call may be refused. Each fault of `mutation` must make
//! its model fail.

use memgroup_percpu::{Records, SlotSource};
use memgroup_sync::loom::thread;

use crate::base::id::NodeId;
use crate::base::mutation::{self, Mutation};
use crate::charge::{evict, miss, refill};
use crate::control::{aftermath, freeze, over_limit};
use crate::counter::chain::{Climb, Refused, Until};
use crate::lifecycle::memory;
use crate::state::config::Config;
use crate::state::stats::Reach;
use crate::state::stats::builtin::{MEMORY, memory as stats};
use crate::state::stats::stat::Subsystem;
use crate::state::stock_word::Word;
use crate::stats::flush;
use crate::stock::{Stock, drain};
use crate::tree::error::{ChargeError, ChargeErrorKind};
use crate::tree::node::Node;
use crate::tree::shared::Shared;

mod late;
mod overflow;
mod removal;

/// Charges and uncharges on a slot of the model's choice.
impl Node {
    pub(crate) fn charge_at(&'static self, slot: usize, bytes: u64) -> Result<(), ChargeError> {
        // Without this yield, few models would reach an order in which the later thread runs first.
        thread::yield_now();
        miss::charge_in_slot(self, slot, bytes, crate::base::effort::Means::PLAIN)
    }

    pub(crate) fn uncharge_at(&'static self, slot: usize, bytes: u64) {
        refill::uncharge_in_slot(self, slot, bytes);
    }
}

pub(crate) const UNIT: u64 = 1024;

pub(crate) fn explore(model: impl Fn() + Sync + Send + 'static) {
    explore_up_to(3, model);
}

pub(crate) fn explore_up_to(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = memgroup_sync::loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    memgroup_sync::explore(&builder, model);
}

/// Charges the counters alone.
pub(crate) fn charge_counters(node: &'static Node, bytes: u64) -> Result<(), Refused> {
    aftermath::charge(node, bytes, Climb::to(Until::Top))
}

/// A hierarchy in which every slot has been used before.
pub(crate) fn obtain(config: Config) -> &'static Shared {
    let shared = Shared::obtain(config.checked().unwrap()).unwrap();
    for slot in 0..shared.source.slots() {
        shared.stocks.note(slot);
        memory::all(shared).for_each(|records| records.admit(slot));
    }
    memory::all(shared).for_each(warm);
    shared
}

/// loom creates a word at its first access, which must precede the model's threads.
fn warm(records: &'static Records) {
    records.provide(3).unwrap();
    let blocks = [(); 3].map(|()| records.allocate(1).unwrap());
    for block in blocks {
        for (slot, index) in
            records.admitted().flat_map(|slot| (0..records.words()).map(move |at| (slot, at)))
        {
            records.fresh_word(&block, slot, index);
        }
        records.discard(block);
    }
}

/// The statistics of the subsystem `memory` that models count, if they count: charges and misses.
pub(crate) static COUNTED: [Subsystem; 1] =
    [Subsystem { name: "memory", stats: stats::SUBSYSTEM.stats.split_at(stats::STOCK_MISSES.index() + 1).0 }];

/// A hierarchy of at most `groups_max` groups without an accounted root, in which nothing is
/// counted.
pub(crate) fn config(slots: usize, groups_max: u32) -> Config {
    let source = SlotSource::virtual_slots(slots).unwrap();
    let config = Config::with_slots(source).groups_max(groups_max).account_root(false);
    // A charge of more than half a cap is not stocked.
    config.stock_cap_bytes(8 * UNIT).stock_budget_bytes(32 * UNIT)
}

/// A group whose chain is one counter, its own.
pub(crate) fn lone_group(slots: usize, max: u64) -> &'static Node {
    lone_group_of(config(slots, 2), max)
}

/// Does the same, with the group's charges and misses counted.
pub(crate) fn counted_group(slots: usize, max: u64) -> &'static Node {
    lone_group_of(Config { builtin: &COUNTED, ..config(slots, 2) }, max)
}

fn lone_group_of(config: Config, max: u64) -> &'static Node {
    let shared = obtain(config);
    let group = shared.create(shared.root(), "group").unwrap();
    group.counter.set_max(max);
    group
}

/// Returns the charges that the group's statistics have counted.
pub(crate) fn charges_counted(node: &'static Node) -> u64 {
    let store = node.shared().statistics.store(MEMORY);
    flush::refresh(store, node);
    node.entry(store).flushed().peek(Reach::Local, stats::CHARGES.index()) as u64
}

fn prepaid(node: &'static Node) -> u64 {
    drain::prepaid(node)
}

pub(crate) fn drain_all(node: &'static Node) -> u64 {
    aftermath::drain(node).bytes
}

/// Returns the stock word of a slot at rest.
fn word_at_rest(node: &'static Node, slot: usize) -> Option<Word> {
    Stock::of(node, slot).map(|stock| stock.look())
}

/// Asserts that at rest the reserved part of the budget is the sum of the stocks' caps.
fn assert_reserves_are_caps(shared: &'static Shared) {
    let cap = |node: &'static Node, slot| word_at_rest(node, slot).map_or(0, Word::cap);
    let nodes = || (0..shared.places()).filter_map(|at| shared.node(NodeId(at)));
    for (slot, reserved) in shared.budget.reserved().enumerate() {
        assert_eq!(reserved, nodes().map(|node| cap(node, slot)).sum::<u64>(), "slot {slot}");
    }
}

/// Asserts that at rest, with nothing charged, usage equals the prepaid bytes, and a drain brings
/// it to zero.
pub(crate) fn assert_conserved(node: &'static Node) {
    assert_reserves_are_caps(node.shared());
    assert_eq!(node.counter.usage(), prepaid(node));
    drain_all(node);
    assert_eq!((node.counter.usage(), prepaid(node)), (0, 0));
    for slot in 0..node.shared().source.slots() {
        assert!(word_at_rest(node, slot).is_none_or(|word| !word.is_pending() && word.bytes() == 0));
    }
}

fn charges_on_one_slot_and_a_drain() {
    let group = lone_group(1, 64 * UNIT);
    let user = thread::spawn(move || {
        group.charge_at(0, UNIT).unwrap();
        group.uncharge_at(0, UNIT);
    });
    group.charge_at(0, UNIT).unwrap();
    drain_all(group);
    group.uncharge_at(0, UNIT);
    user.join().unwrap();
    assert_conserved(group);
}

#[test]
fn consume_refill_and_drain_conserve() {
    explore(charges_on_one_slot_and_a_drain);
}

#[test]
#[should_panic]
fn a_blind_swap_in_the_drain_is_caught() {
    mutation::with(Mutation::DrainSwapsBlindly, || explore(charges_on_one_slot_and_a_drain));
}

#[test]
fn an_overflow_and_a_drain_conserve() {
    explore(|| {
        let group = lone_group(1, 64 * UNIT);
        group.charge_at(0, 4 * UNIT).unwrap();
        group.charge_at(0, 4 * UNIT).unwrap();
        let user = thread::spawn(move || group.uncharge_at(0, 4 * UNIT));
        group.uncharge_at(0, 4 * UNIT);
        drain_all(group);
        user.join().unwrap();
        assert_conserved(group);
    });
}

#[test]
fn an_eviction_and_a_charge_conserve() {
    explore(|| {
        let group = lone_group(1, 64 * UNIT);
        group.charge_at(0, UNIT).unwrap();
        group.uncharge_at(0, UNIT);
        let user = thread::spawn(move || {
            group.charge_at(0, UNIT).unwrap();
            group.uncharge_at(0, UNIT);
        });
        // The first visit harvests. The second may find the stock idle.
        evict::visit(group, 0);
        evict::visit(group, 0);
        user.join().unwrap();
        assert_conserved(group);
    });
}

#[test]
fn an_undone_attempt_leaves_the_stock_within_its_cap() {
    explore(|| {
        let shared = obtain(config(1, 2).stock_cap_bytes(64 * UNIT).stock_budget_bytes(4 * UNIT));
        let group = shared.create(shared.root(), "group").unwrap();
        for _ in 0..4 {
            group.charge_at(0, UNIT).unwrap();
        }
        group.uncharge_at(0, 2 * UNIT);
        // Hides the stock while the other bytes are put back into it.
        let large = thread::spawn(move || group.charge_at(0, 8 * UNIT).unwrap());
        group.uncharge_at(0, UNIT);
        group.uncharge_at(0, UNIT);
        large.join().unwrap();
        let word = word_at_rest(group, 0).unwrap();
        assert!(word.prepaid() <= word.cap(), "{} bytes in a stock of cap {}", word.prepaid(), word.cap());
        group.uncharge_at(0, 8 * UNIT);
        assert_conserved(group);
    });
}

#[test]
fn a_finished_uncharge_is_found_by_the_next_drain() {
    explore(|| {
        let group = lone_group(2, 64 * UNIT);
        group.charge_at(1, UNIT).unwrap();
        let freeing = thread::spawn(move || group.uncharge_at(1, UNIT));
        freeing.join().unwrap();
        let other = thread::spawn(move || freeze::drain_all(group));
        freeze::drain_all(group);
        // Two drains at once share the work. When either returns, nothing is left.
        assert_eq!((group.counter.usage(), prepaid(group)), (0, 0));
        other.join().unwrap();
    });
}

fn a_small_and_a_large_charge_that_fit_together() {
    let group = lone_group(2, 6 * UNIT);
    let small = thread::spawn(move || {
        // With all of the limit free this buys a batch. Its surplus must never make the large
        // charge fail.
        group.charge_at(1, UNIT).expect("one of six units is always free for it");
    });
    group.charge_at(0, 5 * UNIT).expect("five of six units are always free for it");
    small.join().unwrap();
    group.uncharge_at(0, 5 * UNIT);
    group.uncharge_at(1, UNIT);
    assert_conserved(group);
}

#[test]
fn a_refusal_is_never_caused_by_stock() {
    explore(a_small_and_a_large_charge_that_fit_together);
}

#[test]
#[should_panic]
fn deciding_without_waiting_for_batches_in_flight_is_caught() {
    mutation::with(Mutation::RefusalIgnoresPending, || explore(a_small_and_a_large_charge_that_fit_together));
}

#[test]
#[should_panic]
fn closing_only_the_stocks_that_hold_something_is_caught() {
    mutation::with(Mutation::RefusalSkipsEmptyStocks, || {
        explore(a_small_and_a_large_charge_that_fit_together)
    });
}

#[test]
fn a_refill_between_sweep_and_refusal_refuses_no_charge() {
    explore(|| {
        // Two units are prepaid in slot 1 or live there, and one is asked for: three of three, at
        // every moment.
        let group = lone_group(2, 3 * UNIT);
        group.charge_at(1, 2 * UNIT).unwrap();
        group.uncharge_at(1, 2 * UNIT);
        let other = thread::spawn(move || {
            group.charge_at(1, 2 * UNIT).expect("two of three units are always free for it");
            group.uncharge_at(1, 2 * UNIT);
        });
        group.charge_at(0, UNIT).expect("one of three units is always free for it");
        other.join().unwrap();
        group.uncharge_at(0, UNIT);
        assert_conserved(group);
    });
}

/// A parent with a limit, and a child with stock of its own and the limit `child_max`.
fn parent_and_child(parent_max: u64, child_max: u64) -> (&'static Node, &'static Node) {
    let shared = obtain(config(2, 3));
    let parent = shared.create(shared.root(), "parent").unwrap();
    let child = shared.create(parent, "child").unwrap();
    parent.counter.set_max(parent_max);
    child.counter.set_max(child_max);
    (parent, child)
}

fn a_small_charge_of_a_child_and_a_large_one() {
    let (parent, child) = parent_and_child(6 * UNIT, 6 * UNIT);
    let small = thread::spawn(move || {
        child.charge_at(1, UNIT).expect("one of six units is always free for it");
        child.uncharge_at(1, UNIT);
    });
    parent.charge_at(0, 5 * UNIT).expect("five of six units are always free for it");
    small.join().unwrap();
    parent.uncharge_at(0, 5 * UNIT);
    drain_all(child);
    assert_conserved(parent);
}

#[test]
fn a_parents_refusal_is_never_caused_by_a_childs_stock() {
    explore(a_small_charge_of_a_child_and_a_large_one);
}

#[test]
#[should_panic(expected = "are always free for it")]
fn catches_a_grant_that_is_known_too_late() {
    mutation::with(Mutation::GrantIsKnownTooLate, || explore(a_small_charge_of_a_child_and_a_large_one));
}

#[test]
#[should_panic(expected = "are always free for it")]
fn catches_a_grant_that_is_returned_too_early() {
    mutation::with(Mutation::GrantIsReturnedTooEarly, || explore(a_drain_beside_a_refusal));
}

/// A drain has taken the bytes of a stock and not returned them yet when a charge would be
/// refused.
fn a_drain_beside_a_refusal() {
    let (parent, child) = parent_and_child(6 * UNIT, 6 * UNIT);
    child.charge_at(1, UNIT).unwrap();
    let draining = thread::spawn(move || drain_all(child));
    parent.charge_at(0, 5 * UNIT).expect("five of six units are always free for it");
    draining.join().unwrap();
    parent.uncharge_at(0, 5 * UNIT);
    child.uncharge_at(1, UNIT);
    drain_all(child);
    assert_conserved(parent);
}

#[test]
fn refuses_rightly_beside_a_drain() {
    explore(a_drain_beside_a_refusal);
}

#[test]
fn a_closure_grows_to_the_level_that_refuses_next() {
    explore(|| {
        // A batch in flight first stands in the way at the child's limit, and then the parent's own
        // stock does at the parent's.
        let (parent, child) = parent_and_child(6 * UNIT, 6 * UNIT);
        parent.charge_at(1, UNIT / 2).unwrap();
        parent.uncharge_at(1, UNIT / 2);
        assert_eq!(prepaid(parent), UNIT);
        let small = thread::spawn(move || {
            child.charge_at(1, UNIT).expect("one of six units is always free at both levels");
        });
        child.charge_at(0, 5 * UNIT).expect("five of six units are always free at both levels");
        small.join().unwrap();
        child.uncharge_at(0, 5 * UNIT);
        child.uncharge_at(1, UNIT);
        drain_all(child);
        assert_conserved(parent);
    });
}

#[test]
fn an_overflow_or_an_eviction_under_way_refuses_no_charge() {
    explore(|| {
        let shared = obtain(config(1, 2).stock_budget_bytes(2 * UNIT));
        let group = shared.create(shared.root(), "group").unwrap();
        for _ in 0..3 {
            group.charge_at(0, UNIT).unwrap();
        }
        group.uncharge_at(0, UNIT);
        assert_eq!(prepaid(group), 2 * UNIT);
        group.counter.set_max(9 * UNIT);
        // Two units are live. One is freed, so two units overflow: more than its own.
        let freeing = thread::spawn(move || {
            group.uncharge_at(0, UNIT);
            evict::visit(group, 0);
            evict::visit(group, 0);
        });
        group.charge_at(0, 7 * UNIT).expect("seven of nine units are always free for it");
        freeing.join().unwrap();
        group.uncharge_at(0, 7 * UNIT);
        group.uncharge_at(0, UNIT);
        assert_conserved(group);
    });
}

#[test]
fn chargers_that_fail_at_once_are_refused_by_live_bytes_only() {
    explore(|| {
        let group = lone_group(2, 2 * UNIT);
        group.charge_at(1, UNIT).unwrap();
        let other = thread::spawn(move || group.charge_at(1, UNIT));
        let mine = group.charge_at(0, UNIT);
        let others = other.join().unwrap();
        // One unit is free, so exactly one of the two gets it.
        assert!(mine.is_ok() != others.is_ok());
        let refused = mine.err().or(others.err()).unwrap();
        assert_eq!((refused.kind(), refused.usage()), (ChargeErrorKind::Refused, 2 * UNIT));
        group.uncharge_at(0, 2 * UNIT);
        assert_conserved(group);
    });
}

/// The child's limit and the parent's each stand in the way of one large charge while a small one
/// buys a batch.
fn refusals_of_a_parent_and_a_child() {
    let (parent, child) = parent_and_child(8 * UNIT, 6 * UNIT);
    let small = thread::spawn(move || {
        child.charge_at(1, UNIT).expect("one unit is always free at both levels");
    });
    let large = thread::spawn(move || {
        child.charge_at(0, 5 * UNIT).expect("five units are always free at both levels");
    });
    parent.charge_at(0, 2 * UNIT).expect("two of eight units are always free for it");
    small.join().unwrap();
    large.join().unwrap();
    parent.uncharge_at(0, 2 * UNIT);
    child.uncharge_at(0, 5 * UNIT);
    child.uncharge_at(1, UNIT);
    drain_all(child);
    assert_conserved(parent);
}

#[test]
fn refuses_rightly_at_two_levels_together() {
    explore_up_to(1, refusals_of_a_parent_and_a_child);
}

/// An uncharge opens a stock while a charge of a group above decides on its refusal.
fn a_stock_opened_by_an_uncharge() {
    let (parent, child) = parent_and_child(4 * UNIT, 4 * UNIT);
    charge_counters(child, 2 * UNIT).unwrap_or_else(|_| panic!("there is room"));
    let freeing = thread::spawn(move || child.uncharge_at(1, UNIT));
    let made = parent.charge_at(0, 3 * UNIT).is_ok();
    freeing.join().unwrap();
    if made {
        parent.uncharge_at(0, 3 * UNIT);
    }
    parent.charge_at(0, 3 * UNIT).expect("the uncharge is over: three of four units are free for it");
    parent.uncharge_at(0, 3 * UNIT);
    child.uncharge_at(1, UNIT);
    drain_all(child);
    assert_conserved(parent);
}

#[test]
fn refuses_rightly_beside_a_stock_that_an_uncharge_opens() {
    explore(a_stock_opened_by_an_uncharge);
}

/// A drain takes a group off the list while a batch opens its stock. A later refusal must find it.
fn a_drain_beside_a_batch() {
    let (parent, child) = parent_and_child(6 * UNIT, 6 * UNIT);
    child.charge_at(0, UNIT).unwrap();
    let small = thread::spawn(move || child.charge_at(1, UNIT).unwrap());
    freeze::drain(parent, u64::MAX);
    small.join().unwrap();
    parent.charge_at(0, 4 * UNIT).expect("four of six units are always free for it");
    parent.uncharge_at(0, 4 * UNIT);
    child.uncharge_at(1, 2 * UNIT);
    drain_all(child);
    assert_conserved(parent);
}

#[test]
fn finds_a_stock_that_is_opened_during_a_drain() {
    explore(a_drain_beside_a_batch);
}

#[test]
#[should_panic]
fn catches_a_list_that_loses_a_group() {
    mutation::with(Mutation::UnlistDoesNotLookAgain, || explore(a_drain_beside_a_batch));
}

fn a_batch_and_a_charge_that_spends_it() {
    let group = lone_group(1, 64 * UNIT);
    let buyer = thread::spawn(move || group.charge_at(0, UNIT).unwrap());
    group.charge_at(0, UNIT).unwrap();
    assert!(group.counter.usage() >= UNIT, "bytes are charged before they are spent");
    buyer.join().unwrap();
    group.uncharge_at(0, 2 * UNIT);
    assert_conserved(group);
}

#[test]
fn credit_is_charged_before_it_is_spent() {
    explore(a_batch_and_a_charge_that_spends_it);
}

#[test]
#[should_panic]
fn a_deposit_before_its_charge_is_caught() {
    mutation::with(Mutation::DepositBeforeCharge, || explore(a_batch_and_a_charge_that_spends_it));
}
