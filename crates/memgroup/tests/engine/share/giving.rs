//! A child within its even share that finds no room takes it from caches of siblings above theirs.

use std::time::{Duration, Instant};

use memgroup::ChargeErrorKind;

use super::cache::{MIB, PAGE, Tenant, exact, pin};

#[test]
fn caches_above_their_even_share_give_before_larger_ones_within() {
    let hierarchy = exact();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(64 * MIB).unwrap();
    let (heavy, light, asking) =
        (Tenant::new(&parent, "heavy"), Tenant::new(&parent, "light"), Tenant::new(&parent, "asking"));
    heavy.group.set_weight(1000).unwrap();
    heavy.fill(42 * MIB);
    light.fill(22 * MIB);
    parent.set_share(8).unwrap();
    // Even shares are 64 * 80 / 97 of the heavy one, 52 MiB, and a tenth of that of each other.
    asking.fill(4 * MIB);
    assert_eq!(
        (heavy.usage(), asking.usage()),
        (42 * MIB, 4 * MIB),
        "a cache within its even share was asked"
    );
    assert!(light.usage() <= 18 * MIB);
    let [heavy, light, asking] =
        [&heavy, &light, &asking].map(|tenant| (&tenant.group, tenant.group.fair_share().unwrap()));
    let given = light.1.given;
    assert!((4 * MIB..5 * MIB).contains(&given), "{given}");
    assert_eq!((light.1.taken, light.1.given_to), (0, Some(asking.0.id())));
    assert_eq!((asking.1.given, asking.1.taken, asking.1.given_to), (0, given, None));
    assert_eq!((heavy.1.given, heavy.1.excess), (0, 0));
    assert_eq!(light.1.excess, light.0.usage() - light.1.even);
    assert_eq!(parent.refusals() + asking.0.refusals(), 0);
}

#[test]
fn a_child_above_its_share_is_given_its_own_bytes_only() {
    let hierarchy = exact();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(64 * MIB).unwrap();
    parent.set_share(8).unwrap();
    let (runaway, small) = (Tenant::new(&parent, "runaway"), Tenant::new(&parent, "small"));
    small.fill(2 * MIB);
    runaway.fill(200 * MIB);
    assert_eq!((small.usage(), runaway.group.refusals()), (2 * MIB, 0));
    let others = 64 * MIB - 2 * MIB;
    assert!(
        runaway.usage() <= others * 8 / 9 && runaway.usage() > others * 8 / 9 - MIB,
        "{}",
        runaway.usage()
    );
    // Memory that it cannot give back makes room for itself out of its own cache, and is refused
    // when that is empty.
    let (pinned, refused) = pin(&runaway.group, 64 * MIB);
    let refused = refused.expect("the parent is smaller");
    assert!(refused.is_by_share(), "{refused}");
    assert_eq!((small.usage(), runaway.usage()), (2 * MIB, pinned.len() as u64 * PAGE));
}

#[test]
fn caches_within_their_even_share_give_when_there_is_no_other() {
    let hierarchy = exact();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(32 * MIB).unwrap();
    parent.set_share(8).unwrap();
    let (cache, asking) = (Tenant::new(&parent, "cache"), Tenant::new(&parent, "asking"));
    cache.fill(12 * MIB);
    // The parent's own bytes are no child's: all that is left are caches within their share.
    let _held = parent.charge_forced(20 * MIB).unwrap();
    asking.fill(4 * MIB);
    assert_eq!((cache.usage(), asking.usage()), (8 * MIB, 4 * MIB));
}

#[test]
fn a_charge_that_waits_for_its_share_is_served_when_a_sibling_frees() {
    let hierarchy = exact();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(18 * MIB).unwrap();
    parent.set_share(8).unwrap();
    let (sibling, waiting) = (parent.create("sibling").unwrap(), parent.create("waiting").unwrap());
    let held = sibling.try_charge(8 * MIB).unwrap();
    let own = waiting.try_charge(8 * MIB).unwrap();
    assert!(waiting.try_charge(4 * MIB).unwrap_err().is_by_share());
    let late = waiting.charge_until(4 * MIB, Instant::now() + Duration::from_millis(5)).unwrap_err();
    assert!(late.is_by_share() && late.kind() == ChargeErrorKind::Deadline, "{late}");
    std::thread::scope(|scope| {
        let waiter =
            scope.spawn(|| waiting.charge_until(4 * MIB, Instant::now() + Duration::from_secs(3600)));
        while waiting.waiters().now == 0 {
            std::thread::yield_now();
        }
        drop(held);
        assert_eq!(waiter.join().unwrap().unwrap().bytes(), 4 * MIB);
    });
    drop(own);
}
