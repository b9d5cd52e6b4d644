//! Bytes above the cap of a stock belong to uncharges under way. No thread may keep them from a
//! charge.

use crate::charge::loom::*;

/// A group at its limit: a quarter of a unit is live, as much is prepaid in a stock of half a
/// unit, and `live` more bytes are live.
fn full_group(live: u64) -> &'static Node {
    let group = lone_group(2, 64 * UNIT);
    group.charge_at(0, UNIT / 4).unwrap();
    assert_eq!(word_at_rest(group, 0).map(Word::cap), Some(UNIT / 2));
    charge_counters(group, live).unwrap_or_else(|_| panic!("there is room"));
    group.counter.set_max(group.counter.usage());
    group
}

/// Frees four units, and charges as many again.
fn frees_and_charges_four_units(group: &'static Node) {
    group.uncharge_at(0, 4 * UNIT);
    // Not `charge_at`, because its yield would let the other thread end first.
    miss::charge_in_slot(group, 1, 4 * UNIT, crate::base::effort::Means::PLAIN)
        .expect("four units are always free for it");
}

fn ends(group: &'static Node) {
    group.uncharge_at(1, 4 * UNIT);
    group.uncharge_at(0, UNIT / 4);
    assert_conserved(group);
}

/// The drain runs while the bytes are in the stock, above its cap. It has not returned them when
/// the same thread charges again.
fn an_uncharge_above_the_cap_beside_a_drain() {
    let group = full_group(4 * UNIT);
    let user = thread::spawn(move || frees_and_charges_four_units(group));
    thread::yield_now();
    drain_all(group);
    user.join().unwrap();
    ends(group);
}

#[test]
fn a_drain_keeps_no_bytes_of_an_uncharge_from_a_charge() {
    explore(an_uncharge_above_the_cap_beside_a_drain);
}

/// Another uncharge returns a batch while the bytes are in the stock.
fn an_uncharge_above_the_cap_beside_another() {
    let group = full_group(4 * UNIT + UNIT / 2);
    let user = thread::spawn(move || frees_and_charges_four_units(group));
    thread::yield_now();
    group.uncharge_at(0, UNIT / 2);
    user.join().unwrap();
    ends(group);
}

#[test]
fn an_uncharge_keeps_no_bytes_of_another_from_a_charge() {
    explore(an_uncharge_above_the_cap_beside_another);
}

#[test]
#[should_panic(expected = "are always free for it")]
fn catches_a_drain_that_takes_bytes_above_the_cap() {
    mutation::with(Mutation::DrainTakesAboveTheCap, || explore(an_uncharge_above_the_cap_beside_a_drain));
}

#[test]
#[should_panic(expected = "are always free for it")]
fn catches_an_uncharge_that_takes_all_bytes_above_the_cap() {
    mutation::with(Mutation::OverflowTakesAll, || explore(an_uncharge_above_the_cap_beside_another));
}

/// A stock is opened again in a slot that has been listed since an earlier stock was evicted
/// there. A drain takes the slot off the list.
fn a_drain_beside_a_batch_in_a_listed_slot() {
    let group = lone_group(1, 64 * UNIT);
    group.charge_at(0, UNIT).unwrap();
    (0..2).for_each(|_| _ = evict::visit(group, 0));
    assert_eq!(word_at_rest(group, 0).map(Word::room), Some(0));
    let buyer = thread::spawn(move || charge_until_stocked(group));
    thread::yield_now();
    drain_all(group);
    buyer.join().unwrap();
    drain_all(group);
    assert_eq!(group.counter.prepaid_most(), 0, "the last drain found each stock");
}

fn charge_until_stocked(group: &'static Node) {
    // The first one goes to the counters, because the stock was evicted.
    // ORDERING: Relaxed, because no other thread charges.
    group.counter.backing_off().store(1, memgroup_sync::atomic::Ordering::Relaxed);
    (0..2).for_each(|_| miss::charge_in_slot(group, 0, UNIT, crate::base::effort::Means::PLAIN).unwrap());
}

#[test]
fn finds_a_stock_in_a_slot_that_is_listed_still() {
    explore(a_drain_beside_a_batch_in_a_listed_slot);
}

#[test]
#[should_panic(expected = "the last drain found each stock")]
fn catches_slots_that_are_taken_without_a_fence() {
    mutation::with(Mutation::SlotsAreTakenWithoutFence, || explore(a_drain_beside_a_batch_in_a_listed_slot));
}
