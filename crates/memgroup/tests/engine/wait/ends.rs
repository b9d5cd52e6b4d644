//! Ends of a wait besides room: a deadline, a call that wakes all, and a removal.

use std::time::{Duration, Instant};

use memgroup::{ChargeErrorKind, WaitKind};

use super::{PAGE, far, in_ms, parent, until_in_line, until_waiting, waits_in_vain};

#[test]
fn ends_all_waits_of_a_group_and_below_and_no_other() {
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
        assert_eq!(alice.wake_waiters(), 0, "no wait is left");
        drop(held);
        drop(other.join().unwrap().unwrap());
    });
    assert!(hierarchy.waits().is_empty());
    assert_eq!(tenants.usage_exact(), 0);
}

#[test]
fn wakes_the_waiters_of_a_removed_group_at_every_level() {
    let (hierarchy, tenants) = parent(2, 4);
    let (alice, bob) = (tenants.create("alice").unwrap(), tenants.create("bob").unwrap());
    bob.set_max(PAGE).unwrap();
    let held = [alice.try_charge(3 * PAGE).unwrap(), bob.try_charge(PAGE).unwrap()];
    std::thread::scope(|scope| {
        for group in [&alice, &bob] {
            let deadline = far();
            let waiters = [(); 3].map(|()| scope.spawn(move || group.charge_until(PAGE, deadline)));
            until_waiting(group, 3);
            group.remove().unwrap();
            for waiter in waiters {
                let error = waiter.join().unwrap().unwrap_err();
                assert_eq!((error.kind(), error.group()), (ChargeErrorKind::Offline, group.id()));
            }
            assert!(Instant::now() < deadline, "it was the removal that ended the waits");
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
            waits_in_vain(&tenants, ms);
        }
        assert_eq!(tenants.waiters().now, 1);
        drop(held);
        drop(patient.join().unwrap().unwrap());
    });
}

#[test]
fn lists_the_longest_wait_first_with_its_purpose() {
    let (hierarchy, tenants) = parent(2, 4);
    let (alice, bob) = (tenants.create("alice").unwrap(), tenants.create("bob").unwrap());
    let _held = tenants.try_charge(4 * PAGE).unwrap();
    std::thread::scope(|scope| {
        for (at, group) in [&bob, &alice].into_iter().enumerate() {
            scope.spawn(|| group.charge_until(PAGE, far()));
            until_in_line(&hierarchy, at + 1);
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

#[test]
fn opens_stocks_when_the_last_wait_ends() {
    let (_hierarchy, tenants) = parent(2, 100);
    let group = tenants.create("group").unwrap();
    let _held = group.try_charge(50 * PAGE).unwrap();
    group.charge_until(60 * PAGE, in_ms(5)).unwrap_err();
    // Nothing was uncharged since. The first charges after a limit was near are exact.
    let _charges: Vec<_> = (0..10).map(|_| group.try_charge(100).unwrap()).collect();
    assert!(group.stock().prepaid_bytes > 0, "{:?}", group.stock());
}
