//! Scan: the call of one shrinker that a walk found and pinned.
//!
//! ```text
//!   counted ─▶ marked in its class ─▶ due at this priority ─▶ seized ─▶ still its slot? ─▶ scan, batch by batch ─▶ released
//!                                            └─ too little: deferred
//! ```
//!
//! - I1. One thread at a time scans a slot (`slot` I3), for the group in which the slot was found.
//!   The owner checks again which shrinker and group the slot belongs to. Until the release the
//!   slot is not given to another shrinker, nor is the group released (`slot` I2).
//! - E1. The mark of an empty slot: unmark → count again; fill → mark. Loom:
//!   `finds_every_mark_from_above`.

use core::marker::PhantomData;

use memgroup_sync::atomic::{Ordering, fence};
use memgroup_sync::hazard::{Pinned, Place};
use memgroup_sync::interleave;

use crate::counter::events::Event;
use crate::counter::share;
use crate::observe::event;
use crate::reclaim::control::ScanControl;
use crate::reclaim::due::UNKNOWN_CLASS;
use crate::reclaim::due::{Due, class_of};
use crate::reclaim::entry::{ShrinkerEntry, add};
use crate::reclaim::group;
use crate::reclaim::release::SlotRef;
use crate::reclaim::shrinker::{Ask, Count, Scan};
use crate::state::stats::builtin::memory;
use crate::stats::update;

/// Calls in a row that freed nothing, after which a series of calls ends. One is enough while the
/// round explores.
const FRUITLESS_CALLS_MOST: u32 = 32;

/// A pinned shrinker, and its slot.
pub(crate) struct Call<'a> {
    pub(crate) slot: SlotRef,
    pub(crate) place: &'static Place<ShrinkerEntry>,
    pub(crate) entry: &'a Pinned<'a, ShrinkerEntry>,
}

