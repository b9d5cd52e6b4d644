//! Models of seats: given up, marked and noted while walks use them.

use std::sync::Arc;

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::hazard::Place;
use memgroup_sync::loom::thread;

use crate::mutation::{self, Mutation};
use crate::node::Node;
use crate::protect::{Protection, Sparing};
use crate::shrink::call::{Call, Found, Met, Wanted};
use crate::shrink::cell::Cell;
use crate::shrink::entry::{Entry, domain, nobody};
use crate::shrink::keep;
use crate::shrink::leave;
use crate::shrink::registry::{Registration, UNKNOWN_CLASS, register};
use crate::shrink::roster::{self, Standing, Turn};
use crate::shrink::shrinker::{Ask, Count, Scan, Shrinker, ShrinkerConfig};
use crate::shrink::visit::{self, Visitor};
use crate::stock::loom::{config, explore, explore_up_to, obtain};

/// A seat is given up while two walks want it to give back.
fn a_seat_is_given_up() {
    let (cell, given_back) = (Arc::new(Cell::new()), Arc::new(AtomicU64::new(0)));
    cell.occupy(nobody(), 0, 0);
    let count = |given_back: &AtomicU64, is_mine: bool| {
        // ORDERING: Relaxed; a number by itself, and read after the joins.
        given_back.fetch_add(u64::from(is_mine), Ordering::Relaxed);
    };
    let walks: Vec<_> = (0..2)
        .map(|_| {
            let (cell, given_back) = (Arc::clone(&cell), Arc::clone(&given_back));
            thread::spawn(move || {
                if cell.seize(1, false) {
                    count(&given_back, cell.let_go().is_some_and(|ended| ended.is_given_up));
                }
            })
        })
        .collect();
    cell.vacate();
    count(&given_back, cell.give_up());
    walks.into_iter().for_each(|walk| walk.join().unwrap());
    // ORDERING: Relaxed; after the joins.
    assert_eq!(given_back.load(Ordering::Relaxed), 1, "times that the seat is given back");
}

#[test]
fn a_seat_that_is_given_up_is_given_back_once() {
    explore(a_seat_is_given_up);
}

#[test]
#[should_panic(expected = "times that the seat is given back")]
fn a_seat_is_given_back_twice_where_who_lets_it_go_looks_afterwards() {
    mutation::with(Mutation::LetGoLooksAfterwards, || explore(a_seat_is_given_up));
}

