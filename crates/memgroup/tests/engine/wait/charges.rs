//! A charge with a deadline: when it waits, and where.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memgroup::{Ask, Charge, ChargeErrorKind, Count, Scan, Shrinker, ShrinkerConfig, WaitKind};

use super::{PAGE, far, in_ms, parent, until_in_line, until_waiting, waits_in_vain};

#[test]
fn charges_at_once_through_the_stock_when_there_is_room() {
    let (hierarchy, tenants) = parent(2, 1000);
    let group = tenants.create("group").unwrap();
    for _ in 0..100 {
        drop(group.charge_until(PAGE, far()).unwrap());
    }
    let stock = group.stock();
    assert!(stock.prepaid_bytes > 0 && stock.misses < 10, "{stock:?}");
    let nothing = group.charge_until(0, far()).unwrap();
    assert_eq!((nothing.bytes(), tenants.usage_exact()), (0, 0));
    assert!(hierarchy.waits().is_empty());
}

#[test]
fn hands_bytes_freed_anywhere_below_to_the_waiter() {
    for slots in [1, 2, 128] {
        let (hierarchy, tenants) = parent(slots, 10);
        let (idle, busy) = (tenants.create("idle").unwrap(), tenants.create("busy").unwrap());
        let mut held = idle.try_charge(8 * PAGE).unwrap();
        let _rest = busy.try_charge(2 * PAGE).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| busy.charge_until(3 * PAGE, far()));
            until_in_line(&hierarchy, 1);
            let waits = hierarchy.waits();
            assert_eq!((waits[0].group.as_str(), waits[0].at.as_str()), ("/tenants/busy", "/tenants"));
            assert_eq!((waits[0].kind, waits[0].bytes), (WaitKind::Charge, 3 * PAGE));
            for _ in 0..2 {
                held.shrink(PAGE);
                assert_eq!(tenants.waiters().now, 1, "too little yet");
            }
            held.shrink(PAGE);
            let charge = waiter.join().unwrap().expect("three pages are free");
            assert_eq!(
                (charge.bytes(), busy.usage_exact(), tenants.usage_exact()),
                (3 * PAGE, 5 * PAGE, 10 * PAGE)
            );
        });
        assert_eq!((hierarchy.waits().len(), hierarchy.root().waiters().now), (0, 0));
        drop(held);
        // No charge waits any more, so there is stock again.
        drop(idle.try_charge(PAGE / 8).unwrap());
        assert!(idle.stock().prepaid_bytes > 0, "{:?}", idle.stock());
    }
}

#[test]
fn without_a_stock_waits_are_served_as_well() {
    let config = memgroup::Config::new().stock_cap_bytes(0);
    let hierarchy = memgroup::Hierarchy::new(config).unwrap();
    let group = hierarchy.create("/group").unwrap();
    group.set_max(PAGE).unwrap();
    let held = group.try_charge(PAGE).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| group.charge_until(PAGE, far()));
        until_waiting(&group, 1);
        drop(held);
        drop(waiter.join().unwrap().unwrap());
    });
    assert_eq!(group.usage(), 0);
}

#[test]
fn a_charge_that_finds_another_level_full_waits_there() {
    let (hierarchy, tenants) = parent(2, 10);
    let (alice, bob) = (tenants.create("alice").unwrap(), tenants.create("bob").unwrap());
    alice.set_max(4 * PAGE).unwrap();
    let own = alice.try_charge(4 * PAGE).unwrap();
    let mut others = bob.try_charge(5 * PAGE).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| alice.charge_until(2 * PAGE, far()));
        until_waiting(&alice, 1);
        assert_eq!(hierarchy.waits()[0].at, "/tenants/alice");
        others.grow_forced(PAGE).unwrap();
        drop(own);
        let charge = waiter.join().unwrap().unwrap();
        others.grow_forced(2 * PAGE).unwrap();
        assert_eq!(tenants.usage_exact(), 10 * PAGE);
        // Its own group has room for two more, the parent has not.
        let waiter = scope.spawn(|| alice.charge_until(2 * PAGE, far()));
        until_in_line(&hierarchy, 1);
        // Now its own has not, either.
        let mut more = alice.charge_forced(PAGE).unwrap();
        others.shrink(3 * PAGE);
        while hierarchy.waits()[0].at != "/tenants/alice" {
            std::thread::yield_now();
        }
        more.shrink(PAGE);
        drop(waiter.join().unwrap().unwrap());
        drop(charge);
    });
    drop(others);
    assert_eq!((tenants.usage_exact(), tenants.waiters().now), (0, 0));
}

