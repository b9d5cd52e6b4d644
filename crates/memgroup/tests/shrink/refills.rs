//! Caches that are filled while a charge is about to be refused.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use memgroup::{Charge, Count, KillAnswer, KillRequest, Scan};

use super::cache::{PAGE, Tenant, add, parent};

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
    // As if another thread had the lock of the cache during the first round, which counts it at each of 13 priorities.
    let count = move || {
        let tells = counts.fetch_add(1, Ordering::Relaxed) >= 13;
        if tells { Count::of(16 * PAGE, 1) } else { Count::Unknown }
    };
    let scan = move |_: &memgroup::Ask<'_>| {
        let bytes = pages.lock().unwrap().take().map_or(0, |charge| charge.bytes());
        Scan::Freed { bytes }
    };
    let _shrinker = add(&group, "locked", count, scan);
    assert!(busy.try_charge(PAGE).is_ok());
}
