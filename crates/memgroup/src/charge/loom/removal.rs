//! Groups that are removed, or above their limit, while their stocks are used.

use crate::charge::loom::*;
use crate::tree::handle::Group;

fn a_removal_during_a_charge_and_its_uncharge() {
    let group = lone_group(1, 64 * UNIT);
    let root = group.shared().root();
    let user = thread::spawn(move || match group.charge_at(0, UNIT) {
        Ok(()) => group.uncharge_at(0, UNIT),
        Err(error) => assert_eq!(error.kind(), ChargeErrorKind::Offline),
    });
    // As in `charge_at`.
    thread::yield_now();
    group.shared().remove(group).unwrap();
    assert_eq!(group.charge_at(0, UNIT).unwrap_err().kind(), ChargeErrorKind::Offline);
    user.join().unwrap();
    assert_eq!((group.counter.usage(), prepaid(group), root.counter.usage()), (0, 0, 0));
    // The last handle releases the place.
    assert_eq!(group.shared().tree.lock().in_use(), 2);
    drop(Group::adopted(group));
    assert_eq!(group.shared().tree.lock().in_use(), 1);
}

#[test]
fn a_removed_group_keeps_no_credit() {
    explore(a_removal_during_a_charge_and_its_uncharge);
}

#[test]
#[should_panic]
fn a_removal_that_leaves_stocks_open_is_caught() {
    mutation::with(Mutation::RemovalLeavesStocksOpen, || explore(a_removal_during_a_charge_and_its_uncharge));
}

fn a_removal_while_an_attempt_hides_the_stock() {
    let group = lone_group(1, 64 * UNIT);
    // One unit is live, one is prepaid.
    group.charge_at(0, UNIT).unwrap();
    assert!(prepaid(group) >= UNIT);
    let user = thread::spawn(move || {
        // Asks for more than is prepaid: hides it, fails, puts it back.
        if group.charge_at(0, 3 * UNIT).is_ok() {
            group.uncharge_at(0, 3 * UNIT);
        }
    });
    group.shared().remove(group).unwrap();
    user.join().unwrap();
    assert_eq!((group.counter.usage(), prepaid(group)), (UNIT, 0));
    group.uncharge_at(0, UNIT);
    assert_eq!(group.counter.usage(), 0);
}

#[test]
fn an_attempt_returns_the_bytes_that_it_hides() {
    explore(a_removal_while_an_attempt_hides_the_stock);
}

#[test]
#[should_panic]
fn an_undone_attempt_that_ignores_the_mark_is_caught() {
    mutation::with(Mutation::UndoneAttemptIgnoresClosed, || {
        explore(a_removal_while_an_attempt_hides_the_stock)
    });
}

#[test]
fn an_overflow_under_way_is_waited_for_by_removal() {
    explore(|| {
        let shared = obtain(config(1, 2).stock_budget_bytes(2 * UNIT));
        let group = shared.create(shared.root(), "group").unwrap();
        for _ in 0..3 {
            group.charge_at(0, UNIT).unwrap();
        }
        group.uncharge_at(0, UNIT);
        // All live bytes are uncharged at once, most of them past the stock. This uncharge may be
        // the group's last, although it doesn't check.
        let freeing = thread::spawn(move || group.uncharge_at(0, 2 * UNIT));
        shared.remove(group).unwrap();
        drop(Group::adopted(group));
        freeing.join().unwrap();
        assert_eq!(shared.tree.lock().in_use(), 1, "the group was never released");
        assert_reserves_are_caps(shared);
    });
}

/// A batch is between the stock and the counters while its group is removed.
fn a_removal_beside_a_batch() {
    let shared = obtain(config(1, 2).stock_cap_bytes(2 * UNIT));
    let group = shared.create(shared.root(), "group").unwrap();
    // The stock has its largest cap, and is empty: the next batch needs no grant.
    (0..2).for_each(|_| group.charge_at(0, UNIT).unwrap());
    assert_eq!(prepaid(group), 0);
    let small = thread::spawn(move || {
        if group.charge_at(0, UNIT).is_ok() {
            group.uncharge_at(0, UNIT);
        }
    });
    shared.remove(group).unwrap();
    let seen = group.counter.usage();
    small.join().unwrap();
    assert!(seen <= 3 * UNIT, "a removal leaves live bytes only, not {seen}");
    group.uncharge_at(0, 2 * UNIT);
    drop(Group::adopted(group));
    assert_eq!(shared.tree.lock().in_use(), 1, "the group was never released");
}

