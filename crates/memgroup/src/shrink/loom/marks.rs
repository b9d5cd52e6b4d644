//! Models of the marks that lead to what can give memory back.

use std::sync::{Arc, OnceLock};

use memgroup_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use memgroup_sync::loom::thread;
use memgroup_sync::{interleave, keep};

use crate::mutation::{self, Mutation};
use crate::shrink::roster::{self, Roster, Standing};
use crate::stock::loom::explore;

/// A group, by itself or below another.
struct Group {
    roster: Roster,
    above: Option<(&'static Group, u32)>,
    /// The groups below, by id.
    below: OnceLock<Vec<&'static Group>>,
}

impl Group {
    fn new(above: Option<(&'static Group, u32)>) -> &'static Group {
        keep(Box::new(Group { roster: Roster::new(), above, below: OnceLock::new() }))
    }
}

impl Standing for Group {
    fn above(&self) -> Option<(&'static Group, u32)> {
        self.above
    }

    fn roster(&self) -> Option<&Roster> {
        Some(&self.roster)
    }

    fn below(&self, id: u32) -> Option<&'static Group> {
        self.below.get()?.get(id as usize).copied()
    }
}

/// A group below another, with seats, of which each is a cache: one that is marked at the top of its room, and two in a chunk.
struct House {
    top: &'static Group,
    leaf: &'static Group,
    caches: [AtomicU64; SEATS as usize],
}

const SEATS: u32 = 3;

impl House {
    fn new() -> Arc<House> {
        let top = Group::new(None);
        top.roster.kin.extend(0, || AtomicU32::new(0));
        let leaf = Group::new(Some((top, 0)));
        let _ = top.below.set(vec![leaf]);
        (0..SEATS).for_each(|seat| assert_eq!(leaf.roster.draw_seat(), Some(seat)));
        Arc::new(House { top, leaf, caches: std::array::from_fn(|_| AtomicU64::new(0)) })
    }

    /// A cache that was empty gets something.
    fn fill(&self, seat: u32) {
        // ORDERING: Relaxed; `mark` orders it.
        self.caches[seat as usize].store(1, Ordering::Relaxed);
        roster::mark(self.leaf, seat, 0);
    }

    /// A walk: asks every cache that is marked, and unmarks the empty ones as a visit does.
    fn walk(&self) {
        self.each(|seat| {
            if self.holds(seat) {
                return;
            }
            interleave::point();
            roster::unmark(self.leaf, seat, 0);
            // ORDERING: SeqCst; as in `Call::found_empty`.
            fence(Ordering::SeqCst);
            if self.holds(seat) && !mutation::active(Mutation::UnmarkIgnoresLateItems) {
                roster::mark(self.leaf, seat, 0);
            }
        });
    }

    fn holds(&self, seat: u32) -> bool {
        // ORDERING: Relaxed; the fence before, or the join.
        self.caches[seat as usize].load(Ordering::Relaxed) != 0
    }

    /// What a walk that begins now finds.
    fn found(&self) -> Vec<u32> {
        let mut found = Vec::new();
        self.each(|seat| found.push(seat));
        found
    }

    /// What a walk from the top comes by.
    fn each(&self, mut visit: impl FnMut(u32)) {
        self.top.roster.kin.each_marked(0, 0..u32::MAX, |_, _| {
            self.leaf.roster.seats.each_marked(0, 0..u32::MAX, |seat, _| {
                visit(seat);
                true
            })
        });
    }

