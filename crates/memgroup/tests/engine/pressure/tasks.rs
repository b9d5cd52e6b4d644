//! Waiting for triggers as futures.

use std::sync::{Arc, Mutex, mpsc};
use std::task::Poll;
use std::time::Duration;

use memgroup::{
    Ask, Config, Count, Deadline, Fired, Group, PressureWatch, Scan, Shrinker, ShrinkerConfig, SlotSource,
    WaitEnded, WaitKind,
};

use super::super::random::Random;
use super::executor::{Calls, block_on, poll, poll_with};
use super::running::Running;
use super::{MILLI, busy, some_us};

fn running() -> (Running, Group) {
    let running = Running::new(Config::with_slots(SlotSource::virtual_slots(4).unwrap()));
    let group = running.hierarchy.create("/group").unwrap();
    (running, group)
}

fn watch(group: &Group, trigger: &str) -> PressureWatch {
    group.add_pressure_trigger(trigger.parse().unwrap())
}

#[test]
fn fires_during_the_stall_without_a_timer() {
    let (running, group) = running();
    let groups = [group.clone(), running.hierarchy.root()];
    let triggers = groups.each_ref().map(|group| watch(group, "full 30000 1000000"));
    let _stall = group.stall();
    for (trigger, group) in triggers.iter().zip(&groups) {
        assert_eq!(block_on(trigger.fired()), Ok(()));
        assert!(some_us(group) >= 30_000, "not before its time");
    }
}

#[test]
fn wakes_a_dozing_task_when_a_stall_begins() {
    let (running, group) = running();
    let trigger = watch(&group, "some 20000 500000");
    let calls = Arc::new(Calls::default());
    let mut fired = trigger.fired();
    assert!(poll_with(&mut fired, &calls.waker()).is_pending());
    let waits = running.hierarchy.waits();
    assert_eq!((waits.len(), waits[0].kind, group.waiters().now), (1, WaitKind::Pressure, 0));
    assert_eq!(calls.now(), 0, "nothing is stalled");
    let _stall = group.stall();
    while calls.now() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(block_on(fired), Ok(()), "while the stall is on");
}

/// A shrinker with a call that lasts until `is_free` is closed.
struct Hangs {
    begun: mpsc::Sender<()>,
    is_free: Mutex<mpsc::Receiver<()>>,
}

impl Shrinker for Hangs {
    fn count(&self, _token: u64) -> Count {
        Count::of(4096, 1)
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        self.begun.send(()).unwrap();
        self.is_free.lock().unwrap().recv().unwrap_err();
        Scan::Freed { bytes: 0 }
    }
}

#[test]
fn a_second_reclaimer_wakes_tasks_while_the_first_is_busy() {
    let (running, group) = running();
    let second = running.hierarchy.reclaimer();
    let stop = second.stop_handle();
    let second = std::thread::spawn(|| second.run());
    let full = running.hierarchy.create("/full").unwrap();
    full.set_max(4096).unwrap();
    let (begun, is_busy) = mpsc::channel();
    let (go, is_free) = mpsc::channel::<()>();
    let is_free = Mutex::new(is_free);
    let shrinker = full.add_shrinker(ShrinkerConfig::new("hangs"), Hangs { begun, is_free }).unwrap();
    shrinker.mark();
    let held = full.try_charge(4096).unwrap();
    let trigger = watch(&group, "some 30000 1000000");
    let calls = Arc::new(Calls::default());
    let _stall = group.stall();
    let mut fired = trigger.fired();
    assert!(poll_with(&mut fired, &calls.waker()).is_pending());
    let mut charging = full.charge(4096);
    assert!(poll(&mut charging).is_pending());
    is_busy.recv().unwrap();
    while calls.now() == 0 {
        std::thread::yield_now();
    }
    drop((charging, go));
    assert_eq!(block_on(fired), Ok(()));
    drop((held, shrinker));
    stop.stop();
    second.join().unwrap();
}

