//! A wait for room alone: in the same queue, and nothing is charged, no group killed for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use memgroup::{
    Ask, Charge, ChargeErrorKind, Count, KillAnswer, KillRequest, Scan, Shrinker, ShrinkerConfig, WaitKind,
};

use super::{PAGE, far, in_ms, parent, until_in_line};

#[test]
fn charges_nothing_when_it_waits_for_room() {
    for slots in [1, 2, 128] {
        let (hierarchy, tenants) = parent(slots, 10);
        let (idle, busy) = (tenants.create("idle").unwrap(), tenants.create("busy").unwrap());
        let mut held = idle.try_charge(8 * PAGE).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| busy.wait_for_room(5 * PAGE, far()));
            until_in_line(&hierarchy, 1);
            let waits = hierarchy.waits();
            assert_eq!((waits[0].kind, waits[0].bytes), (WaitKind::Charge, 5 * PAGE));
            held.shrink(2 * PAGE);
            assert_eq!(tenants.waiters().now, 1, "too little yet");
            held.shrink(PAGE);
            waiter.join().unwrap().expect("five pages are free");
        });
        assert_eq!((busy.usage(), busy.peak(), tenants.usage_exact()), (0, 0, 5 * PAGE));
        assert_eq!((hierarchy.waits().len(), tenants.refusals()), (0, 0));
        busy.wait_for_room(5 * PAGE, far()).expect("they are still free");
        busy.wait_for_room(0, far()).expect("nothing is always free");
        assert_eq!((busy.usage(), busy.peak()), (0, 0));
    }
}

#[test]
fn ends_all_waits_for_room_that_fit_and_serves_charges() {
    let (hierarchy, tenants) = parent(2, 10);
    let (idle, busy) = (tenants.create("idle").unwrap(), tenants.create("busy").unwrap());
    let held = idle.try_charge(8 * PAGE).unwrap();
    std::thread::scope(|scope| {
        let rooms = [6, 7].map(|pages| {
            let busy = &busy;
            let waiter = scope.spawn(move || busy.wait_for_room(pages * PAGE, far()));
            until_in_line(&hierarchy, pages as usize - 5);
            waiter
        });
        let charge = scope.spawn(|| busy.charge_until(8 * PAGE, far()));
        until_in_line(&hierarchy, 3);
        drop(held);
        for waiter in rooms {
            waiter.join().unwrap().expect("ten pages are free");
        }
        assert_eq!(charge.join().unwrap().expect("ten pages are free").bytes(), 8 * PAGE);
    });
    assert_eq!(tenants.usage_exact(), 0);
}

#[test]
fn kills_no_group_for_a_wait_for_room() {
    let (_hierarchy, tenants) = parent(2, 10);
    let (small, giant) = (tenants.create("small").unwrap(), tenants.create("giant").unwrap());
    let (memory, calls) = (small.try_charge(PAGE).unwrap(), Arc::new(AtomicU64::new(0)));
    let memory = Mutex::new(Some(memory));
    let counted = Arc::clone(&calls);
    let hook = move |_: &KillRequest<'_>| {
        // ORDERING: Relaxed; a count.
        counted.fetch_add(1, Ordering::Relaxed);
        drop(memory.lock().unwrap().take());
        KillAnswer::Dying
    };
    let _hook = small.set_kill_hook(hook).unwrap();
    // Three times as long as the first in line waits until it looks again.
    let error = giant.wait_for_room(10 * PAGE, in_ms(300)).unwrap_err();
    assert_eq!((error.kind(), error.usage()), (ChargeErrorKind::Deadline, PAGE));
    let error = giant.wait_for_room(10 * PAGE, Instant::now()).unwrap_err();
    assert_eq!(error.kind(), ChargeErrorKind::Deadline);
    // ORDERING: Relaxed, as above.
    assert_eq!((calls.load(Ordering::Relaxed), tenants.events().oom_kill), (0, 0));
    drop(giant.charge_until(10 * PAGE, far()).expect("it is killed for a charge"));
    // ORDERING: Relaxed, as above.
    assert_eq!((calls.load(Ordering::Relaxed), tenants.events().oom_kill), (1, 1));
}

