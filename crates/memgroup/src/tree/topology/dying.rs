//! Dying: the removed groups that are not released yet, in a list of their parent.
//!
//! - I1. A dying group is in its parent's list from its removal to its release. It pins its parent
//!   until then, so the list is empty when the parent is released.
//! - I2. A list is in the order of removal. So a walk that frees the tree lock between two groups,
//!   and holds the last one that it found, finds those that are removed meanwhile.

use crate::base::id::{NodeId, TOP};
use crate::tree::topology::Tree;

impl Tree {
    /// Whether any group of the hierarchy is dying.
    pub(crate) fn has_dying(&self) -> bool {
        self.dying > 0
    }

    /// The dying groups right below `id` that come after `last`, in the order of their removal;
    /// all of them without `last`.
    pub(crate) fn dying_after(&self, id: NodeId, last: Option<NodeId>) -> impl Iterator<Item = NodeId> + '_ {
        let listed = |id: NodeId| Some(id).filter(|&id| id != TOP);
        let first = listed(last.map_or(self.entry(id).first_dying, |last| self.entry(last).next_dying));
        std::iter::successors(first, move |&id| listed(self.entry(id).next_dying))
    }

    /// Puts a group that is dying from now on at the end of its parent's list.
    pub(super) fn link_dying(&mut self, id: NodeId) {
        let Some(parent) = self.parent(id) else { return };
        let first = self.entry(parent).first_dying;
        if first == TOP {
            self.entry_mut(parent).first_dying = id;
            self.entry_mut(id).previous_dying = id;
            return;
        }
        let last = std::mem::replace(&mut self.entry_mut(first).previous_dying, id);
        self.entry_mut(last).next_dying = id;
        self.entry_mut(id).previous_dying = last;
    }

    /// Takes a dying group out of its parent's list.
    pub(super) fn unlink_dying(&mut self, id: NodeId) {
        let Some(parent) = self.parent(id) else { return };
        let (previous, next) = (self.entry(id).previous_dying, self.entry(id).next_dying);
        let first = self.entry(parent).first_dying;
        if first == id {
            self.entry_mut(parent).first_dying = next;
        } else {
            self.entry_mut(previous).next_dying = next;
        }
        // The next one, or else the first one, has the one before in its place.
        let behind = if next != TOP { next } else { self.entry(parent).first_dying };
        if behind != TOP {
            self.entry_mut(behind).previous_dying = previous;
        }
    }
}
