//! Models of futures: every interleaving of a few calls, with up to three preemptions. Each fault
//! of `mutation` must make its model fail. Loom reports a task that no thread wakes as a deadlock.

use std::sync::Arc;
use std::task::Wake;

use memgroup_sync::atomic::Ordering;
use memgroup_sync::loom::thread;

use crate::charge::future::*;
use crate::charge::loom::{UNIT, assert_conserved, charge_counters, explore_up_to, lone_group};
use crate::charge::reclaimer;
use crate::control::over_limit;

/// Unparks its thread, and takes the lock of the queues as a task that polls at once would.
struct Unpark(thread::Thread, &'static Node);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        drop(self.1.shared().wait_queue().lock());
        self.0.unpark();
    }
}

/// The number of the first reclaimer.
const FIRST: u64 = 0;

/// A future, which is left as it is when the model has found a fault.
struct Modelled(Option<Charging>);

impl Modelled {
    fn poll(&mut self, waker: &Waker) -> Poll<Result<(), ChargeError>> {
        self.0.as_mut().unwrap().poll_charge(waker)
    }
}

impl Drop for Modelled {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::mem::forget(self.0.take());
        }
    }
}

fn charging(node: &'static Node) -> Modelled {
    let group = Group::pinned(node);
    Modelled(Some(Charging { group, bytes: UNIT, deadline: None, phase: Phase::New }))
}

fn poll_once(charging: &mut Modelled) -> Poll<Result<(), ChargeError>> {
    charging.poll(Waker::noop())
}

/// Polls it until it ends.
fn block_on(mut charging: Modelled) -> Result<(), ChargeError> {
    let node = charging.0.as_ref().unwrap().node();
    let waker = Waker::from(Arc::new(Unpark(thread::current(), node)));
    loop {
        match charging.poll(&waker) {
            Poll::Ready(outcome) => return outcome,
            Poll::Pending => thread::park(),
        }
    }
}

/// A full group, which is marked as a reclaimer marks it.
fn full_group() -> &'static Node {
    let group = unmarked_group();
    // ORDERING: Relaxed; as in `reclaimer::review`.
    over_limit::change(group, |group| group.waiting.held.fetch_add(1, Ordering::Relaxed));
    group
}

/// A full group of a hierarchy with a reclaimer that does not run.
fn unmarked_group() -> &'static Node {
    let group = lone_group(1, UNIT);
    charge_counters(group, UNIT).ok().unwrap();
    assert_eq!(group.shared().waits().reclaimers.add(), FIRST);
    group
}

fn assert_empty(group: &'static Node) {
    assert_eq!(group.counter.usage(), 0, "a charge that was handed over is not lost");
    assert_conserved(group);
}

/// A task waits for bytes that a thread uncharges.
fn one_waits_and_another_uncharges() {
    let group = full_group();
    let user = thread::spawn(move || aftermath::uncharge_counters(group, UNIT));
    assert!(block_on(charging(group)).is_ok());
    aftermath::uncharge_counters(group, UNIT);
    user.join().unwrap();
    assert_empty(group);
}

/// A future is polled by one task, and then by another.
fn one_moves_to_another_task() {
    let group = full_group();
    let mut moved = charging(group);
    assert!(poll_once(&mut moved).is_pending());
    let user = thread::spawn(move || aftermath::uncharge_counters(group, UNIT));
    assert!(block_on(moved).is_ok());
    aftermath::uncharge_counters(group, UNIT);
    user.join().unwrap();
    assert_empty(group);
}

/// A future is dropped while an uncharge hands a charge over.
fn one_is_dropped() {
    let group = full_group();
    let mut dropped = charging(group);
    assert!(poll_once(&mut dropped).is_pending());
    let user = thread::spawn(move || aftermath::uncharge_counters(group, UNIT));
    drop(dropped);
    user.join().unwrap();
    assert_empty(group);
}

