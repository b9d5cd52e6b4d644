//! Triggers: who waits is told while it is stalled, once within a window, and nobody is kept for longer than it said.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use memgroup::scope;

use crate::{MILLI, busy, hierarchy, some_us};

fn in_a_minute() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

#[test]
fn it_fires_while_the_stall_is_on_at_every_level_and_not_where_nothing_is_stalled() {
    let hierarchy = hierarchy();
    let (group, other) = (hierarchy.create("/group").unwrap(), hierarchy.create("/other").unwrap());
    let below = group.create("below").unwrap();
    let triggers = [&below, &group, &hierarchy.root()]
        .map(|group| group.add_pressure_trigger("full 30000 1000000").unwrap());
    let elsewhere = other.add_pressure_trigger("some 1 500000").unwrap();
    let _stall = below.stall();
    for trigger in &triggers {
        assert!(trigger.wait(in_a_minute()));
        assert!(some_us(trigger.group()) >= 30_000, "not before its time");
    }
    assert!(!elsewhere.wait(Instant::now() + 20 * MILLI));
}

#[test]
fn one_that_dozes_is_woken_by_the_stall_that_begins() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    let trigger = group.add_pressure_trigger("some 20000 500000").unwrap();
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

/// With `--cfg memgroup_yields` the stall begins between a waiter's look and its sleep.
#[test]
fn a_stall_that_begins_as_a_waiter_goes_to_sleep_wakes_it() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    for _ in 0..300 {
        let trigger = group.add_pressure_trigger("some 1 500000").unwrap();
        let has_fired = thread::scope(|threads| {
            let waiter = threads.spawn(|| trigger.wait(Instant::now() + Duration::from_secs(20)));
            let _stall = group.stall();
            waiter.join().unwrap()
        });
        assert!(has_fired);
    }
}

#[test]
fn it_fires_at_most_once_within_a_window_and_keeps_that_for_the_next_wait() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    let trigger = group.add_pressure_trigger("some 2000 500000").unwrap();
    let stalled = group.stall();
    busy(3 * MILLI);
    drop(stalled);
    let fired = Instant::now();
    assert!(trigger.wait(Instant::now()), "it has fired when the stall ended, without anybody waiting");
    let stalled = group.stall();
    // It is stalled still, and the window is not over; unless this thread did not have its processor for so long.
    if !trigger.wait(Instant::now() + 20 * MILLI) {
        assert!(trigger.wait(in_a_minute()));
    }
    assert!(fired.elapsed() >= Duration::from_millis(450), "{:?}", fired.elapsed());
    drop(stalled);
}

#[test]
fn a_wait_ends_at_its_deadline_also_one_that_is_over_and_one_of_a_group_that_is_removed() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    let trigger = group.add_pressure_trigger("some 10000000 10000000").unwrap();
    let stalled = group.stall();
    let deadline = Instant::now() + 10 * MILLI;
    assert!(!trigger.wait(deadline));
    assert!(Instant::now() >= deadline);
    drop(stalled);
    assert!(!trigger.wait(Instant::now() - MILLI));
    group.remove().unwrap();
    drop(group);
    let deadline = Instant::now() + 10 * MILLI;
    assert!(!trigger.wait(deadline));
    assert!(Instant::now() >= deadline);
}

#[test]
fn somebody_at_work_holds_off_a_trigger_on_full_until_the_scope_is_left() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    let trigger = group.add_pressure_trigger("full 20000 500000").unwrap();
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
    let trigger = group.add_pressure_trigger("some 10000 500000").unwrap();
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
fn a_trigger_that_is_dropped_is_told_nothing_more_and_stalls_go_on() {
    let hierarchy = hierarchy();
    let group = hierarchy.create("/group").unwrap();
    let triggers: Vec<_> = (0..100).map(|_| group.add_pressure_trigger("some 1 500000").unwrap()).collect();
    thread::scope(|threads| {
        threads.spawn(|| (0..2000).for_each(|_| drop(group.stall())));
        drop(triggers);
    });
    let kept = group.add_pressure_trigger("some 1 500000").unwrap();
    let stalled = group.stall();
    busy(MILLI);
    drop(stalled);
    assert!(kept.wait(Instant::now()));
}
