//! Reserve: bytes below a group's `max` that are left free for its children within their protection.
//!
//! ```text
//!   0 ────────────────────────────── usage ─────────────── max - reserve ── max
//!                                              charges of any group │ charges of children within min or low
//! ```
//!
//! Protection alone would be a promise that cannot be kept in time. A group that was idle comes back within its `min`. Its neighbours may have
//! filled everything meanwhile, with memory that no shrinker can give back. So some of its unused `min` or `low` is kept free, but little:
//! free memory is of no use. It lasts until neighbours have been throttled, or a victim is dead.
//!
//! - I1. It is at most `Config::protected_reserve_bytes`, an eighth of `max`, and the unused `min` or `low` of the children.
//! - B1. The unused bytes are a sum that may be a moment old (`used` B1). So may be the mark that tells whether there are any.

use crate::base::limit::UNLIMITED;
use crate::counter::protect::used::UNFILLED;
use crate::tree::node::Node;

/// Bytes that a charge is to leave free in `level`. `via` is the child of `level` that it came through, and that child's usage with it.
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
    let unfilled = level.find_used().map_or(0, |used| used.sum(UNFILLED));
    let unfilled_by_others = match via.and_then(|(child, usage)| Some((child.find_used()?, usage))) {
        Some((child, usage)) if usage <= child.claim() => return 0,
        // Its own unused bytes need not be kept for it: this charge fills them.
        Some((child, _)) => unfilled.saturating_sub(child.recorded(UNFILLED)),
        None => unfilled,
    };
    level.shared().config.protected_reserve_bytes.min(max / 8).min(unfilled_by_others)
}

/// Headroom of `level` for charges that come through `via`, a child of it.
pub(crate) fn seen_through(level: &'static Node, via: Option<&'static Node>, headroom: u64) -> u64 {
    if !level.marks.is_protected_below() {
        return headroom;
    }
    let free = headroom.saturating_sub(left_free_below(level, via.map(|child| (child, u64::MAX))));
    let claim = |child: &Node| child.find_used().map_or(0, |used| used.claim());
    let within = via.map_or(0, |child| claim(child).saturating_sub(child.counter.usage()));
    free.max(headroom.min(within))
}
