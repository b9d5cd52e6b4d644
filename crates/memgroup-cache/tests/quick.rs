//! The cases of `support/cases.rs` with `quick_cache`, and those that hold for it alone.
#![cfg(feature = "quick_cache")]

use memgroup_cache::QuickCache as TenantCache;

#[path = "support/cases.rs"]
mod cases;

use cases::{BYTES, MIB, WEIGH, ask, assert_charged, config, fill, fixed, parent};

#[test]
fn frees_no_more_entries_than_needed() {
    let (hierarchy, parent) = parent(4 * MIB);
    let (group, cache) = fixed(&parent, "tenant");
    fill(&cache, 0..2000);
    for (wanted, entries) in [(1, 1), (BYTES, 1), (BYTES + 1, 2), (10 * BYTES, 10)] {
        assert_eq!(ask(&hierarchy, &group, wanted), entries * BYTES, "of {wanted} bytes");
        assert_charged(&group, &cache);
    }
    let held = cache.bytes();
    assert_eq!(ask(&hierarchy, &group, 4 * MIB), held);
    assert_eq!((cache.bytes(), group.usage_exact()), (0, 0));
    fill(&cache, 0..10);
    assert_eq!(group.reclaim(MIB, None).bytes, 10 * BYTES, "a walk comes by again");
}

#[test]
fn holds_as_much_after_thousands_of_calls() {
    let (hierarchy, parent) = parent(64 * MIB);
    let group = parent.create("tenant").unwrap();
    let settings = config(1000 * BYTES).entries(1000).settle(std::time::Duration::ZERO);
    let cache = TenantCache::new(&group, settings, WEIGH).unwrap();
    fill(&cache, 0..3000);
    let before = cache.bytes();
    assert!(before > 990 * BYTES, "full but for the rest of each shard");
    for key in 0..5000 {
        assert_eq!(ask(&hierarchy, &group, 1), BYTES);
        fill(&cache, 10_000 + 10 * key..10_010 + 10 * key);
    }
    // Enough for some to go to the shard that evicted last.
    fill(&cache, 100_000..101_000);
    assert_eq!(cache.bytes(), before);
    assert_charged(&group, &cache);
}

#[test]
fn counts_no_bytes_that_a_reader_holds() {
    let (hierarchy, parent) = parent(64 * MIB);
    let (group, cache) = fixed(&parent, "tenant");
    let entry = cache.insert(1, vec![1; 1000]).unwrap();
    assert_eq!(ask(&hierarchy, &group, 1), 0);
    assert!(cache.get(&1).is_none());
    assert_eq!((cache.bytes(), group.usage_exact()), (0, BYTES));
    assert_eq!(hierarchy.shrinkers()[0].claimed_bytes, 0, "nor is it said to be free");
    drop(entry);
    assert_eq!(group.usage_exact(), 0);
}

#[test]
fn no_old_value_is_left_under_a_key_with_a_new_one_that_does_not_fit() {
    let (_hierarchy, parent) = parent(64 * MIB);
    let (group, cache) = fixed(&parent, "tenant");
    cache.insert(1, vec![1; 1000]).unwrap();
    assert!(cache.insert(1, vec![2; 32 * MIB as usize]).is_err(), "it is larger than the cache");
    assert!(cache.get(&1).is_none(), "the old value is out of date");
    assert_charged(&group, &cache);
}
