//! Tests of one call: how many bytes a shrinker is asked for and how many are deferred, its mark
//! and its slot.
//!
//! A test makes a call or a visit by hand, at any priority.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memgroup_percpu::SlotSource;

use crate::charge::charge::Charge;
use crate::reclaim::bitmap::CLASSES;
use crate::reclaim::control::ScanStats;
use crate::reclaim::credit::{Purpose, ReclaimCredit};
use crate::reclaim::due::PRIORITIES;
use crate::reclaim::entry::domain;
use crate::reclaim::queue;
use crate::reclaim::registration::{Registration, ShrinkerSlot};
use crate::reclaim::scan::*;
use crate::reclaim::shrinker::{Shrinker, ShrinkerConfig};
use crate::reclaim::slot::SlotState;
use crate::reclaim::walk::{Walk, is_due};
use crate::state::config::Config;
use crate::tree::handle::{Group, Hierarchy};

mod fixture;

use fixture::{BATCH, Fixture, GIVES_NOTHING, STOPS, holds, place};

#[test]
fn defers_less_than_a_batch_until_it_is_enough() {
    let fixture = Fixture::new(&[Count::Unknown], GIVES_NOTHING);
    // A sixteenth of ten batches, twice, is not enough for a call.
    for _ in 0..2 {
        fixture.ask(10 * BATCH, 5);
    }
    assert_eq!((fixture.asked().len(), fixture.state().deferred()), (0, 2 * 10 * BATCH / 16));
    fixture.ask(10 * BATCH, 0);
    let asked: u64 = fixture.asked().iter().sum();
    assert_eq!(asked, 20 * BATCH, "no more than twice the cache's bytes");
    assert_eq!(fixture.state().deferred(), 2 * 10 * BATCH / 16, "the bytes that were not asked for");
}

#[test]
fn asks_for_deferred_bytes_in_proportion_to_the_priority() {
    let fixture = Fixture::new(&[Count::Unknown], GIVES_NOTHING);
    fixture.state().defer(16 * BATCH, u64::MAX);
    // Of ten batches half, and a quarter of the deferred ones.
    fixture.ask(10 * BATCH, 2);
    assert_eq!(fixture.asked(), [BATCH; 9]);
    assert_eq!(fixture.state().deferred(), (16 + 5 - 9) * BATCH);
}

#[test]
fn defers_at_most_twice_the_cache() {
    let fixture = Fixture::new(&[Count::Unknown], STOPS);
    for _ in 0..100 {
        fixture.ask(10 * BATCH, 0);
    }
    assert_eq!(fixture.state().deferred(), 20 * BATCH);
    fixture.state().defer(BATCH, 5 * BATCH);
    assert_eq!(fixture.state().deferred(), 20 * BATCH, "bytes that are deferred already stay");
}

#[test]
fn defers_a_share_and_counts_busy_during_another_scan() {
    let fixture = Fixture::new(&[holds(10 * BATCH)], GIVES_NOTHING);
    assert!(fixture.state().seize(1, false));
    assert_eq!(fixture.ask(10 * BATCH, 2).busy, 1);
    assert_eq!((fixture.asked().len(), fixture.state().deferred()), (0, 5 * BATCH));
    assert_eq!((fixture.visit(2).busy, fixture.counted()), (1, 0), "it is not even counted");
}

#[test]
fn defers_the_rest_and_counts_busy_when_it_stops() {
    let fixture = Fixture::new(&[Count::Unknown], STOPS);
    let stats = fixture.ask(10 * BATCH, 2);
    assert_eq!((stats.busy, stats.scanned, fixture.asked()), (1, 1, vec![BATCH]));
    assert_eq!(fixture.state().deferred(), 4 * BATCH);
}

