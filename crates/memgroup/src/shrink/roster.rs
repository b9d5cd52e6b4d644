//! Roster: which shrinkers have something to give back in a group, and in which of the groups below it any has.
//!
//! ```text
//!   group ── seats ── a seat for each shrinker that may hold something of the group's ── marked: it may have something now
//!         └─ kin ──── the groups below that have a roster ───────────────────────────── marked: so may a seat there or below
//! ```
//!
//! A walk from any group downwards meets marked seats and nothing else: ten thousand groups without a mark are a few words. Groups in which,
//! and below which, no shrinker was ever registered have no roster at all.
//!
//! - I1. As for a room's marks (`room` I1), through all levels: when the call that marks a seat has returned, and nobody is unmarking, it is
//!   found from every group above.
//! - I2. A number among the kin belongs to a group from its first shrinker, or the first below it, until the group is released.
//! - I3. A group with a seat is held by a handle, so it and those above it are not released. A walk that marks or unmarks may be too late for that: what
//!   it finds of a group and its number may be of two groups by then. It takes no mark that it does not put back, and marks too much at most.
//! - E1. As in `room`, from level to level. Loom: `a_mark_is_found_from_above`.

use std::sync::OnceLock;

use memgroup_sync::atomic::{AtomicU32, Ordering};
use memgroup_sync::hazard::Place;
use memgroup_sync::{Mutex, interleave};

use super::cell::Cell;
use super::entry::Entry;
use super::room::{CLASSES, NUMBERS, Room, Unmarked};
use crate::group::GroupId;
use crate::mutation::{self, Mutation};
use crate::node::Node;

/// What a group has no number among its parent's kin is told by.
const NONE: u32 = u32::MAX;

/// See the module.
pub(crate) struct Roster {
    pub(crate) seats: Room<Cell>,
    /// The ids of groups below.
    pub(crate) kin: Room<AtomicU32>,
    seat_numbers: Mutex<Numbers>,
    kin_numbers: Mutex<Numbers>,
    /// Numbers among the kin below which all lie that were ever given out.
    kin_given_out: AtomicU32,
    /// Rounds of reclaim that began here.
    rounds: AtomicU32,
    /// Refusals here before whose next drain caches are asked.
    until_drain: AtomicU32,
}

/// Which of a group's rounds of reclaim it is, as a fraction of 2<sup>32</sup>.
#[derive(Clone, Copy, Default)]
pub(crate) struct Turn(u32);

/// The golden section of 2<sup>32</sup>.
const GOLDEN: u32 = 0x9E37_79B9;

/// Stocks that a drain may look at before each refusal, which takes about as long as to have a cache give a batch back; and the most refusals that
/// one drain is for.
const STOCKS: u64 = 256;
const REFUSALS_MOST: u64 = 64;

/// Numbers that are given out, lowest first as long as none came back.
pub(crate) struct Numbers {
    next: u32,
    free: Vec<u32>,
}

impl Numbers {
    pub(crate) const fn new() -> Numbers {
        Numbers { next: 0, free: Vec::new() }
    }

    pub(crate) fn draw(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let number = (self.next < NUMBERS).then_some(self.next)?;
            self.next += 1;
            // For all numbers: giving one back allocates nothing, which may be inside somebody's allocator.
            self.free.reserve(self.next as usize - self.free.len());
            Some(number)
        })
    }

    pub(crate) fn give_back(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Numbers below which all that were ever given out lie.
    pub(crate) fn given_out(&self) -> u32 {
        self.next
    }
}

/// A group as the marks see it.
pub(crate) trait Standing: 'static {
    /// The group above that has this one among its kin, and as which number.
    fn above(&self) -> Option<(&'static Self, u32)>;

    fn roster(&self) -> Option<&Roster>;

    /// The group with this id, which may be below this one.
    fn below(&self, id: u32) -> Option<&'static Self>;
}

/// Marks a seat of a group.
pub(crate) fn mark(group: &'static impl Standing, seat: u32, class: usize) {
    let seats = &listed(group).seats;
    if mutation::active(Mutation::MarkReliesOnOthers) && seats.is_marked(seat, class) {
        return;
    }
    seats.mark(seat, class);
    climb(group, class);
}

/// Takes the mark of a seat away. The caller looks afterwards whether it was right, and marks again if not.
pub(crate) fn unmark(group: &'static impl Standing, seat: u32, class: usize) {
    match listed(group).seats.unmark(seat, class) {
        Unmarked::OthersLeft => {}
        Unmarked::OthersCame => climb(group, class),
        Unmarked::LastOfRoom => tidy(group, class),
    }
}

