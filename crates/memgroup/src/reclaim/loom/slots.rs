//! Models of slots: given up, marked and noted while walks use them.

use std::sync::Arc;

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::hazard::Place;
use memgroup_sync::loom::thread;

use crate::base::mutation::{self, Mutation};
use crate::charge::loom::{config, explore, explore_up_to, obtain};
use crate::reclaim::control::ScanControl;
use crate::reclaim::credit::{Purpose, ReclaimCredit};
use crate::reclaim::due::UNKNOWN_CLASS;
use crate::reclaim::entry::{ShrinkerEntry, domain, empty_place};
use crate::reclaim::registration::{Registration, occupy, register};
use crate::reclaim::release::SlotRef;
use crate::reclaim::scan::Call;
use crate::reclaim::shrinker::{Ask, Count, Scan, Shrinker, ShrinkerConfig};
use crate::reclaim::slot::SlotState;
use crate::reclaim::walk::forget;
use crate::reclaim::{group, rounds};

/// A slot is given up while two walks seize it.
fn a_slot_is_given_up() {
    let (slot, returns) = (Arc::new(SlotState::new()), Arc::new(AtomicU64::new(0)));
    slot.occupy(empty_place(), 0, 0);
    let count = |returns: &AtomicU64, is_mine: bool| {
        // ORDERING: Relaxed; a number by itself, and read after the joins.
        returns.fetch_add(u64::from(is_mine), Ordering::Relaxed);
    };
    let walks: Vec<_> = (0..2)
        .map(|_| {
            let (slot, returns) = (Arc::clone(&slot), Arc::clone(&returns));
            thread::spawn(move || {
                if slot.seize(1, false) {
                    count(&returns, slot.release().is_some_and(|ended| ended.is_given_up));
                }
            })
        })
        .collect();
    slot.vacate();
    count(&returns, slot.give_up());
    walks.into_iter().for_each(|walk| walk.join().unwrap());
    // ORDERING: Relaxed; after the joins.
    assert_eq!(returns.load(Ordering::Relaxed), 1, "times that the slot is returned");
}

#[test]
fn returns_a_slot_once_when_it_is_given_up() {
    explore(a_slot_is_given_up);
}

#[test]
#[should_panic(expected = "times that the slot is returned")]
fn catches_a_release_that_checks_afterwards() {
    mutation::with(Mutation::LetGoLooksAfterwards, || explore(a_slot_is_given_up));
}

