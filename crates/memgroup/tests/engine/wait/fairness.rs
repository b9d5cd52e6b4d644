//! In which order waiting charges are served.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use memgroup::{Charge, ChargeErrorKind, Group};
use xtask::Watchdog;

use super::{PAGE, far, parent, until_in_line, until_waiting};

/// The waiters that were served, in order. Each keeps its charge until the test ends.
#[derive(Default)]
struct Served(Mutex<Vec<(&'static str, Charge)>>);

impl Served {
    fn wait(&self, name: &'static str, group: &Group, bytes: u64) {
        let charge = group.charge_until(bytes, far()).unwrap();
        self.0.lock().unwrap().push((name, charge));
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn names(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().iter().map(|&(name, _)| name).collect()
    }

    fn until(&self, count: usize) {
        while self.count() < count {
            std::thread::yield_now();
        }
    }
}

#[test]
fn serves_heavier_groups_first_then_the_earliest() {
    let (hierarchy, tenants) = parent(2, 8);
    let make = |name: &str, weight| {
        let group = tenants.create(name).unwrap();
        group.set_weight(weight).unwrap();
        group
    };
    let (light, middle, heavy) = (make("light", 1), make("middle", 100), make("heavy", 10_000));
    let mut held = tenants.try_charge(8 * PAGE).unwrap();
    let served = Served::default();
    std::thread::scope(|scope| {
        let order = [
            ("l1", &light),
            ("m1", &middle),
            ("h1", &heavy),
            ("l2", &light),
            ("m2", &middle),
            ("h2", &heavy),
        ];
        for (number, (name, group)) in order.into_iter().enumerate() {
            let served = &served;
            scope.spawn(move || served.wait(name, group, PAGE));
            until_in_line(&hierarchy, number + 1);
        }
        for count in 1..=order.len() {
            held.shrink(PAGE);
            served.until(count);
        }
    });
    assert_eq!(served.names(), ["h1", "h2", "m1", "m2", "l1", "l2"]);
}

#[test]
fn a_weight_that_changes_moves_those_that_wait_already() {
    let (hierarchy, tenants) = parent(2, 8);
    let (alice, bob) = (tenants.create("alice").unwrap(), tenants.create("bob").unwrap());
    let mut held = tenants.try_charge(8 * PAGE).unwrap();
    let served = Served::default();
    std::thread::scope(|scope| {
        for (number, (name, group)) in [("a", &alice), ("b", &bob)].into_iter().enumerate() {
            let served = &served;
            scope.spawn(move || served.wait(name, group, PAGE));
            until_in_line(&hierarchy, number + 1);
        }
        bob.set_weight(101).unwrap();
        for count in 1..=2 {
            held.shrink(PAGE);
            served.until(count);
        }
    });
    assert_eq!(served.names(), ["b", "a"]);
    for wrong in [0, 10_001, u32::MAX] {
        let error = bob.set_weight(wrong).unwrap_err();
        assert_eq!((error.asked, error.group.as_str()), (wrong, "/tenants/bob"));
    }
    assert_eq!(bob.weight(), 101);
    drop(served);
    bob.remove().unwrap();
    drop(bob);
    assert_eq!(tenants.create("carol").unwrap().weight(), 100, "the weight of the group before is gone");
}

#[test]
fn hands_freed_bytes_over_before_the_waiter_runs() {
    let (hierarchy, tenants) = parent(2, 2);
    let (group, held) = (tenants.create("group").unwrap(), tenants.try_charge(2 * PAGE).unwrap());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| group.charge_until(2 * PAGE, far()));
        until_in_line(&hierarchy, 1);
        drop(held);
        // On this thread, at once: the waiter can hardly have run.
        assert_eq!(tenants.try_charge(1).unwrap_err().kind(), ChargeErrorKind::Refused);
        drop(waiter.join().unwrap().unwrap());
    });
}

#[test]
fn queues_a_charge_with_a_deadline_behind_waiters() {
    let (hierarchy, tenants) = parent(2, 4);
    let mut held = tenants.try_charge(4 * PAGE).unwrap();
    let (group, served) = (tenants.create("group").unwrap(), Served::default());
    std::thread::scope(|scope| {
        let served = &served;
        let group = &group;
        scope.spawn(move || served.wait("big", group, 4 * PAGE));
        until_in_line(&hierarchy, 1);
        held.shrink(2 * PAGE);
        drop(group.try_charge(PAGE).expect("a charge that does not wait takes free bytes"));
        // One page each, of two that are free: they pass the big one as often as it is to be
        // passed.
        for _ in 0..16 {
            drop(group.charge_until(PAGE, far()).unwrap());
        }
        scope.spawn(move || served.wait("small", group, PAGE));
        until_in_line(&hierarchy, 2);
        assert!(
            tenants.headroom() >= PAGE && served.count() == 0,
            "the small one would fit, but it is not its turn"
        );
        drop(group.try_charge(PAGE).expect("a charge that does not wait takes free bytes"));
        held.shrink(2 * PAGE);
        served.until(1);
        assert_eq!(served.names(), ["big"]);
        served.0.lock().unwrap().clear();
    });
    assert_eq!(served.names(), ["small"]);
}

