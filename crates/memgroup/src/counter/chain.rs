//! Chain: charges one group and every ancestor above it, without the stock.
//!
//! A charge goes from leaf to root, each level by compare-and-swap under its limit. If a level
//! refuses, the charge takes back the levels below it. Peaks are raised afterwards, when the whole
//! chain has succeeded. An uncharge goes from leaf to root too, because the bytes that are still
//! charged to a level keep its node from being released.
//!
//! This is arithmetic: a charge and an uncharge report facts, and `control::aftermath` acts on
//! them.
//!
//! - I1. Outside these functions, the usage of a group is never less than the sum of its
//!   children's usages.
//! - B1. A charge that a high level refuses is visible at the levels below it for a moment. A
//!   smaller charge may be refused there because of it. The slow path tries again before it
//!   refuses.

use memgroup_sync::interleave;

use crate::base::mutation::{self, Mutation};
use crate::counter::events::{self, Event};
use crate::counter::{protect, share};
use crate::state::counter::{Left, Purpose, Reading};
use crate::tree::node::Node;

/// The level that refused, and its counter as the charge saw it.
#[derive(Clone, Copy)]
pub(crate) struct Refused {
    pub(crate) node: &'static Node,
    pub(crate) seen: Reading,
}

/// The level below, through which a charge came, and its usage with the charge; `None` at the
/// first level.
pub(crate) type Via = Option<(&'static Node, u64)>;

/// The end of a climb: above the root, or below the level that is charged already.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    Top,
    Below(&'static Node),
}

impl Until {
    pub(crate) fn next(self, level: &'static Node) -> Option<&'static Node> {
        let stop = if let Until::Below(stop) = self { std::ptr::from_ref(stop) } else { std::ptr::null() };
        level.up().filter(|up| !std::ptr::eq(*up, stop))
    }
}

/// Returns the least headroom over the chain, less the bytes left free for others. It uses plain
/// loads, so it may be a moment old.
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

/// Returns the number of bytes that may be prepaid: up to each limit. Prepaid bytes do not take a
/// level above its `high`. At a level that is above it already, at most `above_high` bytes may be
/// prepaid, since they are owed as soon as they are bought.
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

/// Checks whether every level would let a charge pass now, and returns the refusal of the lowest
/// that would not. It uses plain loads, so the answer may be a moment old.
#[inline(always)]
pub(crate) fn look_for_room(from: &'static Node, until: Until, bytes: u64) -> Result<(), Refused> {
    let (mut level, mut via) = (Some(from), None);
    while let Some(node) = level {
        let usage = match node.counter.with_room(bytes, share::left_free(node, via, bytes)) {
            Some(usage) => usage,
            None => check_exactly(node, via, bytes)?,
        };
        (level, via) = (until.next(node), Some((node, usage)));
    }
    Ok(())
}

/// Does the same as [`look_for_room`] for a wait that charges nothing: limits that only count are
/// no obstacle, and count nothing.
pub(crate) fn look_past_dry_runs(from: &'static Node, until: Until, bytes: u64) -> Result<(), Refused> {
    let (mut level, mut via) = (Some(from), None);
    while let Some(node) = level {
        let seen = reading_for(node, via, bytes);
        if bytes > seen.headroom() && !seen.is_only_dry_run(bytes) {
            return Err(share::refused(node, via, bytes, seen));
        }
        (level, via) = (until.next(node), Some((node, seen.usage.saturating_add(bytes))));
    }
    Ok(())
}

/// Checks more exactly whether a charge that seems not to fit does fit, or passes. Returns the
/// usage with it.
#[cold]
fn check_exactly(node: &'static Node, via: Via, bytes: u64) -> Result<u64, Refused> {
    let seen = reading_for(node, via, bytes);
    let goes_on = bytes <= seen.headroom() || seen.lets_pass(bytes);
    if goes_on { Ok(seen.usage.saturating_add(bytes)) } else { Err(share::refused(node, via, bytes, seen)) }
}

/// Returns the counter as a charge of `bytes` sees it that came `via` the level below.
fn reading_for(node: &'static Node, via: Via, bytes: u64) -> Reading {
    Reading { reserved: share::left_free(node, via, bytes), ..node.counter.read_with_prepaid() }
}

/// How a charge climbs.
#[derive(Clone, Copy)]
pub(crate) struct Climb {
    pub(crate) until: Until,
    pub(crate) purpose: Purpose,
    /// A level, and the number of the charge's bytes that this level and all levels above have
    /// already.
    pub(crate) credit: Option<(&'static Node, u64)>,
}

impl Climb {
    pub(crate) fn to(until: Until) -> Climb {
        Climb { until, purpose: Purpose::Charge, credit: None }
    }
}

/// The facts about a charge that was made at every level.
#[derive(Clone, Copy, Default)]
#[must_use = "waiters for the events must be woken"]
pub(crate) struct Charged {
    /// Whether some level counted an event.
    pub(crate) has_events: bool,
}

/// Charges `node` and the levels above it. A refusal leaves nothing behind, but the levels below
/// the refusing one had the bytes for a moment.
pub(crate) fn charge(node: &'static Node, bytes: u64, climb: Climb) -> Result<Charged, Refused> {
    let charged = charge_from(node, None, bytes, &climb)?;
    share::count_own(node, bytes);
    Ok(charged)
}

/// Charges the levels from `from` on, which the charge reached through `first`. Mostly nothing is
/// left to do at a level once it has the bytes, so the loop remembers nothing of the levels below.
/// A store would delay the next compare-and-swap.
#[inline(always)]
fn charge_from(from: &'static Node, first: Via, bytes: u64, climb: &Climb) -> Result<Charged, Refused> {
    let (mut level, mut via) = (from, first);
    let outcome = loop {
        if let Some((at, credited)) = climb.credit
            && std::ptr::eq(at, level)
        {
            break charge_rest(level, via, bytes, credited, climb);
        }
        let usage = match charge_level(level, via, bytes, climb) {
            Ok(usage) => usage,
            Err(refused) => break Err(refused),
        };
        let up = climb.until.next(level);
        if is_to_be_raised(level, usage, bytes) {
            break charge_and_raise(level, via, usage, bytes, climb);
        }
        let Some(up) = up else { return Ok(Charged::default()) };
        (level, via) = (up, Some((level, usage)));
    };
    if outcome.is_err() {
        levels(from)
            .take_while(|below| !std::ptr::eq(*below, level))
            .for_each(|below| take_back(below, bytes));
    }
    outcome
}

/// The number of levels whose usage one call remembers. The next call charges the levels above,
/// so that a deep tree needs little stack.
const LEVELS: usize = if cfg!(memgroup_loom) { 1 } else { 16 };

/// Charges the levels above `lowest`, which has the bytes already and got this `usage`. When all
/// levels have them, it raises the peaks from `lowest` on.
#[inline(never)]
fn charge_and_raise(
    lowest: &'static Node,
    first: Via,
    usage: u64,
    bytes: u64,
    climb: &Climb,
) -> Result<Charged, Refused> {
    let (mut usages, mut count) = ([0; LEVELS], 1);
    usages[0] = usage;
    let (mut via, mut next) = (Some((lowest, usage)), climb.until.next(lowest));
    let outcome = loop {
        let Some(level) = next else { break Ok(Charged::default()) };
        if count == LEVELS || climb.credit.is_some_and(|(at, _)| std::ptr::eq(at, level)) {
            break charge_from(level, via, bytes, climb);
        }
        let usage = match charge_level(level, via, bytes, climb) {
            Ok(usage) => usage,
            Err(refused) => break Err(refused),
        };
        usages[count] = usage;
        count += 1;
        (via, next) = (Some((level, usage)), climb.until.next(level));
    };
    let charged = levels(lowest).zip(&usages[..count]);
    let Ok(mut made) = outcome else {
        charged.for_each(|(level, _)| take_back(level, bytes));
        return outcome;
    };
    let mut below = first;
    for (level, &usage) in charged {
        raise(level, usage, bytes);
        if let Some(max) = level.counter.dry_run()
            && is_over_dry_run(level, max, below, bytes, usage)
        {
            events::count(level, Event::WouldRefuse);
            made.has_events = true;
        }
        below = Some((level, usage));
    }
    Ok(made)
}

/// Charges one level, which the charge reached `via` the level below. Returns its usage.
#[inline(always)]
fn charge_level(level: &'static Node, via: Via, bytes: u64, climb: &Climb) -> Result<u64, Refused> {
    let reserved = share::left_free(level, via, bytes);
    let usage = match level.counter.try_charge(bytes, reserved, climb.purpose) {
        Ok(usage) => usage,
        Err(seen) => return Err(share::refused(level, via, bytes, seen)),
    };
    interleave::point();
    Ok(usage)
}

/// Charges the levels from `level` on, which have `credited` of the bytes already, for the others
/// only.
#[cold]
fn charge_rest(
    level: &'static Node,
    via: Via,
    bytes: u64,
    credited: u64,
    climb: &Climb,
) -> Result<Charged, Refused> {
    check_credit(level, via, climb.until)?;
    match bytes.saturating_sub(credited) {
        0 => Ok(Charged::default()),
        rest => charge_from(level, via, rest, &Climb { credit: None, ..*climb }),
    }
}

/// Takes `bytes` back from a level below one that refused. The caller's handle or bytes keep the
/// level from being released.
#[cold]
fn take_back(level: &'static Node, bytes: u64) {
    level.counter.uncharge(bytes);
    if !mutation::active(Mutation::TakenBackUnrecorded) {
        protect::usage_taken_back(level);
    }
}

/// Returns whether a charge of `bytes`, which made this `usage`, has more to do at `level` when all
/// levels have the bytes.
#[inline(always)]
fn is_to_be_raised(level: &'static Node, usage: u64, bytes: u64) -> bool {
    level.counter.peak().recent() < usage
        || protect::is_recorded(level, usage, bytes)
        || level.counter.dry_run().is_some()
}

/// Raises the peak after usage rose by `bytes`, to `usage` here, and by as many at every level of
/// the chain.
#[inline]
fn raise(node: &'static Node, usage: u64, bytes: u64) {
    node.counter.raise_peak(usage);
    protect::usage_rose(node, usage, bytes);
}

/// Returns whether the `max` of `node`, a dry run, would have refused a charge that took its usage
/// to `usage`: by itself, or because of a reserve or a fair share below.
#[cold]
fn is_over_dry_run(node: &'static Node, max: u64, via: Via, bytes: u64, usage: u64) -> bool {
    if usage > max {
        node.rare().past.raise_over(usage - max);
    }
    usage.saturating_add(share::left_free(node, via, bytes)) > max
}

/// Checks whether every level is online and within its limit with the credit that it has. Bytes
/// left free for others do not matter here.
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

/// Charges every level up to `beyond` bytes above its limit; with `u64::MAX`, at any limit. Fails,
/// leaving nothing behind, if a counter cannot hold the bytes, or if the group is offline, unless
/// `offline_too` is set.
pub(crate) fn charge_forced(
    node: &'static Node,
    bytes: u64,
    beyond: u64,
    offline_too: bool,
) -> Result<Charged, Refused> {
    let (mut usages, mut count, mut next) = ([0; LEVELS], 0, Some(node));
    let outcome = loop {
        let Some(level) = next else { break Ok(Charged::default()) };
        // Above an online group all groups are online. Above an offline one the caller holds the
        // tree lock.
        let offline_too = offline_too || count > 0;
        if count == LEVELS {
            break charge_forced(level, bytes, beyond, offline_too);
        }
        match level.counter.charge_forced(bytes, beyond, offline_too) {
            Ok(usage) => usages[count] = usage,
            Err(seen) => break Err(Refused { node: level, seen }),
        }
        count += 1;
        next = level.up();
    };
    let charged = levels(node).zip(&usages[..count]);
    let Ok(mut made) = outcome else {
        charged.for_each(|(level, _)| take_back(level, bytes));
        return outcome;
    };
    for (level, &usage) in charged {
        raise(level, usage, bytes);
        let with_it = Reading { usage, ..level.counter.read() };
        if usage > with_it.max && level.rare().past.record_overdraft(with_it, bytes) {
            events::count(level, Event::Max);
            made.has_events = true;
        }
    }
    Ok(made)
}

/// Takes `bytes` back from `from` and the levels above it. Calls `marked` for each level at which
/// there is more to do: a kill waits for its usage to fall, it is marked OVER, or it is offline
/// and holds nothing any more. Such a group may be released as soon as its bytes are gone, unless
/// the caller is in a read section.
///
/// The next level is read before the bytes of one go, because they keep that level, and then the
/// one above, from being released.
#[inline(always)]
pub(crate) fn uncharge(
    from: &'static Node,
    until: Until,
    bytes: u64,
    mut marked: impl FnMut(&'static Node, Left),
) {
    let mut next = Some(from);
    while let Some(node) = next {
        let is_late = mutation::active(Mutation::LevelAboveIsReadLate);
        if !is_late {
            next = until.next(node);
        }
        interleave::point();
        let left = node.counter.uncharge(bytes);
        interleave::point();
        if is_late {
            memgroup_sync::thread::yield_now();
            next = until.next(node);
        }
        let has_marks = node.marks.follows_falls();
        if has_marks {
            protect::usage_fell(node);
        }
        if left.is_over() || left.is_done() || has_marks && node.marks.is_watched() {
            marked(node, left);
        }
    }
}

/// Does the same for callers that hold the tree lock or a PENDING mark, so nothing is released
/// here. The thread that removes the group checks it after them.
pub(crate) fn uncharge_held(from: &'static Node, bytes: u64) {
    if bytes > 0 {
        uncharge(from, Until::Top, bytes, |_, _| ());
    }
}

impl Refused {
    /// Returns the level that had no room: the one above the group, if the group's fair share
    /// refused.
    pub(crate) fn level(&self) -> Option<&'static Node> {
        if self.seen.is_share { self.node.up() } else { Some(self.node) }
    }

    /// Returns the reading without the offline mark, for a charge that this mark did not stop.
    pub(crate) fn seen_online(&self) -> Reading {
        Reading { offline: false, ..self.seen }
    }
}

/// Returns `node` and the levels that are charged with it.
pub(crate) fn levels(node: &'static Node) -> impl Iterator<Item = &'static Node> + Clone {
    std::iter::successors(Some(node), |level| level.up())
}

/// Returns the group right below `top` that is `node`, or that `node` counts in.
pub(crate) fn right_below(top: &'static Node, node: &'static Node) -> Option<&'static Node> {
    levels(node).find(|level| level.up().is_some_and(|up| std::ptr::eq(up, top)))
}

/// Returns the lowest level that is charged with both, or `None` if there is none (the root is not
/// accounted).
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
