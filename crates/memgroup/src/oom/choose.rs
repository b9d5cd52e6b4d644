//! Choice: who is to die for a group that is full.
//!
//! ```text
//!   groups with hooks that count in it ─▶ sizes ─▶ together enough? ─▶ highest score ─▶ most above its protection ─▶ lowest id
//!                                                       └─ no: nobody          └─▶ the topmost group that dies as a whole, up to the full one
//! ```
//!
//! The size of a group is what its hook covers: its usage less that of groups below with hooks of their own. It is taken in one pass over all hooks of the
//! hierarchy, each of which climbs to the next group above that has one: no walk of the tree, no allocation, and the tree lock is not held.
//!
//! - I1. A group is chosen only if all that could be chosen have together what is lacking: nobody dies in vain.
//! - I2. Among those of one score it is the one that exceeds its protection by most, so never a small neighbour beside a giant.
//! - I3. A group within its `min` is not chosen: what is in it is taken for nobody. It may die with a group that dies as a whole.
//! - B1. Usages are read one after the other while they change; a charge in flight may be missed, or seen below a hook and not at it.

use std::cmp::Reverse;

use super::settings::NEVER;
use super::victims::{List, Plea, Seat};
use crate::node::Node;
use crate::protect::effective::effective;

/// The groups from `node` to `top`, both included, if charges of `node` count in `top`.
pub(super) fn levels(node: &'static Node, top: &'static Node) -> Option<impl Iterator<Item = &'static Node>> {
    let up = |level: &&'static Node| level.up();
    let depth = std::iter::successors(Some(node), up).position(|level| std::ptr::eq(level, top))?;
    Some(std::iter::successors(Some(node), up).take(depth + 1))
}

impl Seat {
    /// Whether it can be asked for this charge, whatever it has.
    fn is_candidate(&self, plea: &Plea) -> bool {
        let may = self.node.control.oom.score() > NEVER && !self.is_aside && self.trial.is_none();
        may && self.is_counted && self.charge != plea.charge
    }
}

impl List {
    /// Who is to die, and the group that dies as a whole with it; `None` if all candidates together have less than `lacks` bytes. What was measured
    /// stays until the next look.
    pub(super) fn find(&mut self, plea: &Plea, lacks: u64) -> Option<(usize, Option<&'static Node>)> {
        self.measure(plea.full);
        let (mut sum, mut first) = (0_u64, None);
        for (at, seat) in self.seats.iter().enumerate() {
            let Some(seat) = seat.as_ref().filter(|seat| seat.size() > 0 && seat.is_candidate(plea)) else {
                continue;
            };
            let protection = effective(seat.node, plea.full);
            if seat.usage <= protection.min {
                continue;
            }
            sum = sum.saturating_add(seat.size());
            let excess = seat.size().saturating_sub(protection.min.max(protection.low));
            let rank = (seat.node.control.oom.score(), excess, Reverse(seat.node.id));
            if first.as_ref().is_none_or(|(highest, _)| rank > *highest) {
                first = Some((rank, at));
            }
        }
        let (_, at) = first.filter(|_| sum >= lacks)?;
        let node = self.seats[at].as_ref()?.node;
        let unit = levels(node, plea.full)?.filter(|level| level.control.oom.is_unit()).last();
        Some((at, unit))
    }

    /// Whether a group dies with `unit`. Those that have nothing do, too.
    pub(super) fn is_candidate_in(&self, at: usize, unit: &'static Node, plea: &Plea) -> bool {
        let seat = self.seats[at].as_ref().filter(|seat| seat.is_candidate(plea));
        seat.is_some_and(|seat| levels(seat.node, unit).is_some())
    }

    /// Takes the usage of all groups that count in `top`, and what of it is of groups below that have hooks.
    fn measure(&mut self, top: &'static Node) {
        for seat in self.seats.iter_mut().flatten() {
            (seat.is_counted, seat.usage, seat.below) = (false, 0, 0);
        }
        for at in 0..self.seats.len() {
            let Some(seat) = &mut self.seats[at] else { continue };
            let node = seat.node;
            let Some(mut levels) = levels(node, top) else { continue };
            let usage = node.counter.usage();
            (seat.is_counted, seat.usage) = (true, usage);
            let covering = levels.by_ref().skip(1).find(|level| level.control.oom.has_hook());
            if let Some(at) = covering.and_then(|covering| self.seat_of(covering))
                && let Some(seat) = &mut self.seats[at]
            {
                seat.below = seat.below.saturating_add(usage);
            }
        }
    }
}
