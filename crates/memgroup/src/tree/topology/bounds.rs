//! Bounds: how many groups there may be below a group, and on how many levels.
//!
//! The tree counts the groups below each group. A creation checks every group above the new one, from the parent
//! up, in the same hold of the tree lock in which it counts the new one. So the counts are exact, and no bound is
//! ever exceeded by a creation.
//!
//! - I1. A group counts in every group above it from its creation to its release. So a removed group counts as long
//!   as it has bytes or handles, because it keeps its place and its node, and costs as much as an online one. If
//!   only online groups counted, a tenant could take every place of the hierarchy by creating a group, charging a
//!   byte to it and removing it, again and again.
//! Without any bound, one tenant could still take every place and keep the others from creating a group. So when
//! `Config::groups_max` groups are there, some *spare* places are left, in four equal parts, for creations right below
//! a group that isn't *large*: one that has at most an eighth of all groups below it. A large group can make small ones
//! in itself and create groups in those. Therefore each large group above the new one leaves one more part to others:
//!
//! ```text
//!   /tenants (large)           creates nothing more
//!   ├── alice (large)          creates nothing more
//!   │   └── x                  may use the first two parts
//!   └── bob                    may use the first three
//!   /other                     may use all four
//! ```
//!
//! - I2. A bound refuses creations only. If it's set below the present number, the groups that are there stay.

use crate::base::error::GroupError;
use crate::base::id::NodeId;
use crate::state::config::{SPARE_DIVISOR, SPARE_PARTS};
use crate::tree::entries::Bounds;
use crate::tree::topology::{ROOT, Tree};

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
        let is_large = |id| self.entry(id).below > self.groups_max / LARGE_DIVISOR;
        if parent == ROOT || is_large(parent) {
            return false;
        }
        let mut parts = SPARE_PARTS;
        let mut at = self.parent(parent);
        while let Some(id) = at.filter(|&id| id != ROOT) {
            parts = parts.saturating_sub(u32::from(is_large(id)));
            at = self.parent(id);
        }
        self.in_use - self.groups_max < parts * (self.groups_max / SPARE_DIVISOR)
    }

    /// Changes the counts of all groups above `id`, which is created or released.
    pub(super) fn count_above(&mut self, id: NodeId, change: impl Fn(u32) -> u32) {
        let mut at = self.parent(id);
        while let Some(above) = at {
            let below = &mut self.entry_mut(above).below;
            *below = change(*below);
            at = self.parent(above);
        }
    }
}
