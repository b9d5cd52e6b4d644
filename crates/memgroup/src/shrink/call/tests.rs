//! Tests of one call: how much a shrinker is asked for, what is deferred, what becomes of its mark and of its seat.
//!
//! Here a call or a visit is made by hand, at whatever priority, with what it is to find.

use std::sync::{Arc, Mutex};

use super::*;
use crate::charge::Charge;
use crate::config::Config;
use crate::group::Group;
use crate::hierarchy::Hierarchy;
use crate::protect::Protection;
use crate::shrink::entry::domain;
use crate::shrink::keep;
use crate::shrink::queue;
use crate::shrink::registry::{Registration, Seat};
use crate::shrink::room::CLASSES;
use crate::shrink::roster::{Standing, Turn};
use crate::shrink::share::PRIORITIES;
use crate::shrink::shrinker::{Scan, Shrinker, ShrinkerConfig};
use crate::shrink::visit::{self, Visitor};
use memgroup_percpu::SlotSource;

mod house;

use house::{BATCH, GIVES_NOTHING, House, STOPS, holds};

#[test]
fn what_is_less_than_a_batch_is_deferred_and_asked_for_when_it_is_enough() {
    let house = House::new(&[Count::Unknown], GIVES_NOTHING);
    // A sixteenth of ten batches, twice, is not enough for a call.
    for _ in 0..2 {
        house.ask(10 * BATCH, 5);
    }
    assert_eq!((house.asked().len(), house.cell().deferred()), (0, 2 * 10 * BATCH / 16));
    house.ask(10 * BATCH, 0);
    let asked: u64 = house.asked().iter().sum();
    assert_eq!(asked, 20 * BATCH, "no more than twice what there is");
    assert_eq!(house.cell().deferred(), 2 * 10 * BATCH / 16, "what was not asked for");
}

#[test]
fn what_was_deferred_is_asked_for_in_proportion_to_the_priority() {
    let house = House::new(&[Count::Unknown], GIVES_NOTHING);
    house.cell().defer(16 * BATCH, u64::MAX);
    // Of ten batches half, and a quarter of what was deferred.
    house.ask(10 * BATCH, 2);
    assert_eq!(house.asked(), [BATCH; 9]);
    assert_eq!(house.cell().deferred(), (16 + 5 - 9) * BATCH);
}

#[test]
fn no_more_than_twice_what_there_is_is_deferred() {
    let house = House::new(&[Count::Unknown], STOPS);
    for _ in 0..100 {
        house.ask(10 * BATCH, 0);
    }
    assert_eq!(house.cell().deferred(), 20 * BATCH);
    house.cell().defer(BATCH, 5 * BATCH);
    assert_eq!(house.cell().deferred(), 20 * BATCH, "what is deferred already stays");
}

#[test]
fn where_somebody_else_has_it_give_back_a_share_is_deferred_and_the_walk_is_told() {
    let house = House::new(&[holds(10 * BATCH)], GIVES_NOTHING);
    assert!(house.cell().seize(1, false));
    assert_eq!(house.ask(10 * BATCH, 2).busy, 1);
    assert_eq!((house.asked().len(), house.cell().deferred()), (0, 5 * BATCH));
    assert_eq!((house.visit(2).busy, house.counted()), (1, 0), "it is not even counted");
}

#[test]
fn where_it_cannot_go_on_the_rest_is_deferred_and_the_walk_is_told() {
    let house = House::new(&[Count::Unknown], STOPS);
    let met = house.ask(10 * BATCH, 2);
    assert_eq!((met.busy, met.scanned, house.asked()), (1, 1, vec![BATCH]));
    assert_eq!(house.cell().deferred(), 4 * BATCH);
}

#[test]
fn what_somebody_asks_for_now_nobody_else_finds_deferred() {
    let house = Arc::new(House::new(&[Count::Unknown], GIVES_NOTHING));
    house.cell().defer(16 * BATCH, u64::MAX);
    let cell = house.cell();
    assert!(cell.seize(1, false));
    assert_eq!((cell.take_deferred(), cell.take_deferred()), (16 * BATCH, 0));
    cell.defer(7 * BATCH, u64::MAX);
    assert_eq!(cell.deferred(), 7 * BATCH);
}

