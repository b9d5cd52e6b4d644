//! The charged bytes are those of the entries in the cache, whichever thread reclaims, and whatever a value's drop does.

use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::{Config, Group, Hierarchy, Quarantine};

use crate::cache::{ENTRY_BYTES, TenantCache};

const MIB: u64 = 1 << 20;
const VALUE: usize = 1000;
/// The bytes of an entry with a value of that size.
const BYTES: u64 = VALUE as u64 + ENTRY_BYTES;

type Bytes = TenantCache<u64, Vec<u8>>;

const WEIGH: fn(&u64, &Vec<u8>) -> u64 = |_, value| value.len() as u64;

fn parent(max: u64) -> (Hierarchy, Group) {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let parent = hierarchy.create("/tenants").unwrap();
    parent.set_max(max).unwrap();
    (hierarchy, parent)
}

fn cache(parent: &Group, name: &str) -> (Group, Bytes) {
    let group = parent.create(name).unwrap();
    let cache = TenantCache::new(&group, 64 * MIB, 10_000, WEIGH).unwrap();
    (group, cache)
}

fn fill(cache: &Bytes, keys: std::ops::Range<u64>) {
    for key in keys {
        assert!(cache.insert(key, vec![key as u8; VALUE]).is_charged(), "key {key}");
    }
}

#[track_caller]
fn assert_charged(group: &Group, cache: &Bytes) {
    assert_eq!(group.usage_exact(), cache.bytes_of_entries());
    assert_eq!(cache.bytes(), cache.bytes_of_entries());
}

#[test]
fn evicts_an_idle_tenants_entries_for_a_busy_tenant() {
    let (hierarchy, parent) = parent(4 * MIB);
    let (idle_group, idle) = cache(&parent, "idle");
    let (busy_group, busy) = cache(&parent, "busy");
    fill(&idle, 0..3500);
    assert_eq!(idle_group.usage_exact(), 3500 * BYTES);
    fill(&busy, 0..3000);
    assert_charged(&idle_group, &idle);
    assert_charged(&busy_group, &busy);
    assert!(busy.bytes() > 2 * MIB, "{} bytes for the busy one", busy.bytes());
    assert!(idle.bytes() < 2 * MIB, "{} bytes for the idle one", idle.bytes());
    assert!(parent.peak() <= parent.max().unwrap());
    assert_eq!(parent.refusals(), 0);
    let given: u64 = hierarchy.shrinkers().iter().map(|report| report.freed_bytes).sum();
    assert_eq!(
        given,
        6500 * BYTES - idle.bytes() - busy.bytes(),
        "all bytes that were evicted were given back"
    );
    drop((idle, busy));
    assert_eq!(parent.usage_exact(), 0);
    assert!(hierarchy.shrinkers().is_empty());
}

/// The bytes that a call by hand frees.
fn ask(hierarchy: &Hierarchy, group: &Group, bytes: u64) -> u64 {
    group.ask_shrinker(hierarchy.shrinkers()[0].id, bytes).unwrap().bytes
}

#[test]
fn evicts_no_more_entries_than_needed() {
    let (hierarchy, parent) = parent(4 * MIB);
    let (group, cache) = cache(&parent, "tenant");
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
    let cache: Bytes = TenantCache::new(&group, 1000 * BYTES, 1000, WEIGH).unwrap();
    fill(&cache, 0..3000);
    let before = cache.bytes();
    assert_eq!(before, 1000 * BYTES);
    for key in 0..5000 {
        assert_eq!(ask(&hierarchy, &group, 1), BYTES);
        fill(&cache, 10_000 + 10 * key..10_010 + 10 * key);
    }
    // So many that some come to the part that was evicted from last.
    fill(&cache, 100_000..101_000);
    assert_eq!(cache.bytes(), before);
    assert_charged(&group, &cache);
}

#[test]
fn keeps_entries_that_are_used() {
    let (hierarchy, parent) = parent(64 * MIB);
    let (group, cache) = cache(&parent, "tenant");
    fill(&cache, 0..1000);
    for _ in 0..3 {
        (0..100).for_each(|key| assert!(cache.get(&key).is_some()));
    }
    let freed = ask(&hierarchy, &group, 500 * BYTES);
    assert!((500 * BYTES..520 * BYTES).contains(&freed), "{freed} bytes, by batches of whole entries");
    let stay = (0..100).filter(|key| cache.get(key).is_some()).count();
    assert_eq!(stay, 100, "of those that are used");
}

