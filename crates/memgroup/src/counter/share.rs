//! Share: how much of a group each of its children may use, when together they want more than
//! there is.
//!
//! ```text
//!   M  the parent's limit, less the bytes left free for groups within their protection;
//!      a tighter level above makes it less
//!   U  the parent's usage
//!   a  the factor
//!   w  a child's weight, over 100
//!   W  the sum of the weights of children with memory
//!
//!   E = M a w / (1 + a W)         even share: the child's guarantee
//!   T = a w (M - U - b)           what is free allows it more, for a charge of b bytes
//! ```
//!
//! A charge of b bytes through a child with usage u passes the parent if u + b is at most E, the
//! child's `min` or T. T makes every child leave something free, so that there is room for one
//! that comes later (dynamic thresholds of shared packet buffers: Choudhury and Hahne, IEEE/ACM
//! Transactions on Networking 6(2), 1998). E tells which child must give back memory when none is
//! free (max-min fairness).
//!
//! T as a bound of u + b is a bound of U + b as well: u + b <= T if M - U - b >= (u + b) / (a w).
//! So a charge beyond E must leave that many bytes free in the parent, and the parent's
//! compare-and-swap decides on it together with the limit.
//!
//! Bytes that are charged to the parent itself, its *own* bytes, are treated like one more child,
//! of weight 100. They are not counted exactly, because each uncharge would have to take part.
//! `Used::own` is an upper bound: the own bytes when they were last counted, and all own charges
//! since. Before a charge is refused because of that bound, they are counted again
//! ([`recount_own`]).
//!
//! - I1. A child with T = u + b holds a w times what is free. So all children beyond E together
//!   use less than M, however much they ask for.
//! - I2. Prepaid bytes are not part of u and U. A grant covers two caps, and a stock is half full
//!   on average, so prepaid bytes are estimated as a quarter of the granted bytes.
//! - I3. All stocks below a sharing parent are granted at most M / 4a, except for grants that are
//!   decided at the same moment (`charge::evict`). They hold at most half of that. So prepaid
//!   bytes move a share by at most M / 16a, up or down.
//! - B1. U is the usage at the instant of the decision. u, W and the levels above the parent are
//!   read before, and may be a moment old.
//! - B2. Own bytes have no part in W, so the even shares of children are as if there were none.
//!   Forced charges, and the bytes of children that are removed, may make own bytes exceed
//!   `Used::own` until they are counted again. So may bytes that children free and charge during
//!   the count, by as many.

use crate::base::id::{GroupId, NodeId};
use crate::base::limit::{BYTES_MAX, UNLIMITED};
use crate::counter::chain::{self, Refused, Via};
use crate::counter::protect;
use crate::counter::protect::used::{MIN, Used, WEIGHT};
use crate::state::counter::Reading;
use crate::tree::children::ChildSteps;
use crate::tree::node::Node;

/// How often a group's own bytes are counted for one charge while other threads charge it.
const RECOUNTS_MOST: u32 = 4;

/// The weight of a group that has none set.
const WEIGHT_UNIT: u64 = 100;

/// The share of one child in its parent, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// The bytes that the child may hold if its siblings hold no more than they do now: the
    /// largest of its even share, its `min`, and T.
    pub(crate) bytes: u64,
    /// Its even share, or its `min` if that is more. While the parent is full, a child above this
    /// must give back memory.
    pub(crate) even: u64,
}

/// The numbers of the rule for one child, at one moment.
#[derive(Clone, Copy)]
struct Terms {
    /// M: the bytes that all children may use together.
    of: u64,
    /// a w: the factor, times the child's weight.
    slope: u64,
    /// 1 + a W, times the unit.
    sum: u64,
    min: u64,
}

/// Returns `of * by / over`.
fn part(of: u64, by: u64, over: u64) -> u64 {
    u64::try_from(u128::from(of) * u128::from(by) / u128::from(over.max(1))).unwrap_or(u64::MAX)
}