/// A cache that is full after a while, without an uncharge.
#[derive(Clone, Default)]
struct Cache(Arc<Mutex<Vec<Charge>>>);

impl Shrinker for Cache {
    fn count(&self, _token: u64) -> Count {
        let held = self.0.lock().unwrap();
        Count::of(held.iter().map(Charge::bytes).sum(), held.len() as u64)
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        match self.0.lock().unwrap().pop() {
            Some(charge) => Scan::Freed { bytes: charge.bytes() },
            None => Scan::Stopped { bytes: 0 },
        }
    }
}

#[test]
fn asks_caches_at_once_and_during_a_wait_for_room() {
    let (hierarchy, tenants) = parent(2, 10);
    let (idle, busy) = (tenants.create("idle").unwrap(), tenants.create("busy").unwrap());
    let cache = Cache::default();
    let shrinker = idle.add_shrinker(ShrinkerConfig::new("cache"), cache.clone()).unwrap();
    let fill = |held: Charge| {
        cache.0.lock().unwrap().push(held);
        shrinker.mark();
    };
    fill(idle.try_charge(8 * PAGE).unwrap());
    busy.wait_for_room(5 * PAGE, in_ms(0)).expect("the cache is given back");
    assert_eq!(tenants.usage_exact(), 0);
    let held = idle.try_charge(8 * PAGE).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| busy.wait_for_room(5 * PAGE, far()));
        until_in_line(&hierarchy, 1);
        fill(held);
        waiter.join().unwrap().expect("the cache is given back");
    });
    assert_eq!((tenants.usage_exact(), tenants.refusals()), (0, 0));
    shrinker.remove().unwrap();
}

#[test]
fn ends_a_wait_for_room_as_that_of_a_charge() {
    let (hierarchy, tenants) = parent(2, 10);
    let (idle, busy) = (tenants.create("idle").unwrap(), tenants.create("busy").unwrap());
    let _held = idle.try_charge(8 * PAGE).unwrap();
    let kind_of = |end: &dyn Fn()| {
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| busy.wait_for_room(5 * PAGE, far()));
            until_in_line(&hierarchy, 1);
            end();
            waiter.join().unwrap().expect_err("there is no room").kind()
        })
    };
    assert_eq!(kind_of(&|| assert_eq!(busy.wake_waiters(), 1)), ChargeErrorKind::Woken);
    assert_eq!(kind_of(&|| tenants.set_max(4 * PAGE).unwrap()), ChargeErrorKind::Refused);
    tenants.set_max(10 * PAGE).unwrap();
    assert_eq!(kind_of(&|| busy.remove().unwrap()), ChargeErrorKind::Offline);
    for bytes in [0, PAGE] {
        let error = busy.wait_for_room(bytes, far()).expect_err("it was removed");
        assert_eq!(error.kind(), ChargeErrorKind::Offline, "{bytes} bytes");
    }
    let error = idle.wait_for_room(11 * PAGE, far()).expect_err("more than the limit");
    assert_eq!((error.kind(), error.group()), (ChargeErrorKind::Refused, tenants.id()));
}

#[test]
fn counts_nothing_at_a_limit_that_only_counts() {
    let (_hierarchy, tenants) = parent(2, 10);
    let group = tenants.create("group").unwrap();
    group.set_max(PAGE).unwrap();
    group.set_enforced(false);
    let _held = group.try_charge(PAGE).unwrap();
    let peak = tenants.peak();
    group.wait_for_room(2 * PAGE, far()).expect("the limit that is in force has room");
    assert_eq!((group.would_refuse(), group.over_bytes_max(), tenants.peak()), (0, 0, peak));
    let error = group.wait_for_room(10 * PAGE, in_ms(5)).unwrap_err();
    assert_eq!((error.kind(), error.group()), (ChargeErrorKind::Deadline, tenants.id()));
    assert_eq!((group.would_refuse(), group.over_bytes_max(), tenants.peak()), (0, 0, peak));
}
