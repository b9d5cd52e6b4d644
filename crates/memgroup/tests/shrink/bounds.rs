//! How long a charge goes on, when a series of calls ends, and in which order caches are asked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memgroup::{Ask, Charge, Count, Group, Hierarchy, Registration, Scan, Seat, ShrinkerConfig};

use super::cache::{BATCH, Made, PAGE, Tenant, add, parent, plenty};

/// A cache of so many pages, all of them together less than a batch, which gives one at every call of so many and cannot go on then; and how often
/// it was called.
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
    let config = ShrinkerConfig::new("drop by drop").batch_bytes(1 << 40);
    let shrinker = group.add_shrinker(config, Made(plenty, scan)).unwrap();
    shrinker.mark();
    (calls, shrinker)
}

#[test]
fn a_charge_is_made_page_by_page_and_ends_in_a_refusal_where_there_are_too_many() {
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
fn rounds_that_come_to_nothing_are_sixteen_in_a_row_at_most() {
    let (_hierarchy, tenants) = parent(2, 3000);
    let (calls, shrinker) = drop_by_drop(&tenants, 3000, u64::MAX);
    let busy = tenants.create("busy").unwrap();
    assert!(busy.try_charge(PAGE).is_err());
    assert_eq!(calls.load(Ordering::Relaxed), 2 * 17);
    shrinker.remove().unwrap();
    // Fruitless ones begin anew with each that is not: ten of twenty calls, for each page.
    let (_hierarchy, tenants) = parent(2, 3000);
    let (calls, _shrinker) = drop_by_drop(&tenants, 3000, 20);
    let _charge = tenants.create("busy").unwrap().try_charge(10 * PAGE).unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 10 * 20);
}

#[test]
fn the_largest_cache_that_can_be_asked_at_a_priority_is_asked_first() {
    let (_hierarchy, tenants) = parent(2, 700 * 16);
    let order: Arc<Mutex<Vec<&str>>> = Arc::default();
    // Both come to a batch at priority 5: 600 batches of which an eighth of a 32nd is asked for, and 64 of which half a 32nd is.
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
fn when_what_was_wanted_is_there_nobody_else_is_counted() {
    let (_hierarchy, tenants) = parent(2, 1000);
    let all: Vec<Tenant> = (0..2).map(|at| Tenant::new(&tenants, &format!("t{at}"))).collect();
    all.iter().for_each(|tenant| tenant.fill(400));
    // What they hold is known from then on.
    tenants.reclaim(PAGE, None);
    for tenant in &all {
        tenant.cache.counted();
    }
    assert_eq!(tenants.reclaim(PAGE, None).bytes, BATCH);
    assert_eq!(all.iter().map(|tenant| tenant.cache.counted()).sum::<u64>(), 1);
}

#[test]
fn a_cache_that_gives_a_quarter_of_what_it_is_asked_for_does_not_rest() {
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
    // What has no more than 255 batches is asked from priority 8 on; the first time it had 256.
    assert_eq!(hierarchy.shrinkers()[0].scans, 10, "series of calls, at priorities 9 to 0");
}

/// A shrinker whose first call drops one of these, and how often it was called.
struct Dropping {
    _hierarchy: Hierarchy,
    tenants: Group,
    kept: Arc<Mutex<(Option<Registration>, Option<Seat>)>>,
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
    fn new(what: fn(&mut (Option<Registration>, Option<Seat>))) -> Dropping {
        let (hierarchy, tenants) = parent(2, 1000);
        let _held = tenants.try_charge(1000 * PAGE).unwrap();
        let (kept, calls): (Arc<Mutex<(_, _)>>, Arc<AtomicU64>) = Default::default();
        let (mine, counted) = (Arc::clone(&kept), Arc::clone(&calls));
        let scan = move |_: &Ask<'_>| {
            counted.fetch_add(1, Ordering::Relaxed);
            what(&mut mine.lock().unwrap());
            Scan::Freed { bytes: 0 }
        };
        // Asked for half of what it has at once: a series of thirty calls.
        let config = ShrinkerConfig::new("dropping").cost(0);
        let registration = hierarchy.add_shrinker(config, Made(plenty, scan)).unwrap();
        let seat = registration.seat(&tenants, 0).unwrap();
        seat.mark();
        *kept.lock().unwrap() = (Some(registration), Some(seat));
        Dropping { _hierarchy: hierarchy, tenants, kept, calls, _held }
    }

    /// Calls of one reclaim.
    fn calls(&self) -> u64 {
        self.tenants.reclaim(PAGE, None);
        self.calls.swap(0, Ordering::Relaxed)
    }
}

#[test]
fn a_series_of_calls_ends_when_its_shrinker_is_removed_or_gives_its_seat_up() {
    let nothing = Dropping::new(|_| ());
    assert!(nothing.calls() > 30);
    let registration = Dropping::new(|(registration, _)| drop(registration.take()));
    assert_eq!(registration.calls(), 1);
    let seat = Dropping::new(|(_, seat)| drop(seat.take()));
    assert_eq!(seat.calls(), 1);
    assert!(seat.kept.lock().unwrap().0.is_some());
}

#[test]
fn a_shrinker_is_set_aside_with_its_third_call_that_takes_too_long_and_not_with_one_after_it_was_reinstated()
{
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
fn what_is_set_free_by_hand_is_everybodys_at_once() {
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
fn who_gets_a_seat_while_another_is_counted_there_is_not_taken_for_that_one() {
    let (hierarchy, tenants) = parent(2, 1000);
    let _held = tenants.try_charge(1000 * PAGE).unwrap();
    let (scanned, seats): (Arc<AtomicU64>, Arc<Mutex<Vec<Seat>>>) = Default::default();
    let second = hierarchy
        .add_shrinker(
            ShrinkerConfig::new("second"),
            Made(|| Count::Unknown, |_: &Ask<'_>| Scan::Freed { bytes: 0 }),
        )
        .unwrap();
    let (calls, mine, group) = (Arc::clone(&scanned), Arc::clone(&seats), tenants.clone());
    let count = move || {
        mine.lock().unwrap().clear();
        mine.lock().unwrap().push(second.seat(&group, 0).unwrap());
        plenty()
    };
    let scan = move |_: &Ask<'_>| {
        calls.fetch_add(1, Ordering::Relaxed);
        Scan::Freed { bytes: 0 }
    };
    // Asked for half of what it has at once.
    let config = ShrinkerConfig::new("first").cost(0);
    let first = hierarchy.add_shrinker(config, Made(count, scan)).unwrap();
    let seat = first.seat(&tenants, 0).unwrap();
    seat.mark();
    seats.lock().unwrap().push(seat);
    tenants.reclaim(PAGE, None);
    assert_eq!(scanned.load(Ordering::Relaxed), 0);
    seats.lock().unwrap().clear();
}
