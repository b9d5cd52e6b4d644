//! Futures without a reclaimer that runs: what an uncharge and other futures do alone.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering as StdOrdering};
use std::task::Wake;

use memgroup_sync::atomic::Ordering;

use crate::charge::future::*;
use crate::control::over_limit;
use crate::{Config, Hierarchy};

// ORDERING: Relaxed, all in this file; each test has one thread.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, StdOrdering::Relaxed);
    }
}

/// A future, and whether its waker was called.
struct Task {
    charging: Charging,
    woken: Arc<Woken>,
}

impl Task {
    fn poll(&mut self) -> Poll<Result<Charge, ChargeError>> {
        self.woken.0.store(false, StdOrdering::Relaxed);
        let waker = Waker::from(Arc::clone(&self.woken));
        Pin::new(&mut self.charging).poll(&mut Context::from_waker(&waker))
    }

    fn is_woken(&self) -> bool {
        self.woken.0.load(StdOrdering::Relaxed)
    }
}

/// A group with room for `room` bytes, all of them charged, which is marked as a reclaimer marks
/// it; and tasks that wait there for `each` bytes.
fn waiting(room: u64, count: usize, each: u64) -> (Group, Charge, Vec<Task>) {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let group = hierarchy.create("/group").unwrap();
    group.set_max(room).unwrap();
    let held = group.try_charge(room).unwrap();
    // One that does not run: it serves nothing.
    group.node().shared().waits().reclaimers.add();
    // ORDERING: Relaxed; as in `reclaimer::review`.
    over_limit::change(group.node(), |node| node.waiting.held.fetch_add(1, Ordering::Relaxed));
    let task = |_| Task { charging: group.charge(each), woken: Arc::default() };
    let mut tasks: Vec<Task> = (0..count).map(task).collect();
    assert!(tasks.iter_mut().all(|task| task.poll().is_pending()));
    (group, held, tasks)
}

/// An uncharge serves 16 at most. Each of them that leaves serves others.
#[test]
fn one_uncharge_serves_all_that_fit_by_those_that_it_serves() {
    let (group, held, mut tasks) = waiting(4096, 100, 40);
    drop(held);
    let mut charges = Vec::new();
    while let Some(at) = tasks.iter().position(Task::is_woken) {
        let Poll::Ready(outcome) = tasks.swap_remove(at).poll() else { panic!("it was woken for nothing") };
        charges.push(outcome.unwrap());
    }
    assert_eq!((charges.len(), tasks.len()), (100, 0), "all of them fit");
    drop(charges);
    assert_eq!(group.usage_exact(), 0);
}

/// The same where those that were served are dropped, and their bytes go back.
#[test]
fn one_uncharge_serves_all_that_fit_by_those_that_are_dropped() {
    let (group, held, mut tasks) = waiting(4096, 100, 40);
    drop(held);
    while let Some(at) = tasks.iter().position(Task::is_woken) {
        drop(tasks.swap_remove(at));
    }
    assert_eq!((tasks.len(), group.usage_exact()), (0, 0), "all of them were served");
}
