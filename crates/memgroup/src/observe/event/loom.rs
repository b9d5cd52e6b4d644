//! Models of waiting for events: every interleaving of a few calls, with up to three preemptions. loom finds a waiter that is never woken. Each fault of
//! `mutation` must make its model fail.

use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use memgroup_sync::loom::thread;

use crate::base::deadline::Deadline;
use crate::base::mutation::{self, Mutation};
use crate::charge::loom::{UNIT, explore, explore_up_to, lone_group};
use crate::counter::events::{Event, Events};
use crate::observe::event::deliver::deliver;
use crate::observe::event::{count, wait};
use crate::state::stats::Reach;
use crate::tree::handle::Group;

/// One thread waits for the group, one for the whole hierarchy; one event comes.
fn two_wait_for_one_event() {
    let group = lone_group(1, UNIT);
    let root = group.shared().root();
    let waiter = thread::spawn(move || wait(group, Reach::Local, &Events::default(), Deadline::NEVER));
    let other = thread::spawn(move || wait(root, Reach::Subtree, &Events::default(), Deadline::NEVER));
    count(group, Event::Max);
    for waiter in [waiter, other] {
        assert_eq!(waiter.join().unwrap().map(|events| events.max), Some(1));
    }
}

/// One thread waits for an event.
fn one_waits_for_an_event() {
    let group = lone_group(1, UNIT);
    let waiter = thread::spawn(move || wait(group, Reach::Subtree, &Events::default(), Deadline::NEVER));
    count(group, Event::Oom);
    assert_eq!(waiter.join().unwrap().map(|events| events.oom), Some(1));
}

/// One thread waits for an event of a group that is removed.
fn one_waits_while_the_group_is_removed() {
    let group = lone_group(1, UNIT);
    let waiter = thread::spawn(move || wait(group, Reach::Subtree, &Events::default(), Deadline::NEVER));
    group.shared().remove(group).unwrap();
    assert_eq!(waiter.join().unwrap(), None);
}

/// Two threads deliver once each. The event counted during the first call is for the other thread.
fn two_deliver() {
    let node = lone_group(1, UNIT);
    // Neither is dropped: in a model that fails their locks are gone.
    let group = ManuallyDrop::new(Group::pinned(node));
    let subscription = ManuallyDrop::new(group.on_events(move |_, events| {
        if events.max == 1 {
            count(node, Event::Max);
        }
    }));
    let far = Instant::now() + Duration::from_secs(3600);
    let deliverer = thread::spawn(move || deliver(node.shared(), far));
    count(node, Event::Max);
    assert_eq!(deliver(node.shared(), far), 1);
    assert_eq!(deliverer.join().unwrap(), 1);
    assert_eq!(subscription.report().calls, 2);
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
fn delivers_events_counted_during_a_call() {
    explore_up_to(2, two_deliver);
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
#[should_panic(expected = "deadlock")]
fn loses_an_event_when_a_callback_returns_in_silence() {
    mutation::with(Mutation::CallbackReturnsInSilence, || explore_up_to(2, two_deliver));
}
