//! Groups and whole hierarchies that come and go.

use core::time::Duration;

use memgroup::tuning::Tuning;
use memgroup::{Freshness, Hierarchy, Maintenance, Reach, SlotSource};
use memgroup_percpu::pin_virtual;

use crate::gauges::nth;
use crate::{
    CHARGED_BYTES, GAUGES_BYTES, STOCK_BYTES, TENANT_BYTES, Tenant, alone, config, gauges, go_on,
    in_its_own_process, levels, maintain, used_on_all_slots, words_bytes,
};

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn bounds_memory_while_ten_thousand_tenants_come_and_go() {
    const TENANTS: u64 = 10_000;
    const AT_A_TIME: usize = 50;
    const SLOTS: usize = 4;
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).float(0, Duration::ZERO), SLOTS);
    let levels = levels(&hierarchy);
    let (mut here, mut most) = (std::collections::VecDeque::new(), 0);
    for number in 1..=TENANTS {
        let group = hierarchy.create(&format!("/{number}")).unwrap();
        here.push_back(Tenant::new(&levels, group, number, SLOTS));
        if here.len() > AT_A_TIME {
            let tenant: Tenant = here.pop_front().unwrap();
            tenant.check();
            tenant.group.remove().unwrap();
        }
        if number % 500 == 0 {
            most = most.max(hierarchy.percpu().populated_bytes);
        }
    }
    let record = TENANT_BYTES * SLOTS as u64;
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
fn reuses_places_of_groups_never_charged() {
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
fn returns_memory_of_a_dropped_hierarchy() {
    const SLOTS: usize = 4;
    let _alone = alone();
    // Of its own kind, so that no other test's hierarchy is used again here.
    let kind = config(SLOTS).groups_max(4321);
    for round in 1..4 {
        let hierarchy = used_on_all_slots(kind, SLOTS);
        for number in 0..2000 {
            Tenant::new(&levels(&hierarchy), hierarchy.create(&format!("/{number}")).unwrap(), number, SLOTS)
                .check();
        }
        let peak = hierarchy.percpu();
        assert!(peak.populated_bytes > 2000 * TENANT_BYTES * SLOTS as u64, "round {round}: {peak:?}");
        drop(hierarchy);
        let next = Hierarchy::new(kind).unwrap();
        let left = next.percpu();
        assert!(left.reserved_bytes > 0 && left.slots == SLOTS, "the same memory is used again: {left:?}");
        assert!(
            left.populated_bytes <= left.page_bytes * SLOTS as u64,
            "the root's stock: {round}: {left:?}"
        );
        assert_eq!(left.limbo_bytes, 0);
    }
}

#[test]
fn counts_per_cpu_in_groups_older_than_the_subsystem() {
    const SLOTS: usize = 4;
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).groups_max(4324), SLOTS);
    assert_eq!(hierarchy.percpu().live_bytes, CHARGED_BYTES * SLOTS as u64, "the root has its used records");
    let groups: Vec<_> = (0..200).map(|number| hierarchy.create(&format!("/{number}")).unwrap()).collect();
    let before = hierarchy.percpu().live_bytes;
    assert_eq!(before, (CHARGED_BYTES + 200 * STOCK_BYTES) * SLOTS as u64);
    let levels = levels(&hierarchy);
    let _pin = pin_virtual(2);
    groups.iter().for_each(|group| levels.add(group, nth(&levels, 7), 7));
    let after = hierarchy.percpu().live_bytes;
    assert_eq!(after, before + 200 * GAUGES_BYTES, "on the one slot where anything was added");
    let of_all = levels.get(&hierarchy.root(), nth(&levels, 7), Reach::Subtree, Freshness::Fresh);
    assert_eq!(of_all, 1400);
}

#[test]
fn makes_no_pass_for_few_removals() {
    const SLOTS: usize = 4;
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).float(0, Duration::ZERO), SLOTS);
    let levels = levels(&hierarchy);
    let group = |number| {
        let group = hierarchy.create(&format!("/{number}")).unwrap();
        let mut tenant = Tenant::new(&levels, group, number, SLOTS);
        tenant.charges.clear();
        tenant.group
    };
    let mut groups: Vec<_> = (0..2000).map(group).collect();
    let mut removed_until_a_pass = || {
        let (before, there) = (hierarchy.maintained(), groups.len());
        while hierarchy.maintained() == before {
            groups.pop().expect("it comes to a pass").remove().unwrap();
            // A pass that has begun goes on in these calls, with grace periods between them.
            for _ in 0..10 {
                hierarchy.create("/go-on").unwrap().remove().unwrap();
                std::thread::yield_now();
            }
        }
        there - groups.len()
    };
    // The kept records are half of the live ones when a third of all is removed.
    let first = removed_until_a_pass();
    assert!((650..=1000).contains(&first), "{first}");
}

