//! Seat: how a shrinker leaves its place in a group, how who has it give back leaves it, and how a mark is taken that is left over.
//!
//! - I1. A seat that was given up is returned to its roster, and the handle on its group dropped, once: `cell` I2.
//! - E1. A mark in a class that is not the seat's: unmark → look whether it is by now; set the class → mark. Loom:
//!   `a_seat_is_marked_where_its_class_says`.

use memgroup_sync::atomic::{Ordering, fence};
use memgroup_sync::hazard::Place;
use memgroup_sync::interleave;

use super::call::Found;
use super::cell::Cell;
use super::entry::{Entry, domain};
use super::queue;
use super::roster::{self, Roster, Standing};
use crate::mutation::{self, Mutation};
use crate::node::Node;

/// A shrinker gives up its seat in a group, which the caller holds. What it was still to be asked for is asked of its next seat above.
pub(crate) fn leave(node: &'static Node, seat: u32) {
    let Some(cell) = listed(node).seats.get(seat) else { return };
    // For as long as a call goes on for the seat; `give_back` lets go.
    node.pin();
    let class = cell.class();
    cell.vacate();
    roster::unmark(node, seat, class);
    if mutation::active(Mutation::LeaverHandsOnFirst) {
        bequeath(node, cell);
    }
    if cell.give_up() {
        give_back(node, seat);
    }
}

/// Lets a seat go, to who waits for it if somebody does. If it was given up meanwhile, it is given back now. `called` is whom the caller has pinned, which
/// need not be who sits here: a seat may have been given up and taken by another between a look and the seizing.
pub(super) fn let_go(found: &Found, called: Option<(&'static Place<Entry>, &Entry)>) {
    let &Found { node, seat, cell, .. } = found;
    // A seat that is seized is not given to another (`cell` I2).
    let whose = cell.shrinker().or_else(|| cell.left_by());
    let ended = queue::let_go(cell, || node.shared.nanos());
    if ended.was_noted
        && let Some(whose) = whose
    {
        match called.filter(|(place, _)| std::ptr::eq(*place, whose)) {
            Some((_, entry)) => entry.lasts_no_more(),
            None => drop(domain().lease().pin(whose).inspect(|entry| entry.lasts_no_more())),
        }
    }
    if ended.is_given_up {
        give_back(node, seat);
    }
}

/// A seat that was given up can be another's from now on, and its group is let go.
fn give_back(node: &'static Node, seat: u32) {
    let roster = listed(node);
    // Nobody has the seat any more: what is deferred there is all there will be.
    if let Some(cell) = roster.seats.get(seat)
        && !mutation::active(Mutation::LeaverHandsOnFirst)
    {
        bequeath(node, cell);
    }
    roster.return_seat(seat);
    node.unpin();
}

/// What a shrinker was still to be asked for at a seat that it gave up is deferred at its nearest seat above, if it has one.
fn bequeath(node: &'static Node, cell: &Cell) {
    let (Some(shrinker), bytes @ 1..) = (cell.left_by(), cell.take_deferred()) else { return };
    let above = std::iter::successors(node.parent(), |level| level.parent());
    let heir = above.filter_map(Standing::roster).find_map(|roster| roster.seat_of(shrinker));
    if let Some((_, heir)) = heir {
        heir.defer(bytes, heir.last_bytes().unwrap_or(bytes).saturating_mul(2));
        heir.ask_always();
    }
}

/// Takes a mark away in a class that was not the seat's, and looks whether it is by now: its owner may have marked it there meanwhile, and relied on the
/// mark that was left over; and who finds that one in the class that it was moved to takes it away in turn.
pub(super) fn unmark_left_over(node: &'static Node, seat: u32, cell: &Cell, class: usize) {
    interleave::point();
    roster::unmark(node, seat, class);
    // ORDERING: SeqCst; pairs with the fence in `Room::mark` (E1), as in `Call::found_empty`.
    fence(Ordering::SeqCst);
    let is_its = cell.shrinker().is_some() && cell.class() == class;
    if is_its && !mutation::active(Mutation::LeftOverIsTakenBlindly) {
        roster::mark(node, seat, class);
    }
}

fn listed(node: &'static Node) -> &'static Roster {
    node.roster().expect("a group in which a shrinker has a seat has a roster")
}
