//! Waits together with the other parts: shrinkers that hang, moves, victims that do not die,
//! dry-run limits, injected failures, events.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memgroup::{
    Ask, Charge, ChargeErrorKind, Config, Count, Hierarchy, KillAnswer, KillRequest, Scan, Shrinker,
    ShrinkerConfig, SlotSource, WaitKind,
};

use super::{PAGE, far, in_ms, parent, until_in_line};

/// Has nothing to give, and takes long to say so once it is told to.
struct Slow {
    hangs: Arc<AtomicBool>,
    is_in: Arc<AtomicBool>,
}

impl Shrinker for Slow {
    fn count(&self, _token: u64) -> Count {
        Count::Holds { bytes: 64 * PAGE, objects: 64 }
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        while self.hangs.load(Ordering::Acquire) {
            self.is_in.store(true, Ordering::Release);
            std::thread::yield_now();
        }
        Scan::Stopped { bytes: 0 }
    }
}

#[test]
fn passes_a_waiter_that_is_in_a_shrinkers_call() {
    let (hierarchy, tenants) = parent(2, 64);
    let (alice, bob) = (tenants.create("alice").unwrap(), tenants.create("bob").unwrap());
    let (hangs, is_in) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let slow = Slow { hangs: Arc::clone(&hangs), is_in: Arc::clone(&is_in) };
    let shrinker =
        bob.add_shrinker(ShrinkerConfig::new("slow").patience(Duration::from_secs(60)), slow).unwrap();
    let held = bob.try_charge(64 * PAGE).unwrap();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| alice.charge_until(PAGE, far()));
        until_in_line(&hierarchy, 1);
        hangs.store(true, Ordering::Release);
        shrinker.mark();
        while !is_in.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        drop(held);
        for number in 0..40 {
            let charge = bob.charge_until(PAGE, far());
            assert!(charge.is_ok(), "{number}: {charge:?}");
        }
        hangs.store(false, Ordering::Release);
        drop(first.join().unwrap().unwrap());
    });
    assert_eq!(tenants.usage_exact(), 0);
    shrinker.remove().unwrap();
}

#[test]
fn serves_a_waiter_when_a_move_makes_room() {
    let (hierarchy, tenants) = parent(2, 0);
    tenants.set_max(8000).unwrap();
    let [x, y, z] = ["x", "y", "z"].map(|name| tenants.create(name).unwrap());
    z.set_min(5000).unwrap();
    x.set_min(1000).unwrap();
    let mut held: Charge = x.try_charge(1500).unwrap();
    let _others = y.try_charge(5500).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| x.charge_until(200, far()));
        until_in_line(&hierarchy, 1);
        let mut moved = held.split(1000);
        moved.try_move_to(&y).unwrap();
        drop(waiter.join().unwrap().expect("x is within its min now, and may use the bytes kept free"));
    });
}

#[test]
fn chooses_the_next_victim_for_a_waiter() {
    let config =
        Config::with_slots(SlotSource::virtual_slots(2).unwrap()).kill_patience(Duration::from_millis(50));
    let hierarchy = Hierarchy::new(config).unwrap();
    let tenants = hierarchy.create("/tenants").unwrap();
    tenants.set_max(64 * PAGE).unwrap();
    let [stubborn, willing, needy] =
        ["stubborn", "willing", "needy"].map(|name| tenants.create(name).unwrap());
    stubborn.set_oom_score(100).unwrap();
    let _stays = stubborn.try_charge(30 * PAGE).unwrap();
    let goes = Arc::new(Mutex::new(Some(willing.try_charge(30 * PAGE).unwrap())));
    let _first = stubborn.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Dying).unwrap();
    let _second = willing
        .set_kill_hook(move |_: &KillRequest<'_>| {
            drop(goes.lock().unwrap().take());
            KillAnswer::Dying
        })
        .unwrap();
    let charge = needy.charge_until(20 * PAGE, far());
    assert!(charge.is_ok(), "{charge:?}");
    assert_eq!((stubborn.oom_kills_overdue(), willing.events_local().oom_kill), (1, 1));
}

#[test]
fn never_waits_at_a_dry_run() {
    let (hierarchy, tenants) = parent(2, 4);
    let held = tenants.try_charge(4 * PAGE).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| tenants.charge_until(2 * PAGE, far()));
        until_in_line(&hierarchy, 1);
        tenants.set_enforced(false);
        drop(waiter.join().unwrap().expect("it passes"));
        drop(tenants.charge_until(100 * PAGE, in_ms(0)).expect("more than the limit passes, too"));
    });
    drop(held);
    assert!(hierarchy.waits().is_empty());
}