#[test]
fn returns_a_value_that_does_not_fit() {
    let (_hierarchy, parent) = parent(10 * BYTES);
    let (group, cache) = cache(&parent, "tenant");
    let others = parent.try_charge(10 * BYTES).unwrap();
    let value = cache.get_or_insert_with(7, |key| vec![*key as u8; VALUE]);
    assert!(!value.is_charged() && value.iter().all(|&byte| byte == 7));
    assert!(cache.get(&7).is_none());
    assert_eq!((cache.bytes(), group.usage_exact()), (0, 0));
    drop(others);
    assert!(cache.get_or_insert_with(7, |key| vec![*key as u8; VALUE]).is_charged());
    assert!(cache.get(&7).is_some());
    assert_charged(&group, &cache);
}

#[test]
fn charges_an_entry_while_a_reader_holds_it() {
    let (hierarchy, parent) = parent(64 * MIB);
    let (group, cache) = cache(&parent, "tenant");
    let entry = cache.insert(1, vec![1; VALUE]);
    assert_eq!(ask(&hierarchy, &group, 1), 0);
    assert!(cache.get(&1).is_none());
    assert_eq!((cache.bytes(), group.usage_exact()), (0, BYTES));
    assert_eq!(hierarchy.shrinkers()[0].claimed_bytes, 0, "nor is it said to be free");
    drop(entry);
    assert_eq!(group.usage_exact(), 0);
}

/// A value that panics when it is dropped, if the test says so.
struct Fuse(bool);

impl Drop for Fuse {
    fn drop(&mut self) {
        assert!(!self.0, "on purpose");
    }
}

#[test]
fn loses_no_charge_when_a_drop_panics() {
    let (hierarchy, parent) = parent(4 * MIB);
    let group = parent.create("tenant").unwrap();
    let cache: TenantCache<u64, Fuse> = TenantCache::new(&group, MIB, 1000, |_, _| 1000).unwrap();
    for key in 0..100 {
        cache.insert(key, Fuse(key == 50));
    }
    // Batch by batch; the batch in which a drop panics is the last.
    let freed = ask(&hierarchy, &group, 4 * MIB);
    assert!(cache.get(&50).is_none());
    assert_eq!((cache.bytes(), group.usage_exact()), (100 * BYTES - freed, 100 * BYTES - freed));
    let report = &hierarchy.shrinkers()[0];
    assert_eq!((report.panics, report.quarantine), (1, Some(Quarantine::Panicked)));
    cache.insert(200, Fuse(false));
    assert_eq!((cache.bytes(), group.usage_exact()), (101 * BYTES - freed, 101 * BYTES - freed));
}

#[test]
fn charges_nothing_when_the_weight_panics() {
    let (_hierarchy, parent) = parent(4 * MIB);
    let group = parent.create("tenant").unwrap();
    let weigh = |key: &u64, _: &u64| if *key == 3 { panic!("on purpose") } else { 1000 };
    let cache: TenantCache<u64, u64> = TenantCache::new(&group, MIB, 1000, weigh).unwrap();
    cache.insert(2, 2);
    let inserted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| cache.insert(3, 3)));
    assert!(inserted.is_err());
    assert_eq!((cache.bytes(), group.usage_exact()), (BYTES, BYTES));
    cache.insert(4, 4);
    assert_eq!(group.usage_exact(), 2 * BYTES);
}

#[test]
fn loses_nothing_while_four_threads_insert_and_read() {
    const KEYS: u64 = 2000;
    const STEPS: u64 = 20_000;
    let (hierarchy, parent) = parent(2 * MIB);
    let caches = ["one", "two"].map(|name| cache(&parent, name));
    let made = AtomicU64::new(0);
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
            let value = cache.get_or_insert_with(key, |key| {
                made.fetch_add(1, Ordering::Relaxed);
                vec![*key as u8; length]
            });
            assert!(value.len() == length && value.iter().all(|&byte| byte == key as u8), "key {key}");
            if random.is_multiple_of(512) {
                group.reclaim(random % 50_000, None);
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
    assert!(made.load(Ordering::Relaxed) > 2 * KEYS, "evicted values were made again");
    drop(caches);
    assert_eq!(parent.usage_exact(), 0);
}
