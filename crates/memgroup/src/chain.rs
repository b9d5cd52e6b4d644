//! Chain: charging one group and every ancestor above it, without the stock.
//!
//! `try_charge` goes leaf to root, each level by compare-and-swap under its limit, and takes back the levels below
//! a refusal; peaks move on the way back, when the whole chain has succeeded. `uncharge` goes leaf to root too: the
//! bytes still charged to a level are what keeps that level's node from being released while we climb to it.
//!
//! - I1. Outside these functions, the usage of a group is never less than the sum of its children's.
//! - B1. A charge that a high level refuses is seen at the levels below it for a moment; a smaller charge may miss
//!   there because of it. `refusal` looks again before anybody is refused.

use memgroup_sync::interleave;

use crate::counter::{Reading, Verdict};
use crate::event::{self, Event};
use crate::measure;
use crate::node::Node;
use crate::oom;
use crate::overrun;
use crate::protect;
use crate::wait;

/// The level that refused, and what it saw.
#[derive(Clone, Copy)]
pub(crate) struct Refused {
    pub(crate) node: &'static Node,
    pub(crate) seen: Reading,
}

/// The level below, which a charge came through, and its usage with the charge; `None` at the first level.
pub(crate) type Via = Option<(&'static Node, u64)>;

/// Where a charge stops climbing: above the root, or below the level that is charged already.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    Top,
    Below(&'static Node),
}

impl Until {
    pub(crate) fn next(self, level: &'static Node) -> Option<&'static Node> {
        match self {
            Until::Top => level.up(),
            Until::Below(stop) => level.up().filter(|up| !std::ptr::eq(*up, stop)),
        }
    }
}

/// The least room over the chain, without what is kept for others; plain loads, may be a moment old.
pub(crate) fn least_room(from: &'static Node, of: impl Fn(&'static Node) -> u64) -> u64 {
    let room = |level: &'static Node, via| protect::seen_through(level, via, of(level));
    let mut least = room(from, None);
    let mut level = from;
    while let Some(up) = level.up() {
        least = least.min(room(up, Some(level)));
        level = up;
    }
    least
}

/// What may be prepaid: up to each limit, and up to `high` too, if any group has one.
pub(crate) fn headroom_to_prepay(from: &'static Node) -> u64 {
    if from.shared.highs.get().is_none() {
        return least_room(from, |node| node.counter.read().headroom());
    }
    least_room(from, |node| {
        let seen = node.counter.read();
        seen.headroom().min(node.counter.high().saturating_sub(seen.usage))
    })
}

/// First looks at every level, which costs no shared line its owner, then charges.
pub(crate) fn try_charge(from: &'static Node, until: Until, bytes: u64) -> Result<(), Refused> {
    look_for_room(from, until, bytes)?;
    try_charge_now(from, until, bytes, Verdict::Hint)
}

/// Whether every level would let a charge pass now; plain loads, may be a moment old. Else the lowest that would not.
#[inline(always)]
pub(crate) fn look_for_room(from: &'static Node, until: Until, bytes: u64) -> Result<(), Refused> {
    let (mut level, mut via) = (Some(from), None);
    while let Some(node) = level {
        let usage = match node.counter.with_room(bytes, protect::left_free(node, via)) {
            Some(usage) => usage,
            None => look_again(node, via, bytes)?,
        };
        (level, via) = (until.next(node), Some((node, usage)));
    }
    Ok(())
}

/// For a charge that seems not to fit: whether it does, or passes. The usage with it.
#[cold]
fn look_again(node: &'static Node, via: Via, bytes: u64) -> Result<u64, Refused> {
    let seen = look(node, via);
    let goes_on = bytes <= seen.headroom() || seen.lets_pass(bytes);
    if goes_on { Ok(seen.usage.saturating_add(bytes)) } else { Err(Refused { node, seen }) }
}

/// Charges level by level; a refusal leaves nothing behind.
pub(crate) fn try_charge_now(
    node: &'static Node,
    until: Until,
    bytes: u64,
    verdict: Verdict,
) -> Result<(), Refused> {
    climb(node, None, until, bytes, verdict).inspect_err(|refused| wait::serve_below(node, refused.node))
}

/// What a charge finds at a level that came through `via`, with so much charged there by then.
fn look(node: &'static Node, via: Via) -> Reading {
    Reading { reserved: protect::left_free(node, via), ..node.counter.read() }
}

/// `try_charge_now` from a level that came through `via`; also for who serves those that wait, and so does not look for them. Depth is bounded by
/// `Config::depth_max`.
pub(crate) fn climb(
    node: &'static Node,
    via: Via,
    until: Until,
    bytes: u64,
    verdict: Verdict,
) -> Result<(), Refused> {
    let reserved = protect::left_free(node, via);
    let usage = node.counter.try_charge(bytes, reserved, verdict).map_err(|seen| Refused { node, seen })?;
    interleave::point();
    if let Some(up) = until.next(node)
        && let Err(refused) = climb(up, Some((node, usage)), until, bytes, verdict)
    {
        // The caller's handle or bytes keep every level of this chain from being released.
        node.counter.uncharge(bytes);
        fell(node);
        return Err(refused);
    }
    rose(node, usage);
    measure::count_if_over(node, usage);
    Ok(())
}

/// What a level does when usage rose to `usage` there, and at every level of the chain.
#[inline]
fn rose(node: &'static Node, usage: u64) {
    node.counter.raise_peak(usage);
    protect::usage_changed(node);
}

/// What a level does when usage fell there. The group may be released by then, and its place another's.
#[inline]
fn fell(node: &'static Node) {
    if node.marks.is_any_own() {
        protect::usage_changed(node);
        oom::fell(node);
    }
}

/// As `try_charge_now`, where `kept` of the `bytes` are charged to `at`, a level of the chain, and to all above it already. What is kept counts
/// against the limits as what is charged does: a level that is above its limit with it, or offline, refuses.
pub(crate) fn try_charge_kept(
    node: &'static Node,
    until: Until,
    bytes: u64,
    at: &'static Node,
    kept: u64,
) -> Result<(), Refused> {
    climb_kept(node, None, until, bytes, (at, kept))
        .inspect_err(|refused| wait::serve_below(node, refused.node))
}

fn climb_kept(
    node: &'static Node,
    via: Via,
    until: Until,
    bytes: u64,
    (at, kept): (&'static Node, u64),
) -> Result<(), Refused> {
    if std::ptr::eq(node, at) {
        check_kept(at, via, until)?;
        return if bytes > kept { climb(at, via, until, bytes - kept, Verdict::Hint) } else { Ok(()) };
    }
    let reserved = protect::left_free(node, via);
    let usage =
        node.counter.try_charge(bytes, reserved, Verdict::Hint).map_err(|seen| Refused { node, seen })?;
    interleave::point();
    if let Some(up) = until.next(node)
        && let Err(refused) = climb_kept(up, Some((node, usage)), until, bytes, (at, kept))
    {
        uncharge(node, Until::Below(up), bytes);
        return Err(refused);
    }
    rose(node, usage);
    measure::count_if_over(node, usage);
    Ok(())
}

/// Whether every level is within its limit with what is kept there, without what is kept free for others, and online.
fn check_kept(at: &'static Node, via: Via, until: Until) -> Result<(), Refused> {
    let (mut level, mut via) = (Some(at), via);
    while let Some(node) = level {
        let seen = look(node, via);
        let is_over = seen.usage > seen.most() && !seen.measured;
        if seen.offline || is_over {
            return Err(Refused { node, seen });
        }
        (level, via) = (until.next(node), Some((node, seen.usage)));
    }
    Ok(())
}

/// Charges every level up to `beyond` bytes above its limit; with `u64::MAX`, whatever its limit. Else it fails, leaving nothing behind, only where a counter cannot hold it or
/// (unless `offline_too`) the group is offline.
pub(crate) fn charge_forced(
    node: &'static Node,
    bytes: u64,
    beyond: u64,
    offline_too: bool,
) -> Result<(), Refused> {
    let now =
        node.counter.charge_forced(bytes, beyond, offline_too).map_err(|seen| Refused { node, seen })?;
    if let Some(up) = node.up() {
        // Above an online group all are online; above an offline one the caller holds the tree lock.
        if let Err(refused) = charge_forced(up, bytes, beyond, true) {
            node.counter.uncharge(bytes);
            fell(node);
            wait::serve_below(node, up);
            return Err(refused);
        }
    }
    rose(node, now.usage);
    if node.counter.record_overdraft(now, bytes) {
        event::count(node, Event::Max);
    }
    Ok(())
}

/// Takes `bytes` back from every level, and releases offline groups that this empties.
pub(crate) fn uncharge(from: &'static Node, until: Until, bytes: u64) {
    let mut level = Some(from);
    while let Some(node) = level {
        // Read before the bytes go: they are what keeps `node`, and then `up`, from being released.
        let up = until.next(node);
        interleave::point();
        let left = node.counter.uncharge(bytes);
        interleave::point();
        fell(node);
        if left.usage == 0 && left.offline {
            node.shared.release_if_done(node);
        } else if left.over {
            // The levels above first: who is served here is charged there too.
            if let Some(up) = up {
                uncharge(up, until, bytes);
            }
            return overrun::look(node);
        }
        level = up;
    }
}

/// `uncharge` for callers that hold the tree lock or a PENDING mark: nothing is released here, whoever removes the
/// group takes its last look after them.
pub(crate) fn uncharge_held(from: &'static Node, bytes: u64) {
    if bytes == 0 {
        return;
    }
    let mut level = Some(from);
    while let Some(node) = level {
        let up = node.up();
        node.counter.uncharge(bytes);
        fell(node);
        level = up;
    }
}

impl Refused {
    /// For a charge that being offline did not stop: what was seen, without the mark.
    pub(crate) fn seen_online(&self) -> Reading {
        Reading { offline: false, ..self.seen }
    }
}

/// The lowest level charged with both; `None` if there is none (the root left unaccounted).
pub(crate) fn lowest_common(a: &'static Node, b: &'static Node) -> Option<&'static Node> {
    let mut of_a = Some(a);
    while let Some(level) = of_a {
        let mut of_b = Some(b);
        while let Some(other) = of_b {
            if std::ptr::eq(level, other) {
                return Some(level);
            }
            of_b = other.up();
        }
        of_a = level.up();
    }
    None
}
