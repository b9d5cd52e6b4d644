//! Groups that are idle give their memory up, and have it again when they are touched.

use core::time::Duration;
use std::time::Instant;

use memgroup::{Group, Hierarchy, Maintenance, PageSize};
use memgroup_percpu::pin_virtual;

use crate::{
    CHARGED_BYTES, DELTA_MAX, GAUGES, GAUGES_BYTES, RANGE_DELTAS, TENANT_BYTES, Tenant, alone, config,
    gauges, levels, maintain, used_on_all_slots,
};

const SLOTS: usize = 4;
/// What lies in arenas of its own: the stock words, and the statistics of each subsystem.
const KINDS: usize = 5;

fn tenants(hierarchy: &Hierarchy, count: u64) -> Vec<Tenant> {
    (1..=count)
        .map(|number| {
            Tenant::new(&levels(hierarchy), hierarchy.create(&format!("/{number}")).unwrap(), number, SLOTS)
        })
        .collect()
}

#[test]
fn a_group_is_idle_when_two_passes_saw_no_change() {
    let _alone = alone();
    let after = Duration::from_secs(60);
    let hierarchy = used_on_all_slots(config(SLOTS).demote_after(Some(after)), SLOTS);
    let mut tenants = tenants(&hierarchy, 20);
    let (busy, start) = (3, Instant::now());
    let pass = |at| hierarchy.maintain(Maintenance::new().at(at).expedited()).demoted_groups;
    assert_eq!(pass(start), 0, "the first look");
    assert_eq!(pass(start + after / 2), 0, "not long enough");
    tenants[..busy].iter_mut().for_each(Tenant::live);
    assert_eq!(pass(start + after), 20 - busy as u64 + 1, "all but the busy ones, and the root");
    assert_eq!(pass(start + after + after / 2), 0);
    assert_eq!(pass(start + after + after), busy as u64, "idle since they were seen busy");
    tenants.iter_mut().for_each(Tenant::live);
    tenants.iter().for_each(Tenant::check);
}

#[test]
fn a_group_that_is_only_counted_for_is_busy_and_one_that_is_only_flushed_is_not() {
    let _alone = alone();
    let after = Duration::from_secs(60);
    let hierarchy = used_on_all_slots(config(SLOTS).demote_after(Some(after)), SLOTS);
    let levels = levels(&hierarchy);
    let [counted, flushed, waiting] =
        ["/counted", "/flushed", "/waiting"].map(|path| hierarchy.create(path).unwrap());
    let count = |group: &Group| {
        let _pin = pin_virtual(1);
        levels.add(group, GAUGES - 1, 1);
    };
    [&counted, &flushed, &waiting].into_iter().for_each(count);
    let start = Instant::now();
    let pass = |at| hierarchy.maintain(Maintenance::new().at(at).expedited()).demoted_groups;
    assert_eq!(pass(start), 0, "the first look");
    [&counted, &flushed].into_iter().for_each(|group| levels.flush(group));
    count(&counted);
    assert_eq!(pass(start + after), 3, "the one that was only flushed, the one that was not, and the root");
    count(&counted);
    levels.flush(&counted);
    count(&waiting);
    assert_eq!(pass(start + 2 * after), 0, "what was added to one is flushed by now");
    [&counted, &waiting].into_iter().for_each(|group| levels.flush(group));
    assert_eq!(pass(start + 3 * after), 2, "idle since they were seen busy");
    let sums = [&counted, &flushed, &waiting].map(|group| gauges::own(&levels, group, GAUGES - 1));
    assert_eq!(sums, [3, 1, 2]);
}

#[test]
fn a_group_whose_charges_are_all_freed_again_is_busy_as_long_as_it_makes_them() {
    let _alone = alone();
    let after = Duration::from_secs(60);
    let hierarchy = used_on_all_slots(config(SLOTS).demote_after(Some(after)), SLOTS);
    let group = hierarchy.create("/group").unwrap();
    let _pin = pin_virtual(1);
    let charge = || (0..3).for_each(|_| drop(group.try_charge(100).unwrap()));
    charge();
    let start = Instant::now();
    let pass = |at| hierarchy.maintain(Maintenance::new().at(at).expedited()).demoted_groups;
    assert_eq!(pass(start), 0, "the first look");
    charge();
    assert_eq!(pass(start + after), 1, "the root");
    charge();
    assert_eq!(group.stock().hits + group.stock().misses, 9);
    assert_eq!(pass(start + 2 * after), 0, "what was charged is flushed by now");
    charge();
    assert_eq!(pass(start + 3 * after), 0);
    assert_eq!(group.stock().hits + group.stock().misses, 12);
    assert_eq!(pass(start + 4 * after), 1, "a flush is not what keeps it busy");
}

