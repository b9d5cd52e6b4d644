//! Polls: their effects, and the state that they leave.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use memgroup::{ChargeErrorKind, Charging, Config, Effort, Growing, KillAnswer, KillRequest, WaitKind};

use super::executor::{Calls, block_on, poll, poll_with};
use super::{PAGE, Running, until};

fn is_send<T: Send + 'static>(_: &T) {}

#[test]
fn does_nothing_before_its_first_poll() {
    let running = Running::new(Config::new());
    let group = running.group("group", 1);
    let charging = group.charge(PAGE);
    is_send(&charging);
    assert_eq!((charging.bytes(), charging.group(), charging.deadline()), (PAGE, &group, None));
    assert!(group.usage_exact() == 0 && running.hierarchy.waits().is_empty());
    drop(charging);
    assert_eq!(group.events().max, 0);
}

#[test]
fn charges_at_once_where_there_is_room() {
    let running = Running::new(Config::new());
    let group = running.group("group", 10);
    let mut charge = block_on(group.charge(PAGE)).unwrap();
    assert_eq!((charge.bytes(), group.usage_exact()), (PAGE, PAGE));
    block_on(charge.grow(PAGE)).unwrap();
    assert_eq!((charge.bytes(), group.usage_exact()), (2 * PAGE, 2 * PAGE));
    let empty = block_on(group.charge(0)).unwrap();
    assert_eq!(empty.bytes(), 0);
    block_on(charge.grow(0)).unwrap();
    drop((charge, empty));
    assert_eq!(group.usage_exact(), 0);
}

#[test]
fn is_listed_while_it_waits_and_handed_its_charge() {
    let running = Running::new(Config::new());
    let group = running.group("group", 2);
    let held = group.try_charge(2 * PAGE).unwrap();
    let calls = Arc::new(Calls::default());
    let mut charging = group.charge(PAGE).until(Duration::from_secs(3600));
    assert!(poll_with(&mut charging, &calls.waker()).is_pending());
    let waits = running.hierarchy.waits();
    assert!(waits.len() == 1 && waits[0].kind == WaitKind::Charge && waits[0].bytes == PAGE);
    assert_eq!(Some(waits[0].deadline), charging.deadline());
    assert_eq!((group.waiters().now, group.events().max), (1, 1));
    drop(held);
    until(|| calls.now() == 1);
    assert_eq!(group.usage(), PAGE, "it is charged before it is polled");
    let Poll::Ready(Ok(charge)) = poll_with(&mut charging, &calls.waker()) else { panic!("it was woken") };
    assert_eq!((charge.bytes(), running.hierarchy.waits().len(), group.refusals()), (PAGE, 0, 0));
    drop(charge);
    assert_eq!(group.usage_exact(), 0);
}

#[test]
#[should_panic(expected = "polled after its end")]
fn panics_when_it_is_polled_after_its_end() {
    let running = Running::new(Config::new());
    let mut charging = running.group("group", 1).charge(PAGE);
    assert!(poll(&mut charging).is_ready());
    _ = poll(&mut charging);
}

#[test]
fn wakes_the_task_that_polled_it_last() {
    let running = Running::new(Config::new());
    let group = running.group("group", 1);
    let held = group.try_charge(PAGE).unwrap();
    let mut charging = group.charge(PAGE);
    let [first, last] = [(); 2].map(|()| Arc::new(Calls::default()));
    assert!(poll_with(&mut charging, &first.waker()).is_pending());
    assert!(poll_with(&mut charging, &last.waker()).is_pending());
    assert_eq!(Arc::strong_count(&first), 1, "its waker is dropped");
    drop(held);
    until(|| last.now() == 1);
    assert_eq!(first.now(), 0);
}

#[test]
fn a_charge_that_finds_another_level_full_waits_there() {
    let running = Running::new(Config::new());
    let parent = running.group("parent", 4);
    let (asks, other) = (parent.create("asks").unwrap(), parent.create("other").unwrap());
    asks.set_max(2 * PAGE).unwrap();
    let (own, others) = (asks.try_charge(2 * PAGE).unwrap(), other.try_charge(2 * PAGE).unwrap());
    let calls = Arc::new(Calls::default());
    let mut charging = asks.charge(2 * PAGE);
    assert!(poll_with(&mut charging, &calls.waker()).is_pending());
    assert_eq!(running.hierarchy.waits()[0].at, "/parent/asks");
    let more = other.charge_forced(PAGE).unwrap();
    drop(own);
    until(|| {
        assert!(poll_with(&mut charging, &calls.waker()).is_pending());
        running.hierarchy.waits()[0].at == "/parent"
    });
    drop((others, more));
    until(|| poll_with(&mut charging, &calls.waker()).is_ready());
}

#[test]
fn passes_a_dry_run_by_the_reclaimer() {
    let running = Running::new(Config::new());
    let group = running.group("group", 1);
    group.set_enforced(false);
    let charges: Vec<_> = (0..20).map(|_| block_on(group.charge(PAGE)).unwrap()).collect();
    assert_eq!((charges.len(), group.would_refuse()), (20, 19));
}

#[test]
fn calls_neither_a_shrinker_nor_a_hook_on_the_polling_thread() {
    let running = Running::new(Config::new());
    let group = running.group("group", 1);
    let held = std::sync::Mutex::new(Some(group.try_charge(PAGE).unwrap()));
    let poller = std::thread::current().id();
    let hook = group.set_kill_hook(move |_: &KillRequest<'_>| {
        assert_ne!(std::thread::current().id(), poller);
        drop(held.lock().unwrap().take());
        KillAnswer::Dying
    });
    let hook = hook.unwrap();
    let charge = block_on(group.charge(PAGE)).unwrap();
    assert_eq!((group.events().oom_kill, group.try_charge_by(1, Effort::Count).is_err()), (1, true));
    drop((charge, hook));
}

#[test]
fn grows_a_charge_or_leaves_it() {
    let running = Running::new(Config::new());
    let group = running.group("group", 2);
    let mut charge = group.try_charge(PAGE).unwrap();
    let held = group.try_charge(PAGE).unwrap();
    {
        let mut growing: Growing<'_> = charge.grow(PAGE).until(Duration::from_secs(3600));
        assert!(poll(&mut growing).is_pending() && growing.deadline().is_some());
        drop(held);
        until(|| group.usage() == 2 * PAGE);
    }
    assert_eq!(charge.bytes(), PAGE, "it was dropped");
    // A reclaimer may have made its charge just then, and uncharges it.
    until(|| group.usage_exact() == PAGE);
    let error = block_on(charge.grow(3 * PAGE)).unwrap_err();
    assert_eq!((error.kind(), charge.bytes()), (ChargeErrorKind::Refused, PAGE));
    block_on(charge.grow(PAGE)).unwrap();
    assert_eq!(charge.bytes(), 2 * PAGE);
}

#[test]
fn a_task_that_waits_is_a_stall() {
    let running = Running::new(Config::new());
    let group = running.group("group", 1);
    let _held = group.try_charge(PAGE).unwrap();
    let mut charging = group.charge(PAGE);
    assert_eq!(group.pressure().some.total, 0);
    assert!(poll(&mut charging).is_pending());
    until(|| group.pressure().some.total > 1000);
    assert!(running.hierarchy.root().pressure().full.total > 0, "no thread is at work");
    drop(charging);
    let ended = group.pressure().some.total;
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(group.pressure().some.total, ended);
}

#[test]
fn is_small() {
    assert!(size_of::<Charging>() <= 48, "{}", size_of::<Charging>());
}