#[test]
fn at_the_last_priority_a_dear_cache_is_asked_for_a_batch_and_one_of_less_for_all_it_has() {
    let dear = ShrinkerConfig::new("dear").cost(u32::MAX);
    let house = House::of(dear, &[Count::Unknown], GIVES_NOTHING);
    house.ask(10 * BATCH, 1);
    assert_eq!(house.asked(), []);
    house.ask(10 * BATCH, 0);
    house.ask(BATCH / 4, 0);
    assert_eq!(house.asked(), [BATCH, BATCH / 4]);
}

#[test]
fn a_series_of_calls_ends_with_the_one_in_which_the_deadline_passes() {
    let house = House::new(&[Count::Unknown], GIVES_NOTHING);
    house.call(0, Some(Instant::now()), |call, keeper, met| {
        call.ask(10 * BATCH, keeper, met);
    });
    assert_eq!(house.asked(), [BATCH]);
}

#[test]
fn a_cache_of_which_nothing_would_be_asked_is_not_counted_unless_it_is_serious() {
    let house = House::new(&[holds(10 * BATCH)], STOPS);
    house.visit(12);
    assert_eq!((house.counted(), house.asked().len()), (1, 0), "what nobody knows is counted");
    for priority in 5..=12 {
        house.visit(priority);
        assert_eq!(house.counted(), 0, "priority {priority}");
    }
    house.visit(4);
    assert_eq!((house.counted(), house.asked()), (1, vec![BATCH]));
    for priority in [1, 0] {
        house.cell().ask_from(0);
        house.visit(priority);
        assert_eq!(house.counted(), 1, "priority {priority}");
    }
}

#[test]
fn a_cache_that_gives_less_than_an_eighth_rests_up_to_63_visits_and_one_that_gives_does_not() {
    let cell = Cell::new();
    for rests in [1, 3, 7, 15, 31, 63, 63] {
        cell.gave(true);
        let rested = std::iter::repeat_with(|| cell.is_resting()).take_while(|&rests| rests).count();
        assert_eq!(rested, rests);
    }
    cell.gave(false);
    assert!(!cell.is_resting());
    cell.gave(true);
    assert!(cell.is_resting() && !cell.is_resting(), "it begins anew");
}

#[test]
fn a_cache_that_is_resting_defers_its_share() {
    let house = House::new(&[Count::Unknown], GIVES_NOTHING);
    house.cell().gave(true);
    house.ask(10 * BATCH, 2);
    assert_eq!((house.asked().len(), house.cell().deferred()), (0, 5 * BATCH));
    house.ask(10 * BATCH, 2);
    assert_eq!(house.asked().len(), 6, "half of what it has, and a quarter of what was deferred");
}

#[test]
fn a_cache_that_filled_up_while_it_was_found_empty_stays_marked() {
    let house = House::new(&[Count::Empty, holds(BATCH)], STOPS);
    house.seat.as_ref().unwrap().mark();
    house.visit(12);
    assert_eq!((house.counted(), house.marks()), (2, vec![UNKNOWN_CLASS]));
    assert_eq!(house.cell().last_bytes(), None);
}

#[test]
fn what_was_found_empty_is_of_no_known_size_and_not_marked() {
    let house = House::new(&[holds(BATCH), Count::Empty], STOPS);
    house.seat.as_ref().unwrap().mark();
    house.visit(12);
    assert_eq!((house.cell().last_bytes(), house.marks()), (Some(BATCH), vec![0]));
    house.visit(0);
    assert_eq!((house.cell().last_bytes(), house.marks()), (None, vec![]));
    assert_eq!(house.cell().class(), UNKNOWN_CLASS);
}