#[test]
fn every_group_comes_back_and_has_a_stock_again() {
    for page in [PageSize::of_system(), PageSize::Kib64] {
        let _alone = alone();
        let settings = config(SLOTS).page_size(page).demote_after(Some(Duration::ZERO));
        let hierarchy = used_on_all_slots(settings, SLOTS);
        let mut tenants = tenants(&hierarchy, 3000);
        let before = hierarchy.percpu();
        let all = (3000 * TENANT_BYTES + CHARGED_BYTES) * SLOTS as u64;
        assert_eq!(before.live_bytes, all, "theirs and the root's: {page:?} {before:?}");
        let cold = maintain(&hierarchy);
        assert_eq!((cold.live_bytes, cold.populated_bytes), (0, 0), "{page:?} {cold:?}");
        tenants.iter_mut().for_each(Tenant::live);
        tenants.iter().for_each(Tenant::check);
        let back = hierarchy.percpu();
        let all_but_the_root = 3000 * TENANT_BYTES * SLOTS as u64;
        assert_eq!(back.live_bytes, all_but_the_root, "{page:?} {back:?}");
        for tenant in &mut tenants {
            let before = tenant.group.stock();
            tenant.live();
            let after = tenant.group.stock();
            assert!(after.hits > before.hits, "{:?} has no stock: {before:?} {after:?}", tenant.group);
        }
    }
}

#[test]
fn statistics_that_are_added_to_come_back_without_a_stock() {
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).demote_after(Some(Duration::ZERO)), SLOTS);
    let tenants = tenants(&hierarchy, 10);
    maintain(&hierarchy);
    assert_eq!(hierarchy.percpu().live_bytes, 0);
    for tenant in &tenants {
        let _pin = pin_virtual(1);
        tenant.levels.add(&tenant.group, 0, 0);
    }
    let live = hierarchy.percpu().live_bytes;
    assert_eq!(live, 10 * GAUGES_BYTES * SLOTS as u64, "of the subsystem that was added to, and of no other");
    tenants.iter().for_each(Tenant::check);
}

#[test]
fn what_is_removed_while_it_is_cold_leaves_nothing() {
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).demote_after(Some(Duration::ZERO)), SLOTS);
    let none = maintain(&hierarchy);
    assert_eq!(none.live_bytes, 0, "{none:?}");
    for round in 0..5 {
        let tenants = tenants(&hierarchy, 300);
        maintain(&hierarchy);
        for mut tenant in tenants {
            tenant.check();
            if round % 2 == 0 {
                tenant.charges.clear();
            }
            tenant.group.remove().unwrap();
        }
        let after = maintain(&hierarchy);
        assert_eq!((after.live_bytes, after.limbo_bytes), (0, 0), "round {round}: {after:?}");
    }
}

#[test]
fn removed_groups_that_still_hold_bytes_give_their_memory_up_however_busy_they_were() {
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).demote_after(Some(Duration::from_secs(3600))), SLOTS);
    let tenants = tenants(&hierarchy, 300);
    tenants.iter().for_each(|tenant| tenant.group.remove().unwrap());
    assert_eq!(hierarchy.maintain(Maintenance::new().expedited()).demoted_groups, 300);
    tenants.iter().for_each(Tenant::check);
    drop(tenants);
    assert_eq!((hierarchy.dying().len(), hierarchy.root().usage_exact()), (0, 0));
}

#[test]
fn idle_groups_have_no_percpu_memory_at_all_and_leave_none_when_they_are_removed() {
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).demote_after(Some(Duration::ZERO)), SLOTS);
    let mut tenants = tenants(&hierarchy, 3000);
    tenants.iter_mut().for_each(|tenant| tenant.charges.clear());
    let cold = maintain(&hierarchy);
    assert_eq!((cold.live_bytes, cold.populated_bytes), (0, 0), "{cold:?}");
    tenants.into_iter().for_each(|tenant| tenant.group.remove().unwrap());
    let after = maintain(&hierarchy);
    assert_eq!((after.live_bytes, after.populated_bytes), (0, 0), "{after:?}");
    assert!(after.chunks <= KINDS, "nothing is set aside for who cannot come back: {after:?}");
}

#[test]
fn a_look_for_idle_groups_is_work_on_their_records_and_bounded_as_all_is() {
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).demote_after(Some(Duration::from_secs(60))), SLOTS);
    let _tenants = tenants(&hierarchy, 3000);
    let done = hierarchy.maintain(Maintenance::new().expedited());
    assert_eq!(done.demoted_groups, 0, "the first look");
    assert!((32..=64).contains(&done.pages_held_max), "3000 records were read, some at a time: {done:?}");
}

#[test]
fn a_removed_group_whose_level_leaves_the_range_of_a_slot_keeps_it_beside_the_slots() {
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).demote_after(Some(Duration::ZERO)), SLOTS);
    let levels = levels(&hierarchy);
    let group = hierarchy.create("/removed").unwrap();
    let _pin = pin_virtual(0);
    let lower = |times| (0..times).for_each(|_| levels.add(&group, 0, -DELTA_MAX));
    lower(RANGE_DELTAS);
    group.remove().unwrap();
    hierarchy.maintain(Maintenance::new().expedited());
    // One more than a slot has room for.
    lower(3);
    assert_eq!(gauges::own(&levels, &group, 0), -DELTA_MAX * (RANGE_DELTAS + 3));
    lower(RANGE_DELTAS + 3);
    assert_eq!(gauges::own(&levels, &group, 0), -2 * DELTA_MAX * (RANGE_DELTAS + 3));
    drop(group);
    // The place's next group is whole, and so is who moves what was beside the slots.
    let next = Tenant::new(&levels, hierarchy.create("/next").unwrap(), 7, SLOTS);
    maintain(&hierarchy);
    next.check();
}
