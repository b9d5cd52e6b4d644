//! Charges beside full caches are never refused: caches that can always give hold nearly all of
//! the limit, and live bytes are a small part of it.
//!
//! Two conditions are left out, and have tests of their own. A cache isn't seen before its owner
//! has marked it. And one that another thread scans isn't waited for beyond its patience: a thread
//! that loses its CPU within a scan looks like a shrinker that hangs. So the patience is an hour
//! here.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use memgroup::{
    Ask, Charge, ChargeError, Config, Count, Group, GroupShrinker, Hierarchy, Scan, ShrinkerConfig,
    SlotSource,
};
use memgroup_percpu::pin_virtual;

use super::cache::{Cache, LONG, PAGE, Tenant, add, parent};

const THREADS: u64 = 4;
const TENANTS: usize = 3;
/// Pages that one thread holds at most beside the caches.
const HELD_MOST: u64 = 8;

fn steps() -> u64 {
    let given = std::env::var("MEMGROUP_NEVER_REFUSED_STEPS").ok().and_then(|steps| steps.parse().ok());
    given.unwrap_or(if cfg!(any(debug_assertions, memgroup_yields)) { 4_000 } else { 200_000 })
}

/// A number below a bound, of a sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

struct House {
    parent: Group,
    tenants: Vec<Tenant>,
    slots: u64,
    charges: AtomicU64,
    refused: AtomicU64,
    again: AtomicU64,
}

impl House {
    fn charge(&self, group: &Group, bytes: u64) -> Option<Charge> {
        self.charges.fetch_add(1, Ordering::Relaxed);
        match group.try_charge(bytes) {
            Ok(charge) => Some(charge),
            Err(error) => {
                self.note(&error);
                let second = group.try_charge(bytes);
                self.again.fetch_add(u64::from(second.is_err()), Ordering::Relaxed);
                second.ok()
            }
        }
    }

    fn note(&self, error: &ChargeError) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let cached: Vec<_> = self.tenants.iter().map(|tenant| tenant.cache.len()).collect();
        eprintln!("{error}; the caches have {cached:?} pages");
    }

    fn work(&self, seed: u64, steps: u64) {
        let mut random = Random(seed);
        let mut held: Vec<Charge> = Vec::new();
        let mut pin = pin_virtual(0);
        for step in 0..steps {
            if step % 16 == 0 {
                drop(pin);
                pin = pin_virtual(random.below(self.slots) as usize);
            }
            let tenant = &self.tenants[random.below(TENANTS as u64) as usize];
            match random.below(16) {
                0..10 => {
                    if let Some(page) = self.charge(&tenant.group, PAGE) {
                        // Under the cache's lock: else others could fill it before it is marked.
                        tenant.cache.add_and(page, |count| {
                            if count == 1 {
                                tenant.shrinker.mark();
                            }
                        });
                    }
                }
                10..13 => {
                    let pages = held.iter().map(Charge::bytes).sum::<u64>() / PAGE;
                    held.extend(self.charge(&tenant.group, random.below(HELD_MOST - pages + 1) * PAGE));
                }
                13 => held.clear(),
                14 if random.below(64) == 0 => tenant.cache.clear(),
                14 => drop(self.charge(&self.parent, (1 + random.below(4)) * PAGE)),
                _ => drop(held.pop()),
            }
        }
    }
}

/// Returns how many charges there were, and how many were refused once, and at once again.
fn stress(slots: u64, pages: u64, seed: u64, steps: u64) -> (u64, u64, u64) {
    let source = SlotSource::virtual_slots(slots as usize).unwrap();
    let hierarchy = Hierarchy::new(Config::with_slots(source).reclaim_patience(LONG)).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(pages * PAGE).unwrap();
    let tenants = (0..TENANTS).map(|number| {
        let group = parent.create(&number.to_string()).unwrap();
        let cache = Arc::new(Cache::default());
        let config = ShrinkerConfig::new("pages").batch_bytes(4 * PAGE).patience(LONG);
        let shrinker = group.add_shrinker(config, Arc::clone(&cache)).unwrap();
        Tenant { group, cache, shrinker }
    });
    let house = House {
        tenants: tenants.collect(),
        parent,
        slots,
        charges: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        again: AtomicU64::new(0),
    };
    std::thread::scope(|scope| {
        let house = &house;
        (0..THREADS).for_each(|thread| drop(scope.spawn(move || house.work(seed * THREADS + thread, steps))));
    });
    house.tenants.iter().for_each(|tenant| tenant.cache.clear());
    assert_eq!(house.parent.usage_exact(), 0);
    let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
    (count(&house.charges), count(&house.refused), count(&house.again))
}

