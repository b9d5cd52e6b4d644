//! Shares at several levels, and tenants that use their own settings against their neighbours.

use memgroup::{BYTES_MAX, Config, Group, Hierarchy, KillAnswer, KillRequest, SlotSource};
use memgroup_percpu::pin_virtual;

use super::cache::{MIB, Tenant, exact, pin};

const KIB: u64 = 1 << 10;

fn sharing(hierarchy: &Hierarchy) -> Group {
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(64 * MIB).unwrap();
    parent.set_share(8).unwrap();
    parent
}

#[test]
fn a_group_shares_what_its_own_share_leaves_it() {
    let hierarchy = exact();
    let parent = sharing(&hierarchy);
    let (tenant, neighbour) = (parent.create("tenant").unwrap(), parent.create("neighbour").unwrap());
    tenant.set_share(8).unwrap();
    let [greedy, small] = ["greedy", "small"].map(|name| tenant.create(name).unwrap());
    let (held, refused) = pin(&greedy, 64 * MIB);
    assert_eq!(refused.unwrap().path().unwrap(), "/parent/tenant/greedy");
    // Eight ninths of eight ninths of 64 MiB, in pages.
    let most = 64 * MIB * 64 / 81;
    assert!((most - 64 * KIB..=most).contains(&greedy.usage()), "{}", greedy.usage());
    assert!(small.try_charge(5 * MIB).is_ok() && neighbour.try_charge(6 * MIB).is_ok());
    drop(held);
    // A limit of the tenant's own is tighter.
    tenant.set_max(9 * MIB).unwrap();
    let (_held, _) = pin(&greedy, 64 * MIB);
    assert_eq!(greedy.usage(), 8 * MIB);
    tenant.set_max(None).unwrap();
    // So is a limit of the group above that is lowered.
    parent.set_max(18 * MIB).unwrap();
    let share = greedy.fair_share().unwrap();
    assert_eq!(share.bytes, 18 * MIB * 64 / 81);
}

#[test]
fn a_tenant_cannot_shield_its_caches_by_shares_and_protection_below_itself() {
    for is_shielded in [false, true] {
        let hierarchy = exact();
        let parent = sharing(&hierarchy);
        let good = Tenant::new(&parent, "good");
        good.fill(12 * MIB);
        let runaway = parent.create("runaway").unwrap();
        let inner = Tenant::new(&runaway, "inner");
        if is_shielded {
            runaway.set_share(8).unwrap();
            inner.group.set_min(BYTES_MAX).unwrap();
        }
        inner.fill(44 * MIB);
        let asking = Tenant::new(&parent, "asking");
        asking.fill(18 * MIB);
        assert_eq!((good.usage(), asking.usage()), (12 * MIB, 18 * MIB), "shielded {is_shielded}");
    }
}

#[test]
fn a_tenant_cannot_shield_its_work_by_shares_and_scores_below_itself() {
    let hierarchy = exact();
    let parent = sharing(&hierarchy);
    let [good, runaway] = ["good", "runaway"].map(|name| parent.create(name).unwrap());
    let inner = runaway.create("inner").unwrap();
    runaway.set_share(8).unwrap();
    inner.set_min(BYTES_MAX).unwrap();
    inner.set_oom_score(-500).unwrap();
    let _held = [good.try_charge(12 * MIB).unwrap(), inner.try_charge(44 * MIB).unwrap()];
    let _hooks =
        [&good, &inner].map(|group| group.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Dying).unwrap());
    let asking = parent.create("asking").unwrap();
    asking.try_charge(18 * MIB).unwrap_err();
    assert_eq!((good.events().oom_kill, inner.events().oom_kill), (0, 1));
}

#[test]
fn work_within_its_share_is_not_stopped_for_another() {
    let hierarchy = exact();
    let parent = sharing(&hierarchy);
    let [hoarder, good, asking] = ["hoarder", "good", "asking"].map(|name| parent.create(name).unwrap());
    let _held = [hoarder.try_charge(56 * MIB).unwrap(), good.try_charge(7 * MIB).unwrap()];
    let _hook = good.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Dying).unwrap();
    let error = asking.try_charge(4 * MIB).unwrap_err();
    assert_eq!((error.held_by(), good.events().oom_kill), (Some(hoarder.id()), 0));
    // Its own need may stop it.
    good.try_charge(2 * MIB).unwrap_err();
    assert_eq!(good.events().oom_kill, 1);
}

#[test]
fn stocks_of_one_tenant_leave_half_of_the_room_for_those_of_others() {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap();
    let parent = sharing(&hierarchy);
    let (many, good) = (parent.create("many").unwrap(), parent.create("good").unwrap());
    let groups: Vec<_> = (0..200).map(|number| many.create(&number.to_string()).unwrap()).collect();
    let _pin = pin_virtual(0);
    let storm = || groups.iter().for_each(|group| drop(group.try_charge(16 * KIB).unwrap()));
    (0..50).for_each(|_| storm());
    let before = good.stock();
    for _ in 0..100 {
        storm();
        (0..16).for_each(|_| drop(good.try_charge(4 * KIB).unwrap()));
    }
    let after = good.stock();
    let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
    assert!(hits > 9 * misses, "{hits} hits, {misses} misses");
}

#[test]
fn a_lowered_limit_empties_stocks_that_are_too_large_for_it() {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(32).unwrap())).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_share(8).unwrap();
    let small = parent.create("small").unwrap();
    for slot in 0..32 {
        let _pin = pin_virtual(slot);
        let burst: Vec<_> = (0..64).map(|_| small.try_charge(4 * KIB).unwrap()).collect();
        drop(burst);
    }
    assert!(parent.usage() > 2 * MIB, "{}: without a limit there is nothing to share", parent.usage());
    parent.set_max(32 * MIB).unwrap();
    assert_eq!(parent.usage(), 0);
    let runaway = parent.create("runaway").unwrap();
    let _pin = pin_virtual(0);
    let (_held, _) = pin(&runaway, 32 * MIB);
    let right = 32 * MIB * 8 / 9;
    assert!(runaway.usage().abs_diff(right) <= MIB, "{}", runaway.usage());
}

#[test]
fn a_stock_that_grows_leaves_room_for_those_of_other_slots() {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(4).unwrap())).unwrap();
    let parent = sharing(&hierarchy);
    parent.set_max(8 * MIB).unwrap();
    let group = parent.create("group").unwrap();
    for slot in 0..4 {
        let _pin = pin_virtual(slot);
        for _ in 0..50 {
            let burst: Vec<_> = (0..32).map(|_| group.try_charge(4 * KIB).unwrap()).collect();
            drop(burst);
        }
        let before = group.stock();
        (0..100).for_each(|_| drop(group.try_charge(4 * KIB).unwrap()));
        let hits = group.stock().hits - before.hits;
        assert!(hits > 90, "slot {slot}: {hits} hits of 100");
    }
}
