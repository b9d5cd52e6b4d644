//! Owned: groups that are removed with their last owner.
//!
//! Clones of an [`OwnedGroup`] share one *owner*. The tree counts the owners of a group
//! (`topology::closing`). A group has several where `get_or_create_owned` found it.
//!
//! - I1. An owner holds its group as a handle does. So the place is the group's when the owner
//!   leaves, whether the group was removed or not.
//! - E1. get-or-create → last drop: both are under the tree lock. `own_path` finds the name and
//!   counts the owner in one hold. The last owner leaves, and the group loses its name, in one
//!   hold. So the owner gets a group that stays, or a new one. Loom:
//!   `a_new_owner_gets_a_group_that_stays`.

use core::fmt;
use core::ops::Deref;
use std::sync::Arc;

use crate::base::error::GroupError;
use crate::lifecycle::create;
use crate::tree::handle::{Group, Hierarchy};
use crate::tree::node::Node;
use crate::tree::shared::Shared;

#[cfg(all(test, memgroup_loom))]
mod loom;

/// A group that is removed when its last owner is dropped: for the time of a request, a session, a
/// query.
///
/// It is used as a [`Group`]. Clones share the ownership, and a clone takes no lock. A `Group`
/// that is cloned out of it is a plain handle, and owns nothing. The group can be removed before
/// by any handle ([`Group::remove`]); then the drop does nothing more.
///
/// The drop of the last owner removes the group as [`remove_all`](Group::remove_all) does, with
/// the groups below it, also owned ones. Give a child that shall stay longer another parent, or
/// have its owner keep a clone of the parent's. Callbacks of [`on_end`](Group::on_end) run then.
///
/// The drop waits for the tree lock only, so it is safe on the threads of an executor and while a
/// panic unwinds. Its work does not depend on how many groups there are elsewhere. It takes about
/// as long as [`Group::remove`], for each group removed. If it drops the last handle of the
/// whole tree it does more; see [`Hierarchy`]. So keep a `Hierarchy` for as long as the process
/// serves.
///
/// ```
/// use memgroup::{Config, Hierarchy};
///
/// let hierarchy = Hierarchy::new(Config::new())?;
/// let alice = hierarchy.create("/alice")?;
/// let request = alice.create_owned("request-7")?;
/// request.set_max(64 << 20)?;
/// let body = request.clone();
/// drop(request);
/// assert!(hierarchy.lookup("/alice/request-7").is_ok(), "the body owns it");
/// drop(body);
/// assert!(hierarchy.lookup("/alice/request-7").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use = "the group is removed when its last owner is dropped"]
pub struct OwnedGroup {
    owner: Arc<Owner>,
}

#[derive(PartialEq, Eq)]
struct Owner {
    group: Group,
}

impl OwnedGroup {
    /// The owner is counted already, and so is its handle.
    fn adopted(node: &'static Node) -> OwnedGroup {
        OwnedGroup { owner: Arc::new(Owner { group: Group::adopted(node) }) }
    }
}

impl Deref for OwnedGroup {
    type Target = Group;

    fn deref(&self) -> &Group {
        &self.owner.group
    }
}

impl AsRef<Group> for OwnedGroup {
    fn as_ref(&self) -> &Group {
        self
    }
}

impl fmt::Debug for OwnedGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnedGroup").field(&**self).finish()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let node = self.group.node();
        node.shared().disown(node);
    }
}

impl Shared {
    /// The group of this path with one more owner and one more handle. It is created if only its
    /// name is missing.
    fn own_path(&'static self, path: &str) -> Result<&'static Node, GroupError> {
        let (parent, name) = create::split(path)?;
        self.create_by(|tree| {
            let parent = tree.lookup(parent)?;
            match tree.child(parent, name) {
                None => {
                    let node = self.create_held(tree, parent, name)?;
                    tree.begin_ownership(node.id());
                    Ok(node)
                }
                Some(id) => {
                    tree.own(id);
                    let node = self.made(id);
                    node.pin();
                    Ok(node)
                }
            }
        })
    }

    /// An owner of the group leaves, which still has its handle.
    fn disown(&'static self, node: &'static Node) {
        let mut tree = self.tree.lock();
        if tree.disown(node.id()) {
            self.remove_closing(tree, node);
        }
    }
}

/// Groups that are removed with their last owner.
impl Group {
    /// Creates a child that is removed when its last owner is dropped.
    ///
    /// # Errors
    /// As for [`create`](Group::create).
    pub fn create_owned(&self, name: &str) -> Result<OwnedGroup, GroupError> {
        let shared = self.node().shared();
        let created = shared.create_by(|tree| {
            let node = shared.create_held(tree, self.node().id(), name)?;
            tree.begin_ownership(node.id());
            Ok(node)
        });
        created.map(OwnedGroup::adopted)
    }
}

/// Groups that are removed with their last owner.
impl Hierarchy {
    /// An owner of the online group of this path, which is created if there is none. Of several
    /// threads that call it at once each gets the same group, as long as one of them keeps it.
    ///
    /// If the last owner of the group is dropped at the same moment, one is first. Either the
    /// group gets this owner, and stays. Or the call creates a group, and the other one is
    /// removed.
    ///
    /// Groups above that are missing are created too. They stay, as by
    /// [`create`](Hierarchy::create). A group that exists and was created without an
    /// owner is not removed by this one: so tenants that were configured stay, and others go with
    /// their last request.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let first = hierarchy.get_or_create_owned("/tenants/alice").unwrap();
    /// let second = hierarchy.get_or_create_owned("/tenants/alice").unwrap();
    /// assert_eq!(*first, *second);
    /// drop(first);
    /// assert!(second.is_online());
    /// drop(second);
    /// assert!(hierarchy.lookup("/tenants/alice").is_err() && hierarchy.lookup("/tenants").is_ok());
    /// ```
    ///
    /// # Errors
    /// As for [`create`](Hierarchy::create), but for a group that exists. The root has no owner.
    pub fn get_or_create_owned(&self, path: &str) -> Result<OwnedGroup, GroupError> {
        loop {
            let missing = match self.shared().own_path(path) {
                Err(GroupError::NotFound { missing, .. }) => missing,
                owned => return owned.map(OwnedGroup::adopted),
            };
            self.shared().create_missing(path, &missing)?;
        }
    }
}
