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
//! - I2. A bound refuses creations only. If it's set below the present number, the groups that are there stay.

use crate::base::error::GroupError;
use crate::base::id::NodeId;
use crate::tree::entries::Bounds;
use crate::tree::topology::Tree;

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
