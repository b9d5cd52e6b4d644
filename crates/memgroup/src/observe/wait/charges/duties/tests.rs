//! Tests of the reclaimers that are notified. The reclaimers never run: a test does their steps.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Waker};
use std::time::Duration;

use memgroup_sync::thread;

use crate::observe::wait::charges::duties::*;
use crate::observe::wait::charges::{Party, Want};
use crate::observe::wait::reclaimers::Reclaimers;
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

    fn reclaimers(&self) -> &Reclaimers {
        &self.group.node().shared().waits().reclaimers
    }

    fn all_sleep(&self) {
        self.reclaimers().with_asleep(|(_, is_asleep)| *is_asleep = true);
    }

    /// Returns whether each reclaimer sleeps.
    fn asleep(&self) -> Vec<bool> {
        self.reclaimers().with_asleep(|(_, is_asleep)| *is_asleep)
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
    fn begin_review(&self) -> &'static Node {
        let duty = self.queues(|queues| queues.next_duty(Instant::now() + HOUR));
        if let Duty::Review(at) = duty { at } else { panic!("no review is due") }
    }

    /// A task waits without a deadline. A reclaimer has reviewed its queue, and sleeps again.
    fn reviewed(&self) -> Charging {
        let first = self.wait(None);
        let at = self.begin_review();
        self.queues(|queues| queues.end_review_of(at, Instant::now(), true));
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
    fixture.reclaimers().wake_one();
    let at = fixture.begin_review();
    assert_eq!(fixture.asleep(), [false, true], "nothing is left to do");
    fixture.queues(|queues| queues.end_review_of(at, Instant::now(), true));
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
    let notified = fixture.reclaimers().with_asleep(|(number, _)| number)[0];
    let is_last = fixture.reclaimers().remove(notified);
    assert_eq!((is_last, fixture.asleep()), (false, vec![false]));
}

#[test]
fn many_waits_end_in_any_order() {
    const MANY: usize = 1000;
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let [group, other] = ["/group", "/other"].map(|path| hierarchy.create(path).unwrap());
    let lock = group.node().shared().wait_queue();
    let begin = |group: &Group| {
        let (node, party) = (group.node(), Party::Thread(thread::current()));
        let mut queues = lock.lock();
        let number = queues.list(node, 4096, Instant::now() + HOUR, Want::Charge, party);
        queues.join(number, node);
        number
    };
    let end = |number: u64| drop(lock.lock().unlist(number));
    let mut numbers: Vec<u64> = (0..MANY).map(|_| begin(&group)).collect();
    let kept = [MANY - 1, MANY / 2, 1].map(|at| numbers.swap_remove(at));
    assert_eq!(group.waiters().now, MANY);
    numbers.into_iter().for_each(end);
    assert_eq!(group.waiters().now, 3);
    group.set_weight(7).unwrap();
    assert_eq!((other.wake_waiters(), group.wake_waiters()), (0, 3));
    kept.into_iter().for_each(end);
    let last = begin(&group);
    group.set_max(1000).unwrap();
    assert_eq!(lock.lock().entry(last).state, State::Again, "a limit that is too low");
    end(last);
    assert_eq!((hierarchy.waits().len(), lock.lock().has_queue(group.node())), (0, false));
}
