//! What ends a wait besides room: a deadline, somebody who wakes all, and the end of the group.

use std::time::Duration;

use memgroup::{ChargeErrorKind, WaitKind};

use super::{PAGE, far, in_ms, parent, until_waiting};

#[test]
fn all_waits_of_a_group_and_of_those_below_are_ended_and_no_other() {
    let (hierarchy, tenants) = parent(2, 4);
    let (alice, bob) = (tenants.create("alice").unwrap(), tenants.create("bob").unwrap());
    let below = alice.create("below").unwrap();
    let held = bob.try_charge(4 * PAGE).unwrap();
    std::thread::scope(|scope| {
        let [first, second] = [&alice, &below].map(|group| scope.spawn(|| group.charge_until(PAGE, far())));
        let other = scope.spawn(|| bob.charge_until(PAGE, far()));
        until_waiting(&tenants, 3);
        assert_eq!((alice.waiters().now, below.waiters().now, bob.waiters().now), (2, 1, 1));
        assert_eq!(alice.waiters().bytes, 2 * PAGE);
        assert_eq!((alice.wake_waiters(), bob.waiters().now), (2, 1));
        for waiter in [first, second] {
            let error = waiter.join().unwrap().unwrap_err();
            assert_eq!(
                (error.kind(), error.group(), error.usage()),
                (ChargeErrorKind::Woken, tenants.id(), 4 * PAGE)
            );
            assert!(error.to_string().contains("woken after"), "{error}");
        }
        assert_eq!(alice.wake_waiters(), 0, "nobody is left");
        drop(held);
        drop(other.join().unwrap().unwrap());
    });
    assert!(hierarchy.waits().is_empty());
    assert_eq!(tenants.usage_exact(), 0);
}

#[test]
fn a_group_that_is_removed_wakes_who_waits_for_it_at_whatever_level() {
    let (hierarchy, tenants) = parent(2, 4);
    let (alice, bob) = (tenants.create("alice").unwrap(), tenants.create("bob").unwrap());
    bob.set_max(PAGE).unwrap();
    let held = [alice.try_charge(3 * PAGE).unwrap(), bob.try_charge(PAGE).unwrap()];
    std::thread::scope(|scope| {
        for group in [&alice, &bob] {
            let waiters = [(); 3].map(|()| scope.spawn(|| group.charge_until(PAGE, far())));
            until_waiting(group, 3);
            group.remove().unwrap();
            for waiter in waiters {
                let error = waiter.join().unwrap().unwrap_err();
                assert_eq!((error.kind(), error.group()), (ChargeErrorKind::Offline, group.id()));
            }
        }
    });
    assert_eq!(alice.charge_until(PAGE, far()).unwrap_err().kind(), ChargeErrorKind::Offline);
    assert_eq!((hierarchy.waits().len(), tenants.usage_exact()), (0, 4 * PAGE));
    drop(held);
    assert_eq!(tenants.usage_exact(), 0);
    assert!(hierarchy.dying().is_empty());
    // The parent has its stocks again.
    let carol = tenants.create("carol").unwrap();
    drop(carol.try_charge(100).unwrap());
    assert!(carol.stock().prepaid_bytes > 0);
}

#[test]
fn a_deadline_is_kept_while_others_wait_on() {
    let (_hierarchy, tenants) = parent(2, 4);
    let held = tenants.try_charge(4 * PAGE).unwrap();
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| tenants.charge_until(4 * PAGE, far()));
        until_waiting(&tenants, 1);
        for ms in [0, 1, 20] {
            let deadline = in_ms(ms);
            let error = tenants.charge_until(PAGE, deadline).unwrap_err();
            assert_eq!(error.kind(), ChargeErrorKind::Deadline);
            assert!(error.waited() >= Duration::from_millis(ms) && std::time::Instant::now() >= deadline);
        }
        assert_eq!(tenants.waiters().now, 1);
        drop(held);
        drop(patient.join().unwrap().unwrap());
    });
}

#[test]
fn the_longest_wait_is_told_first_and_says_what_it_waits_for() {
    let (hierarchy, tenants) = parent(2, 4);
    let (alice, bob) = (tenants.create("alice").unwrap(), tenants.create("bob").unwrap());
    let _held = tenants.try_charge(4 * PAGE).unwrap();
    std::thread::scope(|scope| {
        for (at, group) in [&bob, &alice].into_iter().enumerate() {
            scope.spawn(|| group.charge_until(PAGE, far()));
            until_waiting(&tenants, at + 1);
        }
        let waits = hierarchy.waits();
        assert!(waits.iter().map(|wait| wait.group.as_str()).eq(["/tenants/bob", "/tenants/alice"]));
        assert!(waits[0].since <= waits[1].since && waits[0].deadline > waits[0].since);
        assert_eq!(waits[0].kind, WaitKind::Charge);
        let text = waits[0].to_string();
        assert!(text.contains("for room, 4096 bytes, at /tenants, and will for at most "), "{text}");
        let bobs = bob.waiters().longest;
        assert!(bobs > Duration::ZERO && tenants.waiters().longest >= bobs);
        assert_eq!(hierarchy.root().wake_waiters(), 2);
    });
}
