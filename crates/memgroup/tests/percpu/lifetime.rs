//! Groups and whole hierarchies that come and go.

use core::time::Duration;

use memgroup::{Hierarchy, Maintenance, SlotSource};
use memgroup_percpu::pin_virtual;

use crate::{COUNTERS, Tenant, alone, config, in_its_own_process, maintain, used_on_all_slots};

#[test]
fn ten_thousand_tenants_come_and_go_in_bounded_memory() {
    const TENANTS: u64 = 10_000;
    const AT_A_TIME: usize = 50;
    const SLOTS: usize = 4;
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).float(0, Duration::ZERO), SLOTS);
    let (mut here, mut most) = (std::collections::VecDeque::new(), 0);
    for number in 1..=TENANTS {
        let group = hierarchy.create(&format!("/{number}")).unwrap();
        here.push_back(Tenant::new(group, number, SLOTS));
        if here.len() > AT_A_TIME {
            let tenant: Tenant = here.pop_front().unwrap();
            tenant.check();
            tenant.group.remove().unwrap();
        }
        if number % 500 == 0 {
            most = most.max(hierarchy.percpu().populated_bytes);
        }
    }
    let record = (8 * (u64::from(COUNTERS) + 1)) * SLOTS as u64;
    let floor = 2 * AT_A_TIME as u64 * record + (64 << 10) * SLOTS as u64;
    assert!(most <= floor, "{most} bytes at most for {AT_A_TIME} tenants of {record} bytes");
    for tenant in here.drain(..) {
        tenant.check();
        tenant.group.remove().unwrap();
    }
    drop(here);
    let after = maintain(&hierarchy);
    assert!(after.populated_bytes <= after.page_bytes * SLOTS as u64 * 2, "only the root is left: {after:?}");
    assert_eq!((after.limbo_bytes, hierarchy.root().usage_exact()), (0, 0));
}

#[test]
fn places_of_groups_that_nobody_charged_are_used_again() {
    let _alone = alone();
    let hierarchy = Hierarchy::new(config(4)).unwrap();
    let mut reserved = Vec::new();
    for round in 0..20 {
        let groups: Vec<_> =
            (0..500).map(|number| hierarchy.create(&format!("/{round}-{number}")).unwrap()).collect();
        groups.into_iter().for_each(|group| group.remove().unwrap());
        reserved.push(maintain(&hierarchy).reserved_bytes);
    }
    assert!(reserved[19] <= 2 * reserved[0], "address space only grows: {reserved:?}");
}

#[test]
fn a_hierarchy_that_goes_gives_its_memory_back() {
    const SLOTS: usize = 4;
    let _alone = alone();
    // Of its own kind, so that no other test's hierarchy is used again here.
    let kind = config(SLOTS).groups_max(4321);
    for round in 1..4 {
        let hierarchy = used_on_all_slots(kind, SLOTS);
        for number in 0..2000 {
            Tenant::new(hierarchy.create(&format!("/{number}")).unwrap(), number, SLOTS).check();
        }
        let peak = hierarchy.percpu();
        assert!(peak.populated_bytes > 2000 * 392 * SLOTS as u64, "round {round}: {peak:?}");
        drop(hierarchy);
        let next = Hierarchy::new(kind).unwrap();
        let left = next.percpu();
        assert!(left.reserved_bytes > 0 && left.slots == SLOTS, "the same memory is used again: {left:?}");
        assert!(left.populated_bytes <= left.page_bytes * SLOTS as u64 * 2, "round {round}: {left:?}");
        assert_eq!(left.limbo_bytes, 0);
    }
}

#[test]
fn removals_of_a_few_among_many_do_no_maintenance() {
    const SLOTS: usize = 4;
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).float(0, Duration::ZERO), SLOTS);
    let mut groups: Vec<_> =
        (0..2000).map(|number| hierarchy.create(&format!("/{number}")).unwrap()).collect();
    let mut removed_until_a_pass = || {
        let (before, there) = (hierarchy.maintained(), groups.len());
        while hierarchy.maintained() == before {
            groups.pop().expect("it comes to a pass").remove().unwrap();
        }
        there - groups.len()
    };
    // The kept records are half of the live ones when a third of all is removed.
    let removed = [removed_until_a_pass(), removed_until_a_pass()];
    assert!((650..=680).contains(&removed[0]) && (420..=460).contains(&removed[1]), "{removed:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_hierarchy_that_goes_gives_its_roots_record_back_too() {
    const SLOTS: usize = 16;
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).counters(4000), SLOTS);
    for slot in 0..SLOTS {
        let _pin = pin_virtual(slot);
        (0..4000).for_each(|counter| hierarchy.root().add(counter, 1));
    }
    let (ranges, record_bytes) = (hierarchy.percpu_ranges(), 8 * 4001 * SLOTS as u64);
    let present = || ranges.iter().map(crate::smaps::present_bytes).sum::<u64>();
    assert!(present() >= record_bytes && record_bytes > 256 << 10);
    drop(hierarchy);
    assert_eq!(present(), 0);
}