    fn assert_found(&self) {
        let expected: Vec<u32> = (0..SEATS).filter(|&seat| self.holds(seat)).collect();
        let found = self.found();
        assert!(
            expected.iter().all(|seat| found.contains(seat)),
            "{expected:?} are there, {found:?} are found"
        );
    }
}

/// Caches are filled while a walk finds another one, or one of them, empty.
fn fills_against_a_walk(empty: u32, seats: &[u32]) {
    let house = House::new();
    roster::mark(house.leaf, empty, 0);
    let threads: Vec<_> = seats
        .iter()
        .map(|&seat| {
            let house = Arc::clone(&house);
            thread::spawn(move || house.fill(seat))
        })
        .collect();
    house.walk();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    house.assert_found();
}

/// A cache is filled while two walks find it empty.
fn a_fill_against_two_walks(seat: u32) {
    let house = House::new();
    roster::mark(house.leaf, seat, 0);
    let walk = {
        let house = Arc::clone(&house);
        thread::spawn(move || house.walk())
    };
    let fill = {
        let house = Arc::clone(&house);
        thread::spawn(move || house.fill(seat))
    };
    house.walk();
    walk.join().unwrap();
    fill.join().unwrap();
    house.assert_found();
}

/// Who has marked finds its mark at once, if nobody unmarks, although another is still on the way up.
fn two_fills_of_one_cache(seat: u32) {
    let house = House::new();
    let other = {
        let house = Arc::clone(&house);
        thread::spawn(move || house.fill(seat))
    };
    house.fill(seat);
    house.assert_found();
    other.join().unwrap();
    house.assert_found();
}

/// A walk takes the mark of a group away that has been released meanwhile, and whose number is another group's, in which something is marked.
fn a_number_that_is_used_again() {
    let top = Group::new(None);
    top.roster.kin.extend(0, || AtomicU32::new(0));
    let (old, new) = (Group::new(Some((top, 0))), Group::new(Some((top, 0))));
    let _ = top.below.set(vec![old, new]);
    [old, new].iter().for_each(|group| assert_eq!(group.roster.draw_seat(), Some(0)));
    roster::mark(old, 0, 0);
    let walk = thread::spawn(move || roster::unmark(old, 0, 0));
    // ORDERING: Release, as in `enlist`.
    top.roster.kin.get(0).unwrap().store(1, Ordering::Release);
    roster::mark(new, 0, 0);
    walk.join().unwrap();
    assert!(top.roster.kin.is_marked(0, 0), "the marks of the new group are found");
}

#[test]
fn a_mark_of_a_group_with_the_number_of_another_is_found() {
    explore(a_number_that_is_used_again);
}

#[test]
#[should_panic(expected = "are found")]
fn a_mark_is_lost_where_who_takes_it_looks_only_at_the_group_it_came_from() {
    mutation::with(Mutation::TidyLooksAtTheOldGroup, || explore(a_number_that_is_used_again));
}

#[test]
fn a_mark_is_found_from_above() {
    for (empty, seats) in [(0, &[0][..]), (0, &[1]), (1, &[0]), (1, &[1]), (1, &[2]), (1, &[1, 2])] {
        explore(move || fills_against_a_walk(empty, seats));
    }
    explore(|| two_fills_of_one_cache(0));
    explore(|| two_fills_of_one_cache(1));
}

#[test]
fn a_mark_is_found_from_above_when_two_walks_take_it_away() {
    explore(|| a_fill_against_two_walks(0));
    explore(|| a_fill_against_two_walks(1));
}

#[test]
#[should_panic(expected = "are found")]
fn a_mark_without_a_fence_is_lost() {
    mutation::with(Mutation::MarkWithoutFence, || explore(|| fills_against_a_walk(1, &[1])));
}

#[test]
#[should_panic(expected = "are found")]
fn a_mark_that_relies_on_others_is_missed() {
    mutation::with(Mutation::MarkReliesOnOthers, || explore(|| two_fills_of_one_cache(1)));
}

#[test]
#[should_panic(expected = "are found")]
fn a_mark_is_lost_where_nobody_looks_again() {
    mutation::with(Mutation::UnmarkDoesNotLookAgain, || explore(|| fills_against_a_walk(1, &[2])));
}

#[test]
#[should_panic(expected = "are found")]
fn a_cache_that_is_filled_late_is_lost_where_nobody_asks_again() {
    mutation::with(Mutation::UnmarkIgnoresLateItems, || explore(|| fills_against_a_walk(0, &[0])));
}

#[test]
#[should_panic(expected = "are found")]
fn a_mark_is_lost_where_nobody_looks_again_in_a_group_below() {
    mutation::with(Mutation::TidyDoesNotLookAgain, || explore(|| fills_against_a_walk(0, &[1])));
}
