//! Closing: a group loses its name, then the groups below it are removed, the lowest first, and
//! then the group itself. Also the owners of a group, the last of which closes it.
//!
//! ```text
//!   close(top)           top has no name from here on
//!   ┌▶ next_to_remove    the first group below without children; those on the way to it are closed
//!   └─ remove it         with the lock free between two groups, until top is removed
//! ```
//!
//! - B1. A closed group gets no children. So each level has a fixed number of groups once the
//!   level above is closed, and the removal ends even if other threads keep creating groups.
//! - I1. `owners` changes under the tree lock, and only in the group's own lifetime. With the last
//!   owner the group is closed in the same hold of the lock. So a thread that looks a path up
//!   finds a group that has an owner, or finds no group and creates one.

use crate::base::error::GroupError;
use crate::base::id::{NodeId, TOP};
use crate::base::mutation::{self, Mutation};
use crate::tree::entries::Phase;
use crate::tree::topology::{ROOT, State, Tree};

impl Tree {
    /// Online → Closing: begins the removal of `top` with all groups below it.
    pub(crate) fn close(&mut self, top: NodeId) -> Result<(), GroupError> {
        if top == ROOT {
            return Err(GroupError::IsRoot);
        }
        if self.state(top) != State::Online {
            return Err(GroupError::Offline { path: self.path(top) });
        }
        self.close_online(top);
        Ok(())
    }

    fn close_online(&mut self, id: NodeId) {
        self.unname(id);
        self.entry_mut(id).phase = Phase::Closing;
    }

    /// Takes an online group out of the names of its parent.
    pub(super) fn unname(&mut self, id: NodeId) {
        let entry = self.entry(id);
        if entry.phase == Phase::Online && entry.parent != TOP {
            self.unname_child(entry.parent, id);
        }
    }

    /// Returns the next group to remove: one below `top`, which is closing, or `top` itself.
    /// `None` if another thread has removed `top`.
    pub(crate) fn next_to_remove(&mut self, top: NodeId) -> Option<NodeId> {
        if self.is_dying(top) {
            return None;
        }
        let mut at = top;
        loop {
            if self.entry(at).phase == Phase::Online {
                self.close_online(at);
            }
            match self.entry(at).first_child {
                TOP => return Some(at),
                child => at = child,
            }
        }
    }

    /// Gives a group that was just created its first owner.
    pub(crate) fn begin_ownership(&mut self, id: NodeId) {
        self.entry_mut(id).owners = 1;
    }

    /// Adds an owner to an online group, unless the group was created without one.
    pub(crate) fn own(&mut self, id: NodeId) {
        let owners = &mut self.entry_mut(id).owners;
        *owners += u32::from(*owners > 0);
    }

    /// Removes an owner. If it was the last one of an online group, closes the group. Returns
    /// whether it did.
    pub(crate) fn disown(&mut self, id: NodeId) -> bool {
        let entry = self.entry_mut(id);
        let was_owned = entry.owners > 0;
        entry.owners = entry.owners.saturating_sub(1);
        let is_last = entry.owners == 0 || mutation::active(Mutation::OwnerIgnoresOthers);
        let closes = was_owned && is_last && entry.phase == Phase::Online;
        if closes {
            self.close_online(id);
        }
        closes
    }
}
