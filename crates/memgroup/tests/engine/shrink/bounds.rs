//! How long a charge goes on, when a series of calls ends, and in which order caches are asked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memgroup::{Ask, Charge, Count, Group, Hierarchy, Registration, Scan, ShrinkerConfig, ShrinkerSlot};

use super::cache::{BATCH, LONG, Made, PAGE, Tenant, add, parent, plenty};

/// A cache of `pages` pages, less than a batch in all, and the number of its calls. Every call
/// stops; one in `every` calls gives a page.
fn drop_by_drop(tenants: &Group, pages: u64, every: u64) -> (Arc<AtomicU64>, memgroup::GroupShrinker) {
    let group = tenants.create("idle").unwrap();
    let pages: Vec<Charge> = (0..pages).map(|_| group.try_charge(PAGE).unwrap()).collect();
    let (pages, calls) = (Mutex::new(pages), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&calls);
    let scan = move |_: &Ask<'_>| {
        if (counted.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(every) {
            drop(pages.lock().unwrap().pop());
        }
        Scan::Stopped { bytes: 0 }
    };
    let config = ShrinkerConfig::new("drop by drop").batch_bytes(1 << 40).patience(LONG);
    let shrinker = group.add_shrinker(config, Made(plenty, scan)).unwrap();
    shrinker.mark();
    (calls, shrinker)
}

#[test]
fn refuses_when_a_charge_needs_too_many_rounds() {
    let (_hierarchy, tenants) = parent(2, 3000);
    // It is asked at the last two priorities of a round: two pages.
    let (calls, _shrinker) = drop_by_drop(&tenants, 3000, 1);
    let busy = tenants.create("busy").unwrap();
    drop(busy.try_charge(600 * PAGE).unwrap());
    assert_eq!(calls.swap(0, Ordering::Relaxed), 600);
    assert!(busy.try_charge(3000 * PAGE).is_err());
    assert_eq!(calls.load(Ordering::Relaxed), 2 * 1024);
}

#[test]
fn stops_after_sixteen_rounds_without_progress() {
    let (_hierarchy, tenants) = parent(2, 3000);
    let (calls, shrinker) = drop_by_drop(&tenants, 3000, u64::MAX);
    let busy = tenants.create("busy").unwrap();
    assert!(busy.try_charge(PAGE).is_err());
    assert_eq!(calls.load(Ordering::Relaxed), 2 * 17);
    shrinker.remove().unwrap();
    // A round with progress begins the count anew: twenty calls, in ten rounds, for each page.
    let (_hierarchy, tenants) = parent(2, 3000);
    let (calls, _shrinker) = drop_by_drop(&tenants, 3000, 20);
    let _charge = tenants.create("busy").unwrap().try_charge(10 * PAGE).unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 10 * 20);
}

#[test]
fn asks_the_largest_cache_of_a_priority_first() {
    let (_hierarchy, tenants) = parent(2, 700 * 16);
    let order: Arc<Mutex<Vec<&str>>> = Arc::default();
    // Both come to a batch at priority 5. One has 600 batches, and a sixteenth of a 32nd is asked
    // for. The other has 64, and half a 32nd is.
    let make = |name: &'static str, batches, cost| {
        let group = tenants.create(name).unwrap();
        let pages = Mutex::new(vec![group.try_charge(batches * BATCH).unwrap()]);
        let order = Arc::clone(&order);
        let scan = move |_: &Ask<'_>| {
            order.lock().unwrap().push(name);
            pages.lock().unwrap().clear();
            Scan::Freed { bytes: 0 }
        };
        let config = ShrinkerConfig::new(name).cost(cost);
        let shrinker = group.add_shrinker(config, Made(move || Count::of(batches * BATCH, 1), scan)).unwrap();
        shrinker.mark();
        shrinker
    };
    let _small = make("small", 64, 8);
    let _large = make("large", 600, 64);
    tenants.reclaim(BATCH, None);
    assert_eq!(*order.lock().unwrap(), ["large"]);
}

