//! Groups that are idle give their memory up, and have it again when they are touched.

use core::time::Duration;
use std::time::Instant;

use memgroup::tuning::{PageSize, Tuning};
use memgroup::{Group, Hierarchy, Maintenance};
use memgroup_percpu::pin_virtual;

use crate::gauges::nth;
use crate::{
    CHARGED_BYTES, DELTA_MAX, GAUGES, GAUGES_BYTES, RANGE_DELTAS, STOCK_BYTES, TENANT_BYTES, Tenant, alone,
    config, gauges, levels, maintain, used_on_all_slots, words_bytes,
};

const SLOTS: usize = 4;
/// The arenas: one for each subsystem. And the blocks of stock words.
const KINDS: usize = 4;
const BLOCKS: usize = 3001_usize.div_ceil(512);

fn tenants(hierarchy: &Hierarchy, count: u64) -> Vec<Tenant> {
    (1..=count)
        .map(|number| {
            Tenant::new(&levels(hierarchy), hierarchy.create(&format!("/{number}")).unwrap(), number, SLOTS)
        })
        .collect()
}

#[test]
fn demotes_a_group_after_two_passes_without_change() {
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
fn demotes_a_flushed_group_but_no_counting_one() {
    let _alone = alone();
    let after = Duration::from_secs(60);
    let hierarchy = used_on_all_slots(config(SLOTS).demote_after(Some(after)), SLOTS);
    let levels = levels(&hierarchy);
    let [counted, flushed, waiting] =
        ["/counted", "/flushed", "/waiting"].map(|path| hierarchy.create(path).unwrap());
    let count = |group: &Group| {
        let _pin = pin_virtual(1);
        levels.add(group, nth(&levels, GAUGES - 1), 1);
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
    assert_eq!(pass(start + 2 * after), 0, "additions to one group are flushed by now");
    [&counted, &waiting].into_iter().for_each(|group| levels.flush(group));
    assert_eq!(pass(start + 3 * after), 2, "idle since they were seen busy");
    let sums = [&counted, &flushed, &waiting].map(|group| gauges::own(&levels, group, GAUGES - 1));
    assert_eq!(sums, [3, 1, 2]);
}

#[test]
fn keeps_a_group_after_all_its_charges_are_freed() {
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
    assert_eq!(pass(start + 2 * after), 0, "charges are flushed by now");
    charge();
    assert_eq!(pass(start + 3 * after), 0);
    assert_eq!(group.stock().hits + group.stock().misses, 12);
    assert_eq!(pass(start + 4 * after), 1, "a flush does not keep it busy");
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn gives_each_returning_group_a_stock() {
    for page in [PageSize::of_system(), PageSize::Kib64] {
        let _alone = alone();
        let settings = config(SLOTS).page_size(page).demote_after(Some(Duration::ZERO));
        let hierarchy = used_on_all_slots(settings, SLOTS);
        let mut tenants = tenants(&hierarchy, 3000);
        let before = hierarchy.percpu();
        let all = (3000 * TENANT_BYTES + CHARGED_BYTES) * SLOTS as u64;
        assert_eq!(before.live_bytes, all, "theirs and the root's: {page:?} {before:?}");
        let cold = maintain(&hierarchy);
        assert_eq!(cold.live_bytes, 3001 * STOCK_BYTES * SLOTS as u64, "{page:?} {cold:?}");
        assert!(cold.populated_bytes <= words_bytes(3001, SLOTS), "{page:?} {cold:?}");
        assert!(tenants.iter().all(|tenant| tenant.group.stock().prepaid_bytes == 0), "they are idle");
        tenants.iter_mut().for_each(Tenant::live);
        tenants.iter().for_each(Tenant::check);
        let back = hierarchy.percpu();
        assert_eq!(back.live_bytes, all, "{page:?} {back:?}");
        for tenant in &mut tenants {
            let before = tenant.group.stock();
            tenant.live();
            let after = tenant.group.stock();
            assert!(after.hits > before.hits, "{:?} has no stock: {before:?} {after:?}", tenant.group);
        }
    }
}

#[test]
fn brings_statistics_back_without_a_stock() {
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).demote_after(Some(Duration::ZERO)), SLOTS);
    let tenants = tenants(&hierarchy, 10);
    maintain(&hierarchy);
    let words = 11 * STOCK_BYTES * SLOTS as u64;
    assert_eq!(hierarchy.percpu().live_bytes, words);
    for tenant in &tenants {
        let _pin = pin_virtual(1);
        tenant.levels.add(&tenant.group, nth(&tenant.levels, 0), 0);
    }
    let live = hierarchy.percpu().live_bytes - words;
    assert_eq!(live, 10 * GAUGES_BYTES * SLOTS as u64, "of the subsystem that was added to, and of no other");
    tenants.iter().for_each(Tenant::check);
}

#[test]
fn leaves_nothing_of_a_group_removed_while_cold() {
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).demote_after(Some(Duration::ZERO)), SLOTS);
    let root = STOCK_BYTES * SLOTS as u64;
    let none = maintain(&hierarchy);
    assert_eq!(none.live_bytes, root, "{none:?}");
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
        assert_eq!((after.live_bytes, after.limbo_bytes), (root, 0), "round {round}: {after:?}");
    }
}

