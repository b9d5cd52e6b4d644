//! Models of waiting for events: every interleaving of a few calls, with up to three preemptions. A waiter that nobody wakes is one that loom finds;
//! each fault of `mutation` must bring it about.

use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use memgroup_sync::loom::thread;

use super::deliver::deliver;
use super::wait::wait;
use super::{Event, Events, count};
use crate::group::Group;
use crate::mutation::{self, Mutation};
use crate::rstat::Reach;
use crate::stock::loom::{UNIT, explore, explore_up_to, lone_group};

/// Two wait, one for the group and one for all of the hierarchy; one event comes.
fn two_wait_for_one_event() {
    let group = lone_group(1, UNIT);
    let root = group.shared.root();
    let waiter = thread::spawn(move || wait(group, Reach::Local, &Events::default(), None, || false));
    let other = thread::spawn(move || wait(root, Reach::Subtree, &Events::default(), None, || false));
    count(group, Event::Max);
    for waiter in [waiter, other] {
        assert_eq!(waiter.join().unwrap().map(|events| events.max), Some(1));
    }
}

/// One waits for an event.
fn one_waits_for_an_event() {
    let group = lone_group(1, UNIT);
    let waiter = thread::spawn(move || wait(group, Reach::Subtree, &Events::default(), None, || false));
    count(group, Event::Oom);
    assert_eq!(waiter.join().unwrap().map(|events| events.oom), Some(1));
}

/// One waits for an event of a group that is removed.
fn one_waits_while_the_group_is_removed() {
    let group = lone_group(1, UNIT);
    let waiter = thread::spawn(move || wait(group, Reach::Subtree, &Events::default(), None, || false));
    group.shared.remove(group).unwrap();
    assert_eq!(waiter.join().unwrap(), None);
}

/// Two threads deliver once each; what is counted while the first callback runs is for the other one.
fn two_deliver() {
    let node = lone_group(1, UNIT);
    // Neither is dropped: in a model that fails their locks are no more.
    let group = ManuallyDrop::new(Group::pinned(node));
    let subscription = ManuallyDrop::new(group.on_events(move |_, events| {
        if events.max == 1 {
            count(node, Event::Max);
        }
    }));
    let far = Instant::now() + Duration::from_secs(3600);
    let deliverer = thread::spawn(move || deliver(node.shared, far));
    count(node, Event::Max);
    assert_eq!(deliver(node.shared, far), 1);
    assert_eq!(deliverer.join().unwrap(), 1);
    assert_eq!(subscription.report().calls, 2);
}

#[test]
fn who_waits_for_an_event_is_woken() {
    explore(one_waits_for_an_event);
}

#[test]
fn all_who_wait_for_an_event_are_woken() {
    explore_up_to(2, two_wait_for_one_event);
}

#[test]
fn who_waits_for_events_of_a_group_that_is_removed_is_woken() {
    explore(one_waits_while_the_group_is_removed);
}

#[test]
fn what_is_counted_while_a_callback_runs_is_delivered_afterwards() {
    explore_up_to(2, two_deliver);
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_waits_is_never_woken_where_an_event_looks_without_a_fence() {
    mutation::with(Mutation::EventLooksWithoutFence, || explore(one_waits_for_an_event));
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_waits_is_never_woken_where_it_looks_before_it_is_armed() {
    mutation::with(Mutation::WaiterLooksBeforeItIsArmed, || explore(one_waits_for_an_event));
}

#[test]
#[should_panic(expected = "deadlock")]
fn what_is_counted_while_a_callback_runs_is_lost_where_that_returns_in_silence() {
    mutation::with(Mutation::CallbackReturnsInSilence, || explore_up_to(2, two_deliver));
}
