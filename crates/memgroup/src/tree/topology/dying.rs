//! Dying: the removed groups that are not released yet, in a list of their parent.
//!
//! - I1. A dying group is in its parent's list from its removal to its release. It pins its parent
//!   until then, so the list is empty when the parent is released.
//! - I2. A list is in the order of removal. So a walk that frees the tree lock between two groups,
//!   and holds the last one that it found, also finds those that are removed in between.
//! - I3. A dying group has no name, so the links that held it among its siblings' names lead to
//!   its neighbours in this list. The first group has the last one before it.

use crate::base::id::{NodeId, TOP};
use crate::tree::topology::Tree;
use crate::tree::topology::named::{AFTER, BEFORE};

impl Tree {
    /// Returns whether any group of the hierarchy is dying.
    pub(crate) fn has_dying(&self) -> bool {
        self.dying > 0
    }

    /// Returns the dying groups right below `id` that come after `last`, in the order of their
    /// removal; all of them without `last`.
    pub(crate) fn dying_after(&self, id: NodeId, last: Option<NodeId>) -> impl Iterator<Item = NodeId> + '_ {
        let listed = |id: NodeId| Some(id).filter(|&id| id != TOP);
        let first = listed(last.map_or(self.entry(id).first_dying, |last| self.linked((last, AFTER))));
        std::iter::successors(first, move |&id| listed(self.linked((id, AFTER))))
    }

    /// Puts a group that is dying from now on at the end of its parent's list.
    pub(super) fn link_dying(&mut self, id: NodeId) {
        let Some(parent) = self.parent(id) else { return };
        let first = self.entry(parent).first_dying;
        let last = if first == TOP { id } else { self.linked((first, BEFORE)) };
        self.set_link((id, BEFORE), last);
        self.set_link((id, AFTER), TOP);
        if first == TOP {
            self.entry_mut(parent).first_dying = id;
        } else {
            self.set_link((last, AFTER), id);
            self.set_link((first, BEFORE), id);
        }
    }

    /// Takes a dying group out of its parent's list.
    pub(super) fn unlink_dying(&mut self, id: NodeId) {
        let Some(parent) = self.parent(id) else { return };
        let (previous, next) = (self.linked((id, BEFORE)), self.linked((id, AFTER)));
        let first = self.entry(parent).first_dying;
        if first == id {
            self.entry_mut(parent).first_dying = next;
        } else {
            self.set_link((previous, AFTER), next);
        }
        // The group before it comes before the next one, or before the first one if it was the
        // last.
        let behind = if next != TOP { next } else { self.entry(parent).first_dying };
        if behind != TOP {
            self.set_link((behind, BEFORE), previous);
        }
    }
}