#[test]
fn takes_deferred_bytes_once() {
    let fixture = Arc::new(Fixture::new(&[Count::Unknown], GIVES_NOTHING));
    fixture.state().defer(16 * BATCH, u64::MAX);
    let slot = fixture.state();
    assert!(slot.seize(1, false));
    assert_eq!((slot.take_deferred(), slot.take_deferred()), (16 * BATCH, 0));
    slot.defer(7 * BATCH, u64::MAX);
    assert_eq!(slot.deferred(), 7 * BATCH);
}

#[test]
fn asks_a_dear_cache_for_one_batch_at_the_last_priority() {
    let dear = ShrinkerConfig::new("dear").cost(u32::MAX);
    let fixture = Fixture::of(dear, &[Count::Unknown], GIVES_NOTHING);
    fixture.ask(10 * BATCH, 1);
    assert!(fixture.asked().is_empty());
    fixture.ask(10 * BATCH, 0);
    fixture.ask(BATCH / 4, 0);
    assert_eq!(fixture.asked(), [BATCH, BATCH / 4]);
}

#[test]
fn ends_the_series_with_the_call_that_passes_the_deadline() {
    let fixture = Fixture::new(&[Count::Unknown], GIVES_NOTHING);
    fixture.call(0, Some(Instant::now()), |call, control| {
        call.ask(10 * BATCH, control);
    });
    assert_eq!(fixture.asked(), [BATCH]);
}

#[test]
fn counts_a_cache_with_nothing_due_at_the_last_priorities() {
    let fixture = Fixture::new(&[holds(10 * BATCH)], STOPS);
    fixture.visit(12);
    assert_eq!((fixture.counted(), fixture.asked().len()), (1, 0), "a cache of unknown size is counted");
    for priority in 5..=12 {
        fixture.visit(priority);
        assert_eq!(fixture.counted(), 0, "priority {priority}");
    }
    fixture.visit(4);
    assert_eq!((fixture.counted(), fixture.asked()), (1, vec![BATCH]));
    for priority in [1, 0] {
        fixture.state().backoff.ask_from(0);
        fixture.visit(priority);
        assert_eq!(fixture.counted(), 1, "priority {priority}");
    }
}

#[test]
fn marks_a_cache_that_gives_little_in_the_class_below() {
    let fixture = Fixture::new(&[holds(600 * BATCH)], GIVES_NOTHING);
    fixture.attached.as_ref().unwrap().mark();
    // 600 batches are due from priority 10 on, and three priorities later after each scan.
    for (priority, class) in [(10, 2), (7, 1), (4, 0), (1, 0)] {
        fixture.visit(priority + 1);
        assert_eq!(fixture.asked().len(), 0, "above priority {priority}");
        fixture.visit(priority);
        assert!(!fixture.asked().is_empty(), "priority {priority}");
        assert_eq!(fixture.marks(), [class]);
    }
    fixture.attached.as_ref().unwrap().mark();
    fixture.visit(10);
    assert!(!fixture.asked().is_empty(), "it is asked at once after it was marked");
}

#[test]
fn keeps_the_mark_of_a_cache_that_filled_up_meanwhile() {
    let fixture = Fixture::new(&[Count::Empty, holds(BATCH)], STOPS);
    fixture.attached.as_ref().unwrap().mark();
    fixture.visit(12);
    assert_eq!((fixture.counted(), fixture.marks()), (2, vec![UNKNOWN_CLASS]));
}

#[test]
fn forgets_size_and_mark_of_an_empty_cache() {
    let fixture = Fixture::new(&[holds(BATCH), Count::Empty], STOPS);
    fixture.attached.as_ref().unwrap().mark();
    fixture.visit(12);
    assert_eq!(fixture.marks(), [0]);
    fixture.visit(0);
    assert!(fixture.marks().is_empty());
    assert_eq!(fixture.state().class(), UNKNOWN_CLASS);
}

