//! How a wait ends without a charge.

use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use memgroup::{ChargeError, ChargeErrorKind, Charging, Config, Deadline, Hierarchy};

use super::executor::{Calls, block_on, poll, poll_with};
use super::{PAGE, Running, until};

fn error(charging: &mut Charging) -> ChargeError {
    match poll(charging) {
        Poll::Ready(Err(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn says_at_once_that_no_reclaimer_runs() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let group = hierarchy.create("/group").unwrap();
    group.set_max(PAGE).unwrap();
    let held = group.try_charge(PAGE).unwrap();
    let failed = error(&mut group.charge(PAGE));
    assert_eq!(
        (failed.kind(), failed.usage(), failed.max()),
        (ChargeErrorKind::NoReclaimer, PAGE, Some(PAGE))
    );
    assert!(failed.to_string().contains("no reclaimer runs"), "{failed}");
    assert_eq!(error(&mut group.charge(2 * PAGE)).kind(), ChargeErrorKind::Refused, "it can never fit");
    drop(held);
    assert!(poll(&mut group.charge(PAGE)).is_ready(), "prepaid bytes are room");
    drop(hierarchy.reclaimer());
}

#[test]
fn ends_when_the_last_reclaimer_ends() {
    let running = Running::new(Config::new());
    let group = running.group("group", 1);
    let _held = group.try_charge(PAGE).unwrap();
    let calls = Arc::new(Calls::default());
    let mut waiting: Vec<_> = (0..100).map(|_| group.charge(PAGE)).collect();
    assert!(waiting.iter_mut().all(|one| poll_with(one, &calls.waker()).is_pending()));
    let other = running.hierarchy.reclaimer();
    running.stop.stop();
    assert!(poll_with(&mut waiting[0], &calls.waker()).is_pending(), "another one is there");
    drop(other);
    assert_eq!(calls.now(), 100);
    assert!(waiting.iter_mut().all(|one| error(one).kind() == ChargeErrorKind::NoReclaimer));
    assert_eq!(group.waiters().now, 0);
}

#[test]
fn ends_at_a_poll_after_its_deadline() {
    let running = Running::new(Config::new());
    let group = running.group("group", 1);
    let held = group.try_charge(PAGE).unwrap();
    let mut charging = group.charge(PAGE).until(Instant::now() + Duration::from_millis(20));
    assert!(poll(&mut charging).is_pending());
    until(|| Instant::now() >= charging.deadline().unwrap());
    let late = error(&mut charging);
    assert_eq!((late.kind(), late.usage(), late.asked()), (ChargeErrorKind::Deadline, PAGE, PAGE));
    assert!(late.waited() > Duration::ZERO && group.refusals() == 1);
    let late = error(&mut group.charge(PAGE).until(Instant::now()));
    assert_eq!(late.kind(), ChargeErrorKind::Deadline);
    drop(held);
    assert!(block_on(group.charge(PAGE).until(Instant::now())).is_ok(), "there is room");
}

#[test]
fn is_woken_at_its_deadline_without_a_timer() {
    let running = Running::new(Config::new());
    let group = running.group("group", 1);
    let _held = group.try_charge(PAGE).unwrap();
    let began = Instant::now();
    let ends: Vec<_> = std::thread::scope(|scope| {
        let wait = |millis: u64| {
            let (group, deadline) = (&group, began + Duration::from_millis(millis));
            scope.spawn(move || (block_on(group.charge(PAGE).until(deadline)), deadline, Instant::now()))
        };
        // In no order, some at the same instant, and some that have passed.
        let waits: Vec<_> = (0..64).map(|number| wait(number * 37 % 32)).collect();
        waits.into_iter().map(|wait| wait.join().unwrap()).collect()
    });
    for (outcome, deadline, end) in ends {
        assert!(end >= deadline && outcome.unwrap_err().kind() == ChargeErrorKind::Deadline);
    }
    assert!(group.waiters().now == 0 && running.hierarchy.waits().is_empty());
}

#[test]
fn waits_on_when_its_deadline_was_moved() {
    let running = Running::new(Config::new());
    let group = running.group("group", 1);
    let held = group.try_charge(PAGE).unwrap();
    let calls = Arc::new(Calls::default());
    let mut charging = group.charge(PAGE).until(Duration::from_millis(5));
    if poll_with(&mut charging, &calls.waker()).is_pending() {
        until(|| calls.now() == 1);
        charging = charging.until(Duration::from_secs(3600));
        assert!(poll_with(&mut charging, &calls.waker()).is_pending(), "its new deadline is far");
        drop(held);
        assert!(block_on(charging).is_ok());
    }
}

#[test]
fn ends_at_an_earlier_deadline_that_it_got_while_it_waited() {
    let running = Running::new(Config::new());
    let group = running.group("group", 1);
    let _held = group.try_charge(PAGE).unwrap();
    let calls = Arc::new(Calls::default());
    let mut charging = group.charge(PAGE).until(Duration::from_secs(3600));
    assert!(poll_with(&mut charging, &calls.waker()).is_pending());
    charging = charging.until(Duration::from_millis(5));
    until(|| calls.now() == 1);
    assert_eq!(error(&mut charging).kind(), ChargeErrorKind::Deadline);
    let mut charging = group.charge(PAGE).until(Duration::from_secs(3600));
    assert!(poll_with(&mut charging, &calls.waker()).is_pending());
    let deadline = || running.hierarchy.waits()[0].deadline;
    let before = deadline();
    let _charging = charging.until(Deadline::NEVER);
    assert!(deadline() > before + Duration::from_secs(3600), "it has none any more");
}

#[test]
fn takes_a_charge_that_was_made_before_the_deadline() {
    let running = Running::new(Config::new());
    let group = running.group("group", 1);
    let held = group.try_charge(PAGE).unwrap();
    let mut charging = group.charge(PAGE).until(Duration::from_millis(50));
    let calls = Arc::new(Calls::default());
    if poll_with(&mut charging, &calls.waker()).is_pending() {
        drop(held);
        until(|| calls.now() == 1 && Instant::now() >= charging.deadline().unwrap());
        assert!(matches!(poll(&mut charging), Poll::Ready(Ok(_))));
    }
}

#[test]
fn ends_with_its_group_and_when_waits_are_ended() {
    let running = Running::new(Config::new());
    let group = running.group("group", 1);
    let held = group.try_charge(PAGE).unwrap();
    let calls = Arc::new(Calls::default());
    let mut woken: Vec<_> = (0..40).map(|_| group.charge(PAGE)).collect();
    assert!(woken.iter_mut().all(|one| poll_with(one, &calls.waker()).is_pending()));
    assert_eq!(group.wake_waiters(), 40);
    // The reclaimer may have taken some of the wakers.
    until(|| calls.now() == 40);
    assert!(woken.iter_mut().all(|one| error(one).kind() == ChargeErrorKind::Woken));
    let mut gone = group.charge(PAGE);
    assert!(poll_with(&mut gone, &calls.waker()).is_pending());
    group.remove().unwrap();
    until(|| calls.now() == 41);
    assert_eq!(error(&mut gone).kind(), ChargeErrorKind::Offline);
    assert_eq!(error(&mut group.charge(PAGE)).kind(), ChargeErrorKind::Offline);
    drop((held, group, gone, woken));
    until(|| running.hierarchy.dying().is_empty());
}

#[test]
fn is_refused_when_the_limit_is_lowered_below_its_bytes() {
    let running = Running::new(Config::new());
    let group = running.group("group", 4);
    let held = group.try_charge(4 * PAGE).unwrap();
    let calls = Arc::new(Calls::default());
    let (mut large, mut small) = (group.charge(4 * PAGE), group.charge(PAGE));
    assert!(poll_with(&mut large, &calls.waker()).is_pending() && poll(&mut small).is_pending());
    group.set_max(2 * PAGE).unwrap();
    until(|| calls.now() == 1);
    assert_eq!(error(&mut large).kind(), ChargeErrorKind::Refused);
    drop(held);
    until(|| poll(&mut small).is_ready());
}

#[test]
fn a_charge_that_was_handed_to_a_dropped_future_goes_to_the_next() {
    let running = Running::new(Config::new());
    let group = running.group("group", 1);
    let held = group.try_charge(PAGE).unwrap();
    let [first, second] = [(); 2].map(|()| Arc::new(Calls::default()));
    let (mut dropped, mut next) = (group.charge(PAGE), group.charge(PAGE));
    assert!(poll_with(&mut dropped, &first.waker()).is_pending());
    assert!(poll_with(&mut next, &second.waker()).is_pending());
    drop(held);
    until(|| first.now() + second.now() == 1);
    // While a reclaimer looks after the first, the second is served.
    let is_first = first.now() == 1;
    let calls = if is_first { second } else { first };
    if !is_first {
        std::mem::swap(&mut dropped, &mut next);
    }
    assert_eq!(calls.now(), 0);
    drop(dropped);
    until(|| calls.now() == 1);
    assert!(matches!(poll(&mut next), Poll::Ready(Ok(_))));
    drop(next);
    assert_eq!(group.usage_exact(), 0);
}

#[test]
fn a_waker_that_panics_keeps_no_other_from_being_woken() {
    struct Panics;
    impl std::task::Wake for Panics {
        fn wake(self: Arc<Self>) {
            std::panic::resume_unwind(Box::new("a waker's panic"));
        }
    }
    let running = Running::new(Config::new());
    let group = running.group("group", 2);
    let held = group.try_charge(2 * PAGE).unwrap();
    let (mut panics, mut other) = (group.charge(PAGE), group.charge(PAGE));
    let calls = Arc::new(Calls::default());
    assert!(poll_with(&mut panics, &Arc::new(Panics).into()).is_pending());
    assert!(poll_with(&mut other, &calls.waker()).is_pending());
    drop(held);
    until(|| calls.now() == 1);
    until(|| poll(&mut panics).is_ready());
}

#[test]
fn a_task_that_tries_again_before_its_waker_was_called_leaves_others_theirs() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    // It never runs, so it calls no waker.
    let _reclaimer = hierarchy.reclaimer();
    let group = hierarchy.create("/group").unwrap();
    group.set_max(2 * PAGE).unwrap();
    let held = group.try_charge(2 * PAGE).unwrap();
    let calls: [_; 3] = std::array::from_fn(|_| Arc::new(Calls::default()));
    let mut waits: [_; 3] = std::array::from_fn(|_| group.charge(2 * PAGE));
    for (wait, calls) in waits.iter_mut().zip(&calls) {
        assert!(poll_with(wait, &calls.waker()).is_pending());
    }
    // As within an allocator: each is told to try again, and no waker is called.
    let inside = memgroup_sync::depth::enter();
    group.set_max(PAGE).unwrap();
    group.set_max(2 * PAGE).unwrap();
    drop(inside);
    assert!(poll(&mut waits[1]).is_pending(), "it is in the queue again");
    group.set_max(2 * PAGE).unwrap();
    // It may be woken once more than it has to; the others must be.
    let [first, again, last] = calls.each_ref().map(|calls| calls.now());
    assert!((first, last) == (1, 1) && again <= 1, "{first} {again} {last}");
    drop((waits, held));
    assert_eq!(group.usage_exact(), 0);
}
