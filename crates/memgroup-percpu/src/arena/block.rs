//! The memory of one object: a run of granules at the same place in every unit of a chunk.

#![allow(unsafe_code)]

use memgroup_sync::atomic::AtomicU64;

use crate::arena::os::Place;
use crate::arena::page::{COLOUR_BYTES, GRANULE_BYTES};

/// The largest block.
pub(crate) const BLOCK_BYTES_MAX: usize = 64 * 1024;
/// The owner of blocks that are never moved.
pub(crate) const NO_OWNER: u32 = u32::MAX;
/// Marks a block that is being moved away. It is no owner's number either.
pub(crate) const LEAVING: u32 = u32::MAX - 1;

/// The size and alignment of one copy, in granules. The size is a multiple of the alignment, as for any Rust type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) count: u32,
    pub(crate) align: u32,
}

impl Shape {
    /// `bytes` from 1 to 65,536, aligned to `align_bytes`, a power of two up to 128. Others panic, or as a constant do not compile.
    pub(crate) const fn new(bytes: usize, align_bytes: usize) -> Self {
        assert!(bytes > 0 && bytes <= BLOCK_BYTES_MAX, "a block has from 1 to 65,536 bytes");
        assert!(
            align_bytes.is_power_of_two() && align_bytes <= COLOUR_BYTES,
            "a block is aligned to at most 128"
        );
        let align = align_bytes.div_ceil(GRANULE_BYTES);
        Self { count: bytes.div_ceil(GRANULE_BYTES).next_multiple_of(align) as u32, align: align as u32 }
    }

    pub(crate) const fn bytes(self) -> usize {
        self.count as usize * GRANULE_BYTES
    }
}

/// Whether an allocation may wait and ask the system for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The allocation may take the lock, make system calls and allocate metadata.
    May,
    /// The allocation fails where the lock is taken or the mapped chunks are full. It makes no system call and allocates
    /// nothing.
    Never,
}

/// The memory of one object: `bytes` at the same place in every unit of one chunk. It is a plain value; its last holder
/// passes it to `Arena::free`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Slot 0's copy, in the form that both builds have.
    pub(crate) place: Place,
    pub(crate) chunk: u32,
    pub(crate) start: u32,
    pub(crate) count: u32,
}

impl Block {
    /// The bytes of one copy.
    pub(crate) fn bytes(self) -> usize {
        self.count as usize * GRANULE_BYTES
    }

    /// The word `index` of the copy of `slot`, in an arena with this `stride`. Under loom it panics if the block was freed.
    ///
    /// # Safety
    ///
    /// `slot` is one of the arena's and admitted, and `index` is below `bytes() / 8`. The chunk stays mapped while the word is
    /// used. That holds if the arena never unmaps, if the block is not free, or if a section still lasts that began before the
    /// block was freed.
    #[inline(always)]
    pub(crate) unsafe fn word(self, stride: usize, slot: usize, index: usize) -> &'static AtomicU64 {
        debug_assert!(index < self.count as usize, "word {index} of a block of {} words", self.count);
        // SAFETY: passed on to the caller.
        unsafe { self.place.word(slot * stride + index * GRANULE_BYTES) }
    }
}
