//! Waiting for events.

use std::time::{Duration, Instant};

use memgroup::{Config, Events, Group, Hierarchy};

use super::within_a_minute;

fn tenant() -> (Hierarchy, Group, Group) {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let tenants = hierarchy.create("/tenants").unwrap();
    let alice = tenants.create("alice").unwrap();
    alice.set_max(4096).unwrap();
    (hierarchy, tenants, alice)
}

fn event(group: &Group) {
    group.try_charge(1 << 30).unwrap_err();
}

#[test]
fn a_wait_ends_at_its_deadline_with_nothing() {
    let (_hierarchy, tenants, _alice) = tenant();
    let began = Instant::now();
    for deadline in [began, began + Duration::from_millis(20)] {
        assert_eq!(tenants.wait_events(&tenants.events(), Some(deadline)), None);
    }
    assert!(began.elapsed() >= Duration::from_millis(20));
}

#[test]
fn ends_a_wait_at_once_when_counts_differ_already() {
    let (_hierarchy, tenants, alice) = tenant();
    event(&alice);
    let now = tenants.wait_events(&Events::default(), Some(Instant::now())).unwrap();
    assert_eq!((now, now.max), (tenants.events(), 1));
}

#[test]
fn wakes_a_waiter_for_events_of_its_group_and_below() {
    within_a_minute(|| {
        let (hierarchy, tenants, alice) = tenant();
        for round in 1..200 {
            std::thread::scope(|scope| {
                let waits = [&hierarchy.root(), &tenants, &alice].map(|group| {
                    let (group, seen) = (group.clone(), group.events());
                    scope.spawn(move || group.wait_events(&seen, None).unwrap().max)
                });
                event(&alice);
                for wait in waits {
                    assert_eq!(wait.join().unwrap(), round);
                }
            });
        }
    });
}

#[test]
fn sleeps_through_events_beside_its_group() {
    within_a_minute(|| {
        let (_hierarchy, tenants, alice) = tenant();
        let bob = tenants.create("bob").unwrap();
        bob.set_max(1).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| bob.wait_events(&Events::default(), None));
            for _ in 0..100 {
                event(&alice);
            }
            event(&bob);
            assert_eq!(waiter.join().unwrap().unwrap().max, 1);
        });
    });
}

#[test]
fn ends_waits_with_the_last_events_of_a_removed_group() {
    within_a_minute(|| {
        let (_hierarchy, _tenants, alice) = tenant();
        std::thread::scope(|scope| {
            let told = scope.spawn(|| {
                let (mut seen, mut answers) = (Events::default(), 0);
                while let Some(now) = alice.wait_events(&seen, None) {
                    assert!(now.max > seen.max);
                    (seen, answers) = (now, answers + 1);
                }
                (seen.max, answers)
            });
            let idle = scope.spawn(|| alice.wait_events(&Events::default(), None));
            std::thread::sleep(Duration::from_millis(5));
            alice.remove().unwrap();
            assert_eq!(idle.join().unwrap(), None);
            assert_eq!(told.join().unwrap(), (0, 0));
        });
        // Forced charges of a removed group go over its limit as before.
        let _held = alice.charge_forced(5000).unwrap();
        assert_eq!(alice.wait_events(&Events::default(), None).unwrap().max, 1);
        assert_eq!(alice.wait_events(&alice.events(), None), None);
    });
}

#[test]
fn many_waiters_come_and_go_and_each_is_woken() {
    within_a_minute(|| {
        let (_hierarchy, tenants, alice) = tenant();
        std::thread::scope(|scope| {
            for number in 0..8_u64 {
                let tenants = &tenants;
                scope.spawn(move || {
                    let mut seen = Events::default();
                    while seen.max < 2000 {
                        let deadline = Instant::now() + Duration::from_micros(50 * number);
                        let deadline = (number > 0).then_some(deadline);
                        if let Some(now) = tenants.wait_events(&seen, deadline) {
                            assert!(now.max > seen.max);
                            seen = now;
                        }
                    }
                });
            }
            for _ in 0..2000 {
                event(&alice);
            }
        });
        assert_eq!(tenants.events().max, 2000);
    });
}