#[test]
fn no_charge_is_refused_beside_full_caches() {
    let (mut charges, mut refused) = (0, Vec::new());
    for (slots, pages) in [(2, 256), (8, 256), (128, 256), (8, 96), (128, 96)] {
        let (all, once, again) = stress(slots, pages, slots + pages, steps());
        charges += all;
        if once > 0 {
            refused.push((slots, pages, once, again));
        }
    }
    println!("{charges} charges");
    assert!(refused.is_empty(), "(slots, pages, refused, refused again) of {charges}: {refused:?}");
}

/// A cache of ten pages that others empty between its count and its scan, for so many rounds, and
/// fill again. A round makes three calls: after the last one it is counted as empty once.
fn emptied(group: &Group, times: u64) -> (Arc<Mutex<Vec<Charge>>>, GroupShrinker) {
    let held: Arc<Mutex<Vec<Charge>>> = Arc::default();
    held.lock().unwrap().extend((0..10).map(|_| group.try_charge(PAGE).unwrap()));
    let (counted, scanned) = (Arc::clone(&held), Arc::clone(&held));
    let (is_empty, left) = (Arc::new(AtomicBool::new(false)), AtomicU64::new(3 * times));
    let was_emptied = Arc::clone(&is_empty);
    let count = move || {
        let pages = if is_empty.swap(false, Ordering::Relaxed) { 0 } else { counted.lock().unwrap().len() };
        Count::of(pages as u64 * PAGE, pages as u64)
    };
    let scan = move |_: &Ask<'_>| {
        let is_there = left.load(Ordering::Relaxed) == 0;
        if !is_there {
            let is_last = left.fetch_sub(1, Ordering::Relaxed) % 3 == 1;
            was_emptied.store(is_last, Ordering::Relaxed);
        }
        let page = is_there.then(|| scanned.lock().unwrap().pop()).flatten();
        Scan::Freed { bytes: page.map_or(0, |page| page.bytes()) }
    };
    let shrinker = add(group, "pages", count, scan);
    (held, shrinker)
}

#[test]
fn a_cache_that_others_emptied_in_time_and_filled_again_is_asked_once_more() {
    for times in [1, 3, 7] {
        let (_hierarchy, parent) = parent(2, 10);
        let (cached, busy) = (parent.create("cached").unwrap(), parent.create("busy").unwrap());
        let (held, _shrinker) = emptied(&cached, times);
        assert!(busy.try_charge(3 * PAGE).is_ok(), "{times} times");
        assert_eq!(held.lock().unwrap().len(), 7);
    }
}

/// The condition under which a full cache is not seen: its owner has put objects into an empty
/// cache, and has not marked it yet.
#[test]
fn a_cache_that_is_not_marked_yet_is_not_seen_and_one_that_is_marked_is() {
    let (_hierarchy, parent) = parent(2, 10);
    let (cached, busy) = (Tenant::new(&parent, "cached"), parent.create("busy").unwrap());
    // A charge that finds it empty takes its mark.
    let held = parent.try_charge(10 * PAGE).unwrap();
    assert!(busy.try_charge(PAGE).is_err());
    drop(held);
    // The thread with the first page is between the insertion and the mark. Others insert more,
    // into a cache that is not empty.
    (0..10).for_each(|_| cached.cache.push(cached.group.try_charge(PAGE).unwrap()));
    let error = busy.try_charge(PAGE).unwrap_err();
    assert_eq!((error.usage(), cached.cache.len()), (10 * PAGE, 10));
    cached.shrinker.mark();
    assert!(busy.try_charge(PAGE).is_ok());
}
