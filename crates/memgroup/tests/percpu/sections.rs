//! A thread in a read section of its own cannot wait for a grace period, so its calls do without
//! one.

use core::time::Duration;

use memgroup::tuning::Tuning;
use memgroup::{Config, Hierarchy, Maintenance};
use memgroup_sync::grace;

use crate::{Tenant, alone, config, go_on, levels, maintain, used_on_all_slots};

const SLOTS: usize = 4;

/// A hierarchy with so many groups that the removal of most does maintenance, and the end does.
fn crowded(config: Config) -> (Hierarchy, Vec<Tenant>) {
    let hierarchy = used_on_all_slots(config, SLOTS);
    let tenant = |number| {
        let mut tenant =
            Tenant::new(&levels(&hierarchy), hierarchy.create(&format!("/{number}")).unwrap(), number, SLOTS);
        tenant.charges.clear();
        tenant
    };
    let tenants = (0..2000).map(tenant).collect();
    (hierarchy, tenants)
}

#[test]
fn leaves_maintenance_to_the_next_removal_in_a_section() {
    let _alone = alone();
    let (hierarchy, mut tenants) = crowded(config(SLOTS).float(0, Duration::ZERO));
    let peak = hierarchy.percpu().populated_bytes;
    let last = tenants.pop().unwrap();
    {
        let _section = grace::enter();
        tenants.into_iter().for_each(|tenant| tenant.group.remove().unwrap());
        assert_eq!(hierarchy.percpu().populated_bytes, peak);
    }
    last.group.remove().unwrap();
    go_on(&hierarchy, |now| now.populated_bytes < peak / 2);
}

#[test]
fn ends_a_hierarchy_within_a_read_section() {
    let _alone = alone();
    let config = config(SLOTS).groups_max(3001);
    let (hierarchy, tenants) = crowded(config);
    {
        let _section = grace::enter();
        drop((tenants, hierarchy));
    }
    let next = Hierarchy::new(config).unwrap();
    assert!(next.percpu().populated_bytes > 1 << 20, "it has the memory of the last one");
    assert!(maintain(&next).populated_bytes < 1 << 16);
}

#[test]
#[should_panic(expected = "failed to maintain a hierarchy: this thread is in a read section")]
fn panics_at_once_for_maintenance_in_a_section() {
    // The panic is printed within the section: with a backtrace that takes longer than the end of a
    // hierarchy waits for a grace period.
    let _alone = alone();
    let hierarchy = Hierarchy::new(config(SLOTS)).unwrap();
    let _section = grace::enter();
    hierarchy.maintain(Maintenance::new());
}

/// Runs `body` while another thread is in a section that does not end before.
fn beside_a_section(body: impl FnOnce()) {
    let (entered, is_entered) = std::sync::mpsc::channel();
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _section = grace::enter();
            entered.send(()).unwrap();
            // An error says that `body` panicked.
            let _ = is_over.recv();
        });
        is_entered.recv().unwrap();
        body();
        drop(over);
    });
}

#[test]
fn removes_without_waiting_for_a_stalled_section() {
    let _alone = alone();
    let config = config(SLOTS).groups_max(3002);
    let (hierarchy, tenants) = crowded(config);
    beside_a_section(|| {
        tenants.into_iter().for_each(|tenant| tenant.group.remove().unwrap());
        let waiting = hierarchy.percpu().limbo_bytes;
        assert!(waiting > 1 << 18, "memory left behind may be in use: {waiting}");
        drop(hierarchy);
    });
    let next = Hierarchy::new(config).unwrap();
    let after = maintain(&next);
    assert!(after.limbo_bytes == 0 && after.populated_bytes < 1 << 16, "{after:?}");
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn bounds_memory_while_a_section_stalls() {
    let _alone = alone();
    let config = config(SLOTS).groups_max(3003).float(0, Duration::ZERO);
    let (hierarchy, tenants) = crowded(config);
    let peak = hierarchy.percpu();
    let mut last = None;
    beside_a_section(|| {
        let mut tenants = Some(tenants);
        for round in 0..8 {
            let before = tenants.take().into_iter().flatten();
            before.for_each(|tenant| tenant.group.remove().unwrap());
            let all = hierarchy.percpu();
            assert!(
                all.populated_bytes <= 2 * peak.populated_bytes + (1 << 20),
                "round {round}: memory that waits, and the records of the next: {all:?} of {peak:?}"
            );
            let next = |number| {
                let path = format!("/{round}-{number}");
                let mut tenant =
                    Tenant::new(&levels(&hierarchy), hierarchy.create(&path).unwrap(), number, SLOTS);
                tenant.charges.clear();
                tenant
            };
            tenants = Some((0..2000).map(next).collect());
        }
        last = tenants;
    });
    last.into_iter().flatten().for_each(|tenant| tenant.group.remove().unwrap());
    assert!(maintain(&hierarchy).populated_bytes < peak.populated_bytes / 2);
}