/// A call that others find to last too long is begun again, or comes to its end.
fn a_call_that_lasts(begins_again: bool) {
    let cell = Arc::new(Cell::new());
    let lasting = Arc::new(AtomicU64::new(0));
    cell.occupy(nobody(), 0, 0);
    assert!(cell.seize(1, false));
    let passers: Vec<_> = (0..2)
        .map(|_| {
            let (cell, lasting) = (Arc::clone(&cell), Arc::clone(&lasting));
            thread::spawn(move || {
                if let Some(since) = cell.busy_since()
                    && cell.note(since)
                {
                    // ORDERING: Relaxed; a number by itself, and read after the joins.
                    lasting.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let mut ended = u64::from(begins_again && cell.begin_again(2));
    ended += u64::from(cell.let_go().is_some_and(|ended| ended.was_noted));
    passers.into_iter().for_each(|passer| passer.join().unwrap());
    // ORDERING: Relaxed; after the joins.
    assert_eq!(lasting.load(Ordering::Relaxed), ended, "calls noted, and calls told of it when they ended");
}

#[test]
fn a_call_that_was_noted_to_last_is_told_once() {
    explore(|| a_call_that_lasts(false));
    explore(|| a_call_that_lasts(true));
}

#[test]
#[should_panic(expected = "calls noted")]
fn a_shrinker_stays_set_aside_where_any_call_is_noted_for_an_earlier_one() {
    mutation::with(Mutation::NoteIsOfAnyCall, || explore(|| a_call_that_lasts(true)));
}

/// Bytes that its cache holds, and those of a batch.
const HELD: u64 = 10;

/// Cannot go on at once; how much it was asked for.
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

/// A shrinker with a seat in a group and in the one below.
struct Pair {
    below: &'static Node,
    cells: [&'static Cell; 2],
    asked: Arc<AtomicU64>,
    registration: Registration,
    place: &'static Place<Entry>,
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
        let place = shared.shrinkers.place(registration.id().0).unwrap();
        let sit = |node: &'static Node| {
            assert!(roster::enlist(node));
            let roster = node.roster().unwrap();
            let cell = roster.seats.get(roster.draw_seat().unwrap()).unwrap();
            cell.occupy(place, 0, 0);
            cell
        };
        let cells = [sit(above), sit(below)];
        Pair { below, cells, asked, registration, place }
    }

    fn found(&self) -> Found {
        let Pair { below: node, cells: [_, cell], .. } = *self;
        Found { node, generation: node.generation(), seat: 0, cell }
    }

    /// A call for the seat below.
    fn call(&self, make: impl FnOnce(Call<'_>, &keep::Keeper)) {
        let found = self.found();
        let wanted = Wanted { bytes: u64::MAX, deadline: None, may_wait: true };
        let sparing = Sparing::new(found.node, false);
        let keeper = keep::begin(found.node, 0).unwrap();
        let mut lease = domain().lease();
        let entry = lease.pin(self.place).unwrap();
        let class = found.cell.class();
        make(
            Call { found, entry: &entry, shrinker: self.place, class, priority: 1, wanted: &wanted, sparing },
            &keeper,
        );
    }
}

/// The seat below is given up while a walk asks it for what is deferred there.
fn what_is_deferred_against_a_leaver() {
    const DEFERRED: u64 = 8;
    let pair = Arc::new(Pair::new());
    let [above, below] = pair.cells;
    below.defer(DEFERRED, u64::MAX);
    let walk = {
        let pair = Arc::clone(&pair);
        thread::spawn(move || {
            pair.call(|call, keeper| {
                call.ask(HELD, keeper, &mut Met::default());
            })
        })
    };
    leave(pair.below, 0);
    walk.join().unwrap();
    // ORDERING: Relaxed; after the join.
    let (asked, inherited) = (pair.asked.load(Ordering::Relaxed), above.deferred());
    assert!(
        inherited + asked == DEFERRED + HELD || (asked == 0 && inherited == DEFERRED),
        "of {DEFERRED} bytes that were deferred, and {HELD} of the visit, {asked} are asked for, and {inherited} go above"
    );
    assert_eq!(pair.registration.id().0, 0);
}

#[test]
fn what_is_deferred_is_asked_for_once() {
    explore(what_is_deferred_against_a_leaver);
}

#[test]
#[should_panic(expected = "go above")]
fn what_is_deferred_is_lost_where_who_gives_a_seat_up_hands_it_on_while_a_call_lasts() {
    mutation::with(Mutation::LeaverHandsOnFirst, || explore(what_is_deferred_against_a_leaver));
}

#[test]
#[should_panic(expected = "go above")]
fn what_is_deferred_is_asked_for_twice_where_it_is_only_read() {
    mutation::with(Mutation::DeferredIsOnlyRead, || explore(what_is_deferred_against_a_leaver));
}

/// A walk that comes by the seat below in a class that is not its.
fn forgets(pair: &Pair, class: usize) {
    let Found { node, generation, seat, cell } = pair.found();
    let wanted = Wanted { bytes: u64::MAX, deadline: None, may_wait: true };
    let keeper = keep::begin(node, 0).unwrap();
    let (mut lease, mut met) = (domain().lease(), Met::default());
    let (wanted, keeper, lease, met) = (&wanted, &keeper, &mut lease, &mut met);
    let sparing = Sparing::new(node, false);
    let visitor = Visitor {
        wanted,
        keeper,
        sparing,
        priority: 1,
        class,
        turn: Turn::default(),
        waits: None,
        lease,
        met,
    };
    if cell.class() != class {
        visitor.forget(visit::Group { node, generation, protected: Protection::NONE }, seat, cell);
    }
}

/// The seat below is marked by its owner, of whatever size what comes is.
fn marks(pair: &Pair) {
    pair.cells[1].forget_size(UNKNOWN_CLASS);
    roster::mark(pair.below, 0, UNKNOWN_CLASS);
}

fn assert_marked(pair: &Pair) {
    let roster = pair.below.roster().unwrap();
    assert!(roster.seats.is_marked(0, pair.cells[1].class()), "the seat is marked where its class says");
}

/// A walk takes the mark of a class that is not the seat's while its owner marks it in that class.
fn a_mark_against_a_walk_that_forgets() {
    let pair = Arc::new(Pair::new());
    roster::mark(pair.below, 0, UNKNOWN_CLASS);
    let walk = {
        let pair = Arc::clone(&pair);
        thread::spawn(move || forgets(&pair, UNKNOWN_CLASS))
    };
    marks(&pair);
    walk.join().unwrap();
    assert_marked(&pair);
}

/// A walk moves a mark to another class while the owner marks the seat where it was, which makes a second walk take the new one away.
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

/// A walk finds little in the seat below.
fn moves(pair: &Pair) {
    pair.call(|mut call, _| call.place_in_class(HELD));
}

#[test]
fn a_seat_is_marked_where_its_class_says() {
    explore_up_to(2, a_mark_against_a_walk_that_forgets);
    explore_up_to(1, a_mark_against_a_walk_that_moves_it_and_one_that_forgets);
}

#[test]
#[should_panic(expected = "where its class says")]
fn a_seat_is_not_marked_where_its_class_says_where_who_forgets_a_mark_does_not_look_again() {
    mutation::with(Mutation::LeftOverIsTakenBlindly, || explore_up_to(2, a_mark_against_a_walk_that_forgets));
}

#[test]
#[should_panic(expected = "where its class says")]
fn a_seat_is_not_marked_where_its_class_says_where_who_moves_its_mark_does_not_look_again() {
    mutation::with(Mutation::LeftOverIsTakenBlindly, || {
        explore_up_to(1, a_mark_against_a_walk_that_moves_it_and_one_that_forgets)
    });
}
