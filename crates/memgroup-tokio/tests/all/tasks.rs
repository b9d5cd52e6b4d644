//! The kill hook of a group ends its tasks.

use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use memgroup::{Config, Group, Hierarchy, KillHookError, KillOutcome, scope};
use memgroup_tokio::{Ended, Tasks};
use tokio::task::yield_now;

use crate::{assert_empty, fixture};

/// A full group with the group of a runaway and a small one.
fn full() -> (Hierarchy, Group, Group, Group) {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let tenants = hierarchy.create("/tenants").unwrap();
    tenants.set_max(1 << 20).unwrap();
    let (runaway, small) = (tenants.create("runaway").unwrap(), tenants.create("small").unwrap());
    (hierarchy, tenants, runaway, small)
}

async fn holds(bytes: u64) {
    let _held = scope::try_charge_current(bytes).unwrap().unwrap();
    pending::<()>().await;
}

/// A waker that notes its call.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A waker that panics.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("as planned");
    }
}

#[tokio::test]
async fn ends_all_tasks_of_the_group_and_no_others() {
    let (hierarchy, _tenants, runaway, small) = full();
    let (tasks, others) = (Tasks::of(&runaway).unwrap(), Tasks::of(&small).unwrap());
    let held: Vec<_> = (0..8).map(|_| tasks.spawn(holds(100 << 10))).collect();
    let other = others.spawn(holds(1000));
    yield_now().await;
    assert_eq!((tasks.count(), runaway.usage_exact()), (8, 800 << 10));

    assert!(small.try_charge(400 << 10).is_err(), "the tasks have not been polled yet");
    assert_eq!(tasks.count(), 0);
    for task in held {
        let Err(Ended::Killed { group, requester, asked, .. }) = task.await.unwrap() else { panic!() };
        assert_eq!((group.as_str(), requester, asked), ("/tenants/runaway", small.id(), 400 << 10));
    }
    let charge = small.try_charge(400 << 10).unwrap();
    assert_eq!((runaway.usage_exact(), runaway.events().oom_kill, others.count()), (0, 1, 1));

    let again = tasks.spawn(async { 7 }).await.unwrap();
    assert_eq!(again, Ok(7), "the next task runs");
    assert_eq!(others.stop(), 1);
    assert_eq!(other.await.unwrap(), Err(Ended::Stopped { group: "/tenants/small".to_owned() }));
    drop(charge);
    assert_empty(&hierarchy, &runaway);
}

#[tokio::test]
async fn reports_the_end_of_tasks_that_held_no_bytes_themselves() {
    let (hierarchy, _tenants, runaway, small) = full();
    let held = runaway.try_charge(1 << 20).unwrap();
    let tasks = Tasks::of(&runaway).unwrap();
    let pending: Vec<_> = (0..3).map(|_| tasks.spawn(pending::<()>())).collect();
    yield_now().await;
    assert!(small.try_charge(4096).is_err());
    assert_eq!(hierarchy.kills().last().unwrap().outcome, None);
    for task in pending {
        assert!(matches!(task.await.unwrap(), Err(Ended::Killed { .. })));
    }
    assert_eq!(hierarchy.kills().last().unwrap().outcome, Some(KillOutcome::Died));
    drop(held);
    assert_empty(&hierarchy, &runaway);
}

#[tokio::test]
async fn refuses_the_charge_of_its_own_task_instead() {
    let (hierarchy, _tenants, runaway, _small) = full();
    let tasks = Tasks::of(&runaway).unwrap();
    let task = tasks.spawn(async {
        let held = scope::try_charge_current(1 << 20).unwrap().unwrap();
        let refused = scope::try_charge_current(4096).unwrap().is_err();
        yield_now().await;
        (held.bytes(), refused)
    });
    assert_eq!(task.await.unwrap(), Ok((1 << 20, true)));
    assert_empty(&hierarchy, &runaway);
}

#[tokio::test]
async fn ends_a_branch_of_select_that_is_tracked() {
    let (hierarchy, _tenants, runaway, small) = full();
    let tasks = Tasks::of(&runaway).unwrap();
    let ended = tokio::select! {
        biased;
        ended = tasks.track(holds(1 << 20)) => ended,
        () = async {
            assert!(small.try_charge(4096).is_err());
            pending::<()>().await;
        } => unreachable!(),
    };
    assert!(matches!(ended, Err(Ended::Killed { .. })));
    assert_empty(&hierarchy, &runaway);
}

