//! Seat: how a shrinker leaves its place in a group, and how who has it give back leaves it.
//!
//! - I1. A seat that was given up is returned to its roster, and the handle on its group dropped, once: `cell` I2.

use super::call::Found;
use super::cell::Cell;
use super::entry::Entry;
use super::queue;
use super::roster::{self, Roster, Standing};
use crate::node::Node;

/// A shrinker gives up its seat in a group, which the caller holds. What it was still to be asked for is asked of its next seat above.
pub(crate) fn leave(node: &'static Node, seat: u32) {
    let Some(cell) = listed(node).seats.get(seat) else { return };
    // For as long as a call goes on for the seat; `give_back` lets go.
    node.pin();
    let class = cell.class();
    cell.vacate();
    roster::unmark(node, seat, class);
    if cell.give_up() {
        give_back(node, seat);
    }
}

/// Lets a seat go, to who waits for it if somebody does. If it was given up meanwhile, it is given back now.
pub(super) fn let_go(found: &Found, entry: Option<&Entry>) {
    let &Found { node, seat, cell, .. } = found;
    let ended = queue::let_go(cell, || node.shared.nanos());
    if ended.was_noted
        && let Some(entry) = entry
    {
        entry.lasts_no_more();
    }
    if ended.is_given_up {
        give_back(node, seat);
    }
}

/// A seat that was given up can be another's from now on, and its group is let go.
fn give_back(node: &'static Node, seat: u32) {
    let roster = listed(node);
    // Nobody has the seat any more: what is deferred there is all there will be.
    if let Some(cell) = roster.seats.get(seat) {
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

fn listed(node: &'static Node) -> &'static Roster {
    node.roster().expect("a group in which a shrinker has a seat has a roster")
}
