//! Waiting for events as futures.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Wake, Waker};
use std::time::{Duration, Instant};

use memgroup::{Config, Events, EventsAfter, Group, SlotSource, WaitEnded, WaitKind};
use memgroup_sync::{depth, grace};

use super::super::random::Random;
use super::executor::{Calls, block_on, poll, poll_with};
use super::running::Running;
use super::within_a_minute;

fn running() -> (Running, Group) {
    let running = Running::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap()));
    let alice = running.hierarchy.create("/alice").unwrap();
    alice.set_max(4096).unwrap();
    (running, alice)
}

fn event(group: &Group) {
    group.try_charge(1 << 30).unwrap_err();
}

fn until(mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        std::thread::yield_now();
    }
}

#[test]
fn is_ready_at_once_when_counts_differ_already() {
    let (running, alice) = running();
    running.stop.stop();
    event(&alice);
    let seen = Events::default();
    assert_eq!(poll(&mut alice.events_after(&seen)), Poll::Ready(Ok(alice.events())), "without a reclaimer");
    assert_eq!(poll(&mut alice.events_after(&alice.events())), Poll::Ready(Err(WaitEnded::NoReclaimer)));
    assert!(running.hierarchy.waits().is_empty());
}

#[test]
fn an_event_wakes_the_task_once() {
    within_a_minute(|| {
        let (running, alice) = running();
        let bob = running.hierarchy.create("/bob").unwrap();
        let calls = Arc::new(Calls::default());
        let mut seen = alice.events();
        for round in 1..100 {
            let mut after = running.hierarchy.root().events_after(&seen);
            let mut beside = bob.events_after(&Events::default());
            assert!(poll_with(&mut after, &calls.waker()).is_pending());
            assert!(poll(&mut beside).is_pending());
            let waits = running.hierarchy.waits();
            assert_eq!((waits.len(), waits[0].kind, alice.waiters().now), (2, WaitKind::Event, 0));
            event(&alice);
            event(&alice);
            until(|| calls.now() == round);
            assert!(poll(&mut beside).is_pending(), "no event of its own");
            let Poll::Ready(Ok(now)) = poll(&mut after) else { panic!("an event was counted") };
            assert_eq!(now.max, u64::from(round) * 2);
            seen = now;
        }
    });
}

#[test]
fn ends_at_its_deadline_without_a_timer() {
    within_a_minute(|| {
        let (running, alice) = running();
        let began = Instant::now();
        let late = alice.events_after(&alice.events()).until(Duration::from_millis(20));
        assert_eq!(block_on(late), Err(WaitEnded::Deadline));
        assert!(began.elapsed() >= Duration::from_millis(20));
        let calls = Arc::new(Calls::default());
        let mut earlier = alice.events_after(&alice.events()).until(Duration::from_secs(3600));
        assert!(poll_with(&mut earlier, &calls.waker()).is_pending());
        earlier = earlier.until(Duration::from_millis(5));
        until(|| calls.now() == 1);
        assert_eq!(poll(&mut earlier), Poll::Ready(Err(WaitEnded::Deadline)));
        drop(earlier);
        assert!(running.hierarchy.waits().is_empty());
    });
}

#[test]
fn ends_with_the_group_with_its_waits_and_with_reclaimers() {
    within_a_minute(|| {
        let (running, alice) = running();
        let bob = running.hierarchy.create("/bob").unwrap();
        let wait = |group: &Group| {
            let after = group.events_after(&group.events());
            std::thread::spawn(move || block_on(after))
        };
        let begun = |count| until(|| running.hierarchy.waits().len() == count);
        let (first, second) = (wait(&alice), wait(&bob));
        begun(2);
        assert_eq!(alice.wake_waiters(), 1);
        assert_eq!(first.join().unwrap(), Err(WaitEnded::Woken));
        bob.remove().unwrap();
        assert_eq!(second.join().unwrap(), Err(WaitEnded::Removed));
        assert_eq!(
            block_on(bob.events_after(&bob.events())),
            Err(WaitEnded::Removed),
            "it begins afterwards"
        );
        let third = wait(&alice);
        begun(1);
        running.stop.stop();
        assert_eq!(third.join().unwrap(), Err(WaitEnded::NoReclaimer));
        assert!(running.hierarchy.waits().is_empty());
    });
}

