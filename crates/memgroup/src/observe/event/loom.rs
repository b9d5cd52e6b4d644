//! Models of waiting for events: every interleaving of a few calls, with up to three preemptions.
//! loom finds a waiter that is never woken. Each fault of `mutation` must make its model fail.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use memgroup_sync::loom::thread;

use crate::base::deadline::Deadline;
use crate::base::mutation::{self, Mutation};
use crate::charge::loom::{UNIT, explore, explore_up_to, lone_group};
use crate::charge::reclaimer;
use crate::counter::events::{Event, Events};
use crate::observe::event::{EventsAfter, count, wait};
use crate::observe::wait::party::Wakers;
use crate::observe::wait::tasks::WaitEnded;
use crate::tree::handle::Group;
use crate::tree::node::Node;

/// One thread waits for the group, one for the whole hierarchy; one event comes.
fn two_wait_for_one_event() {
    let group = lone_group(1, UNIT);
    let root = group.shared().root();
    let waiter = thread::spawn(move || wait(group, &Events::default(), Deadline::NEVER));
    let other = thread::spawn(move || wait(root, &Events::default(), Deadline::NEVER));
    count(group, Event::Max);
    for waiter in [waiter, other] {
        assert_eq!(waiter.join().unwrap().map(|events| events.max), Some(1));
    }
}

/// One thread waits for an event.
fn one_waits_for_an_event() {
    let group = lone_group(1, UNIT);
    let waiter = thread::spawn(move || wait(group, &Events::default(), Deadline::NEVER));
    count(group, Event::Oom);
    assert_eq!(waiter.join().unwrap().map(|events| events.oom), Some(1));
}

/// One thread waits for an event of a group that is removed.
fn one_waits_while_the_group_is_removed() {
    let group = lone_group(1, UNIT);
    let waiter = thread::spawn(move || wait(group, &Events::default(), Deadline::NEVER));
    group.shared().remove(group).unwrap();
    assert_eq!(waiter.join().unwrap(), None);
}

/// Unparks its thread, and takes the lock of the list as a task that polls at once would.
struct Unpark(thread::Thread, &'static Node);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.shared().waits().each(|_| ());
        self.0.unpark();
    }
}

/// The number of the first reclaimer.
const FIRST: u64 = 0;

/// A future, which is left as it is when the model has found a fault.
struct Modelled(Option<EventsAfter>);

impl Modelled {
    fn poll(&mut self, waker: &Waker) -> Poll<Result<Events, WaitEnded>> {
        Pin::new(self.0.as_mut().unwrap()).poll(&mut Context::from_waker(waker))
    }
}

impl Drop for Modelled {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::mem::forget(self.0.take());
        }
    }
}

/// A group, and a task for its events, in a hierarchy with a reclaimer that does not run.
fn a_task() -> (&'static Node, Modelled) {
    let group = lone_group(1, UNIT);
    assert_eq!(group.shared().waits().reclaimers.add(), FIRST);
    (group, Modelled(Some(Group::pinned(group).events_after(&Events::default()))))
}

fn poll_once(task: &mut Modelled) -> Poll<Result<Events, WaitEnded>> {
    task.poll(Waker::noop())
}

/// Polls it until it ends.
fn block_on(group: &'static Node, mut task: Modelled) -> Result<u64, WaitEnded> {
    let waker = Waker::from(Arc::new(Unpark(thread::current(), group)));
    loop {
        match task.poll(&waker) {
            Poll::Ready(outcome) => return outcome.map(|events| events.max),
            Poll::Pending => thread::park(),
        }
    }
}

fn assert_empty(group: &'static Node) {
    assert!(group.shared().waits().is_empty(), "no wait is left");
}

/// Counts an event. Later a reclaimer wakes the tasks.
fn count_and_tell(group: &'static Node) {
    count(group, Event::Max);
    group.shared().waits().call_wakers();
}

/// A task waits for an event.
fn one_task_waits_for_an_event() {
    let (group, task) = a_task();
    let other = thread::spawn(move || count_and_tell(group));
    assert_eq!(block_on(group, task), Ok(1));
    other.join().unwrap();
    assert_empty(group);
}

/// A thread and a task wait for one event.
fn a_thread_and_a_task_wait() {
    let (group, task) = a_task();
    let waiter = thread::spawn(move || wait(group, &Events::default(), Deadline::NEVER));
    let other = thread::spawn(move || count_and_tell(group));
    assert_eq!(block_on(group, task), Ok(1));
    assert_eq!(waiter.join().unwrap().map(|events| events.max), Some(1));
    other.join().unwrap();
    assert_empty(group);
}

/// A future is polled by one task, and then by another.
fn one_moves_to_another_task() {
    let (group, mut task) = a_task();
    assert!(poll_once(&mut task).is_pending());
    let other = thread::spawn(move || count_and_tell(group));
    assert_eq!(block_on(group, task), Ok(1));
    other.join().unwrap();
    assert_empty(group);
}

