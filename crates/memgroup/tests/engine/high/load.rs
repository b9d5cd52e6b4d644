//! Under load: limits that change, many threads that charge and pay, groups that go.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memgroup::ThrottleEnd;

use super::cache::{PAGE, Tenant};
use super::{MIB, above, group, until};

use super::super::random::Random;

#[test]
fn takes_the_debt_of_many_threads_once() {
    let (_hierarchy, etl, _pinned) = above(100);
    let (charged, taken) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 1..=4 {
            let (etl, charged, taken) = (&etl, &charged, &taken);
            scope.spawn(move || {
                let mut random = Random(seed);
                for _ in 0..3_000 {
                    let bytes = random.bytes(16);
                    // Whole charges are above the limit, and none is let go while they are.
                    std::mem::forget(etl.try_charge(bytes).unwrap());
                    charged.fetch_add(bytes, Ordering::Relaxed);
                    if random.below(50) == 0
                        && let Some(throttle) = etl.take_throttle()
                    {
                        taken.fetch_add(throttle.bytes(), Ordering::Relaxed);
                        // Kept, so that nothing of it is owed again.
                        std::mem::forget(throttle);
                    }
                }
            });
        }
    });
    // A batch that one thread drains before the other has noted its debt is owed, and bought again.
    etl.drain();
    let (owed, charged) = (taken.into_inner() + etl.owed(), charged.into_inner());
    assert!((charged..=charged + charged / 8).contains(&owed), "{owed} of {charged} bytes are owed");
}

#[test]
fn limits_change_under_load_and_nothing_is_refused_or_lost() {
    for slots in [2, 8, 128] {
        let (hierarchy, etl) = group(slots);
        let (tenants, ended) = ([Tenant::new(&etl, "a"), Tenant::new(&etl, "b")], AtomicBool::new(false));
        std::thread::scope(|scope| {
            let workers: Vec<_> = (1..=3_u64)
                .map(|seed| {
                    let (tenant, etl) = (&tenants[seed as usize % 2], &etl);
                    scope.spawn(move || {
                        let mut random = Random(seed);
                        for round in 0..4_000_u64 {
                            let charge = tenant.group.try_charge(PAGE).expect("high refuses no charge");
                            if random.below(4) == 0 {
                                tenant.cache.push(charge);
                                tenant.shrinker.mark();
                            }
                            if round % 512 == 0 {
                                let deadline = Instant::now() + Duration::from_millis(2);
                                let throttled = tenant.group.throttle(Some(deadline));
                                assert_ne!(throttled.end, ThrottleEnd::Removed);
                                drop(etl.charge_forced(random.bytes(20)).unwrap());
                            }
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                let mut random = Random(99);
                while !ended.load(Ordering::Relaxed) {
                    etl.set_high(random.bytes(24)).unwrap();
                    tenants[0].group.set_high(if random.below(2) == 0 { None } else { Some(MIB) }).unwrap();
                }
            });
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            ended.store(true, Ordering::Relaxed);
        });
        let cached: usize = tenants.iter().map(|tenant| tenant.cache.len()).sum();
        assert_eq!(hierarchy.root().usage_exact(), cached as u64 * PAGE, "{slots} slots");
        etl.set_high(0).unwrap();
        assert_eq!((etl.usage(), hierarchy.root().usage_exact()), (0, 0), "the last limit took all of it");
    }
}

#[test]
fn leaves_nothing_behind_when_a_delayed_group_is_removed() {
    let (hierarchy, etl) = group(8);
    for round in 0..20 {
        let tenant = etl.create("tenant").unwrap();
        tenant.set_high(PAGE).unwrap();
        let pinned = tenant.try_charge(MIB).unwrap();
        std::thread::scope(|scope| {
            let sleepers: Vec<_> = (0..2).map(|_| scope.spawn(|| tenant.throttle(None).end)).collect();
            if round % 2 == 0 {
                until("one sleeps", || tenant.waiters().now > 0);
            }
            tenant.remove().unwrap();
            let ends: Vec<_> = sleepers.into_iter().map(|sleeper| sleeper.join().unwrap()).collect();
            let is_ended = |end: &ThrottleEnd| matches!(end, ThrottleEnd::Removed | ThrottleEnd::NothingDue);
            assert!(ends.iter().all(is_ended) && ends.contains(&ThrottleEnd::Removed), "{ends:?}");
        });
        drop(pinned);
    }
    assert_eq!((hierarchy.root().usage_exact(), hierarchy.dying().len()), (0, 0));
}
