//! Caches that hang, panic, give nothing, or throttle in their callbacks; numbers that are out of
//! range.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use memgroup::{Ask, Charge, Config, Hierarchy, Scan, SlotSource, ThrottleEnd};

use super::cache::{PAGE, add, plenty};
use super::{MIB, above, group};

#[test]
fn a_limit_that_is_out_of_range_changes_nothing() {
    let (_hierarchy, etl) = group(2);
    etl.set_high(MIB).unwrap();
    let error = etl.set_high(1 << 48).unwrap_err();
    assert_eq!((error.asked, etl.high()), (1 << 48, Some(MIB)));
    assert!(error.to_string().contains("281474976710656"), "{error}");
    etl.set_high((1 << 48) - 1).unwrap();
}

#[test]
fn delays_no_thread_and_asks_no_shrinker_in_a_callback() {
    let (_hierarchy, etl, _pinned) = above(900);
    let more = etl.try_charge(64 * PAGE).unwrap();
    let ends = Arc::new(Mutex::new(Vec::new()));
    let (seen, calls) = (Arc::clone(&ends), Arc::new(AtomicU64::new(0)));
    let count = Arc::clone(&calls);
    let _shrinker = add(&etl, "throttles", plenty, move |ask: &Ask<'_>| {
        count.fetch_add(1, Ordering::Relaxed);
        let group = ask.group();
        seen.lock().unwrap().push((group.throttle(None).end, group.take_throttle().is_none()));
        let before = count.load(Ordering::Relaxed);
        group.set_high(999 * MIB).unwrap();
        drop(group.try_charge(PAGE).unwrap());
        assert_eq!(count.load(Ordering::Relaxed), before, "no callback within a callback");
        Scan::Stopped { bytes: 0 }
    });
    let owed = etl.owed();
    etl.reclaim(MIB, None);
    assert!(calls.load(Ordering::Relaxed) > 0);
    assert!(ends.lock().unwrap().iter().all(|end| *end == (ThrottleEnd::Inside, true)), "{ends:?}");
    assert!(etl.owed() >= owed && etl.high() == Some(999 * MIB));
    drop(more);
}

#[test]
fn lets_shrinkers_wait_for_set_high_but_not_for_a_charge() {
    let (_hierarchy, etl) = group(2);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let _shrinker = add(&etl, "notes", plenty, move |ask: &Ask<'_>| {
        seen.lock().unwrap().push((ask.may_wait(), ask.bytes()));
        Scan::Freed { bytes: 0 }
    });
    etl.set_high(MIB).unwrap();
    assert!(asked.lock().unwrap().is_empty(), "nothing is above");
    let charge = etl.try_charge(2 * MIB).unwrap();
    let of_charge = std::mem::take(&mut *asked.lock().unwrap());
    assert!(!of_charge.is_empty() && of_charge.iter().all(|(may_wait, _)| !may_wait), "{of_charge:?}");
    etl.set_high(MIB).unwrap();
    let of_setter = std::mem::take(&mut *asked.lock().unwrap());
    assert!(!of_setter.is_empty() && of_setter.iter().all(|(may_wait, _)| *may_wait), "{of_setter:?}");
    drop(charge);
}

#[test]
fn asks_shrinkers_for_no_more_than_a_charge_took() {
    let (_hierarchy, etl) = group(2);
    let (stuck, pages) = (Arc::new(AtomicBool::new(true)), Arc::new(Mutex::new(Vec::new())));
    let (is_stuck, cached) = (Arc::clone(&stuck), Arc::clone(&pages));
    let _shrinker = add(&etl, "stuck at first", plenty, move |ask: &Ask<'_>| {
        if is_stuck.load(Ordering::Relaxed) {
            return Scan::Stopped { bytes: 0 };
        }
        let mut pages = cached.lock().unwrap();
        let keep = pages.len().saturating_sub(ask.bytes().div_ceil(PAGE) as usize);
        let given: Vec<Charge> = pages.split_off(keep);
        Scan::Freed { bytes: given.len() as u64 * PAGE }
    });
    pages.lock().unwrap().extend((0..10 * MIB / PAGE).map(|_| etl.try_charge(PAGE).unwrap()));
    etl.set_high(MIB).unwrap();
    let before = pages.lock().unwrap().len() as u64;
    assert_eq!(before, 10 * MIB / PAGE, "nothing could be had");
    stuck.store(false, Ordering::Relaxed);
    let charge = etl.try_charge(PAGE).unwrap();
    let given = before - pages.lock().unwrap().len() as u64;
    // Its page with a batch of 64 KiB and 64 KiB more, and the rest of a batch of theirs.
    assert!((17..=49).contains(&given), "{given} pages were given back for one");
    etl.drain();
    assert_eq!(etl.owed(), PAGE, "it is still above");
    drop(charge);
}

