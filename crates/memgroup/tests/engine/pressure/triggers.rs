//! Triggers: a waiter returns during the stall, once within a window, and at its deadline.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use memgroup::{Deadline, scope};

use super::{MILLI, busy, hierarchy, some_us};

fn in_a_minute() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[test]
fn fires_during_the_stall_at_every_level_and_not_elsewhere() {
    let hierarchy = hierarchy();
    let (group, other) = (hierarchy.create("/group").unwrap(), hierarchy.create("/other").unwrap());
    let below = group.create("below").unwrap();
    let groups = [below.clone(), group, hierarchy.root()];
    let triggers =
        groups.each_ref().map(|group| group.add_pressure_trigger("full 30000 1000000".parse().unwrap()));
    let elsewhere = other.add_pressure_trigger("some 1 500000".parse().unwrap());
    let _stall = below.stall();
    for (trigger, group) in triggers.iter().zip(&groups) {
        assert!(trigger.wait(in_a_minute()));
        assert!(some_us(group) >= 30_000, "not before its time");
    }
    assert!(!elsewhere.wait(Instant::now() + 20 * MILLI));
}

#[test]
fn wakes_a_dozing_waiter_when_a_stall_begins() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    let trigger = group.add_pressure_trigger("some 20000 500000".parse().unwrap());
    thread::scope(|threads| {
        let (told, woken) = mpsc::channel();
        let (group, trigger) = (&group, &trigger);
        threads.spawn(move || told.send(trigger.wait(in_a_minute())).unwrap());
        thread::sleep(20 * MILLI);
        let stalled = group.stall();
        assert_eq!(woken.recv_timeout(Duration::from_secs(55)), Ok(true), "while the stall is on");
        drop(stalled);
    });
}

/// With `--cfg memgroup_yields` the stall often begins between a waiter's look and its sleep.
#[test]
fn a_stall_that_begins_as_a_waiter_goes_to_sleep_wakes_it() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    for round in 0..300_u32 {
        let trigger = group.add_pressure_trigger("some 1 500000".parse().unwrap());
        let (waits, begins) = (AtomicBool::new(false), AtomicBool::new(false));
        let until = |flag: &AtomicBool| {
            while !flag.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
        };
        let is_woken = thread::scope(|threads| {
            let waiter = threads.spawn(|| {
                waits.store(true, Ordering::Release);
                until(&begins);
                let deadline = in_a_minute();
                trigger.wait(deadline) && Instant::now() < deadline
            });
            until(&waits);
            begins.store(true, Ordering::Release);
            (0..round % 100).for_each(|_| std::hint::spin_loop());
            let _stall = group.stall();
            waiter.join().unwrap()
        });
        assert!(is_woken, "round {round}: it has slept until its deadline");
    }
}

#[test]
fn fires_once_within_a_window_and_keeps_that_for_a_wait() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    let trigger = group.add_pressure_trigger("some 2000 500000".parse().unwrap());
    let stalled = group.stall();
    busy(3 * MILLI);
    drop(stalled);
    let fired = Instant::now();
    assert!(trigger.wait(Instant::now()), "it has fired when the stall ended, without a wait");
    let stalled = group.stall();
    // It is stalled still, and the window is not over; unless this thread did not have its
    // processor for so long.
    if !trigger.wait(Instant::now() + 20 * MILLI) {
        assert!(trigger.wait(in_a_minute()));
    }
    assert!(fired.elapsed() >= Duration::from_millis(450), "{:?}", fired.elapsed());
    drop(stalled);
}

#[test]
fn ends_a_wait_at_its_deadline_and_with_the_group() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    let trigger = group.add_pressure_trigger("some 10000000 10000000".parse().unwrap());
    let stalled = group.stall();
    let deadline = Instant::now() + 10 * MILLI;
    assert!(!trigger.wait(deadline));
    assert!(Instant::now() >= deadline);
    drop(stalled);
    assert!(!trigger.wait(Instant::now() - MILLI));
    group.remove().unwrap();
    drop(group);
    assert!(!trigger.wait(Deadline::NEVER));
}

#[test]
fn does_not_fire_on_full_while_a_thread_is_at_work() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    let trigger = group.add_pressure_trigger("full 20000 500000".parse().unwrap());
    thread::scope(|threads| {
        let (told, woken) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        let (begun, is_stalled) = mpsc::channel::<()>();
        let (group, trigger) = (&group, &trigger);
        let scope = scope::enter(group);
        threads.spawn(move || {
            let _stall = group.stall();
            begun.send(()).unwrap();
            gone.recv().unwrap();
        });
        is_stalled.recv().unwrap();
        threads.spawn(move || told.send(trigger.wait(in_a_minute())).unwrap());
        assert!(woken.recv_timeout(50 * MILLI).is_err(), "this thread is at work");
        drop(scope);
        assert_eq!(woken.recv_timeout(Duration::from_secs(55)), Ok(true));
        go.send(()).unwrap();
    });
}

#[test]
fn each_firing_lets_one_of_several_waiters_return() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    let trigger = group.add_pressure_trigger("some 10000 500000".parse().unwrap());
    let stalled = group.stall();
    let returned: Vec<Instant> = thread::scope(|threads| {
        let wait = || {
            assert!(trigger.wait(in_a_minute()));
            Instant::now()
        };
        let waiters: Vec<_> = (0..3).map(|_| threads.spawn(wait)).collect();
        waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect()
    });
    drop(stalled);
    let (first, last) = (returned.iter().min().unwrap(), returned.iter().max().unwrap());
    assert!(last.duration_since(*first) >= Duration::from_millis(900), "two windows");
}

#[test]
fn goes_on_with_stalls_after_a_trigger_is_dropped() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    let triggers: Vec<_> =
        (0..100).map(|_| group.add_pressure_trigger("some 1 500000".parse().unwrap())).collect();
    thread::scope(|threads| {
        threads.spawn(|| (0..2000).for_each(|_| drop(group.stall())));
        drop(triggers);
    });
    let kept = group.add_pressure_trigger("some 1 500000".parse().unwrap());
    let stalled = group.stall();
    busy(MILLI);
    drop(stalled);
    assert!(kept.wait(Instant::now()));
}
