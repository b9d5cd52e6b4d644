//! Walk: from a group down to every seat that is marked.
//!
//! No lock and no read section is held, neither on the way nor while a callback runs. The way down is read from rosters that stay where they
//! are; whether a group that is found there is still the one meant is told by its generation, which is looked at again when its shrinker is
//! pinned, and once more when its seat is seized: from there on it cannot be released.
//!
//! - I1. A seat of which something is asked is in the subtree of the walk's group, in a group that is not released until the call ends.
//! - I2. Rounds take turns to begin with another group below, at each level, far from the one before, so that two at a time come to different caches, and of
//!   siblings no deeper in the tree than others one does not give all.

use std::ops::{ControlFlow, Range};

use super::roster::{self, Roster, Standing};
use super::visit::{Group, Visitor};
use crate::node::Node;
use crate::protect::Protection;
use crate::tree::ROOT;

/// Visits every seat that is marked in the visitor's class, in `top` and below, until the visitor has enough.
pub(crate) fn subtree(top: &'static Node, visitor: &mut Visitor<'_>) -> ControlFlow<()> {
    let Some(roster) = top.roster() else { return ControlFlow::Continue(()) };
    let whole = Group { node: top, generation: top.generation(), protected: Protection::NONE };
    seats(whole, roster, visitor)?;
    // A root that is left unaccounted counts for itself: what is set free below makes no room for its charges.
    if top.id == ROOT && !top.shared.config.account_root && !visitor.keeper.is_by_hand() {
        return ControlFlow::Continue(());
    }
    kin(whole, roster, 0, visitor)
}

fn group(group: Group, levels: u32, visitor: &mut Visitor<'_>) -> ControlFlow<()> {
    let Some(roster) = group.node.roster() else { return ControlFlow::Continue(()) };
    // If so it, all below it is protected too.
    if visitor.spares(&group) {
        return ControlFlow::Continue(());
    }
    seats(group, roster, visitor)?;
    // Most groups have none below.
    if roster.kin.is_any(visitor.class) {
        kin(group, roster, levels, visitor)
    } else {
        ControlFlow::Continue(())
    }
}

fn seats(group: Group, roster: &'static Roster, visitor: &mut Visitor<'_>) -> ControlFlow<()> {
    let class = visitor.class;
    let visit = move |seat, cell| visitor.visit(group, seat, cell);
    if roster.seats.each_marked(class, 0..u32::MAX, visit) {
        ControlFlow::Continue(())
    } else {
        ControlFlow::Break(())
    }
}

/// A group's kin, so many levels below the top, from the one whose turn it is around to it. Their depth is bounded by `Config::depth_max`.
fn kin(above: Group, roster: &'static Roster, levels: u32, visitor: &mut Visitor<'_>) -> ControlFlow<()> {
    let begin = roster.begin(visitor.turn, levels);
    kin_among(above, roster, begin..u32::MAX, levels, visitor)?;
    if begin > 0 { kin_among(above, roster, 0..begin, levels, visitor) } else { ControlFlow::Continue(()) }
}

fn kin_among(
    above: Group,
    roster: &'static Roster,
    numbers: Range<u32>,
    levels: u32,
    visitor: &mut Visitor<'_>,
) -> ControlFlow<()> {
    let (class, mut flow) = (visitor.class, ControlFlow::Continue(()));
    roster.kin.each_marked(class, numbers, |number, id| {
        if let Some((node, generation)) = roster::kin_at(above.node, number, id) {
            let protected = visitor.sparing.below(above.node, above.protected, node);
            flow = group(Group { node, generation, protected }, levels + 1, visitor);
        }
        flow.is_continue()
    });
    flow
}
