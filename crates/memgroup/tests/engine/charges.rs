//! Charges: growing, shrinking, splitting, merging and moving them, and the stocks behind them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use memgroup::{Config, Hierarchy, SlotSource, scope};
use memgroup_percpu::pin_virtual;

fn hierarchy(slots: usize) -> Hierarchy {
    Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(slots).unwrap())).unwrap()
}

#[test]
fn a_charge_is_small_and_goes_where_its_memory_goes() {
    fn goes_anywhere<T: Send + Sync + 'static>(_: &T) {}
    let h = hierarchy(2);
    let charge = h.root().try_charge(1).unwrap();
    goes_anywhere(&charge);
    assert_eq!(size_of_val(&charge), 16);
    assert_eq!(size_of::<Option<memgroup::Charge>>(), 16);
}

#[test]
fn every_way_of_cutting_a_charge_conserves_it() {
    let h = hierarchy(2);
    let a = h.create("/a").unwrap();
    let mut charge = a.try_charge(1000).unwrap();
    let mut part = charge.split(400);
    part.try_grow(50).unwrap();
    charge.shrink(100);
    assert_eq!((charge.bytes(), part.bytes(), a.usage_exact()), (500, 450, 950));
    charge.merge(part).unwrap();
    let all = charge.split(950);
    assert_eq!((charge.bytes(), all.bytes()), (0, 950));
    let nothing = charge.split(0);
    charge.merge(nothing).unwrap();
    charge.merge(all).unwrap();
    charge.shrink(950);
    assert_eq!((charge.bytes(), a.usage_exact()), (0, 0));
    charge.try_grow(7).unwrap();
    assert_eq!(charge.group(), a);
    drop(charge);
    assert_eq!(a.usage_exact(), 0);
}

#[test]
fn an_empty_charge_keeps_its_group() {
    let h = hierarchy(2);
    let a = h.create("/a").unwrap();
    let mut empty = a.try_charge(0).unwrap();
    drop(a);
    let a = h.lookup("/a").unwrap();
    a.remove().unwrap();
    drop(a);
    assert_eq!(empty.group().path(), "/a");
    assert!(empty.try_grow(1).is_err());
    let other = h.create("/other").unwrap();
    assert_ne!(
        other.id().node(),
        empty.group().id().node(),
        "the place of a group with an empty charge is not given away"
    );
    empty.try_move_to(&other).unwrap();
    empty.try_grow(10).unwrap();
    assert_eq!(other.usage_exact(), 10);
}

#[test]
fn cutting_too_much_is_a_panic_that_loses_nothing() {
    let h = hierarchy(2);
    let mut charge = h.root().try_charge(10).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| charge.shrink(11))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| charge.split(11))).is_err());
    assert_eq!((charge.bytes(), h.root().usage_exact()), (10, 10));
}

#[test]
fn charges_of_two_groups_do_not_merge() {
    let h = hierarchy(2);
    let (a, b) = (h.create("/a").unwrap(), h.create("/b").unwrap());
    let mut of_a = a.try_charge(1).unwrap();
    let back = of_a.merge(b.try_charge(2).unwrap()).unwrap_err();
    assert_eq!((back.bytes(), back.group(), of_a.bytes()), (2, b, 1));
}

#[test]
fn moving_is_never_uncounted_and_never_counted_twice_above_both() {
    let h = hierarchy(2);
    let top = h.create("/top").unwrap();
    top.set_max(1000).unwrap();
    let (a, b) = (top.create("a").unwrap(), top.create("b").unwrap());
    let deep = b.create("deep").unwrap();
    let mut charge = a.try_charge(900).unwrap();
    let peak = top.peak();
    // Counted twice, it would not fit below 1000.
    for target in [&deep, &b, &top, &deep, &a] {
        charge.try_move_to(target).unwrap();
        assert_eq!(charge.group(), *target);
        assert_eq!((top.usage_exact(), target.usage_exact()), (900, 900));
    }
    assert_eq!((b.usage_exact(), deep.usage_exact(), top.peak()), (0, 0, peak));
    b.set_max(899).unwrap();
    let error = charge.try_move_to(&deep).unwrap_err();
    assert_eq!((error.group(), charge.group()), (b.id(), a.clone()));
    assert_eq!((a.usage_exact(), deep.usage_exact()), (900, 0));
    deep.remove().unwrap();
    assert!(charge.try_move_to(&deep).is_err());
    drop(charge);
    assert_eq!(h.root().usage_exact(), 0);
}