#[test]
fn moves_the_mark_to_the_class_of_the_size() {
    let sizes = [(600, 3), (511, 2), (64, 2), (63, 1), (8, 1), (7, 0), (1, 0), (600, 3)];
    let counts: Vec<Count> = sizes.iter().map(|&(batches, _)| holds(batches * BATCH)).collect();
    let fixture = Fixture::new(&counts, STOPS);
    fixture.attached.as_ref().unwrap().mark();
    for (batches, class) in sizes {
        fixture.state().forget_size(fixture.state().class());
        fixture.visit(12);
        assert_eq!(fixture.marks(), [class], "{batches} batches");
    }
}

#[test]
fn replaces_a_stale_mark_by_one_in_the_slots_class() {
    let fixture = Fixture::new(&[Count::Unknown], STOPS);
    let slot = fixture.slot();
    group::mark(slot.node, slot.number, 2);
    slot.state.set_class(0);
    fixture.visit_in(slot, 2, 12);
    assert_eq!((fixture.marks(), fixture.counted()), (vec![0], 0));
}

#[test]
fn takes_the_mark_of_a_free_slot() {
    let mut fixture = Fixture::new(&[Count::Unknown], STOPS);
    let slot = fixture.slot();
    drop(fixture.attached.take());
    group::mark(slot.node, slot.number, 2);
    fixture.visit_in(slot, 2, 12);
    let shrinkers = slot.node.shrinkers().unwrap();
    assert!((0..CLASSES).all(|class| !shrinkers.is_any(class)));
    assert!((0..CLASSES).all(|class| !fixture.hierarchy.root().node().shrinkers().unwrap().is_any(class)));
}

#[test]
fn leaves_no_mark_and_reuses_the_slot_when_it_is_given_up() {
    let mut fixture = Fixture::new(&[holds(BATCH)], STOPS);
    for _ in 0..20 {
        fixture.attached.as_ref().unwrap().mark();
        let number = fixture.slot().number;
        assert_eq!(number, 0, "there is one at a time");
        drop(fixture.attached.take());
        let shrinkers = fixture.group.node().shrinkers().unwrap();
        assert!((0..CLASSES).all(|class| !shrinkers.is_any(class)));
        fixture.attached = Some(fixture.registration.attach(&fixture.group, 0).unwrap());
    }
}

#[test]
fn clears_the_slot_for_its_next_shrinker() {
    let mut fixture = Fixture::new(&[Count::Unknown], STOPS);
    let slot = fixture.state();
    slot.backoff.ask_from(6);
    (0..6).for_each(|_| slot.backoff.note(BATCH, 0, false));
    drop(fixture.attached.take());
    slot.defer(5 * BATCH, u64::MAX);
    fixture.attached = Some(fixture.registration.attach(&fixture.group, 7).unwrap());
    assert!(std::ptr::eq(slot, fixture.state()));
    assert_eq!((slot.deferred(), slot.backoff.is_due(PRIORITIES, false), slot.token()), (0, true, 7));
}

#[test]
fn moves_deferred_bytes_to_the_next_slot_above() {
    let fixture = Fixture::new(&[Count::Unknown], STOPS);
    let below = fixture.group.create("middle").unwrap().create("below").unwrap();
    for expected in [10, 20, 30] {
        let attached = fixture.registration.attach(&below, 0).unwrap();
        fixture.slot_in(&below).state.defer(10 * BATCH, u64::MAX);
        fixture.state().backoff.ask_from(1);
        drop(attached);
        assert_eq!(fixture.state().deferred(), expected * BATCH);
        assert!(fixture.state().backoff.is_due(PRIORITIES, false), "it is counted next time");
    }
    fixture.ask(4 * BATCH, 0);
    assert_eq!(fixture.asked(), [BATCH], "it stops, and is asked for no more than it has twice");
    assert_eq!(fixture.state().deferred(), 8 * BATCH);
}

/// Gives up its slot below in the middle of a call.
struct Leaver {
    slot: Mutex<Option<ShrinkerSlot>>,
}

