//! Chain: charging one group and every ancestor above it, without the stock.
//!
//! A charge goes leaf to root, each level by compare-and-swap under its limit, and takes back the levels below a refusal. Peaks
//! move on the way back, when the whole chain has succeeded. An uncharge goes leaf to root too: the bytes still charged to a
//! level keep its node from being released meanwhile.
//!
//! This is arithmetic. A charge and an uncharge report facts, and `control::aftermath` acts on it.
//!
//! - I1. Outside these functions, the usage of a group is never less than the sum of its children's.
//! - B1. A charge that a high level refuses is seen at the levels below it for a moment. A smaller charge may miss
//!   there because of it. The slow path looks again before it refuses.

use memgroup_sync::interleave;

use crate::base::mutation::{self, Mutation};
use crate::counter::events::{self, Event};
use crate::counter::{protect, share};
use crate::state::counter::{Purpose, Reading, Verdict};
use crate::tree::node::Node;

/// The level that refused, and its counter as it was seen.
#[derive(Clone, Copy)]
pub(crate) struct Refused {
    pub(crate) node: &'static Node,
    pub(crate) seen: Reading,
}

/// The level below, which a charge came through, and its usage with the charge; `None` at the first level.
pub(crate) type Via = Option<(&'static Node, u64)>;

/// The end of a climb: above the root, or below the level that is charged already.
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

/// The least room over the chain, less the bytes kept for others; plain loads, may be a moment old.
pub(crate) fn least_room(from: &'static Node, of: impl Fn(&'static Node) -> u64) -> u64 {
    let room = |level: &'static Node, via| share::seen_through(level, via, of(level));
    let mut least = room(from, None);
    let mut level = from;
    while let Some(up) = level.up() {
        least = least.min(room(up, Some(level)));
        level = up;
    }
    least
}

/// Bytes that may be prepaid: up to each limit. A level below its `high` is not taken above it by prepaid bytes. Where a level is above it
/// already, `above_high` at most, since they are owed as soon as they are bought.
pub(crate) fn headroom_to_prepay(from: &'static Node, above_high: u64) -> u64 {
    if from.shared().highs.get().is_none() {
        return least_room(from, |node| node.counter.read().headroom());
    }
    least_room(from, |node| {
        let seen = node.counter.read();
        let to_high = node.counter.high().saturating_sub(seen.usage);
        seen.headroom().min(if to_high == 0 { above_high } else { to_high })
    })
}

/// Whether every level would let a charge pass now; plain loads, may be a moment old. Else the lowest that would not.
#[inline(always)]
pub(crate) fn look_for_room(from: &'static Node, until: Until, bytes: u64) -> Result<(), Refused> {
    let (mut level, mut via) = (Some(from), None);
    while let Some(node) = level {
        let usage = match node.counter.with_room(bytes, share::left_free(node, via, bytes)) {
            Some(usage) => usage,
            None => look_again(node, via, bytes)?,
        };
        (level, via) = (until.next(node), Some((node, usage)));
    }
    Ok(())
}

/// As [`look_for_room`], for a wait that charges nothing: limits that only count are no obstacle, and count nothing.
pub(crate) fn look_past_dry_runs(from: &'static Node, until: Until, bytes: u64) -> Result<(), Refused> {
    let (mut level, mut via) = (Some(from), None);
    while let Some(node) = level {
        let seen = look(node, via, bytes);
        if bytes > seen.headroom() && !seen.is_only_dry_run(bytes) {
            return Err(share::refused(node, via, bytes, seen));
        }
        (level, via) = (until.next(node), Some((node, seen.usage.saturating_add(bytes))));
    }
    Ok(())
}

/// For a charge that seems not to fit: whether it does, or passes. The usage with it.
#[cold]
fn look_again(node: &'static Node, via: Via, bytes: u64) -> Result<u64, Refused> {
    let seen = look(node, via, bytes);
    let goes_on = bytes <= seen.headroom() || seen.lets_pass(bytes);
    if goes_on { Ok(seen.usage.saturating_add(bytes)) } else { Err(share::refused(node, via, bytes, seen)) }
}

/// The counter as a charge of so many bytes sees it that came `via` the level below.
fn look(node: &'static Node, via: Via, bytes: u64) -> Reading {
    Reading { reserved: share::left_free(node, via, bytes), ..node.counter.read_with_prepaid() }
}

