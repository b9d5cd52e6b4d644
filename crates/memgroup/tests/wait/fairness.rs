//! In which order waiting charges are served.

use std::sync::Mutex;

use memgroup::{Charge, ChargeErrorKind, Group};

use super::{PAGE, far, parent, until_waiting};

/// Who was served, in order. What a charge has it keeps until the test ends.
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
fn heavier_groups_come_first_and_of_one_weight_who_came_first() {
    let (_hierarchy, tenants) = parent(2, 8);
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
            until_waiting(&tenants, number + 1);
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
    let (_hierarchy, tenants) = parent(2, 8);
    let (alice, bob) = (tenants.create("alice").unwrap(), tenants.create("bob").unwrap());
    let mut held = tenants.try_charge(8 * PAGE).unwrap();
    let served = Served::default();
    std::thread::scope(|scope| {
        for (number, (name, group)) in [("a", &alice), ("b", &bob)].into_iter().enumerate() {
            let served = &served;
            scope.spawn(move || served.wait(name, group, PAGE));
            until_waiting(&tenants, number + 1);
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
    bob.remove().unwrap();
    drop(bob);
    assert_eq!(tenants.create("carol").unwrap().weight(), 100, "whoever had the place before");
}

#[test]
fn what_was_set_free_is_not_taken_by_who_comes_between_the_waking_and_the_next_try() {
    let (_hierarchy, tenants) = parent(2, 2);
    let held = Mutex::new(Some(tenants.try_charge(2 * PAGE).unwrap()));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| tenants.charge_until(2 * PAGE, far()));
        until_waiting(&tenants, 1);
        drop(held.lock().unwrap().take());
        // On this thread, at once: the waiter can hardly have run.
        assert_eq!(tenants.try_charge(1).unwrap_err().kind(), ChargeErrorKind::Refused);
        drop(waiter.join().unwrap().unwrap());
    });
}

#[test]
fn who_can_wait_goes_behind_those_who_wait_although_there_is_room() {
    let (_hierarchy, tenants) = parent(2, 4);
    let mut held = tenants.try_charge(4 * PAGE).unwrap();
    let (group, served) = (tenants.create("group").unwrap(), Served::default());
    std::thread::scope(|scope| {
        let served = &served;
        let group = &group;
        scope.spawn(move || served.wait("big", group, 4 * PAGE));
        until_waiting(&tenants, 1);
        held.shrink(2 * PAGE);
        drop(group.try_charge(PAGE).expect("who does not wait takes what is free"));
        // One page each, of two that are free: they pass the big one as often as it is to be passed.
        for _ in 0..16 {
            drop(group.charge_until(PAGE, far()).unwrap());
        }
        scope.spawn(move || served.wait("small", group, PAGE));
        until_waiting(&tenants, 2);
        assert!(
            tenants.headroom() >= PAGE && served.count() == 0,
            "the small one would fit, but it is not its turn"
        );
        drop(group.try_charge(PAGE).expect("who does not wait takes what is free"));
        held.shrink(2 * PAGE);
        served.until(1);
        assert_eq!(served.names(), ["big"]);
        served.0.lock().unwrap().clear();
    });
    assert_eq!(served.names(), ["small"]);
}

#[test]
fn one_that_leaves_lets_those_behind_it_go_on() {
    let (_hierarchy, tenants) = parent(2, 4);
    let (alice, bob) = (tenants.create("alice").unwrap(), tenants.create("bob").unwrap());
    let _held = tenants.try_charge(2 * PAGE).unwrap();
    std::thread::scope(|scope| {
        let big = scope.spawn(|| alice.charge_until(4 * PAGE, far()));
        until_waiting(&tenants, 1);
        for _ in 0..16 {
            drop(bob.charge_until(PAGE, far()).unwrap());
        }
        let small = scope.spawn(|| bob.charge_until(PAGE, far()));
        until_waiting(&tenants, 2);
        // Nothing is uncharged: it is the big one's leaving that makes way.
        assert_eq!(alice.wake_waiters(), 1);
        assert_eq!(big.join().unwrap().unwrap_err().kind(), ChargeErrorKind::Woken);
        drop(small.join().unwrap().unwrap());
    });
}
