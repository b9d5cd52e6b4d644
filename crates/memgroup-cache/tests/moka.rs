//! The cases of `support/cases.rs` with `moka`, and those that hold for it alone.
#![cfg(feature = "moka")]

use std::thread;
use std::time::Duration;

use memgroup_cache::{MokaCache as TenantCache, MokaConfig};

#[path = "support/cases.rs"]
mod cases;

use cases::{BYTES, MIB, WEIGH, ask, config, fill, parent};

#[test]
fn evicts_the_oldest_entries() {
    let (hierarchy, parent) = parent(64 * MIB);
    let group = parent.create("tenant").unwrap();
    let cache = TenantCache::new(&group, config(8 * MIB), WEIGH).unwrap();
    fill(&cache, 0..1000);
    cache.run_pending_tasks();
    for key in 0..100 {
        assert!(cache.get(&key).is_some());
    }
    ask(&hierarchy, &group, 500 * BYTES);
    let stay = |keys: std::ops::Range<u64>| keys.filter(|key| cache.get(key).is_some()).count();
    assert_eq!(stay(0..100), 100, "read last");
    assert_eq!(stay(100..500), 0, "oldest");
    assert!(stay(700..1000) > 280, "newest");
}

#[test]
fn frees_what_is_over_before_others() {
    let (hierarchy, parent) = parent(64 * MIB);
    let group = parent.create("tenant").unwrap();
    let settings = MokaConfig::new(config(8 * MIB)).time_to_live(Duration::from_millis(20));
    let cache = TenantCache::new(&group, settings, WEIGH).unwrap();
    fill(&cache, 0..100);
    while cache.get(&99).is_some() {
        thread::yield_now();
    }
    fill(&cache, 100..110);
    assert!(ask(&hierarchy, &group, BYTES) >= BYTES);
    assert!(cache.len() <= 110 - 100, "all that are over went, and the wedge did not");
    assert!(ask(&hierarchy, &group, MIB) <= 10 * BYTES);
    assert_eq!(group.usage_exact(), 0);
}

#[test]
fn has_units_of_weight_where_the_capacity_is_huge() {
    let (hierarchy, parent) = parent(64 * MIB);
    let group = parent.create("tenant").unwrap();
    let cache = TenantCache::new(&group, config(1 << 40), WEIGH).unwrap();
    fill(&cache, 0..1000);
    let freed = ask(&hierarchy, &group, 100 * BYTES);
    assert!((85 * BYTES..=110 * BYTES).contains(&freed), "{freed} bytes, rounded to units");
    assert_eq!(group.usage_exact(), 1000 * BYTES - freed);
}

/// A key that charges when it is dropped: `moka` drops some under its locks.
#[derive(PartialEq, Eq)]
struct Charging(u64, memgroup::Group);

impl std::hash::Hash for Charging {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Drop for Charging {
    fn drop(&mut self) {
        drop(self.1.try_charge(20 * BYTES));
    }
}

#[test]
fn scans_nothing_on_a_thread_that_is_in_a_call_of_a_cache() {
    let _watched = xtask::Watchdog::over("keys that charge under the cache's locks");
    let (_hierarchy, parent) = parent(300 * BYTES);
    let group = parent.create("tenant").unwrap();
    let cache = TenantCache::new(&group, config(64 * MIB), |_: &Charging, _: &u64| 1000).unwrap();
    let kept = (0..3000).filter(|key| cache.insert(Charging(*key, group.clone()), *key).is_ok()).count();
    assert!(kept > 2000, "{kept}");
    // The tables of all caches free keys together, also on threads of other tests. While such a key
    // is dropped, it charges.
    let until_charged_for = |bytes| {
        while group.usage_exact() != bytes {
            thread::yield_now();
        }
    };
    until_charged_for(cache.bytes());
    cache.clear();
    until_charged_for(0);
}