#[test]
fn counts_no_more_caches_when_enough_is_freed() {
    let (_hierarchy, tenants) = parent(2, 1000);
    let all: Vec<Tenant> = (0..2).map(|at| Tenant::new(&tenants, &format!("t{at}"))).collect();
    all.iter().for_each(|tenant| tenant.fill(400));
    // From then on the sizes of both are known.
    tenants.reclaim(PAGE, None);
    for tenant in &all {
        tenant.cache.counted();
    }
    assert_eq!(tenants.reclaim(PAGE, None).bytes, BATCH);
    assert_eq!(all.iter().map(|tenant| tenant.cache.counted()).sum::<u64>(), 1);
}

#[test]
fn visits_a_cache_that_gives_a_quarter_every_time() {
    let (hierarchy, tenants) = parent(2, 5000);
    let group = tenants.create("idle").unwrap();
    let pages: Vec<Charge> = (0..4096).map(|_| group.try_charge(PAGE).unwrap()).collect();
    let pages = Mutex::new(pages);
    let scan = move |ask: &Ask<'_>| {
        let mut pages = pages.lock().unwrap();
        let keep = pages.len() - (ask.bytes() / PAGE).div_ceil(4) as usize;
        pages.truncate(keep);
        Scan::Stopped { bytes: 0 }
    };
    let _shrinker = add(&group, "a quarter", || Count::of(256 * BATCH, 1), scan);
    tenants.reclaim(u64::MAX, None);
    // A cache of at most 255 batches is asked from priority 8 on. At the first call it had 256.
    assert_eq!(hierarchy.shrinkers()[0].scans, 10, "series of calls, at priorities 9 to 0");
}

/// A shrinker that drops its registration or its slot in its first call, and the number of its
/// calls.
struct Dropping {
    _hierarchy: Hierarchy,
    tenants: Group,
    kept: Arc<Mutex<(Option<Registration>, Option<ShrinkerSlot>)>>,
    calls: Arc<AtomicU64>,
    _held: Charge,
}

impl Drop for Dropping {
    /// Else the shrinker would keep itself.
    fn drop(&mut self) {
        drop(std::mem::take(&mut *self.kept.lock().unwrap()));
    }
}

impl Dropping {
    fn new(drop_one: fn(&mut (Option<Registration>, Option<ShrinkerSlot>))) -> Dropping {
        let (hierarchy, tenants) = parent(2, 1000);
        let _held = tenants.try_charge(1000 * PAGE).unwrap();
        let (kept, calls): (Arc<Mutex<(_, _)>>, Arc<AtomicU64>) = Default::default();
        let (mine, counted) = (Arc::clone(&kept), Arc::clone(&calls));
        let scan = move |_: &Ask<'_>| {
            counted.fetch_add(1, Ordering::Relaxed);
            drop_one(&mut mine.lock().unwrap());
            Scan::Freed { bytes: 0 }
        };
        // At cost 0 it is asked for half of its bytes at once: a series of thirty calls.
        let config = ShrinkerConfig::new("dropping").cost(0);
        let registration = hierarchy.add_shrinker(config, Made(plenty, scan)).unwrap();
        let slot = registration.attach(&tenants, 0).unwrap();
        slot.mark();
        *kept.lock().unwrap() = (Some(registration), Some(slot));
        Dropping { _hierarchy: hierarchy, tenants, kept, calls, _held }
    }

    /// Calls of one reclaim.
    fn calls(&self) -> u64 {
        self.tenants.reclaim(PAGE, None);
        self.calls.swap(0, Ordering::Relaxed)
    }
}

#[test]
fn ends_a_series_when_the_shrinker_or_its_slot_goes() {
    let nothing = Dropping::new(|_| ());
    assert!(nothing.calls() > 30);
    let registration = Dropping::new(|(registration, _)| drop(registration.take()));
    assert_eq!(registration.calls(), 1);
    let slot = Dropping::new(|(_, slot)| drop(slot.take()));
    assert_eq!(slot.calls(), 1);
    assert!(slot.kept.lock().unwrap().0.is_some());
}