/// How a charge climbs.
#[derive(Clone, Copy)]
pub(crate) struct Climb {
    pub(crate) until: Until,
    pub(crate) verdict: Verdict,
    pub(crate) purpose: Purpose,
    /// A level, and the number of the charge's bytes that it and all levels above have already.
    pub(crate) credit: Option<(&'static Node, u64)>,
}

impl Climb {
    pub(crate) fn to(until: Until, verdict: Verdict) -> Climb {
        Climb { until, verdict, purpose: Purpose::Charge, credit: None }
    }
}

/// A charge that was made at every level.
#[derive(Clone, Copy, Default)]
#[must_use = "waiters for the events are to be told"]
pub(crate) struct Charged {
    /// Some level counted an event.
    pub(crate) has_events: bool,
}

/// Charges `node` and the levels above it. A refusal leaves nothing behind, but took bytes below the refusing level for a moment.
pub(crate) fn charge(node: &'static Node, bytes: u64, climb: Climb) -> Result<Charged, Refused> {
    charge_from(node, None, bytes, climb)
}

/// The most levels that are charged before the rest is charged by a call of its own.
const LEVELS: usize = if cfg!(memgroup_loom) { 1 } else { 16 };

/// `charge` from a level reached `via` the one below.
fn charge_from(node: &'static Node, mut via: Via, bytes: u64, climb: Climb) -> Result<Charged, Refused> {
    let (mut usages, first) = ([0; LEVELS], via);
    let (mut level, mut count, mut charged) = (node, 0, Charged::default());
    loop {
        if let Some((_, kept)) = climb.credit.filter(|(at, _)| std::ptr::eq(*at, level)) {
            let rest = Climb { credit: None, ..climb };
            let outcome = check_credit(level, via, climb.until).and_then(|()| {
                let is_charged = bytes <= kept;
                if is_charged { Ok(Charged::default()) } else { charge_from(level, via, bytes - kept, rest) }
            });
            charged = outcome.inspect_err(|_| take_back(node, level, bytes))?;
            break;
        }
        if count == LEVELS {
            charged = charge_from(level, via, bytes, climb).inspect_err(|_| take_back(node, level, bytes))?;
            break;
        }
        let reserved = share::left_free(level, via, bytes);
        match level.counter.try_charge(bytes, reserved, climb.verdict, climb.purpose) {
            Ok(usage) => usages[count] = usage,
            Err(seen) => {
                take_back(node, level, bytes);
                return Err(share::refused(level, via, bytes, seen));
            }
        }
        interleave::point();
        via = Some((level, usages[count]));
        count += 1;
        match climb.until.next(level) {
            Some(up) => level = up,
            None => break,
        }
    }
    if first.is_none() {
        share::count_own(node, bytes);
    }
    let mut below = first;
    for (level, usage) in charged_levels(node, &usages, bytes) {
        if let Some(max) = level.counter.dry_run()
            && is_over_dry_run(level, max, below, bytes, usage)
        {
            events::count(level, Event::WouldRefuse);
            charged.has_events = true;
        }
        below = Some((level, usage));
    }
    Ok(charged)
}

/// The levels that were charged, each with its usage then, which was never 0. Peaks move, since all levels have the charge.
fn charged_levels(
    node: &'static Node,
    usages: &[u64],
    bytes: u64,
) -> impl Iterator<Item = (&'static Node, u64)> {
    let levels = levels(node).zip(usages.iter().copied().take_while(|&usage| usage > 0));
    levels.inspect(move |&(level, usage)| raise(level, usage, bytes))
}

/// Takes `bytes` back from the levels from `from` to below `refused`. The caller's handle or bytes keep each of them from being released.
#[cold]
fn take_back(from: &'static Node, refused: &'static Node, bytes: u64) {
    for level in levels(from).take_while(|level| !std::ptr::eq(*level, refused)) {
        level.counter.uncharge(bytes);
        if !mutation::active(Mutation::TakenBackUnrecorded) {
            protect::usage_taken_back(level);
        }
    }
}

/// Usage rose by `bytes` to `usage` here, and by as many at every level of the chain.
#[inline]
fn raise(node: &'static Node, usage: u64, bytes: u64) {
    node.counter.raise_peak(usage);
    protect::usage_rose(node, usage, bytes);
}

/// Whether `max` of `node`, a dry run, would have refused a charge that took its usage to `usage`: by itself, or by a reserve or fair share below.
#[cold]
fn is_over_dry_run(node: &'static Node, max: u64, via: Via, bytes: u64, usage: u64) -> bool {
    if usage > max {
        node.counter.raise_over(usage - max);
    }
    usage.saturating_add(share::left_free(node, via, bytes)) > max
}

/// Whether every level is online and within its limit with the credit that it has. Bytes kept free for others do not matter here.
fn check_credit(at: &'static Node, via: Via, until: Until) -> Result<(), Refused> {
    let (mut level, mut via) = (Some(at), via);
    while let Some(node) = level {
        let seen = Reading { reserved: protect::left_free(node, via), ..node.counter.read() };
        let is_over = seen.usage > seen.most() && !seen.is_dry_run;
        if seen.offline || is_over {
            return Err(Refused { node, seen });
        }
        (level, via) = (until.next(node), Some((node, seen.usage)));
    }
    Ok(())
}

/// Charges every level up to `beyond` bytes above its limit; with `u64::MAX`, at any limit. Else it fails, leaving nothing
/// behind, only where a counter cannot hold it or (unless `offline_too`) the group is offline.
pub(crate) fn charge_forced(
    node: &'static Node,
    bytes: u64,
    beyond: u64,
    offline_too: bool,
) -> Result<Charged, Refused> {
    let mut usages = [0; LEVELS];
    let (mut level, mut count, mut charged) = (node, 0, Charged::default());
    loop {
        // Above an online group all are online; above an offline one the caller holds the tree lock.
        let offline_too = offline_too || count > 0;
        if count == LEVELS {
            charged = charge_forced(level, bytes, beyond, offline_too)
                .inspect_err(|_| take_back(node, level, bytes))?;
            break;
        }
        match level.counter.charge_forced(bytes, beyond, offline_too) {
            Ok(usage) => usages[count] = usage,
            Err(seen) => {
                take_back(node, level, bytes);
                return Err(Refused { node: level, seen });
            }
        }
        count += 1;
        match level.up() {
            Some(up) => level = up,
            None => break,
        }
    }
    for (level, usage) in charged_levels(node, &usages, bytes) {
        if level.counter.record_overdraft(usage, bytes) {
            events::count(level, Event::Max);
            charged.has_events = true;
        }
    }
    Ok(charged)
}

/// One level that was uncharged, and at which there is more to do. The group may be released by then, and its node another's.
pub(crate) struct Uncharged {
    pub(crate) node: &'static Node,
    /// A kill waits for the level's usage to fall.
    pub(crate) is_watched: bool,
    /// The group is offline and holds nothing any more.
    pub(crate) is_done: bool,
    /// The level is marked OVER.
    pub(crate) is_over: bool,
}

/// Takes bytes back from one level after the other. The next level is read before the bytes of one go: they keep it, and then the one
/// above, from being released.
#[must_use = "levels are uncharged as they are asked for"]
pub(crate) struct Uncharging {
    level: Option<&'static Node>,
    until: Until,
    bytes: u64,
}

/// Begins to take `bytes` back from `from` and the levels above it. It is to be asked until the end.
pub(crate) fn uncharge(from: &'static Node, until: Until, bytes: u64) -> Uncharging {
    Uncharging { level: Some(from), until, bytes }
}

impl Uncharging {
    /// Uncharges the levels up to the next one at which there is more to do; all if there is none.
    #[inline(always)]
    pub(crate) fn next_with_consequences(&mut self) -> Option<Uncharged> {
        while let Some(node) = self.level {
            let is_late = mutation::active(Mutation::LevelAboveIsReadLate);
            if !is_late {
                self.level = self.until.next(node);
            }
            interleave::point();
            let left = node.counter.uncharge(self.bytes);
            interleave::point();
            if is_late {
                // Another thread runs here.
                memgroup_sync::thread::yield_now();
                self.level = self.until.next(node);
            }
            let has_marks = node.marks.follows_falls();
            if has_marks || left.is_marked() {
                if has_marks {
                    protect::usage_fell(node);
                }
                let is_watched = has_marks && node.marks.is_watched();
                let (is_done, is_over) = (left.is_done(), left.is_over());
                if is_watched || is_done || is_over {
                    return Some(Uncharged { node, is_watched, is_done, is_over });
                }
            }
        }
        None
    }
}

/// `uncharge` for callers that hold the tree lock or a PENDING mark: nothing is released here. The thread that removes the group
/// takes its last look after them.
pub(crate) fn uncharge_held(from: &'static Node, bytes: u64) {
    if bytes > 0 {
        let mut levels = uncharge(from, Until::Top, bytes);
        while levels.next_with_consequences().is_some() {}
    }
}

impl Refused {
    /// The level that had no room: above the group, if its fair share refused.
    pub(crate) fn level(&self) -> Option<&'static Node> {
        if self.seen.is_share { self.node.up() } else { Some(self.node) }
    }

    /// For a charge that being offline did not stop: the reading without the mark.
    pub(crate) fn seen_online(&self) -> Reading {
        Reading { offline: false, ..self.seen }
    }
}

/// `node` and the levels that are charged with it.
pub(crate) fn levels(node: &'static Node) -> impl Iterator<Item = &'static Node> + Clone {
    std::iter::successors(Some(node), |level| level.up())
}

/// The group right below `top` that `node` is, or counts in.
pub(crate) fn right_below(top: &'static Node, node: &'static Node) -> Option<&'static Node> {
    levels(node).find(|level| level.up().is_some_and(|up| std::ptr::eq(up, top)))
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