impl Shrinker for Arc<Leaver> {
    fn count(&self, _token: u64) -> Count {
        holds(10 * BATCH)
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        drop(self.slot.lock().unwrap().take());
        STOPS
    }
}

#[test]
fn moves_deferred_bytes_above_when_given_up_in_a_call() {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap();
    let above = hierarchy.create("/above").unwrap();
    let below = above.create("below").unwrap();
    let leaver = Arc::new(Leaver { slot: Mutex::default() });
    let registration = hierarchy.add_shrinker(ShrinkerConfig::new("leaver"), Arc::clone(&leaver)).unwrap();
    let (_upper, lower) = (registration.attach(&above, 0).unwrap(), registration.attach(&below, 0).unwrap());
    let place = place(&registration, &hierarchy);
    let slot_in = |group: &Group| SlotRef::of(group.node(), place).unwrap();
    let slot = slot_in(&below);
    slot.state.defer(6 * BATCH, u64::MAX);
    lower.mark();
    *leaver.slot.lock().unwrap() = Some(lower);
    let credit = ReclaimCredit::begin(slot.node, Purpose::ByHand).unwrap();
    let mut lease = domain().lease();
    let entry = &lease.pin(place).unwrap();
    let control = ScanControl::new(slot.node, &credit, u64::MAX, false);
    let mut control = ScanControl { priority: 1, class: slot.state.class(), ..control };
    Call { slot, place, entry }.ask(10 * BATCH, &mut control);
    // Of the ten that it holds and the six, one was asked for.
    assert_eq!(slot_in(&above).state.deferred(), (6 + 10 - 1) * BATCH);
    assert_eq!(slot.state.deferred(), 0);
    let drawn = below.node().shrinkers().unwrap().slots.draw(SlotState::new);
    assert_eq!(drawn, Some(slot.number), "the slot is free");
}

#[test]
fn releases_the_slot_when_the_shrinker_is_out_after_the_wait() {
    let fixture = Fixture::new(&[holds(10 * BATCH)], STOPS);
    let (node, slot) = (fixture.group.node(), fixture.state());
    assert!(slot.seize(node.shared().nanos(), false));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| fixture.visit_and_wait());
        while !slot.is_waited_for() {
            std::thread::yield_now();
        }
        let mut lease = domain().lease();
        let entry = lease.pin(fixture.place()).unwrap();
        entry.begin_overdue_call();
        assert!(!queue::release(node.shared(), slot).is_given_up);
        waiter.join().unwrap();
        entry.end_overdue_call();
    });
    assert!(fixture.asked().is_empty());
    assert!(slot.seize(1, false), "it is free");
}

#[test]
fn ends_a_noted_call_for_the_shrinker_that_has_the_slot() {
    let holds = Count::Holds { bytes: 1000 * BATCH, objects: 1 };
    let mut fixture = Fixture::new(&[holds], Scan::Freed { bytes: 0 });
    let other =
        fixture.hierarchy.add_shrinker(ShrinkerConfig::new("other"), Arc::clone(&fixture.script)).unwrap();
    let attached = fixture.attached.take().unwrap();
    let other_slot = std::cell::RefCell::new(None);
    fixture.call(0, None, |call, control| {
        // While it is counted it gives its slot up, and another shrinker gets it.
        let state = call.slot.state;
        drop(attached);
        *other_slot.borrow_mut() = Some(other.attach(&fixture.group, 7).unwrap());
        assert!(state.shrinker().is_some_and(|owner| !std::ptr::eq(owner, fixture.place())));
        // The walk seizes it before it checks again, and another walk notes that the call takes too
        // long.
        assert!(state.seize(1, false));
        let mut lease = domain().lease();
        let owner = lease.pin(place(&other, &fixture.hierarchy)).unwrap();
        assert!(state.note(1));
        owner.begin_overdue_call();
        drop(owner);
        call.demand_seized(1, control);
    });
    assert_eq!((fixture.registration.quarantine(), other.quarantine()), (None, None));
}
