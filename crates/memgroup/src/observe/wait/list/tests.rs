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
fn grows_beyond_its_first_places() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let group = hierarchy.create("/group").unwrap();
    let places = hierarchy.root().node().shared().waits().list.lock().slots.capacity();
    let waits: Vec<Listed> =
        (0..places + 3).map(|_| begin(group.node(), WaitKind::Shrinker, 7, far())).collect();
    assert_eq!((group.waiters().now, hierarchy.root().waiters().now), (places + 3, places + 3));
    assert_eq!((hierarchy.waits().len(), group.wake_waiters()), (places + 3, places + 3));
    drop(waits);
    assert_eq!((hierarchy.waits().len(), hierarchy.root().waiters().now), (0, 0));
}

#[test]
fn visits_the_waits_that_there_are_and_not_those_that_were() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    let group = hierarchy.create("/group").unwrap();
    let node = group.node();
    let waits = node.shared().waits();
    let visits_of = |act: &dyn Fn()| {
        let visits = || waits.list.lock().visits;
        let before = visits();
        act();
        visits() - before
    };
    let mut many: Vec<Listed> = (0..100_000).map(|_| begin(node, WaitKind::Shrinker, 7, far())).collect();
    assert_eq!(visits_of(&|| assert_eq!(group.waiters().now, 100_000)), 100_000);
    // The first and the last of the list, and some between them go at last.
    let some: Vec<Listed> = [99_999, 50_000, 3, 0].map(|at| many.swap_remove(at)).into();
    drop(many);
    assert_eq!(visits_of(&|| assert_eq!(group.waiters().now, 4)), 4);
    assert_eq!(visits_of(&|| assert_eq!(group.wake_waiters(), 4)), 4);
    let last = begin(node, WaitKind::Shrinker, 7, far());
    drop(some);
    assert_eq!(visits_of(&|| assert_eq!((group.waiters().now, group.wake_waiters()), (1, 1))), 2);
    drop(last);
    assert_eq!(visits_of(&|| assert_eq!(group.waiters().now, 0)), 0);
}
