//! As many slots as a source may have.

use memgroup::{Freshness, Group, Hierarchy, Reach, stats};
use memgroup_percpu::pin_virtual;

use super::config;

const SLOTS: usize = 4096;

#[test]
fn charges_and_counts_on_each_of_4096_slots() {
    let hierarchy = Hierarchy::new(config(SLOTS)).unwrap();
    let tenant = hierarchy.create("/tenant").unwrap();
    let other = tenant.create("other").unwrap();
    let io = hierarchy.io();
    let mut charges = Vec::new();
    for slot in 0..SLOTS {
        let _pin = pin_virtual(slot);
        charges.push(tenant.try_charge(100).unwrap());
        io.add(&tenant, stats::io::RBYTES, 1);
        io.add(&other, stats::io::RBYTES, 2);
    }
    let read = |group: &Group, reach| io.get(group, stats::io::RBYTES, reach, Freshness::Fresh);
    assert_eq!((read(&tenant, Reach::Local), read(&other, Reach::Local)), (SLOTS as i64, 2 * SLOTS as i64));
    assert_eq!(read(&hierarchy.root(), Reach::Subtree), 3 * SLOTS as i64);
    assert_eq!(hierarchy.percpu().slots, SLOTS);
    assert_eq!(
        (tenant.usage_exact(), hierarchy.root().usage_exact()),
        (SLOTS as u64 * 100, SLOTS as u64 * 100)
    );
    // A full limit is refused, and bytes that are prepaid on any slot make room for it.
    tenant.set_max(SLOTS as u64 * 100).unwrap();
    assert!(tenant.try_charge(1).is_err());
    drop(charges);
    assert_eq!((tenant.usage_exact(), other.try_charge(SLOTS as u64 * 100).unwrap().bytes()), (0, 409_600));
    other.remove().unwrap();
    drop(other);
    assert_eq!(read(&tenant, Reach::Subtree), 3 * SLOTS as i64);
}