#[test]
fn one_that_leaves_lets_those_behind_it_go_on() {
    let (hierarchy, tenants) = parent(2, 4);
    let (alice, bob) = (tenants.create("alice").unwrap(), tenants.create("bob").unwrap());
    let _held = tenants.try_charge(2 * PAGE).unwrap();
    std::thread::scope(|scope| {
        let big = scope.spawn(|| alice.charge_until(4 * PAGE, far()));
        until_in_line(&hierarchy, 1);
        for _ in 0..16 {
            drop(bob.charge_until(PAGE, far()).unwrap());
        }
        let small = scope.spawn(|| bob.charge_until(PAGE, far()));
        until_in_line(&hierarchy, 2);
        // Nothing is uncharged: it is the big one's leaving that makes way.
        assert_eq!(alice.wake_waiters(), 1);
        assert_eq!(big.join().unwrap().unwrap_err().kind(), ChargeErrorKind::Woken);
        drop(small.join().unwrap().unwrap());
    });
}

/// Threads that charge some pages and give them back without end. By a deadline or without. None
/// waits while it holds any: then a large charge could wait for ever for bytes of threads that
/// wait behind it.
fn serves_most_of_the_limit(tenants: &Group, large: &Group, waits: bool) {
    let busy = tenants.create("busy").unwrap();
    let is_over = AtomicBool::new(false);
    let is_over = &is_over;
    let charge = |group: &Group| {
        let bytes = 8 * PAGE;
        if waits { group.charge_until(bytes, far()).ok() } else { group.try_charge(bytes).ok() }
    };
    std::thread::scope(|threads| {
        for _ in 0..3 {
            let busy = &busy;
            threads.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let held = charge(busy);
                    std::thread::yield_now();
                    drop(held);
                }
            });
        }
        while busy.usage() < 8 * PAGE {
            std::thread::yield_now();
        }
        let charged = large.charge_until(90 * PAGE, Instant::now() + Duration::from_secs(3600));
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(charged.unwrap().bytes(), 90 * PAGE);
    });
}

#[test]
fn a_waiter_for_most_of_the_limit_is_served_among_callers_that_wait() {
    let _watchdog = Watchdog::over("a waiter for most of the limit");
    let (_hierarchy, tenants) = parent(2, 100);
    let large = tenants.create("large").unwrap();
    serves_most_of_the_limit(&tenants, &large, true);
}

#[test]
fn a_waiter_for_bytes_that_are_reserved_for_it_is_served_beside_callers_that_do_not_wait() {
    let _watchdog = Watchdog::over("a waiter for reserved bytes");
    let (_hierarchy, tenants) = parent(2, 100);
    let large = tenants.create("large").unwrap();
    large.set_min(90 * PAGE).unwrap();
    tenants.set_reserve_min(true).unwrap();
    serves_most_of_the_limit(&tenants, &large, false);
}

/// A charge that waits at a lower level came first: later ones queue where others wait above it.
#[test]
fn bytes_that_two_levels_have_again_go_to_the_waiter_of_the_lower_one() {
    let _watchdog = Watchdog::over("the waiter of a lower level");
    let (_hierarchy, tenants) = parent(1, 2);
    let [a, b, c] = ["a", "b", "c"].map(|name| tenants.create(name).unwrap());
    a.set_max(PAGE).unwrap();
    let (freed_first, freed_last) = (a.try_charge(PAGE).unwrap(), c.try_charge(PAGE).unwrap());
    std::thread::scope(|threads| {
        let lower = threads.spawn(|| a.charge_until(PAGE, far()).unwrap());
        until_waiting(&a, 1);
        let upper = threads.spawn(|| b.charge_until(PAGE, far()).unwrap());
        until_waiting(&tenants, 2);
        drop(freed_first);
        let _lower = lower.join().unwrap();
        assert_eq!(tenants.waiters().now, 1, "the other waits on");
        drop(freed_last);
        drop(upper.join().unwrap());
    });
}
