//! Paying: the delay, its early end, and the debt that is left.

use std::time::{Duration, Instant};

use memgroup::{Charge, Freshness, Group, Hierarchy, Reach, StatKey, ThrottleEnd, WaitKind, stats};

use super::cache::{PAGE, Tenant};
use super::{MIB, above, group, until};

/// A group that is so many MiB above its 1,000, and owes for 64 pages.
fn owing(mib: u64) -> (Hierarchy, Group, Vec<Charge>) {
    let (hierarchy, etl, pinned) = above(mib);
    let more = etl.try_charge(64 * PAGE).unwrap();
    assert_eq!(etl.owed(), 64 * PAGE);
    (hierarchy, etl, vec![pinned, more])
}

fn figure(hierarchy: &Hierarchy, group: &Group, stat: StatKey) -> u64 {
    hierarchy.memory().get(group, stat, Reach::Local, Freshness::Fresh) as u64
}

#[test]
fn grows_the_delay_with_the_square_of_the_excess() {
    for (mib, micros) in [(49, 160_000), (99, 640_000), (180, 2_000_000), (900, 2_000_000)] {
        let (_hierarchy, etl, _pinned) = owing(mib);
        let throttle = etl.take_throttle().unwrap();
        // The 64 pages themselves are above it, too.
        let off = throttle.delay().abs_diff(Duration::from_micros(micros));
        assert!(off <= Duration::from_micros(micros / 25), "{mib} MiB: {:?}", throttle.delay());
        assert_eq!((throttle.bytes(), throttle.group(), etl.owed()), (64 * PAGE, &etl, 0));
    }
    let (_hierarchy, etl, _pinned) = owing(10);
    assert!(etl.take_throttle().is_none(), "1 % is 6.4 ms, which is not slept for");
    assert_eq!(etl.throttle(None).end, ThrottleEnd::NothingDue);
    assert_eq!(etl.owed(), 64 * PAGE, "and which stay owed");
}

#[test]
fn takes_the_delay_of_the_worst_level() {
    let (_hierarchy, etl, _pinned) = above(20);
    let tenant = etl.create("tenant").unwrap();
    tenant.set_high(MIB).unwrap();
    let charge = tenant.try_charge(MIB + MIB / 10).unwrap();
    let throttle = tenant.take_throttle().unwrap();
    // 10 % above its own limit, for the 281.6 pages that its charge took.
    assert_eq!(throttle.delay(), Duration::from_secs(2));
    assert_eq!(throttle.bytes(), MIB + MIB / 10, "all of it is above the limit of the parent");
    drop((charge, throttle));
}

#[test]
fn sleeps_for_the_debt_and_no_longer() {
    let (hierarchy, etl, _pinned) = owing(20);
    let began = Instant::now();
    let throttled = etl.throttle(None);
    let lasted = began.elapsed();
    assert_eq!((throttled.end, throttled.bytes, etl.owed()), (ThrottleEnd::Paid, 64 * PAGE, 0));
    assert!(
        throttled.delay >= Duration::from_millis(25) && throttled.slept >= throttled.delay,
        "{throttled:?}"
    );
    assert!(lasted >= throttled.slept);
    assert_eq!(figure(&hierarchy, &etl, stats::memory::THROTTLES), 1);
    let micros = figure(&hierarchy, &etl, stats::memory::THROTTLED_USEC);
    assert!(u128::from(micros) >= throttled.delay.as_micros() && u128::from(micros) <= lasted.as_micros());
    assert_eq!(etl.throttle(None).end, ThrottleEnd::NothingDue);
}

#[test]
fn a_deadline_ends_it_and_the_rest_is_still_owed() {
    let (_hierarchy, etl, _pinned) = owing(180);
    let called = Instant::now();
    let deadline = called + Duration::from_millis(50);
    let throttled = etl.throttle(Some(deadline));
    let ended = Instant::now();
    assert!(throttled.end == ThrottleEnd::Deadline && ended >= deadline, "{throttled:?}");
    assert!(throttled.slept > Duration::ZERO && throttled.slept <= ended - called, "{throttled:?}");
    let left = throttled.delay.saturating_sub(throttled.slept).as_secs_f64() / throttled.delay.as_secs_f64();
    let owed = etl.owed() as f64 / (64 * PAGE) as f64;
    assert!(owed > 0.0 && owed <= left + 0.001, "{owed} of it, with {left} of the delay left");

    let owed = etl.owed();
    assert_eq!(etl.throttle(Some(Instant::now())).end, ThrottleEnd::Deadline);
    assert_eq!(etl.owed(), owed, "a deadline that has passed pays for nothing");
}

#[test]
fn a_throttle_that_is_dropped_too_early_is_owed_again() {
    let (_hierarchy, etl, mut pinned) = owing(500);
    let throttle = etl.take_throttle().unwrap();
    assert_eq!((throttle.delay(), etl.owed()), (Duration::from_secs(2), 0));
    let left = throttle.left();
    assert!(left > Duration::ZERO && left <= throttle.delay());
    drop(throttle);
    // Two seconds would have paid for any debt.
    let rest = etl.owed();
    assert!(rest > 0 && rest <= 9 * PAGE, "{rest} bytes at r = 0.5 are two seconds");
    fn is_sent<T: Send + 'static>(value: T) -> T {
        value
    }
    let throttle = is_sent(etl.take_throttle().unwrap());
    pinned.clear();
    assert_eq!(throttle.left(), Duration::ZERO, "no level is above any more");
    drop(throttle);
    assert_eq!(etl.owed(), 0);
}

