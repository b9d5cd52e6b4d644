//! Spare: the bytes that a reclaim does not take.
//!
//! A walk computes on its way down how much of each group is protected. It skips a group of which
//! nothing may be taken, with all groups below it. Before each batch it computes again how much a
//! cache may be asked for, because a callback may take long, and usage changes in the meantime.
//!
//! - I1. At each level below the top, the bytes asked for at one time are at most the usage beyond
//!   the protection. So shrinkers that give back as many bytes as they are asked for leave a group
//!   its `min`, however many are called at once.
//! - B1. A shrinker frees whole objects. The last one may take the group below its protection, by
//!   as much as it is larger than the bytes asked for.
//! - E1. claim → claim: RMWs on `asked`. The later of two leaves the earlier one its bytes. The
//!   Release after the callback pairs with the Acquire of the next claim, which finds the usage as
//!   the callback left it.

use memgroup_sync::atomic::Ordering;

use crate::counter::protect::effective::{self, Protection};
use crate::counter::share::{self, Newcomer};
use crate::tree::node::Node;

/// How one round of a reclaim treats protected groups.
#[derive(Clone, Copy)]
pub(crate) struct Sparing {
    /// The group that needs memory. Nothing of its own is protected.
    top: &'static Node,
    spares_low: bool,
    /// Whether anything is protected in the hierarchy.
    is_any: bool,
    /// Whether nothing is taken from groups below the top, because the charge is of the top itself
    /// and exceeds its own share.
    spares_below: bool,
    /// The weight that the charge adds to the shares right below the top.
    newcomer: Newcomer,
}

/// The bytes that may be taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Takeable {
    pub(crate) bytes: u64,
    /// Whether more could be taken if `low` did not count.
    pub(crate) spares_low: bool,
    /// Whether more could be taken if no other thread were asking here.
    pub(crate) is_shared: bool,
}

/// The bytes that a cache of a group is about to be asked for. No other thread asks for them until
/// this is dropped.
pub(crate) struct Claim {
    sparing: Sparing,
    node: &'static Node,
    pub(crate) takeable: Takeable,
    /// If more than this is freed, the group goes below its `low`.
    above_low: u64,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.sparing.unclaim(self.node, self.takeable.bytes);
    }
}

impl Sparing {
    /// Makes the rules of a reclaim in `top`, for a charge of `requester` if it is for one.
    pub(crate) fn new(top: &'static Node, requester: Option<&'static Node>, spares_low: bool) -> Sparing {
        let newcomer = Newcomer::of(top, requester);
        let spares_below = requester.is_some_and(|requester| share::is_above_own_even(top, requester));
        Sparing { top, spares_low, is_any: top.shared().protected().is_any(), spares_below, newcomer }
    }

    pub(crate) fn top(&self) -> &'static Node {
        self.top
    }

    /// Returns the protection of a group that the walk reaches below `parent`.
    #[inline]
    pub(crate) fn below(&self, parent: &Node, above: Protection, node: &Node) -> Protection {
        if self.is_any { effective::below(self.top, parent, above, node) } else { Protection::NONE }
    }

    /// Returns the bytes that may be taken from a group and those below it, by its own protection
    /// and share alone, if `asked` bytes are asked for already.
    #[inline]
    pub(crate) fn of(&self, node: &'static Node, protected: Protection, asked: u64) -> Takeable {
        if self.spares_below && node.depth() > self.top.depth() {
            return Takeable { bytes: 0, spares_low: false, is_shared: false };
        }
        // A fair share of the top is spared as `low` is, while another group is above its own. The
        // shares that a group gives its own children are not spared, because they would shield it
        // from its siblings.
        let is_child = node.up().is_some_and(|up| std::ptr::eq(up, self.top));
        let even = if self.spares_low && is_child { share::even_of(node, self.newcomer) } else { 0 };
        let low = if self.spares_low { protected.low.max(even) } else { 0 };
        let floor = protected.min.max(low);
        let usage = node.counter.usage();
        let above = usage.saturating_sub(floor);
        // If nothing is protected, a callback that hangs must not keep other threads from the rest.
        let bytes = if floor == 0 { above } else { above.saturating_sub(asked) };
        let spares_low = self.spares_low && usage.saturating_sub(protected.min) > above;
        Takeable { bytes, spares_low, is_shared: bytes < above }
    }

    /// Returns the bytes that may be taken from a group now.
    pub(crate) fn takeable(&self, node: &'static Node) -> Takeable {
        // ORDERING: Relaxed, because this is a hint, and `claim` decides.
        let asked = |level: &Node| level.asked().load(Ordering::Relaxed);
        self.climb(node, node.counter.usage(), &asked).0
    }

    /// Claims up to `most` bytes of a group. The group must not be released until the claim is
    /// dropped.
    pub(crate) fn claim(&self, node: &'static Node, most: u64) -> Claim {
        // ORDERING: AcqRel pairs with the Release in `unclaim`: weaker, the usage could be read as
        // it was before another callback freed its bytes (E1).
        let ask = |level: &Node| level.asked().fetch_add(most, Ordering::AcqRel);
        let (takeable, protected) = self.climb(node, most, &ask);
        self.unclaim(node, most - takeable.bytes);
        let above_low = node.counter.usage().saturating_sub(protected.low);
        Claim { sparing: *self, node, takeable, above_low }
    }

    fn unclaim(&self, node: &'static Node, bytes: u64) {
        let levels = std::iter::successors(Some(node), |level| level.parent());
        for level in levels.take_while(|level| self.counts(level) && bytes > 0) {
            // ORDERING: Release pairs with the Acquire in `claim`, which must find the usage as the
            // callback left it (E1).
            level.asked().fetch_sub(bytes, Ordering::Release);
        }
    }

    /// Returns whether any bytes of a group may be protected.
    fn counts(&self, node: &Node) -> bool {
        self.is_any && node.depth() > self.top.depth()
    }

    /// Returns the bytes that may be taken from `node`, at most `most`, by every level between it
    /// and the top; and its protection. `asked` is called once for each level, from the top down,
    /// and returns the bytes that others have asked for there.
    fn climb(&self, node: &'static Node, most: u64, asked: &impl Fn(&Node) -> u64) -> (Takeable, Protection) {
        let all = Takeable { bytes: most, spares_low: false, is_shared: false };
        let counts = |level: &Node| self.counts(level);
        let mut step = |(above, protected): (Takeable, Protection), parent, level| {
            let protected = effective::below(self.top, parent, protected, level);
            let own = self.of(level, protected, asked(level));
            let takeable = Takeable {
                bytes: above.bytes.min(own.bytes),
                spares_low: above.spares_low || own.spares_low,
                is_shared: above.is_shared || own.is_shared,
            };
            (takeable, protected)
        };
        effective::fold_down(node, &counts, (all, Protection::NONE), &mut step)
    }

    /// Returns whether a round that may take bytes within `low` has taken some.
    pub(crate) fn is_below_low(&self, claim: &Claim, freed: u64) -> bool {
        self.is_any && !self.spares_low && freed > claim.above_low
    }
}
