//! Bounds: how many groups there may be below a group, and on how many levels.
//!
//! The tree counts the groups below each group. A creation checks every group above the new one,
//! from the parent up, in the same hold of the tree lock in which it counts the new one. So the
//! counts are exact, and no bound is ever exceeded by a creation.
//!
//! - I1. A group counts in every group above it from its creation to its release. So a removed
//!   group counts as long as it has bytes or handles, because it keeps its place and its node, and
//!   costs as much as an online one. If only online groups counted, a tenant could take every
//!   place of the hierarchy by creating a group, charging a byte to it and removing it, again and
//!   again.
//! - I2. A bound refuses creations only. If it's set below the present number, the groups that are
//!   there stay.
//!
//! Without any bound, one tenant could still take every place and keep the others from creating a
//! group. So when `Config::groups_max` groups are there, some *spare* places are left, in four
//! equal parts. A group is *large* if more than an eighth of all groups is below it. The lowest
//! large group creates nothing more. It may have small groups, or make a group in itself large and
//! create beside it, and so reach the spare places. Therefore each large group above the new one
//! leaves one more part to others:
//!
//! ```text
//!   /                          may use all four parts
//!   ├── tenants (large)        may use the first three
//!   │   ├── alice (large)      creates nothing more
//!   │   │   └── x              may use the first two
//!   │   └── bob                may use the first three
//!   └── other                  may use all four
//! ```
//!
//! Among those that aren't large, the spare places are for the ones that have few groups. Of the
//! groups that aren't large and are above the new one, the topmost is its *tenant*: `bob` and
//! `other` for the groups below them. The tenant's next group needs more spare places left, of the
//! parts that it may use, than the tenant has groups. So one tenant takes at most half of what is
//! left, rounded up, and one that has fewer groups still gets some.

use crate::base::error::GroupError;
use crate::base::id::NodeId;
use crate::state::config::{SPARE_DIVISOR, SPARE_PARTS};
use crate::tree::entries::Bounds;
use crate::tree::topology::Tree;

/// A group is large if more than this part of all groups is below it.
const LARGE_DIVISOR: u32 = 8;

impl Tree {
    /// The bounds on the groups below a group.
    pub(crate) fn bounds(&self, id: NodeId) -> Bounds {
        self.entry(id).bounds
    }

    pub(crate) fn set_bounds(&mut self, id: NodeId, bounds: Bounds) {
        self.entry_mut(id).bounds = bounds;
    }

    /// Returns an error if `parent`, or a group above it, allows no further group below `parent`.
    pub(super) fn check_bounds(&self, parent: NodeId, name: &str) -> Result<(), GroupError> {
        let (mut at, mut depth) = (Some(parent), 1);
        while let Some(id) = at {
            let (below, bounds) = (self.entry(id).below, self.entry(id).bounds);
            if below >= bounds.descendants {
                return Err(GroupError::TooManyDescendants {
                    path: self.path_below(parent, name),
                    group: self.path(id),
                    descendants: below,
                    max_descendants: bounds.descendants,
                });
            }
            if depth > bounds.depth {
                return Err(GroupError::TooDeepBelow {
                    path: self.path_below(parent, name),
                    group: self.path(id),
                    depth,
                    max_depth: bounds.depth,
                });
            }
            (at, depth) = (self.parent(id), depth + 1);
        }
        Ok(())
    }

    /// Returns whether the hierarchy has a place for one more group below `parent`.
    pub(super) fn has_place(&self, parent: NodeId) -> bool {
        if self.in_use < self.groups_max {
            return true;
        }
        let is_large = |id| self.entry(id).below > self.large();
        if is_large(parent) && self.entry(parent).large_children == 0 {
            return false;
        }
        let (mut parts, mut tenant_has, mut at) = (SPARE_PARTS, 0, parent);
        while let Some(above) = self.parent(at) {
            if is_large(at) {
                parts = parts.saturating_sub(1);
            } else {
                tenant_has = self.entry(at).below;
            }
            at = above;
        }
        let spare = parts * (self.groups_max / SPARE_DIVISOR);
        tenant_has < spare.saturating_sub(self.in_use - self.groups_max)
    }

    /// The most groups below a group that is not large.
    fn large(&self) -> u32 {
        self.groups_max / LARGE_DIVISOR
    }

    /// Changes the counts of all groups above `id`, which is created or released.
    pub(super) fn count_above(&mut self, id: NodeId, change: impl Fn(u32) -> u32) {
        let most = self.large();
        let mut at = self.parent(id);
        while let Some(above) = at {
            let below = &mut self.entry_mut(above).below;
            let was_large = *below > most;
            *below = change(*below);
            let is_large = *below > most;
            at = self.parent(above);
            if let Some(parent) = at.filter(|_| is_large != was_large) {
                let large = &mut self.entry_mut(parent).large_children;
                *large = if is_large { *large + 1 } else { *large - 1 };
            }
        }
    }
}