#[test]
fn a_charge_larger_than_any_counter_holds_does_not_wait() {
    let (hierarchy, _tenants) = parent(2, 4);
    let unlimited = hierarchy.create("/unlimited").unwrap();
    let began = Instant::now();
    for bytes in [1 << 50, u64::MAX] {
        let error = unlimited.charge_until(bytes, far()).unwrap_err();
        assert_eq!(error.kind(), ChargeErrorKind::TooLarge, "{error}");
    }
    assert!(began.elapsed() < Duration::from_secs(30), "it waited for its deadline");
}

#[test]
fn injects_failures_into_waits_and_moves() {
    let (_hierarchy, tenants) = parent(2, 64);
    let (alice, bob) = (tenants.create("alice").unwrap(), tenants.create("bob").unwrap());
    let mut held = bob.try_charge(PAGE).unwrap();
    let injection = alice.inject_failures_at(..);
    assert_eq!(alice.charge_until(PAGE, far()).unwrap_err().kind(), ChargeErrorKind::Injected);
    assert_eq!(held.try_move_to(&alice).unwrap_err().kind(), ChargeErrorKind::Injected);
    assert_eq!((held.group() == bob, injection.failed()), (true, 2));
}

#[test]
fn lists_a_wait_for_events_and_can_end_it() {
    let (hierarchy, tenants) = parent(2, 4);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| tenants.wait_events(&tenants.events(), None));
        until_in_line(&hierarchy, 1);
        assert_eq!((hierarchy.waits()[0].kind, tenants.waiters().now), (WaitKind::Event, 0));
        assert_eq!(tenants.wake_waiters(), 1);
        assert_eq!(waiter.join().unwrap(), None);
    });
    assert!(hierarchy.waits().is_empty());
}

#[test]
fn serves_each_of_thousands_of_waiters() {
    let (hierarchy, tenants) = parent(2, 1);
    tenants.set_max(200).unwrap();
    let held = tenants.try_charge(200).unwrap();
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..200).map(|_| scope.spawn(|| tenants.charge_until(1, far()))).collect();
        until_in_line(&hierarchy, 200);
        drop(held);
        // Each holds its byte until all are there: so all were served by one free.
        let charges: Vec<_> = waiters.into_iter().map(|waiter| waiter.join().unwrap().unwrap()).collect();
        assert_eq!(charges.len(), 200);
    });
}

#[test]
fn refuses_a_charge_larger_than_a_counter_at_a_dry_run() {
    let (_hierarchy, tenants) = parent(2, 1);
    tenants.set_enforced(false);
    let began = Instant::now();
    assert_eq!(tenants.charge_until(u64::MAX, far()).unwrap_err().kind(), ChargeErrorKind::TooLarge);
    assert!(began.elapsed() < Duration::from_secs(30), "it waited for its deadline");
}

#[test]
fn asks_a_refusing_hook_once_for_one_waiter() {
    let (_hierarchy, tenants) = parent(2, 4);
    let (idle, needy) = (tenants.create("idle").unwrap(), tenants.create("needy").unwrap());
    let _held = idle.try_charge(4 * PAGE).unwrap();
    let asked = Arc::new(Mutex::new(0));
    let counts = Arc::clone(&asked);
    let hook = idle.set_kill_hook(move |_: &KillRequest<'_>| {
        *counts.lock().unwrap() += 1;
        KillAnswer::Refused
    });
    let error = needy.charge_until(PAGE, in_ms(700)).unwrap_err();
    assert_eq!(error.kind(), ChargeErrorKind::Deadline);
    let asked = *asked.lock().unwrap();
    assert!((1..=3).contains(&asked), "{asked} times");
    assert!(tenants.events().oom <= 3, "{:?}", tenants.events());
    drop(hook);
}

#[test]
fn owes_bytes_above_high_with_or_without_a_wait() {
    let (hierarchy, tenants) = parent(2, 16);
    let (alice, bob) = (tenants.create("alice").unwrap(), tenants.create("bob").unwrap());
    alice.set_high(PAGE).unwrap();
    let at_once = alice.charge_until(3 * PAGE, far()).unwrap();
    assert_eq!(alice.owed(), 2 * PAGE);
    let held = bob.try_charge(13 * PAGE).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| alice.charge_until(2 * PAGE, far()));
        until_in_line(&hierarchy, 1);
        drop(held);
        let charge = waiter.join().unwrap().unwrap();
        assert_eq!(alice.owed(), 4 * PAGE);
        drop(charge);
    });
    drop(at_once);
}