#[cfg(target_os = "linux")]
#[test]
fn returns_the_root_record_of_a_dropped_hierarchy() {
    const SLOTS: usize = 16;
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).groups_max(4323), SLOTS);
    let levels = gauges::register(&hierarchy, 4000);
    for slot in 0..SLOTS {
        let _pin = pin_virtual(slot);
        levels.keys().for_each(|key| levels.add(&hierarchy.root(), key, 1));
    }
    let (ranges, record_bytes) = (hierarchy.percpu_ranges(), 8 * 4000 * SLOTS as u64);
    let present = || ranges.iter().map(crate::smaps::present_bytes).sum::<u64>();
    assert!(present() >= record_bytes && record_bytes > 256 << 10);
    drop((levels, hierarchy));
    assert_eq!(present(), 0);
}

#[test]
fn returns_memory_when_a_charge_outlives_its_hierarchy() {
    const SLOTS: usize = 4;
    let _alone = alone();
    let kind = config(SLOTS).groups_max(4322);
    let hierarchy = used_on_all_slots(kind, SLOTS);
    let mut tenants: Vec<_> = (0..2000)
        .map(|number| {
            Tenant::new(&levels(&hierarchy), hierarchy.create(&format!("/{number}")).unwrap(), number, SLOTS)
        })
        .collect();
    let last = tenants[7].charges.pop().unwrap();
    drop(tenants);
    drop(hierarchy);
    // The last byte may come back inside an allocator, where no thread may wait; the next hierarchy
    // of the kind does.
    drop(last);
    let next = Hierarchy::new(kind).unwrap();
    let left = maintain(&next);
    assert!(left.reserved_bytes > 0 && left.slots == SLOTS, "the same memory is used again: {left:?}");
    assert!(left.populated_bytes <= left.page_bytes * SLOTS as u64 * 2, "the root's, kept: {left:?}");
}

#[test]
fn keeps_no_record_of_removed_groups_with_handles() {
    const SLOTS: usize = 8;
    let _alone = alone();
    let hierarchy = used_on_all_slots(config(SLOTS).groups_max(5000), SLOTS);
    let levels = gauges::register(&hierarchy, 300);
    let groups: Vec<_> = (0..2000)
        .map(|number| {
            let group = hierarchy.create(&format!("/{number}")).unwrap();
            levels.add(&group, nth(&levels, 7), number);
            group
        })
        .collect();
    let peak = hierarchy.percpu();
    groups.iter().for_each(|group| group.remove().unwrap());
    go_on(&hierarchy, |now| now.populated_bytes < peak.populated_bytes / 2);
    let left = maintain(&hierarchy);
    // The stock words: the groups' and the root's own.
    let [words, roots] = [2001, 1].map(|groups| groups * CHARGED_BYTES * SLOTS as u64);
    assert_eq!(left.live_bytes, words, "{left:?} of {peak:?}");
    assert!(left.populated_bytes <= words_bytes(2001, SLOTS), "{left:?} of {peak:?}");
    for (number, group) in (0..).zip(&groups) {
        assert_eq!(gauges::own(&levels, group, 7), number, "additions can still be read");
        levels.add(group, nth(&levels, 7), 1);
        assert_eq!(gauges::own(&levels, group, 7), number + 1);
    }
    assert_eq!(hierarchy.percpu().live_bytes, words, "additions go to base words");
    drop(groups);
    assert!(hierarchy.dying().is_empty());
    let of_all = levels.get(&hierarchy.root(), nth(&levels, 7), Reach::Subtree, Freshness::Fresh);
    assert_eq!(of_all, (0..2000).map(|number| number + 1).sum(), "and stay in the sums above");
    let left = maintain(&hierarchy);
    assert_eq!(left.live_bytes, roots, "{left:?}");
    assert!(left.populated_bytes <= words_bytes(1, SLOTS), "{left:?}");
}

#[test]
fn costs_nothing_for_unused_slots() {
    in_its_own_process("lifetime::costs_nothing_for_unused_slots", one_slot_of_many_runs);
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
            levels(hierarchy).add(&group, nth(&levels(hierarchy), 3), 5);
            drop(group.try_charge(1000).unwrap());
        }
    }
    let (of_one, of_many) = (one.percpu(), many.percpu());
    assert_eq!((of_many.slots, of_many.live_bytes), (1, of_one.live_bytes));
    // Of the stock words and of the levels the copies begin at another byte of a page.
    assert!(
        of_many.populated_bytes <= of_one.populated_bytes + 2 * of_many.page_bytes,
        "{of_one:?} {of_many:?}"
    );
    #[cfg(target_os = "linux")]
    assert_eq!(crate::smaps::resident_bytes(&many), of_many.populated_bytes);
    // Figures of all slots are no reason to have them in memory.
    assert_eq!(many.stock_reserved_bytes().len(), 512);
    many.root().drain();
    many.maintain(Maintenance::new().all().expedited());
    assert_eq!(many.percpu().slots, 1);
}
