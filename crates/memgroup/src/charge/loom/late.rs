//! Calls that use a stock word after they stopped holding its group. The group may be released,
//! the next group may be at its place, and the node may be given back.
//!
//! - An uncharge above the cap holds its group until its addition, whose bytes another thread may
//!   take to the counters. Later it is harmless because it checks the node again in a section.
//!   Fault: `LateUnchargeTrustsItsWord`.
//! - A charge in a scope whose guard was forgotten, or of an old owner of blocks, never holds its
//!   group. It is harmless because it enters a section before it finds the node. Fault:
//!   `UnheldChargeHasNoSection`.
//! - The budget's clock never holds the group either. It replaces a word that it saw, by
//!   compare-and-swap. Fault: `ClockTakesTheCapBlindly`.
//! - A drain holds the group until it returns the stock's grant, which is its last step. A removal
//!   waits for the grant. Fault: `GrantIsReturnedTooEarly`.
//!
//! The memory of the words belongs to `memgroup_percpu::Words`. Its models show that pages go back
//! only after the sections that may use them.

use memgroup_sync::grace::{self, Form};

use crate::base::effort::Means;
use crate::charge::loom::*;
use crate::lifecycle::maintenance::Maintained;
use crate::lifecycle::pace::Pace;
use crate::lifecycle::records::free_kept;
use crate::state::config::CHUNK;
use crate::stock::Unheld;
use crate::tree::handle::Group;

/// A hierarchy with groups in all places of the root's chunk, and a group below one of those in a
/// chunk of its own.
fn group_of_its_own_chunk() -> (&'static Shared, &'static Node, &'static Node) {
    let shared = obtain(config(1, 2 * CHUNK));
    let parent = shared.create(shared.root(), "parent").unwrap();
    for number in 2..CHUNK {
        shared.create(shared.root(), &number.to_string()).unwrap();
    }
    (shared, parent, shared.create(parent, "group").unwrap())
}

/// Takes the node of a removed group out of the table. The caller's handle must be the last one.
fn retire(shared: &'static Shared, group: &'static Node) {
    drop(Group::adopted(group));
    free_kept(shared, u64::MAX, &Pace::whole(), &mut Maintained::default());
}

/// Gives the node of a removed group back. The caller's handle must be the last one.
fn give_back(shared: &'static Shared, group: &'static Node) {
    retire(shared, group);
    grace::synchronize(Form::Quiet);
    erase(shared);
}

fn erase(shared: &'static Shared) {
    while shared.has_limbo() {
        shared.reclaim_nodes(usize::MAX, || true);
        thread::yield_now();
    }
    assert!(shared.node(NodeId(CHUNK)).is_none(), "the chunk is gone");
}

/// Fills the stock of a group so that it has no room for the group's live bytes if all are
/// returned at once. Returns the number of live bytes.
fn more_than_there_is_room_for(group: &'static Node) -> u64 {
    group.charge_at(0, 2 * UNIT).unwrap();
    charge_counters(group, UNIT).unwrap_or_else(|_| panic!("there is room"));
    let word = word_at_rest(group, 0).unwrap();
    assert!(word.prepaid() + 3 * UNIT > word.room(), "{word:?}");
    3 * UNIT
}

/// The last bytes of a group are above the cap. Another thread spends all prepaid bytes, returns
/// them, and gives the node back. The place gets another node, with a group whose bytes are above
/// the cap, too.
fn an_uncharge_that_is_late() {
    let (shared, parent, group) = group_of_its_own_chunk();
    let live = more_than_there_is_room_for(group);
    let stock = Stock::of(group, 0).unwrap();
    assert!(!stock.put(live).takes(live));
    let (word, all) = (stock.word, stock.look().prepaid());
    assert!(stock.spend(all));
    drop(stock);
    aftermath::uncharge_counters(group, all);
    shared.remove(group).unwrap();
    let late = thread::spawn(move || group.uncharge_slowly(live, 0, Some(word)));
    give_back(shared, group);
    let next = shared.create(parent, "next").unwrap();
    assert!(next.id() == NodeId(CHUNK) && !core::ptr::eq(next, group), "another node at the same place");
    let bytes = more_than_there_is_room_for(next);
    next.uncharge_at(0, bytes);
    late.join().unwrap();
    drain_all(next);
    assert_eq!((next.counter.usage(), parent.counter.usage()), (0, 0), "its bytes are returned by itself");
}

#[test]
fn a_late_uncharge_leaves_a_node_that_is_gone_alone() {
    explore_up_to(2, an_uncharge_that_is_late);
}

/// The same, step by step, because loom finds no such execution by itself. The section of the late
/// uncharge begins after the node is retired, so the grace period doesn't wait for it.
fn an_uncharge_that_is_late_step_by_step() {
    let (shared, parent, group) = group_of_its_own_chunk();
    let live = more_than_there_is_room_for(group);
    let stock = Stock::of(group, 0).unwrap();
    assert!(!stock.put(live).takes(live));
    let (word, all) = (stock.word, stock.look().prepaid());
    assert!(stock.spend(all));
    drop(stock);
    aftermath::uncharge_counters(group, all);
    shared.remove(group).unwrap();
    retire(shared, group);
    let mut period = grace::begin(Form::Quiet);
    let late = Stock::again(group, 0, word);
    while !period.poll() {
        thread::yield_now();
    }
    erase(shared);
    let next = shared.create(parent, "next").unwrap();
    let bytes = more_than_there_is_room_for(next);
    let stock = Stock::of(next, 0).unwrap();
    assert!(!stock.put(bytes).takes(bytes));
    late.into_iter().for_each(|stock| refill::uncharge_miss(stock, live));
    refill::uncharge_miss(stock, bytes);
    drain_all(next);
    assert_eq!((next.counter.usage(), parent.counter.usage()), (0, 0), "its bytes are returned by itself");
}

