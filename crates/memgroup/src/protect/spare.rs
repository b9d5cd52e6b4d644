//! Spare: what a reclaim leaves alone.
//!
//! A walk computes what is protected on its way down, group by group, and goes by a group, with all below it, of which nothing may be taken. What a cache
//! is then asked for is looked up anew before each batch: a callback may take long, and the group and its neighbours move meanwhile.
//!
//! - I1. What is asked for in a group at one time is, at each level below the top, no more than its usage exceeds what is protected of it. So shrinkers that give
//!   what they are asked for never take a group below its `min`, however many of them are called at once.
//! - B1. A shrinker gives whole objects: the last one may go below, by as much as it is larger than what was asked for.
//! - E1. claim → claim: RMWs on `asked`; of two the later one leaves the earlier what it asked for. Release after the callback → Acquire of who claims next: it finds
//!   the usage as the callback left it.

use memgroup_sync::atomic::Ordering;

use super::effective::{self, Protection};
use crate::node::Node;

/// How one round of a reclaim treats protected groups.
#[derive(Clone, Copy)]
pub(crate) struct Sparing {
    /// The group that needs memory, of which itself nothing is protected.
    top: &'static Node,
    spares_low: bool,
    /// Whether anything is protected in the hierarchy.
    is_any: bool,
}

/// What may be taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Takeable {
    pub(crate) bytes: u64,
    /// It would be more if `low` did not count.
    pub(crate) spares_low: bool,
    /// It would be more if nobody else was having something given back here.
    pub(crate) is_shared: bool,
}

impl Takeable {
    fn and(self, other: Takeable) -> Takeable {
        Takeable {
            bytes: self.bytes.min(other.bytes),
            spares_low: self.spares_low || other.spares_low,
            is_shared: self.is_shared || other.is_shared,
        }
    }
}

/// Bytes that a cache of a group is about to be asked for; nobody else asks for them until it is dropped.
pub(crate) struct Claim {
    sparing: Sparing,
    node: &'static Node,
    pub(crate) takeable: Takeable,
    /// Bytes beyond which it goes below what `low` protects.
    pub(crate) above_low: u64,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.sparing.unclaim(self.node, self.takeable.bytes);
    }
}

impl Sparing {
    pub(crate) fn new(top: &'static Node, spares_low: bool) -> Sparing {
        Sparing { top, spares_low, is_any: top.shared.protected.is_any() }
    }

    /// What is protected of a group that the walk comes to, below `parent`.
    #[inline]
    pub(crate) fn below(&self, parent: &Node, above: Protection, node: &Node) -> Protection {
        if self.is_any { effective::below(self.top, parent, above, node) } else { Protection::NONE }
    }

    fn floor(&self, protected: Protection) -> u64 {
        if self.spares_low { protected.min.max(protected.low) } else { protected.min }
    }

    /// What may be taken of `usage` bytes of which so much is protected.
    fn of(&self, usage: u64, protected: Protection, asked: u64) -> Takeable {
        let floor = self.floor(protected);
        let above = usage.saturating_sub(floor);
        // Where nothing is protected a callback that hangs keeps nobody from the rest.
        let bytes = if floor == 0 { above } else { above.saturating_sub(asked) };
        let spares_low = self.spares_low && usage.saturating_sub(protected.min) > above;
        Takeable { bytes, spares_low, is_shared: bytes < above }
    }

    /// What may be taken of a group and those below it, by what is protected of it alone.
    #[inline]
    pub(crate) fn of_group(&self, node: &Node, protected: Protection) -> Takeable {
        self.of(node.counter.usage(), protected, 0)
    }

    /// What may be taken of a group now.
    pub(crate) fn takeable(&self, node: &'static Node) -> Takeable {
        let usage = node.counter.usage();
        let all = Takeable { bytes: usage, spares_low: false, is_shared: false };
        if !self.is_any {
            return all;
        }
        // ORDERING: Relaxed; a look, `claim` decides.
        let (takeable, _) = self.climb(node, &|level| level.control.used.asked.load(Ordering::Relaxed));
        all.and(takeable)
    }

    /// Claims up to `most` bytes of a group that is not released until the claim is dropped.
    pub(crate) fn claim(&self, node: &'static Node, most: u64) -> Claim {
        let all = Takeable { bytes: most, spares_low: false, is_shared: false };
        if !self.is_any {
            return Claim { sparing: *self, node, takeable: all, above_low: u64::MAX };
        }
        // ORDERING: AcqRel; as in E1.
        let ask = |level: &Node| level.control.used.asked.fetch_add(most, Ordering::AcqRel);
        let (takeable, protected) = self.climb(node, &ask);
        let takeable = all.and(takeable);
        self.unclaim(node, most - takeable.bytes);
        let above_low = node.counter.usage().saturating_sub(protected.low);
        Claim { sparing: *self, node, takeable, above_low }
    }

    fn unclaim(&self, node: &'static Node, bytes: u64) {
        if self.is_any && bytes > 0 {
            for level in self.levels(node) {
                // ORDERING: Release; pairs with the Acquire in `claim` (E1).
                level.control.used.asked.fetch_sub(bytes, Ordering::Release);
            }
        }
    }

    /// The groups from `node` up to the one right below the top.
    fn levels(&self, node: &'static Node) -> impl Iterator<Item = &'static Node> {
        let depth = self.top.depth();
        std::iter::successors(Some(node), |level| level.parent())
            .take_while(move |level| level.depth() > depth)
    }

    /// What may be taken of `node` going by every level between it and the top, and what is protected of it; `asked` tells, once for each level from the top
    /// down, what others have asked for there. Depth is bounded by `Config::depth_max`.
    fn climb(&self, node: &'static Node, asked: &impl Fn(&Node) -> u64) -> (Takeable, Protection) {
        let all = Takeable { bytes: u64::MAX, spares_low: false, is_shared: false };
        let Some(parent) = node.parent().filter(|_| node.depth() > self.top.depth()) else {
            return (all, Protection::NONE);
        };
        let (takeable, above) = self.climb(parent, asked);
        let protected = effective::below(self.top, parent, above, node);
        let asked = asked(node);
        (takeable.and(self.of(node.counter.usage(), protected, asked)), protected)
    }

    /// Whether something was taken of what `low` protects, by a round that may.
    pub(crate) fn is_below_low(&self, claim: &Claim, freed: u64) -> bool {
        self.is_any && !self.spares_low && freed > claim.above_low
    }
}
