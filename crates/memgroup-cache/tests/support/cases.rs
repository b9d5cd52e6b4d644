//! Cases that hold for each cache: the charged bytes are those of its entries, whichever thread
//! reclaims, and whatever a value does.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use memgroup::{Config, Group, Hierarchy};
use memgroup_cache::{CacheConfig, NotCachedReason};
use xtask::Watchdog;

use super::TenantCache;

pub(crate) const MIB: u64 = 1 << 20;
const VALUE: usize = 1000;
/// The bytes of an entry with a value of that size.
pub(crate) const BYTES: u64 = VALUE as u64 + 128;

type Bytes = TenantCache<u64, Vec<u8>>;

pub(crate) const WEIGH: fn(&u64, &Vec<u8>) -> u64 = |_, value| value.len() as u64;

/// Settings by which both caches charge the same.
pub(crate) fn config(capacity: u64) -> CacheConfig {
    CacheConfig::new(capacity).entry_bytes(128)
}

pub(crate) fn parent(max: u64) -> (Hierarchy, Group) {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let parent = hierarchy.create("/tenants").unwrap();
    parent.set_max(max).unwrap();
    (hierarchy, parent)
}

pub(crate) fn fixed(parent: &Group, name: &str) -> (Group, Bytes) {
    let group = parent.create(name).unwrap();
    let cache = TenantCache::new(&group, config(64 * MIB).entries(10_000), WEIGH).unwrap();
    (group, cache)
}

pub(crate) fn fill(cache: &Bytes, keys: Range<u64>) {
    for key in keys {
        cache.insert(key, vec![key as u8; VALUE]).unwrap_or_else(|error| panic!("key {key}: {error}"));
    }
}

/// Asks the first shrinker for bytes. Returns how many the group has less.
pub(crate) fn ask(hierarchy: &Hierarchy, group: &Group, bytes: u64) -> u64 {
    let before = group.usage_exact();
    group.ask_shrinker(hierarchy.shrinkers()[0].id, bytes).unwrap();
    before - group.usage_exact()
}

/// Checks that the group is charged for the cache's entries, and for nothing else.
#[track_caller]
pub(crate) fn assert_charged(group: &Group, cache: &Bytes) {
    assert_eq!(group.usage_exact(), cache.bytes());
}

#[test]
fn evicts_an_idle_groups_entries_for_a_busy_group() {
    let (hierarchy, parent) = parent(4 * MIB);
    let (idle_group, idle) = fixed(&parent, "idle");
    let (busy_group, busy) = fixed(&parent, "busy");
    fill(&idle, 0..3500);
    assert_eq!(idle_group.usage_exact(), 3500 * BYTES);
    fill(&busy, 0..3000);
    assert_charged(&idle_group, &idle);
    assert_charged(&busy_group, &busy);
    assert!(busy.len() > 1500, "the busy one got room: {}", busy.len());
    assert!(idle.len() < 2200, "the idle one gave: {}", idle.len());
    assert!(parent.peak() <= 4 * MIB);
    let reports = hierarchy.shrinkers();
    assert!(reports.iter().all(|report| report.panics == 0 && report.quarantine.is_none()), "{reports:?}");
    drop((idle, busy));
    assert_eq!(parent.usage_exact(), 0);
}

#[test]
fn has_as_many_hits_again_after_pressure() {
    let (_hierarchy, parent) = parent(4 * MIB);
    let (group, cache) = fixed(&parent, "tenant");
    let hits = || (0..2000).filter(|key| cache.get(key).is_some()).count();
    fill(&cache, 0..2000);
    assert_eq!(hits(), 2000);
    let pressure = parent.try_charge(3 * MIB).unwrap();
    assert!(hits() < 1000, "{}", hits());
    drop(pressure);
    // The lower capacity lasts for the time to settle.
    let _watched = Watchdog::over("waiting for the full capacity");
    while hits() < 2000 {
        for key in 0..2000 {
            cache.get_or_insert_with(key, |_| vec![0; VALUE]).unwrap();
        }
    }
    assert_charged(&group, &cache);
}

