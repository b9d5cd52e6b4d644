//! `memory.current` and `memory.peak` of memory that is held, and of a cache.

use super::cache::{PAGE, Tenant};
use super::{MIB, group};

#[test]
fn begins_at_zero_and_keeps_the_peak() {
    let (_hierarchy, group) = group(2);
    assert_eq!((group.usage(), group.peak()), (0, 0));
    let held = group.try_charge(50 * MIB).unwrap();
    assert!(group.usage() >= 50 * MIB && group.peak() >= 50 * MIB);
    drop(held);
    group.drain();
    assert_eq!(group.usage(), 0);
    assert!((50 * MIB..50 * MIB * 103 / 100).contains(&group.peak()), "{}", group.peak());

    let mut reader = group.peak_reader();
    reader.reset();
    let tenant = Tenant::new(&group, "cache");
    tenant.fill(30 * MIB / PAGE);
    assert!((30 * MIB..50 * MIB).contains(&reader.read()), "{}", reader.read());
    assert!(group.peak() >= 50 * MIB && group.peak_reader().read() >= 50 * MIB, "others keep theirs");
    tenant.cache.clear();
    group.drain();
    assert_eq!(group.read_file("memory.current").unwrap(), "0\n");
}