/// Returns the bytes that the groups below `level` may use, including prepaid bytes, by its own
/// limit and by the headroom of the levels above. Returns `None` if there is no limit.
fn most(level: &'static Node) -> Option<u64> {
    let usage = level.counter.usage();
    let mut via: Option<&'static Node> = None;
    let mut least = UNLIMITED;
    for up in chain::levels(level) {
        let seen = up.counter.read();
        // A dry run above limits nothing here. If `level` itself is a dry run, its limit counts,
        // because it counts the charges that its shares would refuse.
        if seen.max != UNLIMITED && (via.is_none() || !seen.is_dry_run) {
            let left = protect::left_free(up, via.map(|child| (child, u64::MAX)));
            let others = seen.usage.saturating_sub(usage);
            least = least.min(seen.max.saturating_sub(left).saturating_sub(others));
        }
        via = Some(up);
    }
    // Its own share of the level above limits what it can share out.
    let least = of_child(level).map_or(least, |share| least.min(share.bytes));
    (least != UNLIMITED).then_some(least)
}

/// The weight that a charge will add to the shares right below a group, because the child through
/// which it comes holds no memory yet.
#[derive(Clone, Copy)]
pub(crate) struct Newcomer {
    level: &'static Node,
    weight: u64,
}

impl Newcomer {
    /// Makes the newcomer for a charge of `requester` that `level` refuses, if there is such a
    /// charge.
    pub(crate) fn of(level: &'static Node, requester: Option<&'static Node>) -> Newcomer {
        let through = requester.filter(|_| level.marks.is_shared());
        let own = through.and_then(|node| chain::right_below(level, node)?.find_used());
        Newcomer { level, weight: own.map_or(0, |own| own.weight().saturating_sub(own.recorded(WEIGHT))) }
    }

    /// Returns the weight that it adds below `level`.
    fn below(self, level: &'static Node) -> u64 {
        if std::ptr::eq(self.level, level) { self.weight } else { 0 }
    }
}

impl Terms {
    /// Returns the terms of `child`, right below `level`, or `None` if it has no share.
    fn of(level: &'static Node, child: &'static Node) -> Option<Terms> {
        // A child without memory counts as well, because it is about to have some.
        Terms::beside(level, child, |own| own.weight().saturating_sub(own.recorded(WEIGHT)))
    }

    /// Returns the terms of the own bytes of `level`.
    fn of_own(level: &'static Node) -> Option<Terms> {
        let above = level.find_used().filter(|_| level.marks.is_shared())?;
        let factor = above.factor();
        let sum = WEIGHT_UNIT + factor * (above.sum(WEIGHT) + WEIGHT_UNIT);
        (factor > 0).then_some(Terms { of: most(level)?, slope: factor * WEIGHT_UNIT, sum, min: 0 })
    }

    /// Returns the terms of `child`, with the weight `missing` added to that of the groups that
    /// hold memory.
    fn beside(level: &'static Node, child: &'static Node, missing: impl Fn(&Used) -> u64) -> Option<Terms> {
        if !level.marks.is_shared() {
            return None;
        }
        let (above, own) = (level.find_used()?, child.find_used()?);
        let (factor, weight) = (above.factor(), own.weight());
        if factor == 0 || weight == 0 {
            return None;
        }
        let sum = WEIGHT_UNIT + factor * (above.sum(WEIGHT) + missing(&own));
        Some(Terms { of: most(level)?, slope: factor * weight, sum, min: own.min() })
    }

    /// Returns E, or the child's `min` if that is more.
    fn even(&self) -> u64 {
        part(self.of, self.slope, self.sum).max(self.min)
    }

    /// Returns whether `usage` is above that. It makes no division, because most charges that go
    /// to the counters need this.
    fn is_beyond_even(&self, usage: u64) -> bool {
        let times = |one: u64, other: u64| u128::from(one) * u128::from(other);
        usage > self.min && times(usage, self.sum) > times(self.of, self.slope)
    }