#[test]
fn stays_small_while_it_settles() {
    let (hierarchy, parent) = parent(64 * MIB);
    let group = parent.create("tenant").unwrap();
    let settle = std::time::Duration::from_secs(100_000);
    let cache = TenantCache::new(&group, config(8 * MIB).settle(settle), WEIGH).unwrap();
    fill(&cache, 0..2000);
    ask(&hierarchy, &group, 1000 * BYTES);
    let left = cache.len();
    assert!(left <= 1000, "{left}");
    fill(&cache, 2000..4000);
    // Lazy evictions come a batch later, and a shard that gave nothing has its capacity.
    ask(&hierarchy, &group, 1);
    assert!(cache.len() < left + 500, "{} of {left}", cache.len());
}

#[test]
fn returns_a_value_without_room_and_keeps_no_old_one() {
    let (_hierarchy, parent) = parent(10 * BYTES);
    let (group, cache) = fixed(&parent, "tenant");
    cache.insert(7, vec![1; VALUE]).unwrap();
    let held = cache.get(&7).unwrap();
    let others = parent.try_charge(9 * BYTES).unwrap();
    let refused = cache.insert(7, vec![2; VALUE]).unwrap_err();
    assert!(refused.to_string().contains("refused by group /tenants"), "{refused}");
    assert!(matches!(refused.reason(), NotCachedReason::Charge(error) if error.asked() == BYTES));
    assert_eq!(refused.into_value(), vec![2; VALUE]);
    assert!(cache.get(&7).is_none(), "a reader would find the old value");
    assert_eq!(held[0], 1);
    drop((others, held));
    assert_eq!(group.usage_exact(), 0);
    cache.insert(7, vec![3; VALUE]).unwrap();
    assert_eq!(cache.get(&7).unwrap()[0], 3);
    assert_charged(&group, &cache);
}

#[test]
fn charges_an_entry_while_a_reader_holds_it() {
    let (hierarchy, parent) = parent(64 * MIB);
    let (group, cache) = fixed(&parent, "tenant");
    let entry = cache.insert(1, vec![1; VALUE]).unwrap();
    let again = entry.clone();
    assert_eq!(ask(&hierarchy, &group, 1), 0);
    assert!(cache.get(&1).is_none());
    assert_eq!(group.usage_exact(), BYTES);
    drop(entry);
    assert_eq!(group.usage_exact(), BYTES);
    drop(again);
    assert_eq!(group.usage_exact(), 0);
}

#[test]
fn replaces_removes_and_clears() {
    let (_hierarchy, parent) = parent(64 * MIB);
    let (group, cache) = fixed(&parent, "tenant");
    for round in 0..10 {
        cache.insert(1, vec![round; VALUE]).unwrap();
        assert_eq!(cache.get(&1).unwrap()[0], round);
    }
    assert_eq!(group.usage_exact(), BYTES);
    assert_eq!(cache.remove(&1).unwrap()[0], 9);
    assert!(cache.remove(&1).is_none() && cache.get(&1).is_none());
    assert_eq!(group.usage_exact(), 0);
    fill(&cache, 0..500);
    cache.clear();
    assert!(cache.get(&100).is_none());
    assert_eq!(group.usage_exact(), 0);
    assert!(cache.is_empty());
    fill(&cache, 0..5);
    assert_eq!(group.usage_exact(), 5 * BYTES);
}

#[test]
fn charges_weights_of_zero_and_refuses_huge_ones() {
    let (hierarchy, parent) = parent(64 * MIB);
    let group = parent.create("tenant").unwrap();
    let weightless = config(MIB).entry_bytes(0);
    let cache: TenantCache<u64, u64> = TenantCache::new(&group, weightless, |_, weight| *weight).unwrap();
    for key in 0..100 {
        assert_eq!(cache.insert(key, 0).unwrap().bytes(), 1);
    }
    assert_eq!(group.usage_exact(), 100);
    for weight in [MIB + 1, u64::from(u32::MAX) + 2, 1 << 50, u64::MAX] {
        let refused = cache.insert(1000, weight).unwrap_err();
        assert!(matches!(refused.reason(), NotCachedReason::TooLarge { bytes, .. } if bytes == weight));
        assert_eq!(refused.into_value(), weight);
    }
    assert_eq!(group.refusals(), 0);
    assert_eq!(ask(&hierarchy, &group, MIB), 100, "entries without weight are given back");
}

/// A value that panics when it is dropped, if the test says so.
struct Fuse(bool);

impl Drop for Fuse {
    fn drop(&mut self) {
        assert!(!self.0, "on purpose");
    }
}