/// Marks a group among the kin of each one above. None of them is taken for marked because one below it is.
fn climb<S: Standing>(group: &'static S, class: usize) {
    let mut level = group;
    while let Some((above, number)) = level.above() {
        listed(above).kin.mark(number, class);
        level = above;
    }
}

/// The group that has a number among the kin of another, or had it last.
fn having<S: Standing>(above: &'static S, number: u32) -> Option<&'static S> {
    // ORDERING: Acquire; pairs with the Release in `enlist`. Who has the number now has stored its id before it marked anything: who finds the mark
    // that was taken, and so sets none, is before the fence of who took it (E1).
    above.below(listed(above).kin.get(number)?.load(Ordering::Acquire))
}

/// Takes the marks of groups above away for which this one was the last reason. Nobody holds it for a walk: it may be released by now, and its
/// number another group's. So the look whether that was right goes to whoever has the number.
fn tidy<S: Standing>(group: &'static S, class: usize) {
    let mut level = group;
    while !listed(level).is_any(class)
        && let Some((above, number)) = level.above()
    {
        interleave::point();
        let unmarked = listed(above).kin.unmark(number, class);
        let whose = if mutation::active(Mutation::TidyLooksAtTheOldGroup) {
            Some(level)
        } else {
            having(above, number)
        };
        if let Some(whose) = whose
            && whose.roster().is_some_and(|roster| roster.is_any(class))
            && !mutation::active(Mutation::TidyDoesNotLookAgain)
        {
            return climb(whose, class);
        }
        match unmarked {
            Unmarked::OthersLeft => return,
            Unmarked::OthersCame => return climb(above, class),
            Unmarked::LastOfRoom => level = above,
        }
    }
}

fn listed(group: &impl Standing) -> &Roster {
    group.roster().expect("a group whose seats are marked, or one above it, has a roster")
}

impl Roster {
    pub(crate) fn new() -> Roster {
        Roster {
            seats: Room::new(),
            kin: Room::new(),
            seat_numbers: Mutex::new(Numbers::new()),
            kin_numbers: Mutex::new(Numbers::new()),
            kin_given_out: AtomicU32::new(0),
            rounds: AtomicU32::new(0),
            until_drain: AtomicU32::new(0),
        }
    }

    /// Whether a charge that this group refuses has the stocks below drained before caches are asked. What idle stocks hold is nobody's loss, but
    /// a drain looks at each stock, and of thousands that takes longer than to have a cache give a batch back: then one drain is for
    /// many refusals.
    pub(crate) fn drains_now(&self) -> bool {
        // ORDERING: Relaxed, both; a hint, of which some may be lost.
        let until = self.until_drain.load(Ordering::Relaxed);
        if until > 0 {
            // ORDERING: as above.
            self.until_drain.store(until - 1, Ordering::Relaxed);
        }
        until == 0
    }

    /// A drain has looked at so many stocks.
    pub(crate) fn drained(&self, stocks: u64) {
        let refusals = (stocks / STOCKS).min(REFUSALS_MOST - 1) as u32;
        // ORDERING: Relaxed; as in `drains_now`.
        self.until_drain.store(refusals, Ordering::Relaxed);
    }

    /// Whether a seat, or a group below, may be marked.
    pub(crate) fn is_any(&self, class: usize) -> bool {
        self.seats.is_any(class) || self.kin.is_any(class)
    }

    /// Where the next round begins.
    pub(crate) fn next_turn(&self) -> Turn {
        // ORDERING: Relaxed; a number by itself.
        let round = self.rounds.fetch_add(1, Ordering::Relaxed);
        // Far from where the one before began: two that are on at one time would come to the same cache otherwise, wherever few have one. Steps of the
        // golden section fall everywhere as often.
        Turn(round.wrapping_mul(GOLDEN))
    }

    /// With which of the kin a round begins whose turn it is, so many levels below where it began.
    #[inline]
    pub(crate) fn begin(&self, turn: Turn, levels: u32) -> u32 {
        // ORDERING: Relaxed; a group that is missed as the beginning is visited all the same.
        let kin = self.kin_given_out.load(Ordering::Relaxed);
        // Other bits on each level: the first child of the first one, and the second of the second, would be all that ever begin otherwise.
        ((u64::from(turn.0.rotate_left(13 * levels)) * u64::from(kin)) >> 32) as u32
    }

    /// The seat of a shrinker, and its number, if it has one.
    pub(crate) fn seat_of(&self, shrinker: &'static Place<Entry>) -> Option<(u32, &Cell)> {
        let numbers = 0..self.seat_numbers.lock().given_out();
        numbers
            .filter_map(|number| Some((number, self.seats.get(number)?)))
            .find(|(_, cell)| cell.is_of(shrinker))
    }

    /// A free seat; `None` where there are as many as can be.
    pub(crate) fn draw_seat(&self) -> Option<u32> {
        let number = self.seat_numbers.lock().draw()?;
        self.seats.extend(number, Cell::new);
        Some(number)
    }

    /// Gives a seat back that is not marked.
    pub(crate) fn return_seat(&self, number: u32) {
        self.seat_numbers.lock().give_back(number);
    }
}

/// What a node has of all this.
pub(crate) struct Listing {
    roster: OnceLock<Box<Roster>>,
    /// Its number among its parent's kin; `NONE`: it has none.
    number: AtomicU32,
}

impl Listing {
    pub(crate) fn new() -> Listing {
        Listing { roster: OnceLock::new(), number: AtomicU32::new(NONE) }
    }

    /// Its number among its parent's kin.
    pub(crate) fn number(&self) -> Option<u32> {
        // ORDERING: Acquire; pairs with the Release in `enlist`: the parent has a roster with room for it.
        Some(self.number.load(Ordering::Acquire)).filter(|&number| number != NONE)
    }
}

impl Standing for Node {
    fn above(&self) -> Option<(&'static Node, u32)> {
        Some((self.parent()?, self.listing.number()?))
    }

    fn roster(&self) -> Option<&Roster> {
        self.listing.roster.get().map(|roster| &**roster)
    }

    fn below(&self, id: u32) -> Option<&'static Node> {
        self.shared.node(GroupId(id))
    }
}