    /// Returns T as the number of bytes that a charge must leave free in `level` if it makes this
    /// usage, or `None` if it stays within the even share.
    fn left_free(&self, level: &'static Node, usage: u64) -> Option<u64> {
        if !self.is_beyond_even(usage) {
            return None;
        }
        let tighter = level.counter.read().max.min(BYTES_MAX).saturating_sub(self.of);
        let free = part(usage, WEIGHT_UNIT, self.slope).saturating_sub(prepaid(level));
        Some(tighter.saturating_add(free))
    }

    fn share(&self, level: &'static Node, child: &'static Node) -> Share {
        let even = self.even();
        let others = level.counter.usage().saturating_sub(child.counter.usage());
        let free = part(self.of.saturating_sub(others), self.slope, WEIGHT_UNIT + self.slope);
        Share { bytes: even.max(free), even }
    }
}

/// Returns the present share of a group in the one above.
pub(crate) fn of_child(child: &'static Node) -> Option<Share> {
    let level = child.up()?;
    Terms::of(level, child).map(|terms| terms.share(level, child))
}

/// Returns the bytes of a group that are taken only if no sibling is above its even share: none if
/// the group has no share.
pub(crate) fn even_of(child: &'static Node, newcomer: Newcomer) -> u64 {
    let terms = child.up().and_then(|level| Terms::beside(level, child, |_| newcomer.below(level)));
    terms.map_or(0, |terms| terms.even())
}

/// Estimates the bytes that are prepaid below a level (I2).
fn prepaid(level: &'static Node) -> u64 {
    level.counter.prepaid_most() / 4
}

/// Returns by how much the group right below `top` that `node` counts in is above its even share,
/// or `None` if it has no share.
pub(crate) fn excess(node: &'static Node, top: &'static Node, newcomer: Newcomer) -> Option<u64> {
    let child = chain::right_below(top, node)?;
    let terms = Terms::beside(top, child, |_| newcomer.below(top))?;
    Some(child.counter.usage().saturating_sub(terms.even()))
}

/// Counts that a cache of `from` gave `bytes` for a charge of `to` that `level` refused. If
/// `level` gives shares, they are counted for the two children of `level` that `from` and `to`
/// count in.
pub(crate) fn count_given(level: &'static Node, from: &'static Node, to: &'static Node, bytes: u64) {
    if bytes == 0 || !level.marks.is_shared() {
        return;
    }
    let children = chain::right_below(level, from).zip(chain::right_below(level, to));
    let Some((from, to)) = children.filter(|(from, to)| !std::ptr::eq(*from, *to)) else { return };
    if let (Some(of_from), Some(of_to)) = (from.find_used(), to.find_used()) {
        of_from.count_given(bytes, to.group_id());
        of_to.count_taken(bytes);
    }
}

/// Returns the bytes that a charge must leave free in `level`: for groups within their protection,
/// and for the shares of the other children if it came through a child.
#[inline(always)]
pub(crate) fn left_free(level: &'static Node, via: Via, bytes: u64) -> u64 {
    if level.marks.keeps_free() { left_free_below(level, via, bytes) } else { 0 }
}

#[cold]
#[inline(never)]
fn left_free_below(level: &'static Node, via: Via, bytes: u64) -> u64 {
    let protected = protect::left_free(level, via);
    let Some((child, usage)) = via else { return protected.max(own_left_free(level, bytes)) };
    let Some(terms) = Terms::of(level, child) else { return protected };
    // The even share of a child shrinks as others come, and by then this child may not charge any
    // more. So it is noted from a quarter of that share on.
    if terms.is_beyond_even(usage.saturating_mul(4)) {
        note_largest(level, child);
    }
    let left = terms.left_free(level, usage.saturating_sub(prepaid(child)));
    left.map_or(protected, |left| protected.max(left))
}