#[test]
fn loses_no_charge_when_drops_panic() {
    let (hierarchy, parent) = parent(4 * MIB);
    let group = parent.create("tenant").unwrap();
    let cache: TenantCache<u64, Fuse> = TenantCache::new(&group, config(MIB), |_, _| 1000).unwrap();
    let fill = |keys: Range<u64>| keys.for_each(|key| drop(cache.insert(key, Fuse(key % 50 == 7)).unwrap()));
    fill(0..200);
    ask(&hierarchy, &group, 4 * MIB);
    assert_eq!(group.usage_exact(), 0);
    let report = &hierarchy.shrinkers()[0];
    assert_eq!((report.panics, report.quarantine), (0, None), "the cache caught them");
    // By eviction, by replacement, by `clear` and by the end of the cache.
    fill(0..2000);
    fill(1000..1100);
    cache.clear();
    assert_eq!(group.usage_exact(), 0);
    fill(0..200);
    drop(cache);
    assert_eq!(group.usage_exact(), 0);
}

#[test]
fn charges_nothing_when_the_weight_panics() {
    let (_hierarchy, parent) = parent(4 * MIB);
    let group = parent.create("tenant").unwrap();
    let weigh = |key: &u64, _: &u64| if *key == 3 { panic!("on purpose") } else { 1000 };
    let cache: TenantCache<u64, u64> = TenantCache::new(&group, config(MIB), weigh).unwrap();
    cache.insert(2, 2).unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| cache.insert(3, 3))).is_err());
    assert_eq!(group.usage_exact(), BYTES);
    cache.insert(4, 4).unwrap();
    assert_eq!(group.usage_exact(), 2 * BYTES);
}

/// A value that uses its cache when it is dropped: it inserts another, which charges and so
/// reclaims.
struct Heir {
    cache: Arc<OnceLock<Weak<TenantCache<u64, Heir>>>>,
    key: u64,
    drops: Arc<AtomicU64>,
}

impl Drop for Heir {
    fn drop(&mut self) {
        // ORDERING: Relaxed; a count.
        self.drops.fetch_add(1, Ordering::Relaxed);
        // The heirs of heirs end.
        if self.key >= 1 << 40 {
            return;
        }
        if let Some(cache) = self.cache.get().and_then(Weak::upgrade) {
            let heir = Heir {
                cache: Arc::clone(&self.cache),
                key: self.key | 1 << 40,
                drops: Arc::clone(&self.drops),
            };
            let _ = cache.get(&heir.key);
            drop(cache.insert(heir.key, heir));
        }
    }
}

#[test]
fn lets_a_value_use_its_cache_when_it_is_dropped() {
    let _watched = Watchdog::over("values that insert others when they are dropped");
    let (_hierarchy, parent) = parent(1500 * BYTES);
    let group = parent.create("tenant").unwrap();
    let drops = Arc::new(AtomicU64::new(0));
    let place = Arc::<OnceLock<_>>::default();
    let cache = Arc::new(TenantCache::new(&group, config(4 * MIB), |_: &u64, _: &Heir| 1000).unwrap());
    place.set(Arc::downgrade(&cache)).unwrap();
    for key in 0..3000 {
        let heir = Heir { cache: Arc::clone(&place), key, drops: Arc::clone(&drops) };
        drop(cache.insert(key, heir));
    }
    cache.clear();
    // ORDERING: Relaxed; a count.
    assert!(drops.load(Ordering::Relaxed) > 3000);
    drop(cache);
    assert_eq!(group.usage_exact(), 0);
}

#[test]
fn lets_an_entry_charge_below_a_scan_of_its_own_cache() {
    let (_hierarchy, parent) = parent(100 * BYTES);
    let (group, cache) = fixed(&parent, "tenant");
    // Each insertion beyond the hundredth finds room in the very cache that it fills.
    let kept = (0..1000).filter(|key| cache.insert(*key, vec![0; VALUE]).is_ok()).count();
    assert!(kept > 900, "{kept}");
    assert!(parent.peak() <= 100 * BYTES);
    assert_charged(&group, &cache);
}

