//! Id: the number of a group.

use core::fmt;

/// The identity of a group, which no other group of the process ever has.
///
/// It consists of two numbers. The [node](GroupId::node) says where the group is, and later groups
/// use it again. The *generation* counts the groups of the process. It has 64 bits, so it never
/// comes back: at a million groups a second it lasts for 290,000 years. An id that is
/// [stale](IdError) is therefore an error where it's used, and never another group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId {
    generation: u64,
    node: u32,
}

impl GroupId {
    pub(crate) fn new(node: NodeId, generation: u64) -> GroupId {
        GroupId { generation, node: node.0 }
    }

    /// Returns the group's generation: a number that no other group of the process ever has, to
    /// name the group in logs, in JSON and in keys of maps. It does not lead back to the group;
    /// for that, use [`as_u128`](Self::as_u128).
    pub fn as_u64(self) -> u64 {
        self.generation
    }

    /// Returns the whole id as one number of 96 bits: the generation above the 32 bits of the
    /// node.
    ///
    /// ```
    /// # use memgroup::{Config, GroupId, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let id = hierarchy.create("/group").unwrap().id();
    /// assert_eq!(id.as_u128(), u128::from(id.as_u64()) << 32 | u128::from(id.node()));
    /// assert_eq!(GroupId::from_u128(id.as_u128()), id);
    /// ```
    pub fn as_u128(self) -> u128 {
        u128::from(self.generation) << 32 | u128::from(self.node)
    }

    /// Returns the id with this number, ignoring its upper 32 bits. Whether a group has the id
    /// shows when it's used.
    pub fn from_u128(number: u128) -> GroupId {
        GroupId { generation: (number >> 32) as u64, node: number as u32 }
    }

    /// Returns the number of the group's node: enough to name the group for as long as a byte is
    /// charged to it. It is meant for a memory block with a header of 32 bits; see
    /// [`raw::charge_of_node`](crate::raw::charge_of_node).
    pub fn node(self) -> u32 {
        self.node
    }

    pub(crate) fn generation(self) -> u64 {
        self.generation
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node, self.generation)
    }
}

impl fmt::Debug for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GroupId({self})")
    }
}

/// The hierarchy has no group with this id, or the group cannot have that many bytes. Nothing was
/// changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdError {
    /// The id as given.
    pub id: GroupId,
    /// The number of bytes as given.
    pub bytes: u64,
}

impl fmt::Display for IdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IdError { id, bytes } = self;
        write!(
            f,
            "account {bytes} bytes of group {id}: this hierarchy has no group with that id now, or the group \
             cannot have that many bytes; pass each id and number of bytes from Charge::into_parts to the \
             hierarchy that they came from, and only once"
        )
    }
}

impl std::error::Error for IdError {}

/// The number of a node in its hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(pub(crate) u32);

/// Stands for the missing level above a group if nothing above it is charged too.
pub(crate) const TOP: NodeId = NodeId(u32::MAX);