#[test]
fn a_mark_moves_to_the_class_of_what_is_held() {
    let sizes = [(600, 3), (511, 2), (64, 2), (63, 1), (8, 1), (7, 0), (1, 0), (600, 3)];
    let counts: Vec<Count> = sizes.iter().map(|&(batches, _)| holds(batches * BATCH)).collect();
    let house = House::new(&counts, STOPS);
    house.seat.as_ref().unwrap().mark();
    for (batches, class) in sizes {
        house.cell().forget_size(house.cell().class());
        house.visit(12);
        assert_eq!(house.marks(), [class], "{batches} batches");
    }
}

#[test]
fn a_mark_in_a_class_that_is_not_the_seats_goes_and_the_seat_is_marked_in_its_own() {
    let house = House::new(&[Count::Unknown], STOPS);
    let found = house.found(&house.group);
    roster::mark(found.node, found.seat, 2);
    found.cell.set_class(0);
    house.come_by(found, 2, 12);
    assert_eq!((house.marks(), house.counted()), (vec![0], 0));
}

#[test]
fn a_mark_that_is_left_at_a_free_seat_goes() {
    let mut house = House::new(&[Count::Unknown], STOPS);
    let found = house.found(&house.group);
    drop(house.seat.take());
    roster::mark(found.node, found.seat, 2);
    house.come_by(found, 2, 12);
    let roster = found.node.roster().unwrap();
    assert!((0..CLASSES).all(|class| !roster.is_any(class)));
    assert!((0..CLASSES).all(|class| !house.hierarchy.root().node().roster().unwrap().is_any(class)));
}

#[test]
fn a_seat_that_is_given_up_leaves_no_mark_and_can_be_had_again() {
    let mut house = House::new(&[holds(BATCH)], STOPS);
    for _ in 0..20 {
        house.seat.as_ref().unwrap().mark();
        let seat = house.found(&house.group).seat;
        assert_eq!(seat, 0, "there is one at a time");
        drop(house.seat.take());
        let roster = house.group.node().roster().unwrap();
        assert!((0..CLASSES).all(|class| !roster.is_any(class)));
        house.seat = Some(house.registration.seat(&house.group, 0).unwrap());
    }
}

#[test]
fn who_sits_down_finds_nothing_of_who_sat_there_before() {
    let mut house = House::new(&[Count::Unknown], STOPS);
    let cell = house.cell();
    cell.set_last_bytes(BATCH);
    (0..6).for_each(|_| cell.gave(true));
    drop(house.seat.take());
    cell.defer(5 * BATCH, u64::MAX);
    house.seat = Some(house.registration.seat(&house.group, 7).unwrap());
    assert!(std::ptr::eq(cell, house.cell()));
    assert_eq!((cell.last_bytes(), cell.deferred(), cell.is_resting(), cell.token()), (None, 0, false, 7));
}

#[test]
fn what_a_seat_is_still_to_be_asked_for_is_asked_of_its_shrinkers_next_seat_above() {
    let house = House::new(&[Count::Unknown], STOPS);
    let below = house.group.create("middle").unwrap().create("below").unwrap();
    for (above_holds, expected) in [(None, 10), (Some(100), 20), (Some(8), 20), (Some(13), 26)] {
        let seat = house.registration.seat(&below, 0).unwrap();
        house.found(&below).cell.defer(10 * BATCH, u64::MAX);
        house.cell().ask_from(1);
        if let Some(batches) = above_holds {
            house.cell().set_last_bytes(batches * BATCH);
        }
        drop(seat);
        assert_eq!(house.cell().deferred(), expected * BATCH, "above {above_holds:?} batches are held");
        assert!(house.cell().asked_from() > PRIORITIES, "it is counted next time");
    }
}

/// Gives its seat below up in the middle of a call.
struct Leaver {
    seat: Mutex<Option<Seat>>,
}

impl Shrinker for Arc<Leaver> {
    fn count(&self, _token: u64) -> Count {
        holds(10 * BATCH)
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        drop(self.seat.lock().unwrap().take());
        STOPS
    }
}