#[test]
#[should_panic(expected = "another hierarchy")]
fn moving_to_another_hierarchy_is_a_panic() {
    let (one, two) = (hierarchy(2), hierarchy(2));
    let mut charge = one.root().try_charge(1).unwrap();
    let _ = charge.try_move_to(&two.root());
}

#[test]
fn forced_charges_go_over_and_are_recorded() {
    let h = hierarchy(2);
    let parent = h.create("/p").unwrap();
    parent.set_max(1000).unwrap();
    let child = parent.create("c").unwrap();
    let within = child.charge_forced(900).unwrap();
    assert_eq!(parent.overdraft().charges, 0);
    let mut over = child.charge_forced(300).unwrap();
    over.grow_forced(50).unwrap();
    assert_eq!((parent.usage(), parent.overdraft().charges, parent.overdraft().bytes), (1250, 2, 250));
    assert_eq!(child.overdraft().charges, 0);
    assert!(child.try_charge(1).is_err());
    drop((within, over));
    assert_eq!(parent.usage_exact(), 0);
    drop(child.try_charge(1000).unwrap());
}

#[test]
fn stock_of_every_slot_is_drained_before_a_refusal() {
    for slots in [2, 8, 128, 512] {
        let h = hierarchy(slots);
        let a = h.create("/a").unwrap();
        a.set_max(64 << 20).unwrap();
        for slot in 0..slots {
            let _pin = pin_virtual(slot);
            drop(a.try_charge(100).unwrap());
        }
        assert!(a.stock().prepaid_bytes > 0);
        assert_eq!((a.usage_exact(), a.stock().misses, a.stock().refills), (0, slots as u64, slots as u64));
        let all = a.try_charge(64 << 20).unwrap();
        assert_eq!((a.stock().prepaid_bytes, a.usage(), a.refusals()), (0, 64 << 20, 0));
        assert!(a.stock().drained_bytes > 0);
        assert!(a.try_charge(1).is_err());
        drop(all);
    }
}

#[test]
fn draining_a_subtree_leaves_the_neighbours_stock_alone() {
    let h = hierarchy(2);
    let (a, b) = (h.create("/a").unwrap(), h.create("/b").unwrap());
    let deep = a.create("deep").unwrap();
    for group in [&a, &b, &deep] {
        drop(group.try_charge(100).unwrap());
    }
    let (of_a, of_b) = (a.stock().prepaid_bytes + deep.stock().prepaid_bytes, b.stock().prepaid_bytes);
    assert!(of_a > 0 && of_b > 0);
    assert_eq!(a.drain(), of_a);
    assert_eq!((a.usage(), b.stock().prepaid_bytes, h.root().usage()), (0, of_b, of_b));
    assert_eq!(a.drain(), 0);
}

#[test]
fn lowering_the_limit_drains_and_keeps_live_charges() {
    let h = hierarchy(4);
    let a = h.create("/a").unwrap();
    let charge = a.try_charge(10_000).unwrap();
    assert!(a.usage() > 10_000);
    a.set_max(5000).unwrap();
    assert_eq!((a.usage(), a.max(), a.usage_and_max()), (10_000, Some(5000), (10_000, Some(5000))));
    assert!(a.try_charge(1).is_err());
    drop(charge);
    a.set_max(None).unwrap();
    drop(a.try_charge(20_000).unwrap());
}

#[test]
fn hits_and_misses_add_up_to_the_charges() {
    let h = hierarchy(1);
    let a = h.create("/a").unwrap();
    let mut charges = 0;
    for size in [1, 64, 4096, 100_000, 131_072, 131_073, 1 << 20, (1 << 20) + 1] {
        for _ in 0..1000 {
            drop(a.try_charge(size).unwrap());
            charges += 1;
        }
    }
    let stats = a.stock();
    assert_eq!(stats.hits + stats.misses, charges);
    assert!(
        (1000..1050).contains(&stats.misses),
        "only a charge above an eighth of the budget is never stocked: {stats:?}"
    );
}