#[test]
fn a_late_uncharge_looks_at_its_node_again() {
    explore(an_uncharge_that_is_late_step_by_step);
}

#[test]
#[should_panic(expected = "a node that is in use has a hierarchy")]
fn a_late_uncharge_that_trusts_its_word_is_caught() {
    mutation::with(Mutation::LateUnchargeTrustsItsWord, || explore(an_uncharge_that_is_late_step_by_step));
}

/// A charge of a group that nothing holds hides bytes in a word. The word would go back to the
/// system before the charge puts them back. Step by step.
fn an_unheld_charge_that_is_late() {
    let (shared, parent, group) = group_of_its_own_chunk();
    group.charge_at(0, UNIT).unwrap();
    group.uncharge_at(0, UNIT);
    shared.remove(group).unwrap();
    drop(grace::enter());
    let unheld = Unheld::begin();
    let stock = Stock::of(group, 0).unwrap();
    let (word, found) = (stock.word, stock.attempt(UNIT));
    drop(stock);
    assert!(!found.is_open(), "the group was removed");
    retire(shared, group);
    let mut period = grace::begin(Form::Quiet);
    let is_over = (0..4).any(|_| period.poll());
    if is_over {
        erase(shared);
    }
    let refused = group.charge_unheld_slowly(unheld, UNIT, Means::PLAIN, 0, word, found).unwrap_err();
    assert_eq!(refused.kind(), ChargeErrorKind::Offline);
    while !period.poll() {
        thread::yield_now();
    }
    erase(shared);
    let next = shared.create(parent, "next").unwrap();
    next.charge_at(0, UNIT).unwrap();
    next.uncharge_at(0, UNIT);
    drain_all(next);
    assert_eq!((next.counter.usage(), parent.counter.usage()), (0, 0));
}

#[test]
fn an_unheld_charge_puts_back_what_it_hid_before_the_word_goes() {
    explore(an_unheld_charge_that_is_late);
}

#[test]
#[should_panic]
fn an_unheld_charge_without_a_section_is_caught() {
    mutation::with(Mutation::UnheldChargeHasNoSection, || explore(an_unheld_charge_that_is_late));
}

/// The clock has seen a stock that is not open and has no bytes. The group is released, and the
/// next one at its place opens a stock.
fn a_clock_that_is_late() {
    let shared = obtain(config(1, 3));
    let group = shared.create(shared.root(), "group").unwrap();
    group.charge_at(0, UNIT).unwrap();
    group.uncharge_at(0, UNIT);
    drain_all(group);
    assert!(word_at_rest(group, 0).is_some_and(|word| word.cap() > 0 && !word.is_open()));
    let clock = thread::spawn(move || _ = evict::visit(group, 0));
    thread::yield_now();
    shared.remove(group).unwrap();
    drop(Group::adopted(group));
    let next = shared.create(shared.root(), "next").unwrap();
    assert!(core::ptr::eq(next, group), "the place is the same");
    next.charge_at(0, UNIT).unwrap();
    clock.join().unwrap();
    assert_reserves_are_caps(shared);
    next.uncharge_at(0, UNIT);
    drain_all(next);
    assert_eq!(next.counter.usage(), 0);
}

#[test]
fn a_late_clock_takes_a_cap_once() {
    explore_up_to(2, a_clock_that_is_late);
}

#[test]
#[should_panic]
fn a_clock_that_takes_a_cap_blindly_is_caught() {
    mutation::with(Mutation::ClockTakesTheCapBlindly, || explore_up_to(2, a_clock_that_is_late));
}

/// A drain has taken the stock of a group that is removed before the bytes are back.
fn a_drain_that_is_late() {
    let shared = obtain(config(1, 3));
    let group = shared.create(shared.root(), "group").unwrap();
    group.charge_at(0, UNIT).unwrap();
    group.uncharge_at(0, UNIT);
    group.pin_inner();
    let drain = thread::spawn(move || {
        drain_all(group);
        aftermath::unpin(group);
    });
    thread::yield_now();
    shared.remove(group).unwrap();
    assert_eq!(group.counter.usage(), 0, "a removal has waited for the bytes that a drain had taken");
    drop(Group::adopted(group));
    drain.join().unwrap();
    assert_eq!(shared.tree.lock().in_use(), 1, "the place is free");
}

#[test]
fn a_removal_waits_for_a_drain() {
    explore_up_to(2, a_drain_that_is_late);
}

#[test]
#[should_panic(expected = "had taken")]
fn a_drain_that_returns_its_grant_early_is_caught() {
    mutation::with(Mutation::GrantIsReturnedTooEarly, || explore_up_to(2, a_drain_that_is_late));
}