/// Charges as an executor does that polls at once; and says whether it was called in a part of the
/// engine.
struct Charges {
    group: Group,
    is_called: AtomicBool,
}

impl Wake for Charges {
    fn wake(self: Arc<Self>) {
        assert!(!depth::is_inside() && !grace::inside(), "called within the engine");
        event(&self.group);
        assert_eq!(self.group.wake_waiters(), 0);
        // ORDERING: Release; the counts are before it.
        self.is_called.store(true, Ordering::Release);
        panic!("a waker panics");
    }
}

#[test]
fn calls_a_waker_outside_locks_and_sections() {
    within_a_minute(|| {
        let (running, alice) = running();
        for is_in_section in [false, true] {
            let bob = running.hierarchy.create("/bob").unwrap();
            bob.set_max(4096).unwrap();
            let charges = Arc::new(Charges { group: bob.clone(), is_called: AtomicBool::new(false) });
            let mut after = alice.events_after(&alice.events());
            assert!(poll_with(&mut after, &Waker::from(Arc::clone(&charges))).is_pending());
            {
                let _inside = depth::enter();
                let _section = is_in_section.then(grace::enter);
                event(&alice);
            }
            // ORDERING: Acquire; pairs with the waker's store.
            until(|| charges.is_called.load(Ordering::Acquire));
            assert!(poll(&mut after).is_ready());
            assert_eq!(bob.events().max, 1);
            bob.remove().unwrap();
        }
    });
}

/// One thread with futures of its own, which it polls and cancels, while it makes events.
fn churn(seed: u64, groups: &[Group], calls: &Arc<Calls>) {
    let mut random = Random(seed + 1);
    let mut waiting: Vec<(EventsAfter, Events)> = Vec::new();
    for _ in 0..5000 {
        let group = &groups[random.below(groups.len() as u64) as usize];
        match random.below(8) {
            0 | 1 if waiting.len() < 64 => {
                let seen = group.events();
                let after = group.events_after(&seen);
                let deadline = Instant::now() + Duration::from_micros(random.below(200));
                waiting.push((if random.below(4) == 0 { after.until(deadline) } else { after }, seen));
            }
            2 => event(&groups[0]),
            3 if !waiting.is_empty() => {
                let at = random.below(waiting.len() as u64) as usize;
                drop(waiting.swap_remove(at));
            }
            _ if !waiting.is_empty() => {
                let at = random.below(waiting.len() as u64) as usize;
                let (after, seen) = &mut waiting[at];
                match poll_with(after, &calls.waker()) {
                    Poll::Pending => continue,
                    Poll::Ready(Ok(now)) => assert!(now.max > seen.max),
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
    let (running, alice) = running();
    let groups = [alice.clone(), running.hierarchy.root()];
    let calls = Arc::new(Calls::default());
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (groups, calls) = (&groups, &calls);
            scope.spawn(move || churn(seed, groups, calls));
        }
    });
    assert!(running.hierarchy.waits().is_empty());
    drop(running);
    assert_eq!(Arc::strong_count(&calls), 1, "no waker is left");
}

#[test]
fn a_removal_ends_many_tasks_with_the_last_counts() {
    within_a_minute(|| {
        let (running, alice) = running();
        std::thread::scope(|scope| {
            let task = || {
                let (mut seen, mut answers) = (Events::default(), 0);
                loop {
                    match block_on(alice.events_after(&seen)) {
                        Ok(now) => (seen, answers) = (now, answers + 1),
                        Err(ended) => return (seen.max, answers, ended),
                    }
                }
            };
            let tasks: Vec<_> = (0..16).map(|_| scope.spawn(task)).collect();
            for _ in 0..500 {
                event(&alice);
            }
            alice.remove().unwrap();
            for task in tasks {
                let (max, answers, ended) = task.join().unwrap();
                assert_eq!((max, ended), (500, WaitEnded::Removed));
                assert!((1..=500).contains(&answers));
            }
        });
        assert!(running.hierarchy.waits().is_empty());
    });
}