#[test]
fn hits_are_harvested_before_their_field_is_full() {
    let h = hierarchy(1);
    let a = h.create("/a").unwrap();
    let rounds = 3_000_000;
    for _ in 0..rounds {
        drop(a.try_charge(64).unwrap());
    }
    let stats = a.stock();
    assert_eq!((stats.hits + stats.misses, stats.misses), (rounds, 1));
    assert_eq!(a.usage_exact(), 0);
}

#[test]
fn frees_that_come_in_another_slot_are_batched_too() {
    let h = hierarchy(2);
    let a = h.create("/a").unwrap();
    for _ in 0..100_000 {
        let charge = {
            let _charger = pin_virtual(0);
            a.try_charge(1000).unwrap()
        };
        let _freer = pin_virtual(1);
        drop(charge);
    }
    let stats = a.stock();
    assert!(stats.hit_rate().unwrap() > 0.98, "{stats:?}");
    assert!(stats.returns * 50 < 100_000, "{stats:?}");
    assert_eq!(a.usage_exact(), 0);
}

#[test]
fn prepaid_bytes_stay_within_the_budget_for_many_groups() {
    let budget = 64 << 10;
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).stock_budget_bytes(budget);
    let h = Hierarchy::new(config).unwrap();
    let groups: Vec<_> = (0..100).map(|n| h.create(&format!("/g{n}")).unwrap()).collect();
    for round in 0..20 {
        for group in &groups {
            drop(group.try_charge(500).unwrap());
            let reserved = h.stock_reserved_bytes();
            assert!(reserved.iter().all(|&bytes| bytes <= budget), "{reserved:?} in round {round}");
            assert!(h.root().usage() - h.root().usage_exact() <= 2 * budget);
        }
    }
    // The budget is passed on: a group that is busy now gets a stock although all of it was taken.
    let busy = &groups[0];
    let before = busy.stock();
    for _ in 0..1000 {
        drop(busy.try_charge(500).unwrap());
    }
    assert!(busy.stock().hits - before.hits > 900, "{:?}", busy.stock());
    for group in &groups {
        group.remove().unwrap();
    }
    assert_eq!((h.stock_reserved_bytes(), h.root().usage()), (vec![0, 0], 0));
}

#[test]
fn without_a_stock_every_charge_goes_to_the_counters() {
    let h = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
    let a = h.create("/a").unwrap();
    let charge = a.try_charge(100).unwrap();
    assert_eq!((a.usage(), h.root().usage()), (100, 100));
    drop(charge);
    assert_eq!((a.usage(), a.stock().prepaid_bytes, a.stock().hits), (0, 0, 0));
    a.set_max(10).unwrap();
    assert!(a.try_charge(11).is_err());
}

#[test]
fn scopes_nest_and_are_restored_by_a_panic() {
    let h = hierarchy(2);
    let (a, b) = (h.create("/a").unwrap(), h.create("/b").unwrap());
    // The thread may have a group in force already.
    let before = scope::current();
    assert_eq!(scope::try_charge_current(1).is_none(), before.is_none());
    let outer = scope::enter(&a);
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let _inner = scope::enter(&b);
        assert_eq!(scope::current_id(), Some(b.id()));
        drop(scope::try_charge_current(100).unwrap().unwrap());
        panic!("inside");
    }));
    assert_eq!(scope::current(), Some(a.clone()));
    let charge = scope::try_charge_current(7).unwrap().unwrap();
    assert_eq!(charge.group(), a);
    drop(outer);
    assert_eq!(scope::current(), before);
}

#[test]
fn a_refused_group_opens_no_stock_for_its_next_charges() {
    let h = hierarchy(2);
    let group = h.create("/group").unwrap();
    group.set_max(100_000).unwrap();
    assert!(group.try_charge(200_000).is_err());
    group.set_max(None).unwrap();
    // The eighth has one opened.
    for _ in 0..7 {
        drop(group.try_charge(100).unwrap());
        assert_eq!(group.stock().prepaid_bytes, 0);
    }
    drop(group.try_charge(100).unwrap());
    assert!(group.stock().prepaid_bytes > 0);
}

