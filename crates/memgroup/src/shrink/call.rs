//! Call: what becomes of one shrinker that was found, pinned and counted.
//!
//! ```text
//!   its mark where it belongs ─▶ how much at this priority ─▶ seized ─▶ still the one? ─▶ scan, batch by batch ─▶ let go
//!                                   └─ too little: deferred
//! ```
//!
//! - I1. A scan is one thread's at a time for a seat (`cell` I3), and for the group in which it was found: who has seized the seat looks again
//!   whose it is, and of which group, and until it is let go it is not given to another, nor is the group released (`cell` I2).
//! - E1. The bit of a seat that is empty: unmark → count again, fill → mark. Loom: `a_mark_is_found_from_above`.

use std::time::Instant;

use memgroup_sync::atomic::{Ordering, fence};
use memgroup_sync::hazard::{Pinned, Place};
use memgroup_sync::interleave;

use super::cell::Cell;
use super::entry::{self, Entry};
use super::keep::Keeper;
use super::registry::UNKNOWN_CLASS;
use super::roster;
use super::seat::{let_go, unmark_left_over};
use super::share::{Due, SERIOUS, class_of};
use super::shrinker::{Ask, Count};
use crate::event::{self, Event};
use crate::node::Node;
use crate::protect::Sparing;
use crate::stock::count;

/// What is asked for, and how pressing it is.
pub(crate) struct Wanted {
    pub(crate) bytes: u64,
    pub(crate) deadline: Option<Instant>,
    pub(crate) may_wait: bool,
}

impl Wanted {
    /// Whether the time is over. Asked after what may have taken some.
    #[inline(always)]
    pub(super) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

/// What a reclaim met.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Met {
    pub(crate) scanned: u64,
    /// Seats of which somebody else is having something given back, for no longer than a call may take, or that could not go on.
    pub(crate) busy: u64,
    /// All waits of the group were ended while it waited for a seat.
    pub(crate) is_called_off: bool,
    /// Something was left alone that `low` protects.
    pub(crate) spared_low: bool,
}

/// One seat, as it was found.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub(crate) node: &'static Node,
    /// The node's, when it was found to be the walk's.
    pub(crate) generation: u32,
    pub(crate) seat: u32,
    pub(crate) cell: &'static Cell,
}

impl Found {
    /// Whether the seat is still the shrinker's, and in the group in which it was found.
    fn is_still(&self, shrinker: &'static Place<Entry>) -> bool {
        self.cell.is_of(shrinker) && self.node.generation() == self.generation
    }
}

/// One call of a shrinker that is pinned.
pub(crate) struct Call<'a> {
    pub(super) found: Found,
    pub(super) entry: &'a Pinned<'a, Entry>,
    pub(super) shrinker: &'static Place<Entry>,
    pub(super) class: usize,
    pub(super) priority: u32,
    pub(super) wanted: &'a Wanted,
    pub(super) sparing: Sparing,
}

