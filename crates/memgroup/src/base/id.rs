//! Id: the number of a group.

use core::fmt;

/// The number of a group in its hierarchy, and of no other group there, ever.
///
/// The lower half is the number of the group's node, which later groups use again; the upper half counts those groups. An id
/// that is [stale](IdError) is therefore an error where it is used, and never another group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(u64);

impl GroupId {
    pub(crate) fn new(node: NodeId, generation: u32) -> GroupId {
        GroupId(u64::from(generation) << 32 | u64::from(node.0))
    }

    /// The id as one number.
    pub fn as_u64(self) -> u64 {
        self.0
    }

    /// The id with this number. Whether a group has it shows when it is used.
    pub fn from_u64(number: u64) -> GroupId {
        GroupId(number)
    }

    /// The number of the group's node: enough to name the group for as long as a byte is charged to it. For a memory block
    /// with a header of 32 bits; see [`Hierarchy::charge_of_node`](crate::Hierarchy::charge_of_node).
    pub fn node(self) -> u32 {
        self.0 as u32
    }

    pub(crate) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.node(), self.generation())
    }
}

/// The bytes of a call are not bytes of the group with this id. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdError {
    /// The id as given.
    pub id: GroupId,
    /// Bytes of the call.
    pub bytes: u64,
    /// The bytes that the group holds, which are fewer. `None`: no group has the id. It was released, or this hierarchy never gave the id
    /// out.
    pub held_bytes: Option<u64>,
}

impl IdError {
    /// No group has the id.
    pub(crate) fn stale(id: GroupId, bytes: u64) -> IdError {
        IdError { id, bytes, held_bytes: None }
    }
}

impl fmt::Display for IdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let IdError { id, bytes, held_bytes } = self;
        write!(f, "account {bytes} bytes of group {id}: ")?;
        match held_bytes {
            None => f.write_str("the group is gone, or the id is of another hierarchy")?,
            Some(held) => write!(f, "the group holds {held} bytes")?,
        }
        f.write_str("; give each pair of numbers from Charge::into_parts back once, to the same hierarchy")
    }
}

impl std::error::Error for IdError {}

/// The number of a node in its hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodeId(pub(crate) u32);

/// No group above that is charged too.
pub(crate) const TOP: NodeId = NodeId(u32::MAX);