/// The first future is dropped while an uncharge hands it the bytes for which the second waits.
fn the_first_of_two_is_dropped() {
    let group = full_group();
    let (mut dropped, mut next) = (charging(group), charging(group));
    assert!(poll_once(&mut dropped).is_pending() && poll_once(&mut next).is_pending());
    let user = thread::spawn(move || aftermath::uncharge_counters(group, UNIT));
    drop(dropped);
    user.join().unwrap();
    assert!(poll_once(&mut next) == Poll::Ready(Ok(())), "the next one is served");
    aftermath::uncharge_counters(group, UNIT);
    assert_empty(group);
}

/// An uncharge hands a charge over while the deadline passes.
fn one_whose_deadline_passes() {
    let group = full_group();
    let mut late = charging(group);
    assert!(poll_once(&mut late).is_pending());
    let user = thread::spawn(move || aftermath::uncharge_counters(group, UNIT));
    late.0.as_mut().unwrap().deadline = Some(Instant::now());
    match poll_once(&mut late) {
        Poll::Ready(Ok(())) => aftermath::uncharge_counters(group, UNIT),
        Poll::Ready(Err(error)) => assert_eq!(error.kind(), ChargeErrorKind::Deadline),
        Poll::Pending => panic!("its deadline has passed"),
    }
    drop(late);
    user.join().unwrap();
    assert_empty(group);
}

/// An uncharge hands a charge over while a reclaimer ends the wait at its deadline.
fn one_that_is_late() {
    let group = full_group();
    let mut late = charging(group);
    let deadline = Instant::now();
    late.0.as_mut().unwrap().deadline = Some(deadline + Duration::from_secs(3600));
    assert!(poll_once(&mut late).is_pending());
    late.0.as_mut().unwrap().deadline = Some(deadline);
    let user = thread::spawn(move || aftermath::uncharge_counters(group, UNIT));
    let mut queues = group.shared().wait_queue().lock();
    queues.end_late(deadline + Duration::from_secs(7200));
    let wakers = queues.take_wakers();
    drop(queues);
    wakers.call();
    match poll_once(&mut late) {
        Poll::Ready(Ok(())) => aftermath::uncharge_counters(group, UNIT),
        Poll::Ready(Err(error)) => assert_eq!(error.kind(), ChargeErrorKind::Deadline),
        Poll::Pending => panic!("its wait was ended"),
    }
    drop(late);
    user.join().unwrap();
    assert_empty(group);
}

/// A future is dropped while a reclaimer makes its charge.
fn one_is_dropped_during_its_review() {
    let group = full_group();
    let mut dropped = charging(group);
    assert!(poll_once(&mut dropped).is_pending());
    let reclaimer = thread::spawn(move || {
        let review = reclaimer::begin(&mut group.shared().wait_queue().lock(), group);
        aftermath::uncharge_counters(group, UNIT);
        if let Some(review) = review {
            // Room was made; the charge is made with it.
            charge_counters(group, UNIT).ok().unwrap();
            review.end(true);
        }
    });
    drop(dropped);
    reclaimer.join().unwrap();
    assert_empty(group);
}

/// A task waits at a group that is not marked yet. A thread uncharges into the stock while a
/// reclaimer marks the group.
fn one_waits_before_the_mark() {
    let group = unmarked_group();
    let mut waiting = charging(group);
    assert!(poll_once(&mut waiting).is_pending());
    let user = thread::spawn(move || group.uncharge_at(0, UNIT));
    reclaimer::work_once(group.shared());
    user.join().unwrap();
    assert!(poll_once(&mut waiting) == Poll::Ready(Ok(())), "the uncharge serves it");
    aftermath::uncharge_counters(group, UNIT);
    assert_empty(group);
}

/// The last reclaimer ends while a task begins to wait.
fn the_reclaimer_ends() {
    let group = full_group();
    let ender = thread::spawn(move || reclaimer::end(group.shared(), FIRST));
    let outcome = block_on(charging(group));
    assert_eq!(outcome.unwrap_err().kind(), ChargeErrorKind::NoReclaimer);
    ender.join().unwrap();
    aftermath::uncharge_counters(group, UNIT);
}

