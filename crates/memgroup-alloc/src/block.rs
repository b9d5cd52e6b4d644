//! Block: the bytes that a program gets, behind a header of eight bytes with their owner.
//!
//! ```text
//!   from the inner allocator ──▶ ┌──────────────────────────────┬──────────┬──────────────┐
//!                                │ padding, if align exceeds 8  │ owner: 8 │ size bytes   │
//!                                └──────────────────────────────┴──────────┴──────────────┘
//!                                                                          ▲ the program's pointer
//! ```
//!
//! - I1. A program's pointer is [`Whole::prefix`] bytes after the start of a live block of the
//!   inner allocator. The header is right before it.
//! - I2. The program's layout determines the whole block's layout and the charged bytes, so neither
//!   is stored.
//! - I3. The thread that makes a block writes its header. Only a thread that was given the block
//!   reads it, and handing it over orders the two accesses.

#![allow(unsafe_code)]

use core::alloc::Layout;

use memgroup::block::Owner;

use crate::slots::{UNIT, UNITS_MOST};

/// Bytes of the header.
const HEADER: usize = size_of::<Option<Owner>>();

/// Bytes of the largest small block.
const SMALL_MOST: usize = (UNITS_MOST * UNIT) as usize - HEADER;

const _: () = assert!(HEADER == 8 && align_of::<Option<Owner>>() == 8);

/// A block with its header.
#[derive(Clone, Copy)]
pub(crate) struct Whole {
    /// The layout that the inner allocator gets.
    pub(crate) layout: Layout,
    /// Bytes before the program's.
    pub(crate) prefix: usize,
}

impl Whole {
    /// Returns the whole of a block that the program knows as `layout`, or `None` if it would be
    /// too large.
    #[inline(always)]
    pub(crate) fn of(layout: Layout) -> Option<Whole> {
        Whole::sized(layout.align(), layout.size())
    }

    /// Returns the same for a small block, as most are, or `None` for others. Its layout costs one
    /// addition.
    #[inline(always)]
    pub(crate) fn small(layout: Layout) -> Option<Whole> {
        if layout.align() > HEADER || layout.size() > SMALL_MOST {
            return None;
        }
        // SAFETY: the alignment is a power of two, and the size is far below `isize::MAX`.
        let layout = unsafe { Layout::from_size_align_unchecked(layout.size() + HEADER, HEADER) };
        Some(Whole { layout, prefix: HEADER })
    }

    /// Returns the same for an alignment, which is a power of two of at most half the address
    /// space, and a size.
    #[inline(always)]
    fn sized(align: usize, size: usize) -> Option<Whole> {
        let prefix = if align > HEADER { align } else { HEADER };
        if size > (isize::MAX as usize).saturating_sub(prefix.saturating_mul(2)) {
            return None;
        }
        // SAFETY: the prefix is 8, or the alignment of a layout, which is a power of two. The sum
        // rounded up to it is at most `isize::MAX`.
        let layout = unsafe { Layout::from_size_align_unchecked(size + prefix, prefix) };
        Some(Whole { layout, prefix })
    }

    /// Returns the whole of a block with this alignment and another size.
    #[inline(always)]
    pub(crate) fn resized(layout: Layout, size: usize) -> Option<Whole> {
        Whole::sized(layout.align(), size)
    }

    /// Returns the whole of a live block, which must have one.
    ///
    /// # Safety
    /// A live block of this crate has this layout.
    #[inline(always)]
    pub(crate) unsafe fn of_live(layout: Layout) -> Whole {
        let prefix = if layout.align() > HEADER { layout.align() } else { HEADER };
        // SAFETY: the caller's promise: `of` accepted the layout when the block was made, so the
        // sum does not wrap.
        let layout = unsafe { Layout::from_size_align_unchecked(layout.size() + prefix, prefix) };
        Whole { layout, prefix }
    }

    /// Returns the units charged for it.
    #[inline(always)]
    pub(crate) fn units(self) -> u64 {
        // A layout is at most `isize::MAX`, so the sum fits.
        (self.layout.size() as u64 + (UNIT - 1)) >> UNIT.trailing_zeros()
    }

    /// Makes the program's block from one of the inner allocator.
    ///
    /// # Safety
    /// `base` is a block of this layout that only the calling thread has.
    #[inline(always)]
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one argument covers them all")]
    pub(crate) unsafe fn begin(self, base: *mut u8, owner: Option<Owner>) -> *mut u8 {
        // SAFETY: the prefix is within the block, and the header's eight bytes are its last. Both
        // are multiples of 8, and so is `base`.
        unsafe {
            let block = base.add(self.prefix);
            block.cast::<Option<Owner>>().sub(1).write(owner);
            block
        }
    }

    /// Returns the inner allocator's pointer to the program's block.
    ///
    /// # Safety
    /// `block` is live, and `self` is its whole.
    #[inline(always)]
    pub(crate) unsafe fn base(self, block: *mut u8) -> *mut u8 {
        // SAFETY: I1.
        unsafe { block.sub(self.prefix) }
    }
}

/// Returns the owner of a block.
///
/// # Safety
/// `block` is live, and the calling thread was handed it.
#[inline(always)]
#[expect(clippy::multiple_unsafe_ops_per_block, reason = "one argument covers them all")]
pub(crate) unsafe fn owner(block: *mut u8) -> Option<Owner> {
    // SAFETY: a live block has its header written right before it (I1, I3).
    unsafe { block.cast::<Option<Owner>>().sub(1).read() }
}

#[cfg(test)]
mod tests {
    use std::alloc::{GlobalAlloc, System};

    use super::*;

    #[test]
    fn the_header_lies_between_the_start_and_the_bytes_of_the_program() {
        for (align, size) in [(1, 1), (8, 100), (16, 1), (4096, 1), (1, SMALL_MOST), (8, SMALL_MOST + 1)] {
            let layout = Layout::from_size_align(size, align).unwrap();
            let whole = Whole::of(layout).unwrap();
            // SAFETY: `of` has accepted the layout.
            let live = unsafe { Whole::of_live(layout) };
            for other in Whole::small(layout).into_iter().chain([live]) {
                assert_eq!((other.layout, other.prefix), (whole.layout, whole.prefix));
            }
            // SAFETY: the layout is not of size 0.
            let base = unsafe { System.alloc(whole.layout) };
            assert!(!base.is_null());
            // SAFETY: just allocated, with this layout.
            let block = unsafe { whole.begin(base, None) };
            // SAFETY: the program's bytes are those behind the prefix.
            unsafe { block.write_bytes(0xFF, size) };
            // SAFETY: the block is live.
            let owner = unsafe { owner(block) };
            assert!(owner.is_none() && block.addr() % align == 0, "{size} by {align}");
            // SAFETY: the block is live.
            assert_eq!(unsafe { whole.base(block) }, base);
            // SAFETY: from `alloc` with this layout, and given up.
            unsafe { System.dealloc(base, whole.layout) };
        }
        assert!(Whole::resized(Layout::new::<u8>(), isize::MAX as usize).is_none(), "too large for a header");
    }
}
