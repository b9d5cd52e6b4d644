//! How long a charge goes on asking caches, and how often a shrinker is asked that frees nothing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memgroup::{Charge, Config, Group, Hierarchy, Scan, SlotSource};

use super::cache::{PAGE, add, plenty};

/// A full group in a hierarchy with so much patience.
fn full(patience: Duration) -> (Hierarchy, Group, Charge) {
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).reclaim_patience(patience);
    let hierarchy = Hierarchy::new(config).unwrap();
    let tenants = hierarchy.create("/tenants").unwrap();
    tenants.set_max(100 * PAGE).unwrap();
    let held = tenants.try_charge(100 * PAGE).unwrap();
    (hierarchy, tenants, held)
}

#[test]
fn ends_all_rounds_with_the_patience_of_the_charge() {
    const PATIENCE: Duration = Duration::from_millis(1);
    let (_hierarchy, tenants, _held) = full(PATIENCE);
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    // One call takes all the time there is.
    let _slow = add(&tenants, "slow", plenty, move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(2 * PATIENCE);
        Scan::Stopped { bytes: 0 }
    });
    for charge in 1..=3 {
        assert!(tenants.try_charge(PAGE).is_err());
        assert_eq!(calls.load(Ordering::Relaxed), charge, "one call for each charge");
    }
}

#[test]
fn waits_for_a_cache_no_longer_than_the_patience_of_the_charge() {
    let (_hierarchy, tenants, _held) = full(Duration::from_millis(5));
    let (is_in, goes_on) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let told = (Arc::clone(&is_in), Arc::clone(&goes_on));
    // Its own patience is a second for each call, so it never is overdue here.
    let config = memgroup::ShrinkerConfig::new("stuck").patience(Duration::from_secs(3600));
    let scan = move |_: &memgroup::Ask<'_>| {
        told.0.store(true, Ordering::SeqCst);
        while !told.1.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        Scan::Stopped { bytes: 0 }
    };
    let stuck = tenants.add_shrinker(config, super::cache::Made(plenty, scan)).unwrap();
    stuck.mark();
    std::thread::scope(|scope| {
        // On a busy machine its patience may be over before it comes to the shrinker. Then it
        // charges again.
        let caller = scope.spawn(|| {
            while tenants.try_charge(PAGE).is_err() {
                if is_in.load(Ordering::SeqCst) {
                    return true;
                }
            }
            false
        });
        while !is_in.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        // It would wait for an hour.
        assert!(tenants.try_charge(PAGE).is_err());
        assert!(!caller.is_finished(), "the call goes on");
        goes_on.store(true, Ordering::SeqCst);
        assert!(caller.join().unwrap());
    });
}

#[test]
fn asks_a_shrinker_that_frees_nothing_more_and_more_seldom() {
    const CHARGES: u64 = 1000;
    let (_hierarchy, tenants, held) = full(Duration::from_secs(3600));
    let (scans, held) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Some(held))));
    let gives = Arc::new(AtomicBool::new(false));
    let (counted, given, may_give) = (Arc::clone(&scans), Arc::clone(&held), Arc::clone(&gives));
    let lies = add(&tenants, "lies", plenty, move |ask| {
        counted.fetch_add(1, Ordering::Relaxed);
        if may_give.load(Ordering::Relaxed) {
            held_page(&given);
        }
        Scan::Freed { bytes: ask.bytes() }
    });
    let calls = |charges: u64| {
        (0..charges).for_each(|_| assert!(tenants.try_charge(PAGE).is_err()));
        scans.swap(0, Ordering::Relaxed)
    };
    let all = calls(CHARGES);
    assert!(all < 2 * CHARGES, "{all} calls for {CHARGES} charges, of which each can ask twice");
    let later = calls(CHARGES);
    assert!(0 < later && later < CHARGES / 4, "{later} calls for the next {CHARGES} charges");
    lies.mark();
    assert!(calls(1) > 0, "it has told of a change");
    calls(CHARGES);
    // It is still asked now and then. Once it has freed something, it is asked at once.
    gives.store(true, Ordering::Relaxed);
    let refused = (0..CHARGES).take_while(|_| tenants.try_charge(PAGE).is_err()).count();
    assert!(refused < 512, "{refused} refusals");
    assert!((0..50).all(|_| tenants.try_charge(PAGE).map(std::mem::forget).is_ok()), "it frees again");
}

/// Gives one page back.
fn held_page(held: &Mutex<Option<Charge>>) {
    if let Some(charge) = held.lock().unwrap().as_mut() {
        drop(charge.split(PAGE));
    }
}