#[test]
fn a_removal_waits_for_batches() {
    explore(a_removal_beside_a_batch);
}

#[test]
#[should_panic(expected = "a removal leaves live bytes only")]
fn a_removal_that_does_not_wait_for_batches_is_caught() {
    mutation::with(Mutation::RetireIgnoresPending, || explore(a_removal_beside_a_batch));
}

/// Bytes are uncharged on a slot that no thread has used, from a group that may have no stock.
fn an_uncharge_on_a_new_slot_beside(close: fn(&'static Node)) {
    let shared = Shared::obtain(config(2, 2).checked().unwrap()).unwrap();
    let group = shared.create(shared.root(), "group").unwrap();
    group.charge_at(0, 2 * UNIT).unwrap();
    assert_eq!(shared.stocks.used().collect::<Vec<_>>(), [0]);
    let freeing = thread::spawn(move || group.uncharge_at(1, UNIT));
    close(group);
    freeing.join().unwrap();
    assert_eq!(shared.stocks.used().count(), 2);
    assert_eq!((group.counter.usage(), prepaid(group)), (UNIT, 0), "nothing is stocked");
    group.uncharge_at(1, UNIT);
    assert_eq!((group.counter.usage(), prepaid(group)), (0, 0));
}

#[test]
fn no_stock_is_opened_on_a_new_slot_of_a_removed_group() {
    explore(|| {
        an_uncharge_on_a_new_slot_beside(|group: &'static Node| {
            group.shared().remove(group).unwrap();
            assert_eq!(group.charge_at(0, UNIT).unwrap_err().kind(), ChargeErrorKind::Offline);
        })
    });
}

#[test]
fn no_stock_is_opened_on_a_new_slot_above_the_limit() {
    explore(|| {
        an_uncharge_on_a_new_slot_beside(|group: &'static Node| {
            over_limit::change(group, |group| group.counter.set_max(UNIT / 2));
        })
    });
}

#[test]
fn the_last_byte_of_a_removed_group_releases_it_once() {
    explore(|| {
        let group = lone_group(1, 64 * UNIT);
        group.charge_at(0, 2 * UNIT).unwrap();
        group.shared().remove(group).unwrap();
        let other = thread::spawn(move || group.uncharge_at(0, UNIT));
        let handle = thread::spawn(move || drop(Group::adopted(group)));
        group.uncharge_at(0, UNIT);
        other.join().unwrap();
        handle.join().unwrap();
        assert_eq!(group.shared().tree.lock().in_use(), 1);
    });
}

/// The last bytes of a removed group and its last handle go at the same time, and its node becomes
/// a group with another parent.
fn an_uncharge_of_a_group_whose_node_is_used_again() {
    let shared = obtain(config(1, 4).stock_cap_bytes(0));
    let [before, after] = ["before", "after"].map(|name| shared.create(shared.root(), name).unwrap());
    let group = shared.create(before, "group").unwrap();
    charge_counters(group, UNIT).unwrap_or_else(|_| panic!("there is room"));
    shared.remove(group).unwrap();
    let other = thread::spawn(move || {
        drop(Group::adopted(group));
        shared.create(after, "next").map(drop)
    });
    aftermath::uncharge_counters(group, UNIT);
    // The creation may find no free place.
    let _ = other.join().unwrap();
    let usages = [before, after].map(|node| node.counter.usage());
    assert_eq!(usages, [0, 0], "the bytes go from the levels that had them");
}

#[test]
fn an_uncharge_follows_the_levels_that_its_bytes_keep() {
    explore(an_uncharge_of_a_group_whose_node_is_used_again);
}

#[test]
#[should_panic(expected = "from the levels that had them")]
fn a_level_above_that_is_read_late_is_caught() {
    mutation::with(Mutation::LevelAboveIsReadLate, || {
        explore(an_uncharge_of_a_group_whose_node_is_used_again)
    });
}

