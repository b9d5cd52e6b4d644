//! Notice: what a charge does that has gone to the counters and finds a level above its `high`.
//!
//! ```text
//!   charged ─▶ has any group a high? ─▶ each level, from the group up: above? ─▶ drain ─▶ still? ─▶ event, caches give back
//!                 └─ no: a look                                                           └─ what stays above: a debt of the group that charged
//! ```
//!
//! It comes after the charge is made and every mark and section of the stock has ended, because caches are users' code.
//!
//! - I1. Nothing here refuses, waits or sleeps, and caches are asked by the charge's own thread, once for each level, for no more than it took and [`SLACK_BYTES`].
//! - I2. Forced charges ask no cache: whoever makes one may hold what a cache's callback wants. They only owe.
//! - B1. What is prepaid counts as used; it is drained when a charge takes a level from within its limit to above it, and before anybody is slowed down. In between a group
//!   may owe for what lies in its stocks, up to the slots' budgets.

use super::{Level, drain_stocks, levels};
use crate::chain::Until;
use crate::event::{self, Event};
use crate::node::Node;
use crate::pressure;
use crate::rstat::builtin::{MEMORY, memory};
use crate::rstat::update;
use crate::shrink::roster::{Roster, Standing};
use crate::shrink::{keep, reclaim};

/// What caches are asked for beyond what a charge took, so that not each one that follows has to ask again.
pub(super) const SLACK_BYTES: u64 = 64 << 10;

/// A charge of `node` took `bytes` from the counters up to `until`. The caller is in no section, and holds no lock.
#[inline]
pub(crate) fn charged(node: &'static Node, until: Until, bytes: u64) {
    if node.shared.highs.get().is_some() {
        look(node, until, bytes);
    }
}

#[cold]
fn look(node: &'static Node, until: Until, bytes: u64) {
    let levels = || std::iter::successors(Some(node), |level| until.next(level));
    for level in levels() {
        if Level::of_high(level).above() > 0 {
            hold_down(node, level, bytes);
        }
    }
    owe(node, levels(), bytes);
}

/// A forced charge of an online group, which may have gone above `max` too.
pub(crate) fn forced(node: &'static Node, bytes: u64) {
    for level in levels(node) {
        if Level::of_high(level).above() > 0 {
            event::count(level, Event::High);
        }
    }
    owe(node, levels(node), bytes);
}

/// What stays above at the worst level is owed, as far as this charge took it.
fn owe(node: &'static Node, levels: impl Iterator<Item = &'static Node>, bytes: u64) {
    let above = levels.map(|level| Level::of_both(level).above()).max().unwrap_or(0);
    if above > 0 {
        node.control.high.debt.note(bytes.min(above));
    }
}

/// A charge of `node` found `level` above its `high`.
fn hold_down(node: &'static Node, level: &'static Node, bytes: u64) {
    let found = Level::of_high(level);
    let was_within = found.usage.saturating_sub(bytes) <= found.limit;
    if was_within && level.roster().is_none_or(Roster::drains_now) {
        drain_stocks(level);
    }
    let seen = Level::of_high(level);
    if seen.above() == 0 {
        return;
    }
    event::count(level, Event::High);
    let owing = &level.control.high;
    if keep::is_reclaiming() || !level.shared.config.reclaim || !owing.is_fruitful(seen.usage) {
        return;
    }
    let wanted = seen.above().min(bytes.saturating_add(SLACK_BYTES));
    let stall = reclaim::is_any(level).then(|| pressure::stall(node));
    let given = reclaim::bring_down(level, wanted, None, false);
    drop(stall);
    if given.bytes > 0 {
        owing.ask_again();
        update::add(node, MEMORY, memory::GAINED, given.bytes as i64);
    } else {
        owing.was_fruitless(Level::of_high(level).usage);
    }
}