/// Others find that a call lasts too long, while its owner begins another or releases the slot.
fn a_call_that_lasts(begins_again: bool) {
    let slot = Arc::new(SlotState::new());
    let noted = Arc::new(AtomicU64::new(0));
    slot.occupy(empty_place(), 0, 0);
    assert!(slot.seize(1, false));
    let passers: Vec<_> = (0..2)
        .map(|_| {
            let (slot, noted) = (Arc::clone(&slot), Arc::clone(&noted));
            thread::spawn(move || {
                if let Some(since) = slot.busy_since()
                    && slot.note(since)
                {
                    // ORDERING: Relaxed; a number by itself, and read after the joins.
                    noted.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let mut ended = u64::from(begins_again && slot.begin_again(2));
    ended += u64::from(slot.release().is_some_and(|ended| ended.was_noted));
    passers.into_iter().for_each(|passer| passer.join().unwrap());
    // ORDERING: Relaxed; after the joins.
    assert_eq!(noted.load(Ordering::Relaxed), ended, "calls noted, and noted calls that ended");
}

#[test]
fn ends_each_noted_call_once() {
    explore(|| a_call_that_lasts(false));
    explore(|| a_call_that_lasts(true));
}

#[test]
#[should_panic(expected = "calls noted")]
fn catches_a_note_on_a_later_call() {
    mutation::with(Mutation::NoteIsOfAnyCall, || explore(|| a_call_that_lasts(true)));
}

/// The bytes of the cache, and of a batch.
const HELD: u64 = 10;

/// A shrinker that stops at once, and counts the bytes that it was asked for.
struct Stops {
    asked: Arc<AtomicU64>,
}

impl Shrinker for Stops {
    fn count(&self, _token: u64) -> Count {
        Count::of(HELD, 1)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        // ORDERING: Relaxed; a number by itself, and read after the joins.
        self.asked.fetch_add(ask.bytes(), Ordering::Relaxed);
        Scan::Stopped { bytes: 0 }
    }
}

/// A shrinker that is attached to a group and to the one below.
struct Pair {
    above: SlotRef,
    below: SlotRef,
    asked: Arc<AtomicU64>,
    registration: Registration,
    place: &'static Place<ShrinkerEntry>,
}

impl Pair {
    fn new() -> Pair {
        let shared = obtain(config(1, 3));
        let above = shared.create(shared.root(), "above").unwrap();
        let below = shared.create(above, "below").unwrap();
        let asked = Arc::new(AtomicU64::new(0));
        let shrinker = Box::new(Stops { asked: Arc::clone(&asked) });
        let config = ShrinkerConfig::new("stops").batch_bytes(HELD);
        let registration = register(shared, config, shrinker).unwrap();
        let place = shared.shrinkers().places.get(registration.id().0).unwrap();
        let [above, below] = [above, below].map(|node| {
            let slot = occupy(node, place, 0).unwrap();
            slot.state.set_class(0);
            slot
        });
        Pair { above, below, asked, registration, place }
    }

    /// A call for the slot below.
    fn call(&self, make: impl FnOnce(Call<'_>, &mut ScanControl<'_>)) {
        let (slot, place) = (self.below, self.place);
        let credit = ReclaimCredit::begin(slot.node, Purpose::ByHand).unwrap();
        let mut lease = domain().lease();
        let entry = &lease.pin(place).unwrap();
        let mut control = ScanControl::new(slot.node, &credit, u64::MAX, false);
        (control.priority, control.class) = (1, slot.state.class());
        make(Call { slot, place, entry }, &mut control);
    }
}

/// The slot below is given up while a walk asks for the bytes that are deferred there.
fn deferred_bytes_against_a_leaver() {
    const DEFERRED: u64 = 8;
    let pair = Arc::new(Pair::new());
    pair.below.state.defer(DEFERRED, u64::MAX);
    let walk = {
        let pair = Arc::clone(&pair);
        thread::spawn(move || {
            pair.call(|call, control| {
                call.ask(HELD, control);
            })
        })
    };
    pair.below.give_up();
    walk.join().unwrap();
    // ORDERING: Relaxed; after the join.
    let (asked, inherited) = (pair.asked.load(Ordering::Relaxed), pair.above.state.deferred());
    assert!(
        inherited + asked == DEFERRED + HELD || (asked == 0 && inherited == DEFERRED),
        "of {DEFERRED} deferred bytes, and {HELD} of the visit, {asked} are asked for, and {inherited} go above"
    );
    assert_eq!(pair.registration.id().0, 0);
}

#[test]
fn asks_for_deferred_bytes_once() {
    explore(deferred_bytes_against_a_leaver);
}

#[test]
#[should_panic(expected = "go above")]
fn catches_a_leaver_that_moves_deferred_bytes_too_early() {
    mutation::with(Mutation::LeaverHandsOnFirst, || explore(deferred_bytes_against_a_leaver));
}

#[test]
#[should_panic(expected = "go above")]
fn catches_deferred_bytes_that_are_only_read() {
    mutation::with(Mutation::DeferredIsOnlyRead, || explore(deferred_bytes_against_a_leaver));
}

/// A walk visits the slot below in a class that is not its own.
fn forgets(pair: &Pair, class: usize) {
    if pair.below.state.class() != class {
        forget(&pair.below, class);
    }
}

/// The owner marks the slot below, which may hold any size.
fn marks(pair: &Pair) {
    pair.below.state.forget_size(UNKNOWN_CLASS);
    group::mark(pair.below.node, 0, UNKNOWN_CLASS);
}

fn assert_marked(pair: &Pair) {
    let slots = &pair.below.node.shrinkers().unwrap().slots;
    assert!(slots.is_marked(0, pair.below.state.class()), "the slot is marked in its class");
}

/// A walk takes a stale mark while the owner marks the slot in that class.
fn a_mark_against_a_walk_that_forgets() {
    let pair = Arc::new(Pair::new());
    group::mark(pair.below.node, 0, UNKNOWN_CLASS);
    let walk = {
        let pair = Arc::clone(&pair);
        thread::spawn(move || forgets(&pair, UNKNOWN_CLASS))
    };
    marks(&pair);
    walk.join().unwrap();
    assert_marked(&pair);
}

/// A walk moves a mark to another class while the owner marks the slot in the old one. So a second
/// walk takes the new mark.
fn a_mark_against_a_walk_that_moves_it_and_one_that_forgets() {
    let pair = Arc::new(Pair::new());
    marks(&pair);
    let walks = [moves as fn(&Pair), |pair| forgets(pair, 0)].map(|walk| {
        let pair = Arc::clone(&pair);
        thread::spawn(move || walk(&pair))
    });
    marks(&pair);
    walks.into_iter().for_each(|walk| walk.join().unwrap());
    assert_marked(&pair);
}

/// A walk counts little in the slot below.
fn moves(pair: &Pair) {
    pair.call(|call, control| call.place_in_class(HELD, control.class));
}

/// A charging thread looks whether any cache is marked while a walk moves the only mark to another
/// class.
fn a_look_against_a_mark_that_moves() {
    let pair = Arc::new(Pair::new());
    marks(&pair);
    let walk = {
        let pair = Arc::clone(&pair);
        thread::spawn(move || moves(&pair))
    };
    assert!(rounds::is_any(pair.below.node), "the cache is found");
    walk.join().unwrap();
}

#[test]
fn misses_no_mark_that_moves() {
    explore_up_to(2, a_look_against_a_mark_that_moves);
}

#[test]
#[should_panic(expected = "the cache is found")]
fn catches_a_look_that_ignores_moves() {
    mutation::with(Mutation::LookIgnoresMoves, || explore_up_to(2, a_look_against_a_mark_that_moves));
}

#[test]
fn marks_the_slot_in_its_class() {
    explore_up_to(2, a_mark_against_a_walk_that_forgets);
    explore_up_to(1, a_mark_against_a_walk_that_moves_it_and_one_that_forgets);
}

#[test]
#[should_panic(expected = "in its class")]
fn catches_a_walk_that_takes_a_mark_unchecked() {
    mutation::with(Mutation::LeftOverIsTakenBlindly, || explore_up_to(2, a_mark_against_a_walk_that_forgets));
}

#[test]
#[should_panic(expected = "in its class")]
fn catches_a_walk_that_moves_a_mark_unchecked() {
    mutation::with(Mutation::LeftOverIsTakenBlindly, || {
        explore_up_to(1, a_mark_against_a_walk_that_moves_it_and_one_that_forgets)
    });
}