fn a_limit_lowered_below_the_live_bytes() {
    let group = lone_group(1, 64 * UNIT);
    group.charge_at(0, 2 * UNIT).unwrap();
    let freeing = thread::spawn(move || group.uncharge_at(0, UNIT));
    {
        over_limit::change(group, |group| group.counter.set_max(UNIT / 2));
    }
    // A unit at least is live: bytes that the other frees must not come back as stock.
    assert!(group.charge_at(0, UNIT / 4).is_err());
    freeing.join().unwrap();
    assert!(group.charge_at(0, UNIT / 4).is_err());
    group.uncharge_at(0, UNIT);
    group.charge_at(0, UNIT / 4).expect("within the limit again");
    group.uncharge_at(0, UNIT / 4);
    assert_conserved(group);
}

#[test]
fn above_its_limit_a_group_is_not_served_from_stock() {
    explore(a_limit_lowered_below_the_live_bytes);
}

#[test]
#[should_panic]
fn a_group_above_its_limit_with_open_stocks_is_caught() {
    mutation::with(Mutation::OverLimitLeavesStocksOpen, || explore(a_limit_lowered_below_the_live_bytes));
}

/// A forced charge passes the limit while an uncharge comes back within it and clears the mark.
fn an_uncharge_beside_a_forced_charge() {
    let group = lone_group(1, 2 * UNIT);
    let force = move || {
        aftermath::charge_forced(group, UNIT, u64::MAX, false).unwrap_or_else(|_| panic!("it is forced"));
        over_limit::mark_levels(group);
    };
    (0..3).for_each(|_| force());
    assert!(group.counter.read().over);
    let forcing = thread::spawn(force);
    thread::yield_now();
    aftermath::uncharge_counters(group, UNIT);
    forcing.join().unwrap();
    assert!(group.counter.read().over, "usage is above the limit");
    aftermath::uncharge_counters(group, 3 * UNIT);
    assert_conserved(group);
}

#[test]
fn a_group_above_its_limit_stays_marked() {
    explore(an_uncharge_beside_a_forced_charge);
}

#[test]
#[should_panic(expected = "usage is above the limit")]
fn a_mark_that_goes_without_a_look_is_caught() {
    mutation::with(Mutation::MarkGoesWithoutALook, || explore(an_uncharge_beside_a_forced_charge));
}

/// A charge begins to wait at a group whose usage is within its limit, while `opens` may open a
/// stock there.
fn a_wait_that_begins_beside(opens: impl FnOnce(&'static Node) + Send + 'static) {
    let group = lone_group(1, 64 * UNIT);
    charge_counters(group, 2 * UNIT).unwrap_or_else(|_| panic!("there is room"));
    let other = thread::spawn(move || opens(group));
    thread::yield_now();
    // ORDERING: Relaxed, as in `charge::wait`.
    let hold =
        |group: &'static Node| group.waiting.held.fetch_add(1, memgroup_sync::atomic::Ordering::Relaxed);
    over_limit::change(group, hold);
    other.join().unwrap();
    assert_eq!((group.counter.read().over, group.counter.prepaid_most()), (true, 0), "a stock is open");
}

fn charges_a_unit(group: &'static Node) {
    miss::charge_in_slot(group, 0, UNIT, crate::base::effort::Means::PLAIN).unwrap();
}

fn uncharges_a_unit(group: &'static Node) {
    group.uncharge_at(0, UNIT);
}

#[test]
fn no_stock_is_opened_where_a_charge_waits() {
    explore(|| a_wait_that_begins_beside(charges_a_unit));
    explore(|| a_wait_that_begins_beside(uncharges_a_unit));
}

#[test]
#[should_panic(expected = "a stock is open")]
fn a_batch_that_passes_marks_is_caught() {
    mutation::with(Mutation::GrantPassesMarks, || explore(|| a_wait_that_begins_beside(charges_a_unit)));
}

#[test]
#[should_panic(expected = "a stock is open")]
fn an_uncharge_that_passes_marks_is_caught() {
    mutation::with(Mutation::GrantPassesMarks, || explore(|| a_wait_that_begins_beside(uncharges_a_unit)));
}