#[test]
fn passes_over_a_waker_that_panics() {
    let (hierarchy, _tenants, runaway, small) = full();
    let tasks = Tasks::of(&runaway).unwrap();
    let mut panics = pin!(tasks.track(holds(512 << 10)));
    let mut other = pin!(tasks.track(holds(512 << 10)));
    let waker = Waker::from(Arc::new(Panics));
    assert!(panics.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    assert!(other.as_mut().poll(&mut context).is_pending());

    assert!(small.try_charge(4096).is_err());
    assert!(woken.0.load(Ordering::Relaxed), "the other one is woken all the same");
    for future in [panics.as_mut(), other.as_mut()] {
        assert!(matches!(future.poll(&mut context), Poll::Ready(Err(Ended::Killed { .. }))));
    }
    assert!(small.try_charge(4096).is_ok(), "the hook is not set aside");
    assert_empty(&hierarchy, &runaway);
}

#[test]
fn keeps_the_hook_until_the_last_task_ends() {
    let (_hierarchy, group) = fixture();
    let tasks = Tasks::of(&group).unwrap();
    let exists = KillHookError::Exists { group: "/group".to_owned() };
    let task = tasks.track(pending::<()>());
    drop(tasks);
    assert_eq!(Tasks::of(&group).unwrap_err(), exists);
    drop(task);
    assert!(Tasks::of(&group).is_ok());
}

#[tokio::test]
async fn reports_the_end_with_the_last_of_the_tasks() {
    let (hierarchy, _tenants, runaway, small) = full();
    // Held beside the tasks, so that usage does not show their end.
    let held = runaway.try_charge(1 << 20).unwrap();
    let tasks = Tasks::of(&runaway).unwrap();
    let (mut first, mut last) = (pin!(tasks.track(pending::<()>())), pin!(tasks.track(pending::<()>())));
    let mut context = Context::from_waker(Waker::noop());
    for task in [first.as_mut(), last.as_mut()] {
        assert!(task.poll(&mut context).is_pending());
    }
    assert!(small.try_charge(4096).is_err());
    assert!(matches!(first.as_mut().poll(&mut context), Poll::Ready(Err(Ended::Killed { .. }))));
    assert_eq!(hierarchy.kills().last().unwrap().outcome, None, "the other one still runs");
    assert!(matches!(last.as_mut().poll(&mut context), Poll::Ready(Err(Ended::Killed { .. }))));
    assert_eq!(hierarchy.kills().last().unwrap().outcome, Some(KillOutcome::Died));
    drop(held);
    assert_empty(&hierarchy, &runaway);
}

#[test]
fn a_stop_during_a_poll_ends_the_task_with_that_poll() {
    let (_hierarchy, group) = fixture();
    let tasks = Tasks::of(&group).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let stopped = Ended::Stopped { group: "/group".to_owned() };
    // At the first poll the waker is not in the list yet, at the second it is.
    for at in [1, 2] {
        let (stopper, mut polls) = (tasks.clone(), 0);
        let mut task = pin!(tasks.track(poll_fn(move |_| {
            polls += 1;
            if polls == at {
                assert_eq!(stopper.stop(), 1);
            }
            Poll::<()>::Pending
        })));
        for poll in 1..=at {
            let polled = task.as_mut().poll(&mut context);
            let is_over = polled == Poll::Ready(Err(stopped.clone()));
            assert_eq!(is_over, poll == at, "poll {poll}, stopped at {at}: it would sleep for ever");
        }
    }
}

#[test]
fn keeps_nothing_of_a_task_that_has_ended() {
    let (_hierarchy, group) = fixture();
    let tasks = Tasks::of(&group).unwrap();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let mut polls = 0;
    let mut task = pin!(tasks.track(poll_fn(|_| {
        polls += 1;
        if polls == 2 { Poll::Ready(()) } else { Poll::Pending }
    })));
    assert!(task.as_mut().poll(&mut context).is_pending());
    assert_eq!(tasks.count(), 1);
    assert_eq!(task.as_mut().poll(&mut context), Poll::Ready(Ok(())));
    assert_eq!(tasks.count(), 0, "before the future itself is dropped");

    let mut dropped = Box::pin(tasks.track(pending::<()>()));
    assert!(dropped.as_mut().poll(&mut context).is_pending());
    drop(dropped);
    drop(waker);
    assert_eq!((tasks.count(), tasks.stop(), Arc::strong_count(&woken)), (0, 0, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loses_no_task_when_kills_race_with_spawns() {
    let (hierarchy, group) = fixture();
    let tasks = Tasks::of(&group).unwrap();
    let stopper = tasks.clone();
    let stopping = tokio::task::spawn_blocking(move || (0..2000).map(|_| stopper.stop()).sum::<usize>());
    let mut spawned = Vec::new();
    for _ in 0..2000 {
        spawned.push(tasks.spawn(holds(10)));
        yield_now().await;
    }
    let stopped = stopping.await.unwrap() + tasks.stop();
    for task in spawned {
        assert!(matches!(task.await.unwrap(), Err(Ended::Stopped { .. })));
    }
    assert_eq!((stopped, tasks.count()), (2000, 0));
    assert_empty(&hierarchy, &group);
}
