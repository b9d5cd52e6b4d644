//! Per-CPU memory of many groups is told of, and given back.

use std::time::{Duration, Instant};

use memgroup::{Maintenance, stats};
use memgroup_percpu::pin_virtual;

use super::cache::PAGE;
use super::group;

const CHILDREN: u64 = 1000;
const SLOTS: usize = 4;

#[test]
fn reports_and_frees_percpu_memory_of_a_thousand_groups() {
    let (hierarchy, parent) = group(SLOTS);
    let touch = |group: &memgroup::Group| {
        for slot in 0..SLOTS {
            let _pin = pin_virtual(slot);
            drop(group.try_charge(PAGE).unwrap());
            hierarchy.memory().add(group, stats::memory::FILE, 1);
        }
    };
    touch(&parent);
    let before = hierarchy.percpu();
    let children: Vec<_> = (0..CHILDREN).map(|number| parent.create(&format!("{number}")).unwrap()).collect();
    children.iter().for_each(touch);
    let of_one = (hierarchy.percpu().live_bytes - before.live_bytes) / CHILDREN;
    let used = hierarchy.percpu();
    assert!(of_one > 0 && used.live_bytes == before.live_bytes + CHILDREN * of_one, "{before:?}, {used:?}");
    assert!(used.populated_bytes >= used.live_bytes, "reported bytes are there: {used:?}");
    children.iter().for_each(|child| child.remove().unwrap());
    drop(children);
    let later = Instant::now() + Duration::from_secs(3600);
    hierarchy.maintain(Maintenance::new().expedited().all().at(later));
    let after = hierarchy.percpu();
    assert_eq!((after.live_bytes, after.limbo_bytes), (before.live_bytes, 0), "{after:?}");
    assert!(after.populated_bytes <= used.populated_bytes / 10, "{used:?}, then {after:?}");
}
