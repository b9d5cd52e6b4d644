//! Reserve: what is left free below a group's `max` for those right below it that are within their protection.
//!
//! ```text
//!   0 ────────────────────────────── usage ─────────────── max - reserve ── max
//!                                          charges of anybody │ charges of children within min or low
//! ```
//!
//! Protection alone would be a promise that cannot be kept in time: a group that was idle comes back within its `min`, and its neighbours, who may have
//! filled everything meanwhile, have nothing that could be reclaimed. So what its `min` or `low` has room for is kept free, but little of it:
//! memory in which nothing is would be nobody's use. It is enough to go on with until neighbours have been throttled, or a victim is dead.
//!
//! - I1. It is at most `Config::protected_reserve_bytes`, an eighth of `max`, and what those right below do not use of their `min` or `low`.
//! - B1. What is not used is a sum that may be a moment old (`used` B1), and so may be the look that tells whether there is any.

use super::used::UNFILLED;
use crate::limit::UNLIMITED;
use crate::node::Node;

/// The largest reserve that can be configured: so much of each child's unfilled protection is counted, and the sum over all groups there can be
/// fits a word.
pub(crate) const LARGEST_RESERVE: u64 = 1 << 39;

/// Bytes that a charge is to leave free in `level`. `via` is the child of `level` that it came through, and what it has charged with it.
#[inline(always)]
pub(crate) fn left_free(level: &'static Node, via: Option<(&'static Node, u64)>) -> u64 {
    if level.marks.is_protected_below() { left_free_below(level, via) } else { 0 }
}

#[cold]
#[inline(never)]
fn left_free_below(level: &'static Node, via: Option<(&'static Node, u64)>) -> u64 {
    let max = level.counter.read().max;
    if max == UNLIMITED {
        return 0;
    }
    let unfilled = level.control.used.sum(UNFILLED);
    let unfilled_by_others = match via.map(|(child, usage)| (&child.control.used, usage)) {
        Some((child, usage)) if usage <= child.claim() => return 0,
        // What it fills by this charge is not to be kept for it.
        Some((child, _)) => unfilled.saturating_sub(child.recorded(UNFILLED)),
        None => unfilled,
    };
    level.shared.config.protected_reserve_bytes.min(max / 8).min(unfilled_by_others)
}

/// Headroom of `level` for charges that come through `via`, a child of it.
pub(crate) fn seen_through(level: &'static Node, via: Option<&'static Node>, headroom: u64) -> u64 {
    if !level.marks.is_protected_below() {
        return headroom;
    }
    let free = headroom.saturating_sub(left_free_below(level, via.map(|child| (child, u64::MAX))));
    let within = via.map_or(0, |child| child.control.used.claim().saturating_sub(child.counter.usage()));
    free.max(headroom.min(within))
}
