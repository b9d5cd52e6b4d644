//! Handles: the references that a user holds to a hierarchy and to a group. Their methods stand
//! with the mechanisms that they reach.
//!
//! `lifecycle::remove` gives a handle back, and frees a group that nothing holds any more.

use core::fmt;

use crate::base::id::GroupId;
use crate::base::limit;
use crate::tree::entries::Bounds;
use crate::tree::listing;
use crate::tree::node::Node;
use crate::tree::shared::Shared;

/// A tree of groups, with its root.
///
/// A handle: clones are the same tree. The tree lives as long as any `Hierarchy` or [`Group`] of
/// it. When the last one is dropped, all groups are removed. Bytes still charged are accounted
/// until their [`Charge`](crate::Charge)s are dropped. The memory of the groups goes back then, if
/// it is more than 256 KiB. That waits for a grace period, mostly 10 to 20 ms, and interrupts the
/// CPUs that run the process (TLB shootdowns). The rest, some hundreds of KiB, is kept for the
/// next hierarchy of the same [`Config`](crate::Config). If eight wait already, only their tables
/// are kept, some 100 KiB, and hierarchies of other configurations use them too
/// ([page](crate::guide::lifetime)).
///
/// ```
/// use memgroup::{Config, Hierarchy};
///
/// let hierarchy = Hierarchy::new(Config::new())?;
/// let tenants = hierarchy.create("/tenants")?;
/// tenants.set_max(1 << 30)?;
/// let alice = hierarchy.create("/tenants/alice")?;
/// let charge = alice.try_charge(4096)?;
/// assert!(tenants.usage() >= 4096);
/// drop(charge);
/// assert_eq!(tenants.usage_exact(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Hierarchy {
    shared: &'static Shared,
}

/// The root.
impl Hierarchy {
    /// A handle that is counted already.
    pub(crate) fn adopted(shared: &'static Shared) -> Hierarchy {
        Hierarchy { shared }
    }

    /// The root group.
    pub fn root(&self) -> Group {
        Group::pinned(self.shared.root())
    }

    pub(crate) fn shared(&self) -> &'static Shared {
        self.shared
    }
}

impl Clone for Hierarchy {
    fn clone(&self) -> Hierarchy {
        self.shared.hold();
        Hierarchy { shared: self.shared }
    }
}

impl PartialEq for Hierarchy {
    /// Whether both are handles of one tree.
    fn eq(&self, other: &Hierarchy) -> bool {
        std::ptr::eq(self.shared, other.shared)
    }
}

impl Eq for Hierarchy {}

/// A group: a node of the tree that memory is charged to.
///
/// A handle, `Send` and `Sync`; clones are the same group. Dropping handles does not remove the
/// group, [`remove`](Group::remove) does. A handle on a removed group stays good for reading.
pub struct Group {
    node: &'static Node,
}

/// Name and place in the tree.
impl Group {
    /// A handle that counts on `node`, which is held by the tree lock or by another handle.
    pub(crate) fn pinned(node: &'static Node) -> Group {
        node.pin();
        Group { node }
    }

    /// A handle that is counted already.
    pub(crate) fn adopted(node: &'static Node) -> Group {
        Group { node }
    }

    pub(crate) fn node(&self) -> &'static Node {
        self.node
    }

    /// Its id.
    pub fn id(&self) -> GroupId {
        self.node.group_id()
    }

    /// Its absolute path; the path it had, if it was removed.
    pub fn path(&self) -> String {
        self.node.shared().tree.lock().path(self.node.id())
    }

    /// Its name, the last part of the path; empty for the root.
    pub fn name(&self) -> String {
        self.node.shared().tree.lock().name(self.node.id()).to_owned()
    }

    /// The group above; `None` for the root.
    pub fn parent(&self) -> Option<Group> {
        let shared = self.node.shared();
        let tree = shared.tree.lock();
        tree.parent(self.node.id()).and_then(|id| shared.node(id)).map(Group::pinned)
    }

    /// Its online children, by name.
    pub fn children(&self) -> Vec<Group> {
        listing::children(self)
    }

    /// Its online child of this name.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// # let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let tenants = hierarchy.create("/tenants").unwrap();
    /// let alice = tenants.create("alice").unwrap();
    /// assert_eq!(tenants.child("alice"), Some(alice));
    /// assert_eq!((tenants.child("bob"), tenants.child_count()), (None, 1));
    /// ```
    pub fn child(&self, name: &str) -> Option<Group> {
        let shared = self.node.shared();
        let tree = shared.tree.lock();
        tree.child(self.node.id(), name).and_then(|id| shared.node(id)).map(Group::pinned)
    }

    /// Number of its online children.
    pub fn child_count(&self) -> usize {
        self.node.shared().tree.lock().child_count(self.node.id())
    }

    /// The bounds on the groups below it.
    pub(crate) fn bounds(&self) -> Bounds {
        self.node.shared().tree.lock().bounds(self.node.id())
    }

    /// Whether the group has not been removed.
    pub fn is_online(&self) -> bool {
        !self.node.counter.is_offline()
    }
}

impl Clone for Group {
    fn clone(&self) -> Group {
        Group::pinned(self.node)
    }
}

impl PartialEq for Group {
    fn eq(&self, other: &Group) -> bool {
        std::ptr::eq(self.node, other.node)
    }
}

impl Eq for Group {}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seen = self.node.counter.read();
        let mut group = f.debug_struct("Group");
        group.field("path", &self.path()).field("usage", &seen.usage);
        match limit::given(seen.max) {
            None => group.field("max", &format_args!("max")),
            Some(max) => group.field("max", &max),
        }
        .finish()
    }
}