/// Returns the bytes that a charge of `level` itself must leave free for the shares of the groups
/// below.
fn own_left_free(level: &'static Node, bytes: u64) -> u64 {
    let Some(terms) = Terms::of_own(level) else { return 0 };
    let own = level.used().own().min(level.counter.usage());
    terms.left_free(level, own.saturating_add(bytes)).unwrap_or(0)
}

/// Returns whether `requester` is `level` itself and its own bytes fill its even share. If so,
/// groups below give it nothing.
pub(crate) fn is_above_own_even(level: &'static Node, requester: &'static Node) -> bool {
    let terms = Some(level).filter(|level| std::ptr::eq(*level, requester)).and_then(Terms::of_own);
    terms.is_some_and(|terms| terms.is_beyond_even(level.used().own().saturating_add(1)))
}

/// Counts bytes that were charged to `level` itself.
#[inline(always)]
pub(crate) fn count_own(level: &'static Node, bytes: u64) {
    if level.marks.is_shared() {
        level.used().add_own(bytes);
    }
}

/// Returns whether `child`, right below `level`, uses no more than its even share there or its own
/// `min`; `false` if it has neither.
///
/// A `min` does not count here if the bytes that all children use within theirs exceed the limit
/// of `level`. Otherwise a group could pass the limit above it by a large `min`, which a tenant
/// may set for groups below its own.
fn is_within(level: &'static Node, child: &'static Node) -> bool {
    let net = child.counter.usage().saturating_sub(prepaid(child));
    let min = child.find_used().map_or(0, |used| used.min());
    let fits = || level.find_used().is_some_and(|used| used.sum(MIN) <= level.counter.read().max);
    if min > 0 && !fits() {
        return false;
    }
    match Terms::of(level, child) {
        Some(terms) => !terms.is_beyond_even(net),
        None => min > 0 && net <= min,
    }
}

/// Returns the refusal of the lowest level that has no room for one more byte of `node`, and is
/// not full because of other groups alone.
///
/// A level is full because of others alone if the group right below it that `node` counts in uses
/// no more than its even share there, or its own `min`. Then the bytes above the limit are not
/// those of `node`, and its work owes nothing that it could free. Prepaid bytes make no level
/// full.
pub(crate) fn own_excess(node: &'static Node) -> Option<Refused> {
    let mut via: Via = None;
    for level in chain::levels(node) {
        let seen = Reading { reserved: left_free(level, via, 1), ..level.counter.read_with_prepaid() };
        let is_full = seen.is_beyond_stocks(1) && (seen.offline || !seen.is_dry_run);
        let is_of_others = !seen.offline && via.is_some_and(|(child, _)| is_within(level, child));
        if is_full && !is_of_others {
            return Some(refused(level, via, 1, seen));
        }
        via = Some((level, seen.usage.saturating_add(1)));
    }
    None
}

/// Counts the own bytes of `level`, if it gives shares. Returns whether they are fewer than was
/// known.
pub(crate) fn recount_own(level: &'static Node) -> bool {
    let Some(used) = Some(level).filter(|level| level.marks.is_shared()).and_then(|level| level.find_used())
    else {
        return false;
    };
    let before = used.own();
    for _ in 0..RECOUNTS_MOST {
        let (known, before) = (used.own(), level.counter.usage());
        let mut of_children = 0_u64;
        let mut steps = ChildSteps::of(level);
        while steps.step(&level.shared().tree.lock_behind(), |child| of_children += child.counter.usage()) {}
        if used.correct_own(known, level.counter.usage().max(before).saturating_sub(of_children)) {
            break;
        }
    }
    used.own() < before
}

