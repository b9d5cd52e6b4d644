//! Dead groups go: none is dying in the end.

use super::cache::{PAGE, Tenant};
use super::{MIB, group};

#[test]
fn releases_thirty_used_and_removed_groups() {
    let (hierarchy, parent) = group(2);
    parent.set_max(10 * MIB).unwrap();
    let mut held = Vec::new();
    let mut caches = Vec::new();
    for number in 0..30 {
        let tenant = Tenant::new(&parent, &format!("{number}"));
        tenant.fill(64);
        held.push(tenant.group.try_charge(PAGE).unwrap());
        hierarchy.io().add(&tenant.group, memgroup::stats::io::RBYTES, 1);
        tenant.group.remove().unwrap();
        caches.push(tenant);
    }
    assert_eq!(hierarchy.dying().len(), 30);
    assert_eq!(parent.usage_exact(), 30 * 65 * PAGE, "their bytes are counted above");
    held.clear();
    // Caches of the dead are asked as those of the living are.
    assert_eq!(parent.reclaim(u64::MAX, None).bytes, 30 * 64 * PAGE);
    assert_eq!((hierarchy.dying(), parent.usage()), (Vec::new(), 0));
    drop(caches);
    let snapshot = parent.snapshot();
    assert_eq!((snapshot.groups[0].dying_descendants, snapshot.groups.len()), (0, 1));
}