#[test]
fn a_forced_charge_asks_no_cache() {
    let (_hierarchy, etl) = group(2);
    let calls = Arc::new(AtomicU64::new(0));
    let (counts, scans) = (Arc::clone(&calls), Arc::clone(&calls));
    let count = move || {
        counts.fetch_add(1, Ordering::Relaxed);
        plenty()
    };
    let _shrinker = add(&etl, "counts", count, move |_: &Ask<'_>| {
        scans.fetch_add(1, Ordering::Relaxed);
        Scan::Freed { bytes: 0 }
    });
    etl.set_high(MIB).unwrap();
    let forced = etl.charge_forced(3 * MIB).unwrap();
    assert_eq!((calls.load(Ordering::Relaxed), etl.events().high, etl.owed()), (0, 1, 2 * MIB));
    drop(forced);
}

#[test]
fn makes_and_owes_a_charge_also_when_a_shrinker_fails() {
    for fault in ["panics", "lies", "stops", "takes more"] {
        let (_hierarchy, etl) = group(2);
        let (taken, of) = (Arc::new(Mutex::new(Vec::<Charge>::new())), etl.clone());
        let keeps = Arc::clone(&taken);
        let _shrinker = add(&etl, fault, plenty, move |_: &Ask<'_>| match fault {
            "panics" => panic!("a cache that panics on purpose"),
            "lies" => Scan::Freed { bytes: u64::MAX },
            "stops" => Scan::Stopped { bytes: 0 },
            _ => {
                keeps.lock().unwrap().push(of.try_charge(PAGE).unwrap());
                Scan::Freed { bytes: 0 }
            }
        });
        etl.set_high(MIB).unwrap();
        let charge = etl.try_charge(2 * MIB).unwrap();
        let kept = taken.lock().unwrap().len() as u64 * PAGE;
        assert_eq!(etl.usage_exact(), 2 * MIB + kept, "{fault}");
        assert!(etl.owed() >= MIB && etl.owed() <= 2 * MIB + kept, "{fault}: {} bytes are owed", etl.owed());
        drop(charge);
        taken.lock().unwrap().clear();
        assert_eq!(etl.usage_exact(), 0);
    }
}

#[test]
fn asks_fruitless_shrinkers_not_at_each_small_charge() {
    let (_hierarchy, etl) = group(2);
    let counts = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&counts);
    let count = move || {
        seen.fetch_add(1, Ordering::Relaxed);
        plenty()
    };
    let _shrinker = add(&etl, "gives nothing", count, |_: &Ask<'_>| Scan::Freed { bytes: 0 });
    etl.set_high(MIB).unwrap();
    let first = etl.try_charge(2 * MIB).unwrap();
    let for_one = counts.swap(0, Ordering::Relaxed);
    assert!(for_one > 0);
    let small: Vec<_> = (0..500).map(|_| etl.try_charge(64).unwrap()).collect();
    assert_eq!(
        counts.load(Ordering::Relaxed),
        0,
        "32,000 bytes and a batch are less than is asked for at a time"
    );
    let large = etl.try_charge(MIB).unwrap();
    assert!(counts.load(Ordering::Relaxed) > 0, "it is asked again when usage has grown");
    drop((first, small, large));
}

#[test]
fn numbers_at_the_end_of_the_range_overflow_nowhere() {
    let slots = SlotSource::virtual_slots(2).unwrap();
    let hierarchy = Hierarchy::new(Config::with_slots(slots)).unwrap();
    let etl = hierarchy.create("/etl").unwrap();
    etl.set_high(0).unwrap();
    let all = etl.try_charge((1 << 48) - 1).unwrap();
    assert_eq!(etl.owed(), (1 << 48) - 1);
    assert!(etl.charge_forced(1).is_err(), "a counter holds no more");
    let throttle = etl.take_throttle().unwrap();
    assert_eq!(throttle.delay().as_secs(), 2);
    drop(throttle);
    assert!(etl.owed() <= 4096, "two seconds pay for all but nothing of it");
    etl.set_high((1 << 48) - 1).unwrap();
    assert!(matches!(etl.throttle(None).end, ThrottleEnd::Within | ThrottleEnd::NothingDue));
    assert_eq!(etl.owed(), 0);
    drop(all);
}
