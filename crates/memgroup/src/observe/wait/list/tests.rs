//! Tests of the list of waits.

use std::time::Duration;

use crate::observe::wait::list::*;
use crate::{Config, Hierarchy};

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(5)
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(3600)
}

#[test]
fn does_not_sleep_when_notified_before_and_once_for_each_notice() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let group = hierarchy.create("/group").unwrap();
    let listed = begin(group.node(), WaitKind::Event, 0, far());
    let ticket = listed.ticket();
    ticket.notify(group.node().shared());
    ticket.notify(group.node().shared());
    assert_eq!(listed.park(far()), Wake::Notified);
    assert_eq!(listed.park(soon()), Wake::Deadline);
    drop(listed);
    let next = begin(group.node(), WaitKind::Event, 0, soon());
    ticket.notify(group.node().shared());
    assert_eq!(next.park(soon()), Wake::Deadline, "the notice is of a wait that is over");
}

#[test]
fn sleeps_on_when_unparked_for_another_reason() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let deadline = soon();
    let listed = begin(hierarchy.root().node(), WaitKind::Event, 0, deadline);
    std::thread::current().unpark();
    let until = soon();
    assert_eq!(listed.park(until), Wake::Deadline);
    assert!(Instant::now() >= until.min(deadline));
}

#[test]
fn ends_with_a_removal_before_or_after_it_begins() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let group = hierarchy.create("/group").unwrap();
    let before = begin(group.node(), WaitKind::Throttle, 0, far());
    group.remove().unwrap();
    let after = begin(group.node(), WaitKind::Throttle, 0, far());
    for listed in [before, after] {
        assert!(listed.is_called_off());
        assert_eq!([listed.park(far()), listed.park(far())], [Wake::All; 2]);
    }
}

#[test]
fn holds_as_many_waits_as_there_are() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let group = hierarchy.create("/group").unwrap();
    let begin = |_| begin(group.node(), WaitKind::Shrinker, 7, far());
    let mut waits: Vec<Listed> = (0..3000).map(begin).collect();
    assert_eq!((group.waiters().now, hierarchy.root().waiters().bytes), (3000, 21_000));
    waits.truncate(3);
    assert_eq!((group.waiters().now, hierarchy.waits().len()), (3, 3));
    assert_eq!((group.wake_waiters(), group.wake_waiters()), (3, 0));
    drop(waits);
    assert_eq!((hierarchy.waits().len(), hierarchy.root().waiters().now), (0, 0));
}