#[test]
fn forgives_the_debt_when_no_level_is_above() {
    for lets_go in [true, false] {
        let (_hierarchy, etl, mut pinned) = owing(500);
        if lets_go {
            pinned.clear();
        } else {
            etl.set_high(None).unwrap();
        }
        assert!(etl.take_throttle().is_none());
        let throttled = etl.throttle(None);
        assert!(matches!(throttled.end, ThrottleEnd::Within | ThrottleEnd::NothingDue), "{throttled:?}");
        assert_eq!((etl.owed(), throttled.slept), (0, Duration::ZERO));
    }
}

#[test]
fn asks_shrinkers_before_it_sleeps() {
    let (_hierarchy, etl) = group(2);
    let tenant = Tenant::new(&etl, "tenant");
    etl.set_high(100 * PAGE).unwrap();
    let held: Vec<_> = (0..150).map(|_| tenant.group.try_charge(PAGE).unwrap()).collect();
    assert!(tenant.group.owed() >= 49 * PAGE);
    held.into_iter().for_each(|page| tenant.cache.push(page));
    tenant.shrinker.mark();
    let throttled = tenant.group.throttle(None);
    assert_eq!((throttled.end, throttled.slept), (ThrottleEnd::Within, Duration::ZERO));
    assert!(throttled.reclaimed >= 50 * PAGE && etl.usage() <= 100 * PAGE, "{throttled:?}");
    assert_eq!(tenant.group.owed(), 0);
}

/// Has another thread do something while one is being slowed down for two seconds; how that ended.
fn while_throttled(act: impl FnOnce(&Group, Vec<Charge>)) -> ThrottleEnd {
    let (hierarchy, etl, pinned) = owing(900);
    let throttled = std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| etl.throttle(None));
        until("it sleeps", || etl.waiters().now > 0);
        act(&etl, pinned);
        sleeper.join().unwrap()
    });
    assert_eq!((throttled.bytes, throttled.delay), (64 * PAGE, Duration::from_secs(2)));
    assert_eq!(hierarchy.root().usage_exact(), 0);
    throttled.end
}

/// So that the next step is not the end of the wait.
fn wait_for_no_thread(etl: &Group) {
    until("no thread sleeps", || etl.waiters().now == 0);
}

#[test]
fn wakes_when_memory_is_freed() {
    let end = while_throttled(|_, pinned| drop(pinned));
    assert_eq!(end, ThrottleEnd::Within);
}

#[test]
fn wakes_when_the_limit_is_raised() {
    let end = while_throttled(|etl, pinned| {
        etl.set_high(None).unwrap();
        wait_for_no_thread(etl);
        drop(pinned);
    });
    assert_eq!(end, ThrottleEnd::Within);
}

#[test]
fn wakes_when_the_group_is_removed() {
    let end = while_throttled(|etl, pinned| {
        etl.remove().unwrap();
        wait_for_no_thread(etl);
        drop(pinned);
    });
    assert_eq!(end, ThrottleEnd::Removed);
}

#[test]
fn wakes_with_all_waiters_and_owes_no_more() {
    let end = while_throttled(|etl, pinned| {
        assert_eq!(etl.wake_waiters(), 1);
        wait_for_no_thread(etl);
        drop(pinned);
        assert_eq!(etl.owed(), 0);
    });
    assert_eq!(end, ThrottleEnd::Woken);
}

#[test]
fn a_delay_is_in_the_list_of_waits_until_it_is_over() {
    let (hierarchy, etl, pinned) = owing(900);
    let tenant = etl.create("tenant").unwrap();
    let more = tenant.try_charge(64 * PAGE).unwrap();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| tenant.throttle(None));
        until("it sleeps", || hierarchy.waits().iter().any(|wait| wait.at == "/etl"));
        let seen = hierarchy.waits().pop().expect("it sleeps for two seconds");
        assert_eq!((&*seen.group, &*seen.at, seen.bytes), ("/etl/tenant", "/etl", 64 * PAGE));
        assert_eq!((seen.kind, seen.deadline > seen.since), (WaitKind::Throttle, true));
        drop(pinned);
        assert_eq!(sleeper.join().unwrap().end, ThrottleEnd::Within);
    });
    assert!(hierarchy.waits().is_empty());
    drop(more);
}

#[test]
fn wakes_when_freed_memory_lies_in_the_stock() {
    let (_hierarchy, etl) = group(2);
    etl.set_high(10 * PAGE).unwrap();
    let pages: Vec<_> = (0..64).map(|_| etl.try_charge(PAGE).unwrap()).collect();
    let end = std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| etl.throttle(None));
        until("it sleeps", || etl.waiters().now > 0);
        drop(pages);
        sleeper.join().unwrap().end
    });
    assert_eq!(end, ThrottleEnd::Within);
}

#[test]
fn delays_no_removed_group() {
    let (_hierarchy, etl, _pinned) = owing(900);
    etl.remove().unwrap();
    assert_eq!(etl.throttle(None).end, ThrottleEnd::Removed);
    assert!(etl.take_throttle().is_none());
    etl.set_high(0).unwrap();
    assert_eq!(etl.high(), Some(0), "a limit may be set, and asks no shrinker");
}