impl Call<'_> {
    /// Has the shrinker give back its share after it was counted. Returns whether the walk goes
    /// on.
    #[inline(never)]
    pub(crate) fn counted(&self, count: Count, control: &mut ScanControl<'_>) -> bool {
        let node = self.slot.node;
        let bytes = match count {
            Count::Unknown => return true,
            Count::Empty => {
                self.found_empty(control.class);
                return true;
            }
            // A cache cannot hold more than its group is charged with.
            Count::Holds { bytes, .. } => bytes.min(node.counter.usage()),
        };
        self.place_in_class(bytes, control.class);
        let takeable = control.sparing.takeable(node);
        control.stats.spared_low |= takeable.spares_low;
        if takeable.bytes == 0 && bytes > 0 {
            control.stats.busy += u64::from(takeable.is_shared);
            return true;
        }
        let goes_on = self.ask(bytes.min(takeable.bytes), control);
        if takeable.bytes < bytes {
            // Other reclaims may take more, and so may this one when it no longer spares `low`.
            self.ask_from(bytes);
        }
        goes_on
    }

    /// Takes the mark of an empty cache, unless something came meanwhile.
    fn found_empty(&self, class: usize) {
        let SlotRef { node, number, state, .. } = self.slot;
        let _move = node.shared().shrinkers().begin_mark_move();
        // The next object may be of any size.
        state.forget_size(UNKNOWN_CLASS);
        group::unmark(node, number, class);
        interleave::point();
        // ORDERING: SeqCst; pairs with the fence in `SummaryBitmap::mark` (E1): the count sees the
        // new object, or the thread that brought it finds no mark.
        fence(Ordering::SeqCst);
        if !state.is_of(self.place) || self.entry.count(state.token()) != Count::Empty {
            group::mark(node, number, state.class());
        }
    }

    /// Moves the mark from `class` to that of the counted bytes, less the back-off.
    pub(crate) fn place_in_class(&self, bytes: u64, class: usize) {
        let SlotRef { node, number, state, .. } = self.slot;
        let own = class_of(bytes >> state.backoff.shift(), self.entry.config.batch_bytes);
        if own != class {
            let _move = node.shared().shrinkers().begin_mark_move();
            state.set_class(own);
            group::mark(node, number, own);
            self.slot.take_stale_mark(class);
        }
    }

    fn due(&self, bytes: u64, deferred: u64) -> Due {
        Due::new(bytes, deferred, self.entry.config.batch_bytes, self.entry.config.cost)
    }

    /// Has the shrinker give back the bytes that are due at the priority. Returns whether the walk
    /// goes on.
    pub(crate) fn ask(&self, bytes: u64, control: &mut ScanControl<'_>) -> bool {
        let (state, priority) = (self.slot.state, control.priority);
        let hint = self.due(bytes, state.deferred());
        let fresh = hint.fresh(priority);
        let is_enough = hint.is_enough(hint.work(priority), priority);
        if !is_enough {
            self.defer(fresh, bytes);
            return true;
        }
        let began = self.slot.node.shared().nanos();
        if !state.seize(began, control.may_wait) {
            control.stats.busy += 1;
            self.defer(fresh, bytes);
            return true;
        }
        if self.slot.is_still(self.place) {
            let deferred = state.take_deferred();
            let due = self.due(bytes, deferred);
            let asked = self.scan(began, due.work(priority), due, control);
            self.defer(deferred.saturating_add(fresh).saturating_sub(asked), bytes);
            // It may have given it up meanwhile, and its mark.
            if self.slot.is_still(self.place) {
                self.place_in_class(bytes, state.class());
            }
        }
        self.slot.release();
        control.goes_on()
    }

    /// Has the shrinker give back all that is missing, whatever its share is, unless another
    /// thread scans the slot.
    pub(crate) fn demand(&self, control: &mut ScanControl<'_>) {
        let began = self.slot.node.shared().nanos();
        if self.slot.state.seize(began, control.may_wait) {
            self.demand_seized(began, control);
        } else {
            control.stats.busy += 1;
        }
    }

    /// The same as `demand` for a slot that the caller has seized. It releases the slot.
    pub(crate) fn demand_seized(&self, began: u64, control: &mut ScanControl<'_>) {
        // A cache cannot hold more than its group is charged with. One that frees nothing and does
        // not stop would be asked without end.
        let most = self.slot.node.counter.usage().max(self.entry.config.batch_bytes);
        let missing = control.bytes.saturating_sub(control.credit.freed()).min(most);
        if self.slot.is_still(self.place) {
            self.scan(began, missing, self.due(missing, 0), control);
        }
        self.slot.release();
    }

    /// Defers bytes that were not asked for, of a cache that holds `bytes`.
    fn defer(&self, rest: u64, bytes: u64) {
        self.slot.state.defer(rest, bytes.saturating_mul(2));
        self.ask_from(bytes);
    }

    /// Notes from which priority on a cache that holds `bytes` should be asked.
    fn ask_from(&self, bytes: u64) {
        let state = self.slot.state;
        state.backoff.ask_from(self.due(bytes, state.deferred()).asked_from());
    }

    /// Has a seized slot's shrinker give back up to `work` bytes, batch by batch; the first call
    /// begins at `began`. Returns how many it was asked for.
    fn scan(&self, mut began: u64, work: u64, due: Due, control: &mut ScanControl<'_>) -> u64 {
        let (SlotRef { node, state, .. }, entry, credit) = (self.slot, self.entry, control.credit);
        control.stats.scanned += 1;
        let (freed_before, was_out) = (credit.freed(), entry.is_out());
        let bypass = node.bypass_stock();
        let (mut asked, mut claimed, mut is_below_low) = (0, 0_u64, false);
        // Calls in a row that freed nothing.
        let (mut fruitless, mut has_stopped) = (0, false);
        while due.is_enough(work - asked, control.priority) && !control.is_done() {
            let most = entry.config.batch_bytes.min(work - asked);
            // Protection may have changed since the count.
            let claim = control.sparing.claim(node, most);
            let takeable = claim.takeable;
            control.stats.spared_low |= takeable.spares_low;
            if takeable.bytes == 0 {
                control.stats.busy += u64::from(takeable.is_shared);
                break;
            }
            let freed_so_far = credit.freed();
            let ask = Ask {
                node,
                token: state.token(),
                bytes: takeable.bytes,
                deadline: control.deadline,
                may_wait: control.may_wait,
                here: PhantomData,
            };
            // The call may take seconds: a removal of another shrinker is not to interrupt any
            // thread because of this walk.
            let answer = entry.long_use(|entry| entry.scan(&ask));
            let ended = node.shared().nanos();
            entry.took(ended.saturating_sub(began));
            let (Scan::Freed { bytes } | Scan::Stopped { bytes }) = answer;
            asked += takeable.bytes;
            claimed = claimed.saturating_add(bytes);
            is_below_low |= control.sparing.is_below_low(&claim, credit.freed() - freed_so_far);
            drop(claim);
            if let Scan::Stopped { .. } = answer {
                has_stopped = true;
                control.stats.busy += 1;
                add(&entry.calls.stopped, 1);
                break;
            }
            if state.begin_again(ended) {
                entry.end_overdue_call();
            }
            fruitless = if credit.freed() > freed_so_far { 0 } else { fruitless + 1 };
            let is_quarantined = entry.is_out() && !was_out;
            // All bytes above the protected ones were asked for, whatever was freed.
            let is_all = takeable.bytes < most;
            let is_gone = entry.is_withdrawn() || !self.slot.is_still(self.place);
            let is_fruitless = fruitless == FRUITLESS_CALLS_MOST || (control.explores && fruitless > 0);
            if is_quarantined || is_all || is_gone || is_fruitless || control.is_late() {
                break;
            }
            began = ended;
        }
        drop(bypass);
        if is_below_low {
            event::count(node, Event::Low);
        }
        let freed = credit.freed() - freed_before;
        state.backoff.note(asked, freed, has_stopped);
        // One that says that it holds something, and gives nothing, says so still.
        if freed == 0 && control.priority == 0 && !has_stopped && !entry.is_out() {
            control.stats.was_emptied |= entry.count(state.token()) == Count::Empty;
        }
        self.note(asked, claimed, freed);
        if let Some(requester) = credit.requester() {
            share::count_given(control.sparing.top(), node, requester, freed);
        }
        asked
    }

    /// Notes the results of a series of calls.
    fn note(&self, asked: u64, claimed: u64, freed: u64) {
        let calls = &self.entry.calls;
        for (figure, by) in [(&calls.scans, 1), (&calls.asked, asked), (&calls.freed, freed)] {
            add(figure, by);
        }
        // A callback may claim any number.
        let all = |before: u64| Some(before.saturating_add(claimed));
        // ORDERING: Relaxed, both; a figure of a report.
        let _ = calls.claimed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, all);
        // ORDERING: Relaxed; a figure of a report.
        calls.last.store(freed, Ordering::Relaxed);
        update::count(self.slot.node, memory::RECLAIMS, 1);
        update::count(self.slot.node, memory::RECLAIMED, freed);
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests;