#[test]
fn serves_waiters_when_a_limit_is_raised_or_refuses_them() {
    let (_hierarchy, tenants) = parent(2, 4);
    let _held = tenants.try_charge(4 * PAGE).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| tenants.charge_until(3 * PAGE, far()));
        until_waiting(&tenants, 1);
        tenants.set_max(7 * PAGE).unwrap();
        drop(waiter.join().unwrap().unwrap());
        let waiter = scope.spawn(|| tenants.charge_until(5 * PAGE, far()));
        until_waiting(&tenants, 1);
        tenants.set_max(5 * PAGE - 1).unwrap();
        let error = waiter.join().unwrap().unwrap_err();
        assert_eq!((error.kind(), error.max()), (ChargeErrorKind::Refused, Some(5 * PAGE - 1)));
        tenants.set_max(4 * PAGE).unwrap();
        let waiter = scope.spawn(|| tenants.charge_until(PAGE, far()));
        until_waiting(&tenants, 1);
        tenants.set_max(None).unwrap();
        drop(waiter.join().unwrap().unwrap());
    });
    assert_eq!(tenants.usage_exact(), 4 * PAGE);
}

#[test]
fn serves_a_waiter_when_a_protection_is_removed() {
    for removed in [false, true] {
        let (hierarchy, tenants) = parent(2, 1000);
        let (guarded, busy) = (tenants.create("guarded").unwrap(), tenants.create("busy").unwrap());
        guarded.set_min(500 * PAGE).unwrap();
        let _held = tenants.charge_forced(995 * PAGE).unwrap();
        let deadline = far();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| busy.charge_until(5 * PAGE, deadline));
            until_in_line(&hierarchy, 1);
            if removed {
                guarded.remove().unwrap();
            } else {
                guarded.set_min(0).unwrap();
            }
            drop(waiter.join().unwrap().unwrap());
        });
        assert!(Instant::now() < deadline);
    }
}

#[test]
fn does_not_wait_for_the_impossible_or_after_the_deadline() {
    let (_hierarchy, tenants) = parent(2, 4);
    let group = tenants.create("group").unwrap();
    let error = group.charge_until(5 * PAGE, far()).unwrap_err();
    assert_eq!(
        (error.kind(), error.group(), error.waited()),
        (ChargeErrorKind::Refused, tenants.id(), Duration::ZERO)
    );
    let _held = group.try_charge(4 * PAGE).unwrap();
    let error = group.charge_until(PAGE, Instant::now()).unwrap_err();
    assert_eq!(
        (error.kind(), error.usage(), error.max()),
        (ChargeErrorKind::Deadline, 4 * PAGE, Some(4 * PAGE))
    );
    let refusals = tenants.refusals();
    let error = waits_in_vain(&group, 10);
    assert!(error.to_string().contains("no room in group /tenants within"), "{error}");
    assert_eq!(tenants.refusals(), refusals + 1, "refused once, however often it was tried");
    assert_eq!(tenants.waiters().now, 0);
}

#[test]
fn a_charge_that_waited_and_was_made_is_no_refusal() {
    let (_hierarchy, tenants) = parent(2, 4);
    let held = tenants.try_charge(4 * PAGE).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| tenants.charge_until(PAGE, far()));
        until_waiting(&tenants, 1);
        drop(held);
        drop(waiter.join().unwrap().unwrap());
    });
    assert_eq!((tenants.refusals(), tenants.events().max), (0, 1));
}

#[test]
fn grows_a_charge_when_there_is_room_else_leaves_it() {
    let (_hierarchy, tenants) = parent(2, 4);
    let mut charge = tenants.try_charge(3 * PAGE).unwrap();
    charge.grow_until(PAGE, far()).unwrap();
    assert_eq!(charge.grow_until(PAGE, in_ms(5)).unwrap_err().kind(), ChargeErrorKind::Deadline);
    assert_eq!((charge.bytes(), tenants.usage_exact()), (4 * PAGE, 4 * PAGE));
    let mut empty = tenants.try_charge(0).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| empty.grow_until(2 * PAGE, far()));
        until_waiting(&tenants, 1);
        charge.shrink(2 * PAGE);
        waiter.join().unwrap().unwrap();
    });
    assert_eq!((empty.bytes(), charge.bytes()), (2 * PAGE, 2 * PAGE));
}

/// Charges with a deadline from within its calls.
struct Charging {
    group: memgroup::Group,
    outcomes: std::sync::mpsc::Sender<Result<u64, ChargeErrorKind>>,
}