#[test]
fn a_hierarchy_whose_last_charge_outlives_it_gives_its_memory_back_too() {
    const SLOTS: usize = 4;
    let _alone = alone();
    let kind = config(SLOTS).groups_max(4322);
    let hierarchy = used_on_all_slots(kind, SLOTS);
    let mut tenants: Vec<_> = (0..2000)
        .map(|number| Tenant::new(hierarchy.create(&format!("/{number}")).unwrap(), number, SLOTS))
        .collect();
    let last = tenants[7].charges.pop().unwrap();
    drop(tenants);
    drop(hierarchy);
    // The last byte comes back in somebody's allocator, perhaps, where nobody may wait; the next of its kind does.
    drop(last);
    let next = Hierarchy::new(kind).unwrap();
    let left = maintain(&next);
    assert!(left.reserved_bytes > 0 && left.slots == SLOTS, "the same memory is used again: {left:?}");
    assert!(left.populated_bytes <= left.page_bytes * SLOTS as u64 * 2, "{left:?}");
}

#[test]
fn removed_groups_that_somebody_has_a_handle_on_keep_no_record() {
    const SLOTS: usize = 8;
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).counters(300).groups_max(5000), SLOTS);
    let groups: Vec<_> = (0..2000)
        .map(|number| {
            let group = hierarchy.create(&format!("/{number}")).unwrap();
            group.add(7, number);
            group
        })
        .collect();
    let peak = hierarchy.percpu();
    groups.iter().for_each(|group| group.remove().unwrap());
    let by_removals = hierarchy.percpu();
    assert!(by_removals.populated_bytes < peak.populated_bytes / 2, "{by_removals:?} of {peak:?}");
    let left = maintain(&hierarchy);
    // One copy of each instead of eight.
    assert!(left.populated_bytes < peak.populated_bytes / 7, "{left:?} of {peak:?}");
    for (number, group) in (0..).zip(&groups) {
        assert_eq!(group.sum(7), number, "what was counted can be asked still");
        group.add(7, 1);
        assert_eq!(group.sum(7), number + 1);
    }
    drop(groups);
    assert!(hierarchy.dying().is_empty());
    let left = maintain(&hierarchy);
    assert!(left.populated_bytes <= left.page_bytes * (SLOTS as u64 + 1), "{left:?}");
}

#[test]
fn slots_that_never_ran_cost_nothing() {
    in_its_own_process("lifetime::slots_that_never_ran_cost_nothing", one_slot_of_many_runs);
}

fn one_slot_of_many_runs() {
    let one = used_on_all_slots(config(1), 1);
    let source = SlotSource::virtual_slots(512).unwrap();
    let many = Hierarchy::new(config(512).slots(source)).unwrap();
    let _pin = pin_virtual(300);
    drop(many.root().try_charge(1).unwrap());
    for number in 0..200 {
        for hierarchy in [&one, &many] {
            let group = hierarchy.create(&format!("/{number}")).unwrap();
            group.add(3, 5);
            drop(group.try_charge(1000).unwrap());
        }
    }
    let (of_one, of_many) = (one.percpu(), many.percpu());
    assert_eq!((of_many.slots, of_many.live_bytes), (1, of_one.live_bytes));
    // The copies begin at another byte of a page.
    assert!(of_many.populated_bytes <= of_one.populated_bytes + of_many.page_bytes, "{of_one:?} {of_many:?}");
    #[cfg(target_os = "linux")]
    assert_eq!(crate::smaps::resident_bytes(&many), of_many.populated_bytes);
    // Figures of all slots are no reason to have them in memory.
    assert_eq!(many.stock_reserved_bytes().len(), 512);
    many.root().drain();
    many.maintain(Maintenance::new().all().expedited());
    assert_eq!(many.percpu().slots, 1);
}