#[test]
fn frees_memory_of_removed_groups_with_bytes() {
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
fn gives_idle_groups_no_percpu_memory() {
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).demote_after(Some(Duration::ZERO)), SLOTS);
    let mut tenants = tenants(&hierarchy, 3000);
    tenants.iter_mut().for_each(|tenant| tenant.charges.clear());
    let cold = maintain(&hierarchy);
    assert_eq!(cold.live_bytes, 3001 * STOCK_BYTES * SLOTS as u64, "{cold:?}");
    assert!(cold.populated_bytes <= words_bytes(3001, SLOTS), "{cold:?}");
    tenants.into_iter().for_each(|tenant| tenant.group.remove().unwrap());
    let after = maintain(&hierarchy);
    assert_eq!(after.live_bytes, STOCK_BYTES * SLOTS as u64, "the root's: {after:?}");
    assert!(after.populated_bytes <= words_bytes(1, SLOTS), "{after:?}");
    let most = KINDS + BLOCKS;
    assert!(after.chunks <= most, "no space is set aside for groups that cannot come back: {after:?}");
}

#[test]
fn bounds_the_search_for_idle_groups() {
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).demote_after(Some(Duration::from_secs(60))), SLOTS);
    let _tenants = tenants(&hierarchy, 3000);
    let done = hierarchy.maintain(Maintenance::new().expedited());
    assert_eq!(done.demoted_groups, 0, "the first look");
    assert!((32..=64).contains(&done.pages_held_max), "3000 records were read, some at a time: {done:?}");
}

#[test]
fn keeps_large_levels_of_a_removed_group_in_base_words() {
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).demote_after(Some(Duration::ZERO)), SLOTS);
    let levels = levels(&hierarchy);
    let group = hierarchy.create("/removed").unwrap();
    let _pin = pin_virtual(0);
    let lower = |times| (0..times).for_each(|_| levels.add(&group, nth(&levels, 0), -DELTA_MAX));
    lower(RANGE_DELTAS);
    group.remove().unwrap();
    hierarchy.maintain(Maintenance::new().expedited());
    // One more than a slot has room for.
    lower(3);
    assert_eq!(gauges::own(&levels, &group, 0), -DELTA_MAX * (RANGE_DELTAS + 3));
    lower(RANGE_DELTAS + 3);
    assert_eq!(gauges::own(&levels, &group, 0), -2 * DELTA_MAX * (RANGE_DELTAS + 3));
    drop(group);
    // The place's next group works, and so does a move of its base words.
    let next = Tenant::new(&levels, hierarchy.create("/next").unwrap(), 7, SLOTS);
    maintain(&hierarchy);
    next.check();
}
