//! Tests of the reclaimers that are notified. The reclaimers never run: a test does their steps.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Waker};
use std::time::Duration;

use memgroup_sync::thread;

use crate::observe::wait::charges::duties::*;
use crate::observe::wait::charges::{Party, Want};
use crate::{Charge, Charging, Config, Group, Hierarchy, Reclaimer};

const PAGE: u64 = 4096;
const HOUR: Duration = Duration::from_secs(3600);

/// A full group, and two reclaimers that sleep.
struct Fixture {
    group: Group,
    _held: Charge,
    _reclaimers: [Reclaimer; 2],
}

impl Fixture {
    fn new() -> Fixture {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let group = hierarchy.create("/group").unwrap();
        group.set_max(PAGE).unwrap();
        let fixture = Fixture {
            _held: group.try_charge(PAGE).unwrap(),
            _reclaimers: [(); 2].map(|()| hierarchy.reclaimer()),
            group,
        };
        fixture.all_sleep();
        fixture
    }

    fn queues<T>(&self, act: impl FnOnce(&mut ChargeQueue) -> T) -> T {
        act(&mut self.group.node().shared().wait_queue().lock())
    }

    fn all_sleep(&self) {
        let numbers =
            self.queues(|queues| queues.reclaimers.iter().map(|one| one.number).collect::<Vec<_>>());
        for number in numbers {
            let before = self.queues(|queues| queues.sleep(number, thread::current()));
            drop(before);
        }
    }

    /// Whether each reclaimer sleeps.
    fn asleep(&self) -> Vec<bool> {
        self.queues(|queues| queues.reclaimers.iter().map(|one| one.is_asleep).collect())
    }

    /// A task that waits in the group until `after` from now on.
    fn wait(&self, after: Option<Duration>) -> Charging {
        let mut charging = self.group.charge(PAGE);
        if let Some(after) = after {
            charging = charging.until(after);
        }
        assert!(Pin::new(&mut charging).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        charging
    }

    /// A reclaimer begins a review. Reviews for later are due, too.
    fn begin_review(&self) -> u32 {
        let duty = self.queues(|queues| queues.next_duty(Instant::now() + HOUR));
        if let Duty::Review(queue) = duty { queue } else { panic!("no review is due") }
    }

    /// A task waits without a deadline. A reclaimer has reviewed its queue, and sleeps again.
    fn reviewed(&self) -> Charging {
        let first = self.wait(None);
        let queue = self.begin_review();
        self.queues(|queues| queues.end_review_of(queue, Instant::now(), true));
        self.all_sleep();
        first
    }
}

#[test]
fn a_reclaimer_is_notified_of_the_first_deadline_alone() {
    let fixture = Fixture::new();
    let _first = fixture.reviewed();
    let _timed = fixture.wait(Some(2 * HOUR));
    assert_eq!(fixture.asleep(), [false, true]);
    fixture.all_sleep();
    let _later = fixture.wait(Some(3 * HOUR));
    assert_eq!(fixture.asleep(), [true, true]);
    let _earlier = fixture.wait(Some(HOUR));
    assert_eq!(fixture.asleep(), [false, true]);
}

#[test]
fn a_reclaimer_that_begins_a_review_notifies_another_one_if_a_task_has_a_deadline() {
    let fixture = Fixture::new();
    let _first = fixture.reviewed();
    fixture.queues(|queues| queues.notify_reclaimer());
    let queue = fixture.begin_review();
    assert_eq!(fixture.asleep(), [false, true], "nothing is left to do");
    fixture.queues(|queues| queues.end_review_of(queue, Instant::now(), true));
    let _timed = fixture.wait(Some(2 * HOUR));
    assert_eq!(fixture.asleep(), [false, false]);
    fixture.all_sleep();
    fixture.begin_review();
    assert_eq!(fixture.asleep(), [false, true], "the deadline is left");
}

#[test]
fn a_reclaimer_that_ends_hands_its_notice_on() {
    let fixture = Fixture::new();
    let _first = fixture.wait(None);
    assert_eq!(fixture.asleep(), [false, true]);
    let notified = fixture.queues(|queues| queues.reclaimers[0].number);
    let is_last = fixture.queues(|queues| queues.unregister(notified));
    assert_eq!((is_last, fixture.asleep()), (false, vec![false]));
}

#[test]
fn visits_the_waits_that_there_are_and_not_those_that_were() {
    const MANY: usize = 100_000;
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let [group, other] = ["/group", "/other"].map(|path| hierarchy.create(path).unwrap());
    let lock = group.node().shared().wait_queue();
    let begin = |group: &Group| {
        let party = Party::Thread(thread::current());
        let deadline = Instant::now() + HOUR;
        let mut queues = ChargeQueue::reserve(lock);
        let place = queues.list(group.node(), 4096, deadline, Want::Charge, party);
        queues.join(place, group.node());
        place
    };
    let end = |place: u32| drop(lock.lock().unlist(place));
    let visits_of = |act: &dyn Fn()| {
        let visits = || lock.lock().visits;
        let before = visits();
        act();
        visits() - before
    };
    let mut places: Vec<u32> = (0..MANY).map(|_| begin(&group)).collect();
    let kept = [MANY - 1, MANY / 2, 1].map(|at| places.swap_remove(at));
    assert!(visits_of(&|| assert_eq!(group.waiters().now, MANY)) >= MANY as u64 / 64);
    places.into_iter().for_each(end);
    // Each is in a chunk of its own.
    assert_eq!(visits_of(&|| assert_eq!(group.waiters().now, 3)), 3);
    assert_eq!(visits_of(&|| group.set_weight(7).unwrap()), 3);
    assert_eq!(visits_of(&|| assert_eq!(other.wake_waiters(), 0)), 3);
    assert_eq!(visits_of(&|| assert_eq!(group.wake_waiters(), 3)), 3);
    kept.into_iter().for_each(end);
    assert_eq!(visits_of(&|| assert_eq!((hierarchy.waits().len(), group.wake_waiters()), (0, 0))), 0);
    let place = begin(&group);
    assert_eq!(visits_of(&|| group.set_max(1000).unwrap()), 1, "a limit that is too low tells them so");
    end(place);
    assert_eq!(group.waiters().now, 0);
}