#[test]
fn keeps_a_firing_when_the_task_that_was_woken_is_dropped() {
    let (running, group) = running();
    let trigger = watch(&group, "some 1 500000");
    let mut dropped = trigger.fired();
    assert!(poll(&mut dropped).is_pending());
    let stalled = group.stall();
    busy(MILLI);
    drop(stalled);
    drop(dropped);
    running.stop.stop();
    assert_eq!(poll(&mut trigger.fired()), Poll::Ready(Ok(())), "without a reclaimer");
    assert_eq!(poll(&mut trigger.fired()), Poll::Ready(Err(WaitEnded::NoReclaimer)));
}

#[test]
fn ends_at_its_deadline_with_the_group_and_when_woken() {
    let (running, group) = running();
    let trigger = watch(&group, "some 10000000 10000000");
    assert_eq!(block_on(trigger.fired().until(5 * MILLI)), Err(WaitEnded::Deadline));
    let one_waits = || {
        while running.hierarchy.waits().is_empty() {
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        let task = scope.spawn(|| block_on(trigger.fired()));
        one_waits();
        assert_eq!(group.wake_waiters(), 1);
        assert_eq!(task.join().unwrap(), Err(WaitEnded::Woken));
        let thread = scope.spawn(|| trigger.wait(Deadline::NEVER));
        one_waits();
        group.remove().unwrap();
        assert!(!thread.join().unwrap());
    });
    assert_eq!(block_on(trigger.fired()), Err(WaitEnded::Removed));
    assert!(running.hierarchy.waits().is_empty());
}

/// One thread that polls, cancels and stalls.
fn churn(seed: u64, groups: &[Group], triggers: &[PressureWatch], calls: &Arc<Calls>) {
    let mut random = Random(seed + 1);
    let mut waiting: Vec<Fired<'_>> = Vec::new();
    for _ in 0..3000 {
        let trigger = &triggers[random.below(triggers.len() as u64) as usize];
        match random.below(8) {
            0 | 1 if waiting.len() < 32 => {
                let fired = trigger.fired();
                let deadline = Duration::from_micros(random.below(200));
                waiting.push(if random.below(4) == 0 { fired.until(deadline) } else { fired });
            }
            2 => {
                let _stall = groups[random.below(groups.len() as u64) as usize].stall();
                busy(Duration::from_micros(random.below(20)));
            }
            3 if !waiting.is_empty() => {
                let at = random.below(waiting.len() as u64) as usize;
                drop(waiting.swap_remove(at));
            }
            _ if !waiting.is_empty() => {
                let at = random.below(waiting.len() as u64) as usize;
                match poll_with(&mut waiting[at], &calls.waker()) {
                    Poll::Pending => continue,
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(ended)) => assert_eq!(ended, WaitEnded::Deadline),
                }
                drop(waiting.swap_remove(at));
            }
            _ => {}
        }
    }
}

#[test]
fn tasks_that_come_and_go_leave_nothing() {
    let (running, group) = running();
    let groups = [group.clone(), running.hierarchy.root()];
    let triggers = [watch(&group, "some 1 500000"), watch(&groups[1], "full 1 500000")];
    let calls = Arc::new(Calls::default());
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (groups, triggers, calls) = (&groups, &triggers, &calls);
            scope.spawn(move || churn(seed, groups, triggers, calls));
        }
    });
    assert!(running.hierarchy.waits().is_empty());
    // No trigger could fire here.
    let quiet = watch(&group, "some 10000000 10000000");
    std::thread::scope(|scope| {
        let tasks: Vec<_> = (0..16).map(|_| scope.spawn(|| block_on(quiet.fired()))).collect();
        while running.hierarchy.waits().len() < 16 {
            std::thread::yield_now();
        }
        group.remove().unwrap();
        for task in tasks {
            assert_eq!(task.join().unwrap(), Err(WaitEnded::Removed));
        }
    });
    assert!(running.hierarchy.waits().is_empty());
    drop(running);
    assert_eq!(Arc::strong_count(&calls), 1, "no waker is left");
}
