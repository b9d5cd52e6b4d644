//! Reserve: the bytes below a group's `max` that are left free for its children within their
//! protection.
//!
//! ```text
//!   0 ──────────────── usage ─────── max - reserve ────── max
//!                            charges of any group │ charges of children within min or low
//! ```
//!
//! Protection alone could not be kept in time. A group that was idle comes back within its `min`,
//! but by then its neighbours may have filled everything with memory that no shrinker can give
//! back. So some of its unused `min` or `low` is left free, but only a little, because free memory
//! is of no use. It lasts until neighbours have been throttled, or a victim has ended.
//!
//! - I1. The reserve is at most `Config::protected_reserve_bytes`, an eighth of `max`, and the
//!   unused `min` or `low` of the children.
//! - I2. A parent may choose to reserve each child's `min` (`Group::set_reserve_min`). Then the
//!   reserve is at least the unused `min` of the children.
//! - B1. The sum of the unused bytes may be a moment old (`used` B1), and so may the mark that
//!   tells whether there are any.

use crate::base::limit::UNLIMITED;
use crate::counter::protect::used::{UNFILLED, UNFILLED_MIN, Used};
use crate::tree::node::Node;

/// Returns the bytes that a charge must leave free in `level`. `via` is the child of `level` that
/// it came through, and that child's usage with it.
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
    let Some(used) = level.find_used() else { return 0 };
    let child = via.and_then(|(child, usage)| Some((child.find_used()?, usage)));
    // A child's own unused bytes need not be left free for it, because this charge fills them.
    let unfilled_by_others = |kind| {
        let own = child.as_ref().map_or(0, |(child, _)| child.recorded(kind));
        used.sum(kind).saturating_sub(own)
    };
    let is_within =
        |bound: fn(&Used) -> u64| child.as_ref().is_some_and(|(child, usage)| *usage <= bound(child));
    let reserved =
        if used.reserves_min() && !is_within(Used::min) { unfilled_by_others(UNFILLED_MIN) } else { 0 };
    if is_within(Used::claim) {
        return reserved;
    }
    let reserve = level.shared().config.protected_reserve_bytes().min(max / 8);
    reserved.max(reserve.min(unfilled_by_others(UNFILLED)))
}

/// Returns the headroom of `level` for charges that come through `via`, a child of it.
pub(crate) fn seen_through(level: &'static Node, via: Option<&'static Node>, headroom: u64) -> u64 {
    if !level.marks.is_protected_below() {
        return headroom;
    }
    let free = headroom.saturating_sub(left_free_below(level, via.map(|child| (child, u64::MAX))));
    let reserves = level.find_used().is_some_and(|used| used.reserves_min());
    let bound = if reserves { Used::min } else { Used::claim };
    let claim = |child: &Node| child.find_used().map_or(0, |used| bound(&used));
    let within = via.map_or(0, |child| claim(child).saturating_sub(child.counter.usage()));
    free.max(headroom.min(within))
}