#[test]
fn above_its_limit_a_group_has_no_stock_until_it_is_within() {
    let h = hierarchy(2);
    let parent = h.create("/p").unwrap();
    let child = parent.create("c").unwrap();
    let mut charges: Vec<_> = (0..10).map(|_| child.try_charge(1000).unwrap()).collect();
    parent.set_max(5000).unwrap();
    // Freeing and charging by turns must not keep it above: a stock would serve every charge.
    for left in (5..10).rev() {
        drop(charges.pop());
        assert_eq!((parent.usage(), child.stock().prepaid_bytes), (left * 1000, 0));
        assert!(child.try_charge(1).is_err());
        assert_eq!(h.create(&format!("/p/new{left}")).unwrap().stock().prepaid_bytes, 0);
    }
    drop(charges.pop());
    charges.push(child.try_charge(1000).unwrap());
    let over = child.charge_forced(10).unwrap();
    drop(charges.pop());
    drop(over);
    parent.set_max(None).unwrap();
    // The first charges after a limit was near are exact.
    (0..10).for_each(|_| drop(child.try_charge(1000).unwrap()));
    assert!(child.stock().prepaid_bytes > 0, "within the limit the stock is back: {:?}", child.stock());
}

#[test]
fn scopes_that_end_out_of_order_or_never_charge_no_wrong_group() {
    let h = hierarchy(1);
    let (a, b) = (h.create("/a").unwrap(), h.create("/b").unwrap());
    drop(vec![scope::enter(&a), scope::enter(&b)]);
    assert!(scope::current().is_none());
    {
        let _scope = scope::enter(&b);
        assert_eq!(scope::current(), Some(b.clone()));
    }
    std::mem::forget(scope::enter(&a));
    assert_eq!(scope::current(), Some(a.clone()));
    a.remove().unwrap();
    let place = a.id().node();
    drop(a);
    let other = h.create("/other").unwrap();
    assert_eq!(other.id().node(), place, "the place is given to another group");
    assert!(scope::try_charge_current(1000).is_none());
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn a_million_refusals_leave_the_word_as_it_was() {
    let h = hierarchy(1);
    let a = h.create("/a").unwrap();
    a.set_max(1000).unwrap();
    let refusals = 3 << 19;
    for _ in 0..refusals {
        assert!(a.try_charge(2000).is_err());
    }
    assert_eq!((a.refusals(), a.stock().misses, a.stock().hits), (refusals, refusals, 0));
    let kept = a.try_charge(900).unwrap();
    assert!(a.try_charge(900).is_err());
    a.remove().unwrap();
    for _ in 0..refusals {
        assert!(a.try_charge(1).is_err());
    }
    drop(kept);
    assert_eq!((a.usage(), h.root().usage(), a.stock().prepaid_bytes), (0, 0, 0));
    drop(a);
    assert_eq!(h.create("/b").unwrap().stock(), memgroup::StockStats::default());
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn a_million_misses_without_a_budget_leave_the_word_as_it_was() {
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).stock_budget_bytes(0);
    let h = Hierarchy::new(config).unwrap();
    let a = h.create("/a").unwrap();
    for _ in 0..3 << 19 {
        let charge = {
            let _charger = pin_virtual(0);
            a.try_charge(100).unwrap()
        };
        let _freer = pin_virtual(1);
        drop(charge);
    }
    a.remove().unwrap();
    assert_eq!(h.root().usage(), 0);
}

#[test]
fn a_group_created_below_an_over_limit_one_has_no_stock() {
    let h = hierarchy(1);
    let parent = h.create("/p").unwrap();
    let child = parent.create("c").unwrap();
    let live = child.try_charge(10_000).unwrap();
    let mut moved = child.try_charge(1000).unwrap();
    parent.set_max(5000).unwrap();
    let new = parent.create("n").unwrap();
    moved.try_move_to(&new).unwrap();
    drop(moved);
    assert!(new.try_charge(1000).is_err(), "{:?}", parent.usage_and_max());
    drop(new.charge_forced(1000).unwrap());
    assert_eq!((parent.usage(), new.stock().prepaid_bytes), (10_000, 0));
    drop(live);
    drop(new.try_charge(1000).unwrap());
    assert_eq!(parent.usage_exact(), 0);
}

#[test]
fn an_unaccounted_root_counts_and_limits_only_itself() {
    let config = Config::with_slots(SlotSource::virtual_slots(1).unwrap()).account_root(false);
    let h = Hierarchy::new(config).unwrap();
    let a = h.create("/a").unwrap();
    let _own = h.root().try_charge(200_000).unwrap();
    drop(a.try_charge(1000).unwrap());
    assert_eq!(h.root().usage_exact(), 200_000);
    h.root().set_max(5).unwrap();
    for _ in 0..1000 {
        drop(a.try_charge(100).unwrap());
    }
    assert!(a.stock().hits > 900, "{:?}", a.stock());
}

#[test]
fn a_forced_charge_that_fails_records_no_overdraft() {
    let h = hierarchy(1);
    let (a, b) = (h.create("/a").unwrap(), h.create("/b").unwrap());
    let _all = b.try_charge((1 << 48) - 1).unwrap();
    a.set_max(10).unwrap();
    assert!(a.charge_forced(100).is_err());
    assert_eq!((a.overdraft(), a.usage()), (memgroup::Overdraft::default(), 0));
}

#[test]
fn the_stock_is_back_when_an_uncharge_ends_the_overrun() {
    let h = hierarchy(1);
    let a = h.create("/a").unwrap();
    let (most, rest) = (a.try_charge(10_000).unwrap(), a.try_charge(1000).unwrap());
    a.set_max(100_000).unwrap();
    let over = a.charge_forced(95_000).unwrap();
    assert!(a.try_charge(1).is_err());
    drop(over);
    let before = a.stock();
    for _ in 0..100 {
        drop(a.try_charge(100).unwrap());
    }
    assert!(a.stock().hits - before.hits > 90, "{:?}", a.stock());
    drop((most, rest));
}

#[test]
fn a_charge_that_a_higher_level_refuses_moves_no_peak() {
    for cap in [0, 256 << 10] {
        let source = SlotSource::virtual_slots(1).unwrap();
        let h = Hierarchy::new(Config::with_slots(source).stock_cap_bytes(cap)).unwrap();
        let a = h.create("/a").unwrap();
        h.root().set_max(1000).unwrap();
        assert!(a.try_charge(1001).is_err());
        let held = a.try_charge(600).unwrap();
        assert!(a.try_charge(401).is_err());
        assert_eq!((a.peak(), h.root().peak(), a.refusals(), h.root().refusals()), (600, 600, 0, 2));
        drop(held);
    }
}

#[test]
fn near_a_limit_stocks_hold_at_most_half_of_the_free_bytes() {
    for slots in [1, 2, 8, 64] {
        let h = hierarchy(slots);
        let a = h.create("/a").unwrap();
        let free = 100_000;
        a.set_max(free).unwrap();
        for round in 0..4 {
            for slot in 0..slots {
                let _pin = pin_virtual(slot);
                drop(a.try_charge(10 << round).unwrap());
            }
        }
        let prepaid = a.stock().prepaid_bytes;
        assert!(prepaid <= free / 2, "{prepaid} of {free} bytes are prepaid on {slots} slots");
    }
}

/// A refused charge takes back what it charged at the levels below, at each of them.
#[test]
fn a_charge_that_one_of_24_levels_refuses_leaves_nothing_at_the_others() {
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).depth_max(32).stock_cap_bytes(0);
    let hierarchy = Hierarchy::new(config).unwrap();
    let mut levels = vec![hierarchy.root()];
    (0..24).for_each(|level| levels.push(levels[level].create("below").unwrap()));
    let lowest = &levels[24];
    for refusing in &levels {
        refusing.set_max(100).unwrap();
        assert_eq!(lowest.headroom(), 100, "{}", refusing.path());
        assert_eq!(lowest.try_charge(101).unwrap_err().group(), refusing.id());
        drop(lowest.try_charge(100).unwrap());
        assert!(levels.iter().all(|level| level.usage_exact() == 0), "{}", refusing.path());
        refusing.set_max(None).unwrap();
    }
}
