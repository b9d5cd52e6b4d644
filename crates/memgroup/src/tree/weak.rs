//! Weak handles: a group's id with its hierarchy, which keep neither.
//!
//! - E1. upgrade → release: both are under the tree lock. A release gives the place another
//!   generation in the same hold in which it finds that no handle is left. So an upgrade counts
//!   its handle before that, and the release finds it; or it finds another generation. Loom:
//!   `an_upgrade_gets_its_group_or_none`.

use core::fmt;

use crate::base::id::GroupId;
use crate::base::mutation::{self, Mutation};
use crate::tree::handle::Group;
use crate::tree::shared::Shared;

/// A handle that does not keep its group; from [`Group::downgrade`].
///
/// It keeps no memory of the group, and counts neither as a handle of the group nor of its
/// hierarchy. So a cache or a log may keep it for ever. It is three words, and copying it is free.
/// Two are equal if they are of one group.
#[derive(Clone, Copy)]
pub struct WeakGroup {
    shared: &'static Shared,
    id: GroupId,
}

impl WeakGroup {
    /// A handle on the group. `None` once the group was released: it was removed, and its last
    /// handle and its last byte are gone. A group that was removed and still has one of these
    /// can be upgraded; [`is_online`](Group::is_online) tells.
    ///
    /// It takes the tree lock for some instructions. Of an upgrade and the release of the group at
    /// the same moment, one is first: the handle keeps the group, or there is none. It never
    /// returns another group, however often the place was used again.
    pub fn upgrade(&self) -> Option<Group> {
        let tree = self.shared.tree.lock();
        let id = if mutation::active(Mutation::UpgradeIgnoresGeneration) {
            self.shared.node(crate::base::id::NodeId(self.id.node()))?.group_id()
        } else {
            self.id
        };
        self.shared.find(&tree, id).map(Group::pinned)
    }

    /// The group's id, also after the group was released.
    pub fn id(&self) -> GroupId {
        self.id
    }
}

impl PartialEq for WeakGroup {
    fn eq(&self, other: &WeakGroup) -> bool {
        std::ptr::eq(self.shared, other.shared) && self.id == other.id
    }
}

impl Eq for WeakGroup {}

impl fmt::Debug for WeakGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WeakGroup").field(&self.id).finish()
    }
}

/// Weak handles.
impl Group {
    /// A handle that does not keep the group.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let group = hierarchy.create("/request").unwrap();
    /// let weak = group.downgrade();
    /// assert_eq!(weak.upgrade(), Some(group.clone()));
    /// group.remove().unwrap();
    /// drop(group);
    /// assert_eq!(weak.upgrade(), None);
    /// ```
    pub fn downgrade(&self) -> WeakGroup {
        WeakGroup { shared: self.node().shared(), id: self.id() }
    }
}
