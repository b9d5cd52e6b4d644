//! Groups that are idle give their memory up, and have it again when they are touched.

use core::time::Duration;
use std::time::Instant;

use memgroup::{Hierarchy, Maintenance, PageSize};
use memgroup_percpu::pin_virtual;

use crate::{Tenant, alone, config, maintain, used_on_all_slots};

const SLOTS: usize = 4;

fn tenants(hierarchy: &Hierarchy, count: u64) -> Vec<Tenant> {
    (1..=count)
        .map(|number| Tenant::new(hierarchy.create(&format!("/{number}")).unwrap(), number, SLOTS))
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
fn every_group_comes_back_and_has_a_stock_again() {
    for page in [PageSize::of_system(), PageSize::Kib64] {
        let _alone = alone();
        let settings = config(SLOTS).page_size(page).demote_after(Some(Duration::ZERO));
        let hierarchy = used_on_all_slots(settings, SLOTS);
        let mut tenants = tenants(&hierarchy, 3000);
        let before = hierarchy.percpu();
        maintain(&hierarchy);
        assert!(hierarchy.percpu().live_bytes < before.live_bytes / 3);
        tenants.iter_mut().for_each(Tenant::live);
        tenants.iter().for_each(Tenant::check);
        let back = hierarchy.percpu();
        assert!(back.live_bytes >= 3000 * 392 * SLOTS as u64, "all but the root: {page:?} {back:?}");
        for tenant in &mut tenants {
            let before = tenant.group.stock();
            tenant.live();
            let after = tenant.group.stock();
            assert!(after.hits > before.hits, "{:?} has no stock: {before:?} {after:?}", tenant.group);
        }
    }
}

#[test]
fn a_group_that_is_counted_for_comes_back() {
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).demote_after(Some(Duration::ZERO)), SLOTS);
    let tenants = tenants(&hierarchy, 10);
    maintain(&hierarchy);
    let cold = hierarchy.percpu().live_bytes;
    for tenant in &tenants {
        let _pin = pin_virtual(1);
        tenant.group.add(0, 0);
    }
    assert!(hierarchy.percpu().live_bytes > cold, "a count each: {:?}", hierarchy.percpu());
    tenants.iter().for_each(Tenant::check);
}

#[test]
fn what_is_removed_while_it_is_cold_leaves_nothing() {
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).demote_after(Some(Duration::ZERO)), SLOTS);
    let none = maintain(&hierarchy);
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
        assert_eq!((after.live_bytes, after.limbo_bytes), (none.live_bytes, 0), "round {round}: {after:?}");
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
fn cold_records_of_removed_groups_give_their_pages_back() {
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).demote_after(Some(Duration::ZERO)), SLOTS);
    let mut tenants = tenants(&hierarchy, 3000);
    tenants.iter_mut().for_each(|tenant| tenant.charges.clear());
    let cold = maintain(&hierarchy);
    assert!(cold.populated_bytes > 1 << 20 && cold.live_bytes < 3100 * 392, "one copy of each: {cold:?}");
    tenants.into_iter().for_each(|tenant| tenant.group.remove().unwrap());
    let after = maintain(&hierarchy);
    assert!(
        after.populated_bytes <= after.page_bytes * (SLOTS as u64 + 1),
        "only the root is left: {after:?}"
    );
    assert!(after.chunks <= 4, "nothing is set aside for who cannot come back: {after:?}");
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
#[should_panic(expected = "counter 0 of a group has left its range")]
fn a_count_of_a_cold_group_that_cannot_come_back_and_left_its_range_is_a_panic() {
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).demote_after(Some(Duration::ZERO)), SLOTS);
    let group = hierarchy.create("/removed").unwrap();
    let _pin = pin_virtual(0);
    group.add(0, i64::MIN / 4 + 1);
    group.remove().unwrap();
    hierarchy.maintain(Maintenance::new().expedited());
    assert_eq!(group.sum(0), i64::MIN / 4 + 1);
    group.add(0, -1);
    group.add(0, -1);
}