#[test]
fn loses_nothing_while_four_threads_hammer_it() {
    const KEYS: u64 = 2000;
    const STEPS: u64 = 20_000;
    let (hierarchy, parent) = parent(2 * MIB);
    let caches = ["one", "two"].map(|name| fixed(&parent, name));
    let pressed = parent.create("pressed").unwrap();
    let (refused, made) = (AtomicU64::new(0), AtomicU64::new(0));
    let work = |thread: u64| {
        let mut random = 0x9E37_79B9_7F4A_7C15_u64 + thread;
        for step in 0..STEPS {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // Each begins on another one, and changes now and then.
            let (group, cache) = &caches[((thread + step / 5000) % 2) as usize];
            let key = random % KEYS;
            let length = VALUE / 2 + key as usize % VALUE;
            // ORDERING: Relaxed, both; counts, read after the threads.
            let value = cache.get_or_insert_with(key, |key| {
                made.fetch_add(1, Ordering::Relaxed);
                vec![*key as u8; length]
            });
            match value {
                Ok(value) => {
                    assert!(value.len() == length && value.iter().all(|&byte| byte == key as u8), "key {key}")
                }
                Err(_) => _ = refused.fetch_add(1, Ordering::Relaxed),
            }
            match random % 512 {
                0..8 => drop(cache.remove(&key)),
                8 => _ = group.reclaim(random % 50_000, None),
                9 => drop(pressed.try_charge(random % (MIB / 2))),
                _ => {}
            }
        }
    };
    std::thread::scope(|threads| {
        let workers: Vec<_> = (0..4).map(|thread| threads.spawn(move || work(thread))).collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    });
    caches.iter().for_each(|(group, cache)| assert_charged(group, cache));
    assert!(parent.peak() <= parent.max().unwrap());
    let reports = hierarchy.shrinkers();
    assert!(reports.iter().all(|report| report.panics == 0 && report.quarantine.is_none()), "{reports:?}");
    assert!(reports.iter().map(|report| report.freed_bytes).sum::<u64>() > MIB, "there was pressure");
    // ORDERING: Relaxed, both; as above.
    assert!(made.load(Ordering::Relaxed) > 2 * KEYS, "evicted values were made again");
    assert!(refused.load(Ordering::Relaxed) < STEPS / 10, "{refused:?} insertions refused");
    drop(caches);
    assert_eq!(parent.usage_exact(), 0);
}

/// Two caches below a limit for one and a half: the second one has entries of the first evicted.
/// Then entries are replaced and read.
fn sweep_scenario(idle: &Bytes, busy: &Bytes) -> Result<(), String> {
    let insert = |cache: &Bytes, key: u64| match cache.insert(key, vec![key as u8; VALUE]) {
        Ok(_) => Ok(()),
        Err(error) => {
            assert!(matches!(error.reason(), NotCachedReason::Charge(_)), "{error}");
            let text = error.to_string();
            assert_eq!(error.into_value(), vec![key as u8; VALUE], "the value comes back");
            assert!(cache.get(&key).is_none(), "nothing is left under the key");
            Err(text)
        }
    };
    (0..40).try_for_each(|key| insert(idle, key))?;
    (0..40).try_for_each(|key| insert(busy, key))?;
    (0..10).try_for_each(|key| insert(busy, key))?;
    let found = busy.get_or_insert_with(100, |_| vec![100; VALUE]).map(|entry| entry.len());
    found.map(|length| assert_eq!(length, VALUE)).map_err(|error| error.to_string())
}

#[test]
fn sweep_insertions() {
    xtask::sweep::sweep("insertions", |run| {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
        let parent = hierarchy.create("/tenants").unwrap();
        parent.set_max(60 * BYTES).unwrap();
        let make = |name| {
            let group = parent.create(name).unwrap();
            let settings = config(MIB).entries(100).settle(std::time::Duration::ZERO);
            TenantCache::new(&group, settings, WEIGH).unwrap()
        };
        let (idle, busy) = (make("idle"), make("busy"));
        let injection = hierarchy.root().inject_failures_at(run.refused());
        let outcome = sweep_scenario(&idle, &busy);
        let charges = injection.drawn();
        assert_eq!(outcome.is_err(), run.refuses_any_of(charges), "{outcome:?} after {charges} charges");
        drop(injection);
        for cache in [&idle, &busy] {
            assert_charged(cache.group(), cache);
        }
        assert_eq!(sweep_scenario(&idle, &busy), Ok(()));
        drop((idle, busy));
        assert_eq!(hierarchy.root().usage_exact(), 0);
        charges
    });
}