/// Sees to it that a group, which the caller holds, has a roster, and those above it too. `false` where one has more kin than it can have.
pub(crate) fn enlist(node: &'static Node) -> bool {
    let mut level = node;
    loop {
        level.listing.roster.get_or_init(|| Box::new(Roster::new()));
        let Some(parent) = level.parent() else { return true };
        let above = parent.listing.roster.get_or_init(|| Box::new(Roster::new()));
        let mut numbers = above.kin_numbers.lock();
        if level.listing.number().is_none() {
            let Some(number) = numbers.draw() else { return false };
            above.kin.extend(number, || AtomicU32::new(0));
            // ORDERING: Relaxed; as in `begin`.
            above.kin_given_out.store(numbers.given_out(), Ordering::Relaxed);
            let kin = above.kin.get(number).expect("there is room for it");
            // ORDERING: Release; who finds the id finds the node's parent and generation.
            kin.store(level.id.0, Ordering::Release);
            // ORDERING: Release; pairs with the Acquire in `number`.
            level.listing.number.store(number, Ordering::Release);
        }
        drop(numbers);
        level = parent;
    }
}

/// A group is released: it is nobody's kin any more. The caller holds the tree lock, and all of its seats are given back.
pub(crate) fn delist(node: &'static Node) {
    let Some((above, number)) = node.above() else { return };
    (0..CLASSES).for_each(|class| forget(above, number, class));
    let mut numbers = listed(above).kin_numbers.lock();
    // ORDERING: Relaxed; nobody has the group any more, and the lock orders the number's next use.
    node.listing.number.store(NONE, Ordering::Relaxed);
    numbers.give_back(number);
}

/// Takes what marks a walk left behind for a group without seats.
fn forget(above: &'static Node, number: u32, class: usize) {
    match listed(above).kin.unmark(number, class) {
        Unmarked::OthersLeft => {}
        Unmarked::OthersCame => climb(above, class),
        Unmarked::LastOfRoom => tidy(above, class),
    }
}

/// The group that has a number among the kin of `node`, and its generation; `None` where it has been released.
pub(crate) fn kin_at(node: &'static Node, number: u32, id: &AtomicU32) -> Option<(&'static Node, u32)> {
    // ORDERING: Acquire; pairs with the Release in `enlist`.
    let kin = node.shared.node(GroupId(id.load(Ordering::Acquire)))?;
    let generation = kin.generation();
    let is_ours = kin.is_child_of(node) && kin.listing.number() == Some(number);
    (is_ours && kin.generation() == generation).then_some((kin, generation))
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_drain_of_many_stocks_is_for_many_refusals() {
        for (stocks, refusals) in [(0, 1), (255, 1), (256, 2), (2_560, 11), (64_000, 64), (5_000_000, 64)] {
            let roster = Roster::new();
            let mut drains = 0;
            for _ in 0..refusals * 5 {
                if roster.drains_now() {
                    drains += 1;
                    roster.drained(stocks);
                }
            }
            assert_eq!(drains, 5, "{stocks} stocks");
        }
    }
}
