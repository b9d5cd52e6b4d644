//! Visit: what a walk does with one marked seat.
//!
//! ```text
//!   by what it said last, anything to ask for? ─ class as marked? ─ pinned? ─ still its seat? ─ set aside, or busy? ─▶ count ─▶ call
//! ```
//!
//! What is passed by is left after a look at the line of its seat, before anything is announced. At the last priorities every cache is counted
//! whatever it said, or what has grown since would never be seen.
//!
//! - I1. What is counted is asked about with the token of a seat that is its own. The seat may be of another group than the one that was found, where that was
//!   released in between: nothing is *asked of* it then (`call` I1).
//! - E1. A mark that tells nothing: unmark → look again (`seat` E1).

use std::time::Duration;

use memgroup_sync::hazard::{Lease, Place};
use memgroup_sync::interleave;

use super::call::{Call, Found, Met, Wanted};
use super::cell::Cell;
use super::entry::Entry;
use super::keep::Keeper;
use super::queue;
use super::roster::{self, Turn};
use super::seat;
use super::share::SERIOUS;
use super::shrinker::Count;
use crate::node::Node;
use crate::protect::{Protection, Sparing};
use crate::wait::{self, WaitKind};

/// A walk at one priority.
pub(crate) struct Visitor<'a> {
    pub(crate) wanted: &'a Wanted,
    pub(crate) keeper: &'a Keeper,
    /// What it leaves alone.
    pub(crate) sparing: Sparing,
    pub(crate) priority: u32,
    pub(crate) class: usize,
    /// With which of a group's kin the walk begins.
    pub(crate) turn: Turn,
    /// Who waits for a seat that somebody else is having give back (`queue`), if it does.
    pub(crate) waits: Option<&'static Node>,
    pub(crate) lease: &'a mut Lease,
    pub(crate) met: &'a mut Met,
}

/// A group that a walk came to.
#[derive(Clone, Copy)]
pub(crate) struct Group {
    pub(crate) node: &'static Node,
    /// The node's, when it was found to be the walk's.
    pub(crate) generation: u32,
    /// What is protected of it.
    pub(crate) protected: Protection,
}

impl Group {
    fn found(self, seat: u32, cell: &'static Cell) -> Found {
        Found { node: self.node, generation: self.generation, seat, cell }
    }
}

impl Visitor<'_> {
    /// Whether what was wanted is there.
    pub(crate) fn is_done(&self) -> bool {
        self.keeper.freed() >= self.wanted.bytes
    }

    /// Whether nothing may be taken of the group, nor of those below it.
    pub(crate) fn spares(&mut self, group: &Group) -> bool {
        let takeable = self.sparing.of_group(group.node, group.protected);
        let is_spared = takeable.bytes == 0 && !group.protected.is_none();
        self.met.spared_low |= is_spared && takeable.spares_low;
        is_spared
    }

    /// Visits a seat that is marked in the walk's class. `false`: the walk is over.
    #[inline(always)]
    pub(crate) fn visit(&mut self, group: Group, seat: u32, cell: &'static Cell) -> bool {
        // First, because it is what becomes of most. A mark that tells nothing is found at the last priorities then.
        if self.priority > SERIOUS && self.priority > cell.asked_from() {
            return true;
        }
        let Some(shrinker) = cell.shrinker().filter(|_| cell.class() == self.class) else {
            return self.forget(group, seat, cell);
        };
        let Some(entry) = self.lease.pin(shrinker) else { return true };
        interleave::point();
        if !cell.is_of(shrinker) {
            return true;
        }
        if cell.is_busy() || entry.is_out() {
            let wait = self.waits.filter(|_| !entry.is_out());
            let patience = entry.config.patience;
            pass_by(group, cell, &entry, wait.is_some(), self.met);
            drop(entry);
            return wait
                .is_none_or(|waiter| self.wait_for(waiter, group.found(seat, cell), shrinker, patience));
        }
        let count = entry.count(cell.token());
        if count != Count::Unknown {
            let Visitor { class, priority, wanted, sparing, .. } = *self;
            let found = group.found(seat, cell);
            let call = Call { found, entry: &entry, shrinker, class, priority, wanted, sparing };
            if !call.counted(count, self.keeper, self.met) {
                return false;
            }
        }
        !self.wanted.is_late()
    }

    /// Has a seat give back when those who came before have had it give back, if what they have left is not enough. It is not pinned meanwhile: a
    /// removal waits for calls, not for those who would like to make one.
    #[cold]
    #[inline(never)]
    fn wait_for(
        &mut self,
        waiter: &'static Node,
        found: Found,
        shrinker: &'static Place<Entry>,
        patience: Duration,
    ) -> bool {
        let Found { node, cell, .. } = found;
        let listed = wait::begin(waiter, WaitKind::Seat, self.keeper.lacks(), wait::after(patience));
        listed.at(node);
        let stays = |left| {
            listed.postpone(wait::after(left));
            !listed.is_called_off()
        };
        let is_mine = queue::seize(cell, patience, || node.shared.nanos(), stays);
        self.met.is_called_off |= listed.is_called_off();
        drop(listed);
        if !is_mine {
            self.met.busy += u64::from(cell.is_busy());
            return true;
        }
        let entry = self.lease.pin(shrinker);
        let lacks = self.keeper.lacks();
        let wanted = Wanted { bytes: self.keeper.freed() + lacks, ..*self.wanted };
        match entry.as_ref().filter(|entry| !entry.is_out() && lacks > 0) {
            Some(entry) => {
                let Visitor { class, sparing, .. } = *self;
                let call = Call { found, entry, shrinker, class, priority: 0, wanted: &wanted, sparing };
                call.demand_seized(node.shared.nanos(), self.keeper, self.met);
            }
            None => seat::let_go(&found, entry.as_deref().map(|entry| (shrinker, entry))),
        }
        self.keeper.lacks() > 0
    }

    /// Takes a mark away that tells nothing any more.
    #[cold]
    #[inline(never)]
    pub(super) fn forget(&self, group: Group, seat: u32, cell: &'static Cell) -> bool {
        let node = group.node;
        // First where it belongs, so that at no time it is nowhere.
        if cell.shrinker().is_some() && cell.class() != self.class {
            roster::mark(node, seat, cell.class());
        }
        seat::unmark_left_over(node, seat, cell, self.class);
        true
    }
}

/// Somebody else is having it give back, and unless that is waited for, or lasts too long, it counts as busy; or it is not to be called.
#[cold]
#[inline(never)]
fn pass_by(group: Group, cell: &Cell, entry: &Entry, wait: bool, met: &mut Met) {
    if let Some(since) = cell.busy_since() {
        if !entry.is_overrun(group.node.shared.nanos().saturating_sub(since)) {
            met.busy += u64::from(!wait);
        } else if cell.note(since) {
            entry.lasts();
        }
    }
}