#[test]
fn what_is_not_asked_for_because_the_seat_is_given_up_meanwhile_is_asked_for_above() {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap();
    let above = hierarchy.create("/above").unwrap();
    let below = above.create("below").unwrap();
    let leaver = Arc::new(Leaver { seat: Mutex::default() });
    let registration = hierarchy.add_shrinker(ShrinkerConfig::new("leaver"), Arc::clone(&leaver)).unwrap();
    let (_upper, lower) = (registration.seat(&above, 0).unwrap(), registration.seat(&below, 0).unwrap());
    let place = above.node().shared.shrinkers.place(registration.id().0).unwrap();
    let cell_in = |group: &Group| group.node().roster().unwrap().seat_of(place).unwrap();
    let (seat, cell) = cell_in(&below);
    cell.defer(6 * BATCH, u64::MAX);
    lower.mark();
    *leaver.seat.lock().unwrap() = Some(lower);
    let node = below.node();
    let found = Found { node, generation: node.generation(), seat, cell };
    let wanted = Wanted { bytes: u64::MAX, deadline: None, may_wait: true };
    let keeper = keep::begin(node, 0).unwrap();
    let mut lease = domain().lease();
    let entry = lease.pin(place).unwrap();
    let class = cell.class();
    let sparing = Sparing::new(node, false);
    let call = Call { found, entry: &entry, shrinker: place, class, priority: 1, wanted: &wanted, sparing };
    call.ask(10 * BATCH, &keeper, &mut Met::default());
    // Of the ten that it holds and the six, one was asked for.
    assert_eq!(cell_in(&above).1.deferred(), (6 + 10 - 1) * BATCH);
    assert_eq!(cell.deferred(), 0);
    assert_eq!(below.node().roster().unwrap().draw_seat(), Some(seat), "the seat is free");
}

#[test]
fn who_has_waited_for_a_seat_lets_it_go_where_the_shrinker_is_not_to_be_called_by_then() {
    let config = ShrinkerConfig::new("waited for").patience(std::time::Duration::from_secs(3600));
    let house = House::of(config, &[holds(10 * BATCH)], STOPS);
    let (node, cell) = (house.group.node(), house.cell());
    assert!(cell.seize(node.shared.nanos(), false));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| house.come_by_and_wait());
        while !cell.is_waited_for() {
            std::thread::yield_now();
        }
        let mut lease = domain().lease();
        let entry = lease.pin(house.place()).unwrap();
        entry.lasts();
        assert!(!queue::let_go(cell, || node.shared.nanos()).is_given_up);
        waiter.join().unwrap();
        entry.lasts_no_more();
    });
    assert_eq!(house.asked(), []);
    assert!(cell.seize(1, false), "it is nobody's");
}

#[test]
fn a_call_that_was_noted_ends_for_the_shrinker_it_was_noted_with() {
    let holds = Count::Holds { bytes: 1000 * BATCH, objects: 1 };
    let mut house = House::new(&[holds], Scan::Freed { bytes: 0 });
    let other =
        house.hierarchy.add_shrinker(ShrinkerConfig::new("other"), Arc::clone(&house.script)).unwrap();
    let seat = house.seat.take().unwrap();
    let other_seat = std::cell::RefCell::new(None);
    house.call(0, None, |call, keeper, met| {
        // While it is counted it gives its seat up, and another gets it.
        let cell = call.found.cell;
        drop(seat);
        *other_seat.borrow_mut() = Some(other.seat(&house.group, 7).unwrap());
        assert!(cell.shrinker().is_some_and(|sits| !std::ptr::eq(sits, house.place())));
        // It is seized, and the walk is late to see whose it is: somebody who comes by notes that it takes too long.
        assert!(cell.seize(1, false));
        let place = house.hierarchy.root().node().shared.shrinkers.place(other.id().0).unwrap();
        let mut lease = domain().lease();
        let sits = lease.pin(place).unwrap();
        assert!(cell.note(1));
        sits.lasts();
        drop(sits);
        call.demand_seized(1, keeper, met);
    });
    assert_eq!((house.registration.quarantine(), other.quarantine()), (None, None));
}