/// A future is dropped while an event is told to it.
fn one_task_is_dropped() {
    let (group, mut task) = a_task();
    assert!(poll_once(&mut task).is_pending());
    let other = thread::spawn(move || count_and_tell(group));
    drop(task);
    other.join().unwrap();
    assert_empty(group);
}

/// A task waits for an event of a group that is removed.
fn one_task_waits_while_the_group_is_removed() {
    let (group, task) = a_task();
    let other = thread::spawn(move || {
        group.shared().remove(group).unwrap();
        group.shared().waits().call_wakers();
    });
    assert_eq!(block_on(group, task), Err(WaitEnded::Removed));
    other.join().unwrap();
    assert_empty(group);
}

/// The last reclaimer ends while a task begins to wait.
fn one_task_waits_while_the_reclaimer_ends() {
    let (group, task) = a_task();
    let other = thread::spawn(move || reclaimer::end(group.shared(), FIRST));
    assert_eq!(block_on(group, task), Err(WaitEnded::NoReclaimer));
    other.join().unwrap();
    assert_empty(group);
}

/// An event is counted while the reclaimer goes to sleep. It wakes the task.
fn an_event_comes_as_the_reclaimer_sleeps() {
    let (group, mut task) = a_task();
    let waker = Waker::from(Arc::new(Unpark(thread::current(), group)));
    assert!(task.poll(&waker).is_pending());
    let reclaimer = thread::spawn(move || {
        let look = || {
            let (wakers, until) = group.shared().waits().take_wakers(Instant::now());
            if wakers.is_empty() { Err(until) } else { Ok(wakers) }
        };
        group.shared().waits().reclaimers.next(FIRST, look).into_iter().for_each(Wakers::call);
    });
    count(group, Event::Max);
    thread::park();
    assert!(task.poll(&waker).is_ready());
    reclaimer.join().unwrap();
}

#[test]
fn an_event_wakes_its_waiter() {
    explore(one_waits_for_an_event);
}

#[test]
fn an_event_wakes_all_its_waiters() {
    explore_up_to(2, two_wait_for_one_event);
}

#[test]
fn a_removal_wakes_the_waiters_of_its_group() {
    explore(one_waits_while_the_group_is_removed);
}

#[test]
#[should_panic(expected = "deadlock")]
fn sleeps_on_when_an_event_looks_without_a_fence() {
    mutation::with(Mutation::EventLooksWithoutFence, || explore(one_waits_for_an_event));
}

#[test]
#[should_panic(expected = "deadlock")]
fn sleeps_on_when_a_waiter_looks_before_it_is_armed() {
    mutation::with(Mutation::WaiterLooksBeforeItIsArmed, || explore(one_waits_for_an_event));
}

#[test]
fn an_event_wakes_its_task() {
    explore_up_to(2, one_task_waits_for_an_event);
}

#[test]
fn an_event_wakes_a_thread_and_a_task() {
    explore_up_to(2, a_thread_and_a_task_wait);
}

#[test]
fn an_event_wakes_the_task_that_polled_last() {
    explore_up_to(2, one_moves_to_another_task);
}

#[test]
fn a_dropped_task_leaves_nothing() {
    explore(one_task_is_dropped);
}

#[test]
fn a_removal_wakes_the_tasks_of_its_group() {
    explore_up_to(2, one_task_waits_while_the_group_is_removed);
}

#[test]
fn the_end_of_the_last_reclaimer_wakes_tasks() {
    explore_up_to(2, one_task_waits_while_the_reclaimer_ends);
}

#[test]
fn a_reclaimer_wakes_the_task() {
    explore_up_to(2, an_event_comes_as_the_reclaimer_sleeps);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_task_sleeps_on_when_an_event_looks_without_a_fence() {
    mutation::with(Mutation::EventLooksWithoutFence, || explore_up_to(2, one_task_waits_for_an_event));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_task_sleeps_on_when_it_looks_before_it_is_armed() {
    mutation::with(Mutation::WaiterLooksBeforeItIsArmed, || explore_up_to(2, one_task_waits_for_an_event));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_task_sleeps_on_when_it_keeps_its_first_waker() {
    mutation::with(Mutation::FutureKeepsItsFirstWaker, || explore_up_to(2, one_moves_to_another_task));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_task_sleeps_on_when_the_last_reclaimer_leaves_it() {
    mutation::with(Mutation::LastReclaimerLeavesTasks, || {
        explore_up_to(2, one_task_waits_while_the_reclaimer_ends)
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_task_sleeps_on_when_the_reclaimer_sleeps_without_a_look() {
    mutation::with(Mutation::ReclaimerSleepsWithoutALook, || {
        explore_up_to(2, an_event_comes_as_the_reclaimer_sleeps)
    });
}
