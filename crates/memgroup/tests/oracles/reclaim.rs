//! `memory.reclaim`: done means that it was reached; else it is said how much is missing.

use memgroup::Group;

use super::cache::{PAGE, Tenant};
use super::{MIB, group};

/// Writes the file until usage is `goal` or the file says that there is no more.
fn reclaim_to(group: &Group, goal: u64) -> Result<(), String> {
    while let missing @ 1.. = group.usage().saturating_sub(goal) {
        group.write_file("memory.reclaim", &missing.to_string()).map_err(|error| error.to_string())?;
    }
    Ok(())
}

#[test]
fn reclaims_a_cache_from_50_mib_to_30() {
    let (_hierarchy, group) = group(2);
    let tenant = Tenant::new(&group, "cache");
    tenant.fill(50 * MIB / PAGE);
    group.drain();
    assert_eq!(group.usage(), 50 * MIB);
    reclaim_to(&group, 30 * MIB).unwrap();
    assert!(group.usage() <= 30 * MIB, "done means reached: {}", group.usage());
    assert!(group.usage() >= 30 * MIB * 97 / 100, "{}", group.usage());
}

#[test]
fn reports_the_bytes_that_reclaim_could_not_free() {
    let (_hierarchy, group) = group(2);
    let held = group.try_charge(40 * MIB).unwrap();
    let tenant = Tenant::new(&group, "cache");
    tenant.fill(10 * MIB / PAGE);
    let reclaimed = group.reclaim(20 * MIB, None);
    assert_eq!((reclaimed.bytes, tenant.cache.len()), (10 * MIB, 0), "half of it, and all there was");
    group.drain();
    let error = reclaim_to(&group, 30 * MIB).unwrap_err();
    assert!(error.contains("/tenant") && error.contains("10485760"), "{error}");
    assert_eq!(group.usage_exact(), 40 * MIB, "held bytes cannot be reclaimed");
    drop(held);
}