impl Shrinker for Charging {
    fn count(&self, _token: u64) -> Count {
        Count::Holds { bytes: 1 << 20, objects: 1 }
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        let outcome = self.group.charge_until(64 * PAGE + 1, far());
        let _ = self.outcomes.send(outcome.map(|charge| charge.bytes()).map_err(|error| error.kind()));
        Scan::Freed { bytes: 0 }
    }
}

#[test]
fn does_not_wait_in_a_shrinkers_call_or_a_read_section() {
    let (_hierarchy, tenants) = parent(2, 100);
    let group = tenants.create("group").unwrap();
    let (sender, outcomes) = std::sync::mpsc::channel();
    let shrinker = Charging { group: group.clone(), outcomes: sender };
    let shrinker = group.add_shrinker(ShrinkerConfig::new("charging"), shrinker).unwrap();
    shrinker.mark();
    let _held = group.try_charge(100 * PAGE).unwrap();
    group.try_charge(PAGE).unwrap_err();
    assert_eq!(outcomes.recv().unwrap(), Err(ChargeErrorKind::Refused), "the reserve is less");
    shrinker.remove().unwrap();
    let section = memgroup_sync::grace::enter();
    let error = group.charge_until(PAGE, far()).unwrap_err();
    assert_eq!((error.kind(), error.waited()), (ChargeErrorKind::Refused, Duration::ZERO));
    drop(section);
}

/// A cache that is filled after a wait has begun.
#[derive(Clone)]
struct Late(Arc<Mutex<Vec<Charge>>>, Arc<AtomicBool>);

impl Shrinker for Late {
    fn count(&self, _token: u64) -> Count {
        let filled = self.1.load(Ordering::SeqCst);
        let bytes = if filled { self.0.lock().unwrap().len() as u64 * PAGE } else { 0 };
        if bytes > 0 { Count::Holds { bytes, objects: 1 } } else { Count::Empty }
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        let page = self.0.lock().unwrap().pop();
        Scan::Freed { bytes: page.map_or(0, |page| page.bytes()) }
    }
}

#[test]
fn asks_a_cache_that_fills_while_a_charge_waits() {
    let (_hierarchy, tenants) = parent(2, 4);
    let (idle, busy) = (tenants.create("idle").unwrap(), tenants.create("busy").unwrap());
    let pages: Vec<Charge> = (0..4).map(|_| idle.try_charge(PAGE).unwrap()).collect();
    let cache = Late(Arc::new(Mutex::new(pages)), Arc::default());
    let shrinker = idle.add_shrinker(ShrinkerConfig::new("late"), cache.clone()).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| busy.charge_until(2 * PAGE, far()));
        until_waiting(&tenants, 1);
        cache.1.store(true, Ordering::SeqCst);
        shrinker.mark();
        assert_eq!(waiter.join().unwrap().unwrap().bytes(), 2 * PAGE);
    });
    shrinker.remove().unwrap();
    cache.0.lock().unwrap().clear();
    assert_eq!(tenants.usage_exact(), 0);
}

#[test]
fn refuses_at_once_what_a_limit_never_lets_through_although_others_wait_above() {
    let (hierarchy, tenants) = parent(2, 10);
    let (alice, bob) = (tenants.create("alice").unwrap(), tenants.create("bob").unwrap());
    alice.set_max(2 * PAGE).unwrap();
    let below = alice.create("below").unwrap();
    below.set_max(PAGE).unwrap();
    let held = bob.try_charge(9 * PAGE).unwrap();
    let own = below.try_charge(PAGE).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| bob.charge_until(2 * PAGE, far()));
        until_in_line(&hierarchy, 1);
        let refused_at = |group: &memgroup::Group, bytes| {
            let error = group.charge_until(bytes, in_ms(2000)).unwrap_err();
            assert_eq!(error.kind(), ChargeErrorKind::Refused, "{error}");
            let room = group.wait_for_room(bytes, in_ms(2000)).unwrap_err();
            assert_eq!((room.kind(), room.group()), (ChargeErrorKind::Refused, error.group()));
            error.group()
        };
        assert_eq!(refused_at(&alice, 3 * PAGE), alice.id());
        assert_eq!(refused_at(&below, 2 * PAGE), below.id());
        // The full level has room for it one day; the level above never has.
        below.set_max(None).unwrap();
        assert_eq!(refused_at(&below, 3 * PAGE), alice.id());
        assert_eq!(tenants.waiters().now, 1);
        drop(held);
        drop(waiter.join().unwrap().unwrap());
    });
    drop(own);
    assert_eq!(tenants.usage_exact(), 0);
}