#[test]
fn counts_overruns_anew_after_a_reinstatement() {
    let (hierarchy, tenants) = parent(2, 1000);
    let _held = tenants.try_charge(1000 * PAGE).unwrap();
    let (calls, limit) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(u64::MAX)));
    let (counted, stop) = (Arc::clone(&calls), Arc::clone(&limit));
    let scan = move |_: &Ask<'_>| {
        let now = counted.fetch_add(1, Ordering::Relaxed) + 1;
        if now >= stop.load(Ordering::Relaxed) {
            Scan::Stopped { bytes: 0 }
        } else {
            Scan::Freed { bytes: 0 }
        }
    };
    // Whatever a call takes, it is too long.
    let config = ShrinkerConfig::new("slow").patience(Duration::ZERO);
    let shrinker = tenants.add_shrinker(config, Made(plenty, scan)).unwrap();
    shrinker.mark();
    tenants.reclaim(PAGE, None);
    assert_eq!((calls.swap(0, Ordering::Relaxed), hierarchy.shrinkers()[0].overruns), (3, 3));
    let id = shrinker.registration().id();
    shrinker.registration().reinstate();
    limit.store(1, Ordering::Relaxed);
    for left in [None, None, Some(memgroup::Quarantine::Overdue)] {
        tenants.ask_shrinker(id, PAGE).unwrap();
        assert_eq!(shrinker.registration().quarantine(), left);
    }
}

#[test]
fn releases_bytes_reclaimed_by_hand_at_once() {
    for asks_one in [true, false] {
        let (_hierarchy, tenants) = parent(2, 100);
        let (idle, other) = (tenants.create("idle").unwrap(), tenants.create("other").unwrap());
        let pages: Vec<Charge> = (0..100).map(|_| idle.try_charge(PAGE).unwrap()).collect();
        let (pages, had) = (Mutex::new(pages), Arc::new(Mutex::new(Vec::new())));
        let log = Arc::clone(&had);
        let shrinker = add(&idle, "gives", plenty, move |_| {
            drop(pages.lock().unwrap().pop());
            let charge = || other.try_charge(PAGE);
            log.lock().unwrap().push(std::thread::scope(|scope| scope.spawn(charge).join().unwrap()));
            Scan::Stopped { bytes: 0 }
        });
        if asks_one {
            idle.ask_shrinker(shrinker.registration().id(), 50 * PAGE).unwrap();
        } else {
            tenants.reclaim(50 * PAGE, None);
        }
        assert!(had.lock().unwrap().iter().all(Result::is_ok) && !had.lock().unwrap().is_empty());
    }
}

#[test]
fn does_not_scan_a_shrinker_that_got_the_slot_meanwhile() {
    let (hierarchy, tenants) = parent(2, 1000);
    let _held = tenants.try_charge(1000 * PAGE).unwrap();
    let (scanned, slots): (Arc<AtomicU64>, Arc<Mutex<Vec<ShrinkerSlot>>>) = Default::default();
    let second = hierarchy
        .add_shrinker(
            ShrinkerConfig::new("second"),
            Made(|| Count::Unknown, |_: &Ask<'_>| Scan::Freed { bytes: 0 }),
        )
        .unwrap();
    let (calls, mine, group) = (Arc::clone(&scanned), Arc::clone(&slots), tenants.clone());
    let count = move || {
        mine.lock().unwrap().clear();
        mine.lock().unwrap().push(second.attach(&group, 0).unwrap());
        plenty()
    };
    let scan = move |_: &Ask<'_>| {
        calls.fetch_add(1, Ordering::Relaxed);
        Scan::Freed { bytes: 0 }
    };
    // At cost 0 it is asked for half of its bytes at once.
    let config = ShrinkerConfig::new("first").cost(0);
    let first = hierarchy.add_shrinker(config, Made(count, scan)).unwrap();
    let slot = first.attach(&tenants, 0).unwrap();
    slot.mark();
    slots.lock().unwrap().push(slot);
    tenants.reclaim(PAGE, None);
    assert_eq!(scanned.load(Ordering::Relaxed), 0);
    slots.lock().unwrap().clear();
}
