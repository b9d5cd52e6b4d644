//! Notice: the consequences of a charge of the counters that finds a level above its `high`.
//!
//! ```text
//!   charged ─▶ has any group a high? ─▶ each level, from the group up: above? ─▶ drain
//!                  └─ no: one load                                                 │
//!        the bytes still above are a debt    ◀── event, shrinkers free bytes ◀── still?
//!        of the group that charged
//! ```
//!
//! It follows the charge, after every mark and section of the stock has ended, because shrinkers
//! are user code.
//!
//! - I1. Nothing here refuses, waits or sleeps. The charging thread asks shrinkers once for each
//!   level, for no more than it took and [`SLACK_BYTES`].
//! - I2. Forced charges ask no shrinker, because the thread that makes one may hold a lock that a
//!   callback needs. They only add to the debt.
//! - B1. Prepaid bytes count as used. They are drained when a charge takes a level above its
//!   limit, and before a thread is delayed. Between the two a group may owe for bytes in its
//!   stocks, up to the slots' budgets.

use crate::base::effort::Effort;
use crate::control::high::{Level, drain_stocks};
use crate::counter::chain::{self, Until};
use crate::counter::events::Event;
use crate::observe::{event, pressure};
use crate::reclaim::{self, Purpose, credit};
use crate::state::stats::builtin::memory;
use crate::stats::update::count;
use crate::tree::node::Node;

/// Bytes that shrinkers are asked for beyond those that a charge took, so that not every charge
/// that follows must ask again.
pub(crate) const SLACK_BYTES: u64 = 64 << 10;

/// Acts on a charge of `node` that took `bytes` from the counters up to `until`. The caller must
/// be in no section and hold no lock.
#[inline]
pub(crate) fn after_charge(node: &'static Node, until: Until, bytes: u64, effort: Effort) {
    if node.shared().highs.get().is_some() {
        check_levels(node, until, bytes, effort);
    }
}

#[cold]
fn check_levels(node: &'static Node, until: Until, bytes: u64, effort: Effort) {
    let levels = || std::iter::successors(Some(node), |level| until.next(level));
    levels().filter(is_above_high).for_each(|level| hold_down(node, level, bytes, effort));
    add_debt(node, levels(), bytes);
}

/// Acts on a forced charge of an online group that took `bytes`, perhaps above `max` too.
pub(crate) fn after_forced_charge(node: &'static Node, bytes: u64) {
    chain::levels(node).filter(is_above_high).for_each(|level| event::count(level, Event::High));
    add_debt(node, chain::levels(node), bytes);
}

fn is_above_high(level: &&'static Node) -> bool {
    Level::of_high(level).above() > 0
}

/// Adds the bytes that are still above at the worst level to the debt, but no more than this
/// charge took.
fn add_debt(node: &'static Node, levels: impl Iterator<Item = &'static Node>, bytes: u64) {
    let above = levels.map(|level| Level::of_both(level).above()).max().unwrap_or(0);
    if above > 0 {
        node.rare().high.debt.add(bytes.min(above));
    }
}

/// Acts on a charge of `node` that found `level` above its `high`.
fn hold_down(node: &'static Node, level: &'static Node, bytes: u64, effort: Effort) {
    let found = Level::of_high(level);
    let was_within = found.usage.saturating_sub(bytes) <= found.limit;
    if was_within {
        drain_stocks(level);
    }
    let seen = Level::of_high(level);
    if seen.above() == 0 {
        return;
    }
    event::count(level, Event::High);
    let state = &level.rare().high;
    if effort < Effort::Reclaim
        || credit::is_reclaiming()
        || !level.shared().config.reclaim()
        || !state.is_fruitful(seen.usage, SLACK_BYTES)
    {
        return;
    }
    let wanted = seen.above().min(bytes.saturating_add(SLACK_BYTES));
    let stall = reclaim::is_any(level).then(|| pressure::stall(node));
    let given = reclaim::reclaim(level, Purpose::High { may_wait: false }, wanted, None);
    drop(stall);
    if given.bytes > 0 {
        state.set_fruitful();
        count(node, memory::GAINED, given.bytes);
    } else {
        state.set_fruitless_at(Level::of_high(level).usage);
    }
}
