//! Caches that are filled while a charge is about to be refused.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use memgroup::{Ask, Charge, Count, KillAnswer, KillRequest, Scan, Shrinker, ShrinkerConfig, ShrinkerSlot};

use super::cache::{Cache, Made, PAGE, Tenant, add, parent};

#[test]
fn asks_a_cache_again_that_was_filled_after_reclaim() {
    let (_hierarchy, tenants) = parent(2, 100);
    let cached = Tenant::new(&tenants, "cached");
    // Not in the cache yet, which is found empty.
    let pages: Vec<Charge> = (0..100).map(|_| cached.group.try_charge(PAGE).unwrap()).collect();
    let busy = tenants.create("busy").unwrap();
    assert!(busy.try_charge(PAGE).is_err());
    // The last step before the last try.
    let (pages, cache) = (Mutex::new(pages), Arc::clone(&cached.cache));
    let shrinker = cached.shrinker;
    let _hook = cached.group.set_kill_hook(move |_: &KillRequest<'_>| {
        pages.lock().unwrap().drain(..).for_each(|page| cache.push(page));
        shrinker.mark();
        KillAnswer::Refused
    });
    let before = (tenants.refusals(), tenants.events().oom);
    let charge = busy.try_charge(PAGE).expect("the cache is full by now");
    assert_eq!((tenants.refusals(), cached.cache.len()), (before.0, 84));
    drop(charge);
}

#[test]
fn asks_again_where_a_shrinker_could_not_tell() {
    let (_hierarchy, tenants) = parent(2, 16);
    let (group, busy) = (tenants.create("group").unwrap(), tenants.create("busy").unwrap());
    let pages = Mutex::new(group.try_charge(16 * PAGE).ok());
    let counts = AtomicU64::new(0);
    // As if another thread had the lock of the cache during the first round, which counts it at
    // each of 13 priorities.
    let count = move || {
        let tells = counts.fetch_add(1, Ordering::Relaxed) >= 13;
        if tells { Count::of(16 * PAGE, 1) } else { Count::Unknown }
    };
    let scan = move |_: &Ask<'_>| {
        let bytes = pages.lock().unwrap().take().map_or(0, |charge| charge.bytes());
        Scan::Freed { bytes }
    };
    let _shrinker = add(&group, "locked", count, scan);
    assert!(busy.try_charge(PAGE).is_ok());
}

/// Four threads share a cache of all memory there is, and its mark moves in each call. Yields at
/// `interleave::point` open the windows: then one charge in 200 was refused.
#[test]
fn refuses_no_charge_while_the_mark_of_the_cache_moves() {
    const CHARGES: u64 = if cfg!(any(memgroup_yields, debug_assertions)) { 1_000 } else { 10_000 };
    let (hierarchy, tenants) = parent(4, 64);
    let group = tenants.create("group").unwrap();
    let cache = Arc::new(Cache::default());
    let slot = Arc::new(OnceLock::<ShrinkerSlot>::new());
    let mark = {
        let slot = Arc::clone(&slot);
        move || slot.get().into_iter().for_each(ShrinkerSlot::mark)
    };
    let (counted, scanned, on_count, on_scan) =
        (Arc::clone(&cache), Arc::clone(&cache), mark.clone(), mark.clone());
    let count = move || {
        on_count();
        counted.count(0)
    };
    let scan = move |ask: &Ask<'_>| {
        let given = scanned.scan(ask);
        on_scan();
        given
    };
    let config = ShrinkerConfig::new("moves").batch_bytes(PAGE);
    let registration = hierarchy.add_shrinker(config, Made(count, scan)).unwrap();
    assert!(slot.set(registration.attach(&group, 0).unwrap()).is_ok());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..CHARGES {
                    cache.push(group.try_charge(PAGE).expect("all other memory is in the cache"));
                    mark();
                }
            });
        }
    });
    cache.clear();
    registration.remove().unwrap();
}