/// Remembers `child`, which has a large part of its even share, if the one that is remembered has
/// less of its own.
pub(crate) fn note_largest(level: &'static Node, child: &'static Node) {
    let (used, id) = (level.used(), child.id());
    let times =
        |of: &Node, weight_of: &Node| u128::from(of.counter.usage()) * u128::from(weight_of.used().weight());
    let is_larger = |other: &'static Node| times(child, other) > times(other, child);
    if used.largest() != id && find_child(level, used.largest()).is_none_or(is_larger) {
        used.set_largest(id);
    }
}

/// Returns the group that has this place now, if it is right below `level`.
fn find_child(level: &'static Node, id: NodeId) -> Option<&'static Node> {
    // A free node still has its link to the level above.
    let child = level.shared().node(id).filter(|child| child.has_group())?;
    child.up().filter(|up| std::ptr::eq(*up, level)).map(|_| child)
}

/// Returns the group right below `level` that exceeds its even share by the largest factor: its
/// id, its usage and that share. This is a hint. It may miss a group that has charged nothing
/// since a larger one fell, or whose larger sibling is within its `min`.
pub(crate) fn largest_above(level: &'static Node, requester: &'static Node) -> Option<(GroupId, u64, u64)> {
    let largest = Some(level).filter(|level| level.marks.is_shared())?.find_used()?.largest();
    let child = find_child(level, largest)?;
    let even = even_of(child, Newcomer::of(level, Some(requester)));
    let usage = child.counter.usage();
    (usage > even).then_some((child.group_id(), usage, even))
}

/// The bytes that may still be granted to a stock if groups above give shares.
#[derive(Clone, Copy)]
pub(crate) struct GrantsLeft {
    pub(crate) bytes: u64,
    /// The group whose stocks have the other bytes; `None` if no group above gives shares.
    pub(crate) held_below: Option<&'static Node>,
}

/// Returns the bytes that may still be granted to a stock of `node`. All stocks below a group that
/// gives shares hold little compared with the bytes that the shares leave free, and those of one
/// child hold at most half of that.
pub(crate) fn grants_left(node: &'static Node) -> GrantsLeft {
    let (mut least, mut via) = (GrantsLeft { bytes: UNLIMITED, held_below: None }, None);
    for level in chain::levels(node) {
        let mut bound = |top: &'static Node, most: u64| {
            let bytes = most.saturating_sub(top.counter.prepaid_most());
            if bytes < least.bytes {
                least = GrantsLeft { bytes, held_below: Some(top) };
            }
        };
        if let Some(most) = grants_most(level).filter(|_| level.marks.is_shared()) {
            bound(level, most);
            via.into_iter().for_each(|child| bound(child, most / 2));
        }
        via = Some(level);
    }
    least
}

/// Returns the most bytes that may be granted to stocks below `level`, which gives shares.
fn grants_most(level: &'static Node) -> Option<u64> {
    let factor = level.find_used().map(|used| used.factor()).filter(|&factor| factor > 0)?;
    Some(most(level)? / (4 * factor))
}

/// Returns the headroom of `level` for bytes that are prepaid through `via`, a child of it.
pub(crate) fn seen_through(level: &'static Node, via: Option<&'static Node>, headroom: u64) -> u64 {
    let free = protect::seen_through(level, via, headroom);
    let Some((child, terms)) = via.and_then(|child| Some((child, Terms::of(level, child)?))) else {
        return free;
    };
    free.min(terms.share(level, child).bytes.saturating_sub(child.counter.usage()))
}

/// Returns the bytes that `level` leaves free for protected groups in any case. Bytes that a child
/// has prepaid do not put it beyond its protection here: as long as they may decide, the refusal
/// is not final.
fn left_free_at_least(level: &'static Node, via: Via, bytes: u64, seen: Reading) -> u64 {
    let spent = via.map(|(child, usage)| (child, usage.saturating_sub(child.counter.prepaid_most())));
    let own = if via.is_none() { own_left_free(level, bytes) } else { 0 };
    seen.reserved.min(protect::left_free(level, spent).max(own))
}