impl<'a> Call<'a> {
    /// One that no walk makes: of the group itself, so nothing of it is protected.
    pub(super) fn by_hand(
        found: Found,
        entry: &'a Pinned<'a, Entry>,
        shrinker: &'static Place<Entry>,
        wanted: &'a Wanted,
    ) -> Call<'a> {
        let sparing = Sparing::new(found.node, false);
        Call { found, entry, shrinker, class: found.cell.class(), priority: 0, wanted, sparing }
    }

    /// Has it give back what is wanted, if nobody else is having it give back.
    pub(super) fn demand(&self, keeper: &Keeper, met: &mut Met) {
        let Found { node, cell, .. } = self.found;
        let began = node.shared.nanos();
        if !cell.seize(began, self.wanted.may_wait) {
            met.busy += 1;
            return;
        }
        self.demand_seized(began, keeper, met);
    }

    /// Has a seat that is seized give back what is wanted, and lets it go.
    pub(super) fn demand_seized(&self, began: u64, keeper: &Keeper, met: &mut Met) {
        let wanted = self.wanted.bytes.saturating_sub(keeper.freed());
        let Entry { config, .. } = &**self.entry;
        let due = Due::new(wanted, 0, config.batch_bytes, config.cost);
        if self.found.is_still(self.shrinker) {
            self.scan(began, wanted, due, keeper, met);
        }
        let_go(&self.found, Some((self.shrinker, self.entry)));
    }

    /// It was counted. `false`: the walk is over.
    #[inline(never)]
    pub(super) fn counted(mut self, count: Count, keeper: &Keeper, met: &mut Met) -> bool {
        let bytes = match count {
            Count::Unknown => return true,
            Count::Empty => return self.found_empty(),
            // What it claims beyond what the group is charged with is not there.
            Count::Holds { bytes, .. } => bytes.min(self.found.node.counter.usage()),
        };
        self.place_in_class(bytes);
        let takeable = self.sparing.takeable(self.found.node);
        met.spared_low |= takeable.spares_low;
        if takeable.bytes == 0 && bytes > 0 {
            met.busy += u64::from(takeable.is_shared);
            return true;
        }
        let goes_on = self.ask(bytes.min(takeable.bytes), keeper, met);
        if takeable.bytes < bytes {
            // Others who need memory, or this one when `low` is spared no more, may take more.
            self.ask_from(bytes);
        }
        goes_on
    }

    /// It said it was empty: its mark goes, unless something has come meanwhile.
    fn found_empty(&self) -> bool {
        let Found { node, seat, cell, .. } = self.found;
        // What comes next may be of any size.
        cell.forget_size(UNKNOWN_CLASS);
        roster::unmark(node, seat, self.class);
        interleave::point();
        // ORDERING: SeqCst; pairs with the fence in `Room::mark` (E1): the count sees what came, or who brought it finds no mark.
        fence(Ordering::SeqCst);
        if !cell.is_of(self.shrinker) || self.entry.count(cell.token()) != Count::Empty {
            roster::mark(node, seat, cell.class());
        }
        true
    }

    /// Notes how much it holds, and moves its mark to where that belongs.
    pub(super) fn place_in_class(&mut self, bytes: u64) {
        let Found { node, seat, cell, .. } = self.found;
        cell.set_last_bytes(bytes);
        let class = class_of(bytes, self.entry.config.batch_bytes);
        if class != self.class {
            cell.set_class(class);
            roster::mark(node, seat, class);
            unmark_left_over(node, seat, cell, self.class);
            self.class = class;
        }
    }

    /// Has it give back what its size and the priority make, batch by batch.
    pub(super) fn ask(&self, bytes: u64, keeper: &Keeper, met: &mut Met) -> bool {
        let (Entry { config, .. }, cell) = (&**self.entry, self.found.cell);
        let due = |deferred| Due::new(bytes, deferred, config.batch_bytes, config.cost);
        let (hint, fresh) = (due(cell.deferred()), due(0).fresh(self.priority));
        let is_enough = hint.is_enough(hint.work(self.priority), self.priority);
        if !is_enough || (self.priority > SERIOUS && cell.is_resting()) {
            self.defer(fresh, bytes);
            return true;
        }
        let began = self.found.node.shared.nanos();
        if !cell.seize(began, self.wanted.may_wait) {
            met.busy += 1;
            self.defer(fresh, bytes);
            return true;
        }
        if self.found.is_still(self.shrinker) {
            let deferred = cell.take_deferred();
            let (due, all) = (due(deferred), deferred.saturating_add(fresh));
            let asked = self.scan(began, due.work(self.priority), due, keeper, met);
            self.defer(all.saturating_sub(asked), bytes);
        }
        let_go(&self.found, Some((self.shrinker, self.entry)));
        keeper.freed() < self.wanted.bytes
    }

    /// Defers what it was not asked for now, and notes from where on it is to be asked, with `bytes` that it holds.
    fn defer(&self, rest: u64, bytes: u64) {
        self.found.cell.defer(rest, bytes.saturating_mul(2));
        self.ask_from(bytes);
    }

    /// Notes from which priority on it is to be asked, with `bytes` that it holds.
    fn ask_from(&self, bytes: u64) {
        let (Entry { config, .. }, cell) = (&**self.entry, self.found.cell);
        cell.ask_from(Due::new(bytes, cell.deferred(), config.batch_bytes, config.cost).asked_from());
    }

    /// Has a seat that is seized give back up to `work` bytes, from `began` on; how many were asked for.
    fn scan(&self, mut began: u64, work: u64, due: Due, keeper: &Keeper, met: &mut Met) -> u64 {
        met.scanned += 1;
        let Found { node, cell, .. } = self.found;
        let (entry, batch_bytes) = (self.entry, self.entry.config.batch_bytes);
        let (freed_before, was_out) = (keeper.freed(), entry.is_out());
        let diverted = node.divert();
        let (mut asked, mut claimed, mut is_below_low) = (0, 0_u64, false);
        while due.is_enough(work - asked, self.priority) && keeper.freed() < self.wanted.bytes {
            // Only here is it known what may be taken by now.
            let most = batch_bytes.min(work - asked);
            let claim = self.sparing.claim(node, most);
            met.spared_low |= claim.takeable.spares_low;
            if claim.takeable.bytes == 0 {
                met.busy += u64::from(claim.takeable.is_shared);
                break;
            }
            let freed_so_far = keeper.freed();
            let ask = Ask {
                node,
                token: cell.token(),
                bytes: claim.takeable.bytes,
                deadline: self.wanted.deadline,
                may_wait: self.wanted.may_wait,
                here: core::marker::PhantomData,
            };
            // It may take seconds: whoever withdraws others meanwhile is not to interrupt anybody because of this walk.
            let called = entry.dwell(|entry| entry.scan(&ask));
            let ended = node.shared.nanos();
            entry.took(ended.saturating_sub(began));
            asked += ask.bytes;
            claimed = claimed.saturating_add(called.claimed);
            is_below_low |= self.sparing.is_below_low(&claim, keeper.freed() - freed_so_far);
            drop(claim);
            if called.has_stopped {
                met.busy += 1;
                entry::add(&entry.calls.stopped, 1);
                break;
            }
            if cell.begin_again(ended) {
                entry.lasts_no_more();
            }
            let is_set_aside = entry.is_out() && !was_out;
            // What was left above what is protected was asked for, whatever became of it.
            let is_all = ask.bytes < most;
            let is_over =
                is_all || entry.is_leaving() || !self.found.is_still(self.shrinker) || self.wanted.is_late();
            if is_set_aside || is_over {
                break;
            }
            began = ended;
        }
        drop(diverted);
        if is_below_low {
            event::count(node, Event::Low);
        }
        self.note(asked, claimed, keeper.freed() - freed_before);
        asked
    }

    /// Notes what a series of calls came to.
    fn note(&self, asked: u64, claimed: u64, freed: u64) {
        let (Found { node, cell, .. }, calls) = (self.found, &self.entry.calls);
        cell.gave(freed < asked / 8);
        entry::add(&calls.scans, 1);
        entry::add(&calls.asked, asked);
        entry::add(&calls.claimed, claimed);
        entry::add(&calls.freed, freed);
        // ORDERING: Relaxed; for people.
        calls.last.store(freed, Ordering::Relaxed);
        count::reclaim(node, freed);
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests;