#[test]
fn an_uncharge_serves_the_task() {
    explore_up_to(2, one_waits_and_another_uncharges);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_task_that_looks_only_before_it_queues_is_caught() {
    mutation::with(Mutation::WaiterDoesNotLookAgain, || explore_up_to(2, one_waits_and_another_uncharges));
}

#[test]
#[should_panic]
fn a_waker_that_is_called_under_the_lock_is_caught() {
    mutation::with(Mutation::WakersAreCalledUnderTheLock, || {
        explore_up_to(2, one_waits_and_another_uncharges)
    });
}

#[test]
fn wakes_the_task_that_polled_last() {
    explore_up_to(2, one_moves_to_another_task);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_future_that_keeps_its_first_waker_is_caught() {
    mutation::with(Mutation::FutureKeepsItsFirstWaker, || explore_up_to(2, one_moves_to_another_task));
}

#[test]
fn a_dropped_future_leaves_nothing() {
    explore_up_to(3, one_is_dropped);
}

#[test]
#[should_panic(expected = "a charge that was handed over is not lost")]
fn a_dropped_future_that_keeps_its_charge_is_caught() {
    mutation::with(Mutation::DroppedFutureKeepsTheCharge, || explore_up_to(3, one_is_dropped));
}

#[test]
fn a_charge_of_a_dropped_future_goes_to_the_next() {
    explore_up_to(2, the_first_of_two_is_dropped);
}

#[test]
#[should_panic(expected = "the next one is served")]
fn a_charge_kept_from_the_next_future_is_caught() {
    mutation::with(Mutation::DroppedFutureKeepsTheCharge, || explore_up_to(2, the_first_of_two_is_dropped));
}

#[test]
fn a_charge_that_is_handed_over_at_the_deadline_is_not_lost() {
    explore_up_to(3, one_whose_deadline_passes);
}

#[test]
#[should_panic(expected = "a charge that was handed over is not lost")]
fn a_future_that_leaves_without_its_charge_is_caught() {
    mutation::with(Mutation::FutureGoesWithoutTheCharge, || explore_up_to(3, one_whose_deadline_passes));
}

#[test]
fn a_charge_that_is_handed_over_beside_a_late_wakeup_is_not_lost() {
    explore_up_to(3, one_that_is_late);
}

#[test]
#[should_panic(expected = "a charge that was handed over is not lost")]
fn a_late_wakeup_that_ignores_the_charge_is_caught() {
    mutation::with(Mutation::LateTaskLosesItsCharge, || explore_up_to(3, one_that_is_late));
}

#[test]
fn a_charge_made_for_a_dropped_future_goes_back() {
    explore_up_to(2, one_is_dropped_during_its_review);
}

#[test]
#[should_panic(expected = "a charge that was handed over is not lost")]
fn a_review_that_ignores_the_end_is_caught() {
    mutation::with(Mutation::ReviewIgnoresTheEnd, || explore_up_to(2, one_is_dropped_during_its_review));
}

#[test]
fn a_task_is_served_although_it_waited_before_the_mark() {
    explore_up_to(2, one_waits_before_the_mark);
}

#[test]
#[should_panic(expected = "the uncharge serves it")]
fn a_reclaimer_that_does_not_mark_is_caught() {
    mutation::with(Mutation::ReclaimerDoesNotMark, || explore_up_to(2, one_waits_before_the_mark));
}

#[test]
#[should_panic(expected = "the uncharge serves it")]
fn a_review_that_ends_with_a_load_is_caught() {
    mutation::with(Mutation::ReviewEndsWithALoad, || explore_up_to(2, one_waits_before_the_mark));
}

#[test]
fn no_task_waits_on_when_the_last_reclaimer_ends() {
    explore_up_to(2, the_reclaimer_ends);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_last_reclaimer_that_leaves_tasks_is_caught() {
    mutation::with(Mutation::LastReclaimerLeavesTasks, || explore_up_to(2, the_reclaimer_ends));
}