/// Returns the refusal of a charge by `level`, which it reached `via` a child. If the child is
/// beyond its even share, its share refuses, as if that were the child's own limit. Otherwise
/// `level` refuses.
#[cold]
pub(crate) fn refused(level: &'static Node, via: Via, bytes: u64, seen: Reading) -> Refused {
    let reserved = if seen.reserved > 0 { left_free_at_least(level, via, bytes, seen) } else { 0 };
    let by_level = Refused { node: level, seen: Reading { reserved, ..seen } };
    // A dry run lets the charge pass.
    let is_refused = level.marks.is_shared() && !seen.offline && !seen.is_dry_run;
    let Some((child, usage)) = via.filter(|_| is_refused) else {
        return by_level;
    };
    let net = usage.saturating_sub(prepaid(child));
    let Some(terms) = Terms::of(level, child).filter(|terms| terms.is_beyond_even(net)) else {
        return by_level;
    };
    let usage_before = usage.saturating_sub(bytes);
    let most = terms.share(level, child).bytes.min(usage_before.saturating_add(bytes).saturating_sub(1));
    let seen =
        Reading { usage: usage_before, max: most, reserved: 0, prepaid_most: 0, is_share: true, ..seen };
    Refused { node: child, seen }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::counter::share::{self, Terms, WEIGHT_UNIT};
    use crate::{Config, Hierarchy};

    #[test]
    fn a_share_and_a_min_are_within_themselves() {
        let terms = |min| Terms { of: 1000, slope: WEIGHT_UNIT, sum: 10 * WEIGHT_UNIT, min };
        for (min, most) in [(0, 100), (99, 100), (300, 300)] {
            assert_eq!(terms(min).even(), most);
            assert!(!terms(min).is_beyond_even(most) && terms(min).is_beyond_even(most + 1), "min {min}");
        }
    }

    /// Without a share or a `min` there is nothing that a group could be within, even if it has no
    /// byte.
    #[test]
    fn a_full_level_is_the_excess_of_a_group_without_bytes() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        parent.set_max(1000).unwrap();
        let (large, empty) = (parent.create("large").unwrap(), parent.create("empty").unwrap());
        let _held = large.charge_forced(1000).unwrap();
        let excess = share::own_excess(empty.node()).expect("the parent is full");
        assert!(std::ptr::eq(excess.node, parent.node()));
        empty.set_min(100).unwrap();
        assert!(share::own_excess(empty.node()).is_none(), "the parent is full of the other's bytes");
    }

    #[test]
    fn a_recount_tells_whether_it_found_fewer_bytes() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        parent.set_max(1000).unwrap();
        parent.set_share(Some(8)).unwrap();
        let node = parent.node();
        assert!(!share::recount_own(node), "nothing was known, and nothing is there");
        share::count_own(node, 300);
        assert!(share::recount_own(node) && !share::recount_own(node), "the 300 bytes are not there");
    }

    /// Siblings may give bytes back after the decision and before the refusal is put into words.
    #[test]
    fn a_refusal_by_share_does_not_say_that_the_charge_fits() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        parent.set_max(1000).unwrap();
        parent.set_share(Some(8)).unwrap();
        let (large, small) = (parent.create("large").unwrap(), parent.create("small").unwrap());
        let held = large.charge_forced(700).unwrap();
        let mut others = small.charge_forced(250).unwrap();
        let (level, child) = (parent.node(), large.node());
        let seen = level.counter.read();
        others.shrink(249);
        let refused = share::refused(level, Some((child, 850)), 150, seen);
        assert!(std::ptr::eq(refused.node, child) && refused.seen.is_share);
        assert_eq!(refused.seen.usage, held.bytes());
        assert!(
            refused.seen.usage + 150 > refused.seen.max,
            "{} of {}",
            refused.seen.usage,
            refused.seen.max
        );
    }
}
