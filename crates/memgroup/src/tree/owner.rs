//! Owner: the group that a block of memory is charged to, in eight bytes.
//!
//! - I1. The blocks' bytes keep the node, as those of a charge do (`node` I1). An owner that no
//!   byte is charged to may be another group's.

use core::fmt;

use crate::tree::node::Node;

/// The group that a block of memory is charged to, for the header of the block.
///
/// It is eight bytes, and so is an `Option` of it. It counts no reference: the charged bytes keep
/// the group. While none is charged through it, it may stand for another group, which is never
/// wrong memory, but a wrong group.
///
/// Got from [`block::current`](crate::block::current); used by allocators.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Owner(&'static Node);

const _: () = assert!(size_of::<Option<Owner>>() == size_of::<usize>());

impl Owner {
    #[inline(always)]
    pub(crate) fn of(node: &'static Node) -> Owner {
        Owner(node)
    }

    #[inline(always)]
    pub(crate) fn node(self) -> &'static Node {
        self.0
    }

    /// The address that stands for the owner: a multiple of [`Owner::ALIGN`] of at most
    /// [`Owner::ADDRESS_BITS`] bits, never 0.
    #[inline(always)]
    pub fn address(self) -> *const () {
        core::ptr::from_ref(self.0).cast()
    }

    /// Returns whether the process got the group by a `fork`
    /// ([`begin_child`](crate::block::begin_child)). Locks of the group may be held by threads
    /// that this process lacks. So an allocator charges nothing to it, and uncharges nothing.
    #[inline]
    pub fn is_inherited(self) -> bool {
        self.0.is_inherited()
    }

    /// Every address of an owner is a multiple of this.
    pub const ALIGN: usize = 64;

    /// The bits of an owner's address. No group is made in memory beyond.
    pub const ADDRESS_BITS: u32 = memgroup_sync::ADDRESS_BITS;
}

impl PartialEq for Owner {
    #[inline(always)]
    fn eq(&self, other: &Owner) -> bool {
        core::ptr::eq(self.0, other.0)
    }
}

impl Eq for Owner {}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owner").field(&self.address()).finish()
    }
}

const _: () = assert!(cfg!(memgroup_loom) || align_of::<Node>() == Owner::ALIGN);
