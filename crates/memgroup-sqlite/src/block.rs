//! The block that SQLite gets: eight bytes of header, then its own bytes.
//!
//! ```text
//!   from malloc ──▶ ┌─────────────┬────────────┬───────────────────────┐
//!                   │ owner: u32  │ size: u32  │ size bytes for SQLite │
//!                   └─────────────┴────────────┴───────────────────────┘
//!                                              ▲ what SQLite holds, 8-aligned
//! ```
//!
//! - I1. A pointer that SQLite holds came from [`allocate`] or [`resize`] and lies [`HEADER_BYTES`] behind the
//!   start of a live `malloc` block that begins with its `Header`.
//! - I2. `size` is a multiple of eight, at most [`SIZE_MAX`]; the block is `size + HEADER_BYTES` long, and exactly
//!   that much is charged to `owner` for as long as the block lives.
//! - I3. A header is written by the thread that makes or resizes the block, and read only by a thread that SQLite
//!   has handed the block to, which SQLite itself orders; or, where the block is a page of the page cache, by who has taken the page
//!   out of it, which the cache orders.
//!
//! SQLite's own allocator also spends eight bytes a block (to remember the size), so the owner costs no memory.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr::NonNull;

use memgroup::GroupId;

/// Bytes before the block, charged with it.
pub(crate) const HEADER_BYTES: u64 = size_of::<Header>() as u64;

/// Largest size SQLite may ask for: the largest `int` that stays one when rounded up and given a header.
pub(crate) const SIZE_MAX: i32 = i32::MAX - 15;

/// Who pays for the block, and how long it is without this header.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Header {
    owner: u32,
    size: u32,
}

impl Header {
    /// A header for `size` bytes of `owner`.
    pub(crate) fn new(owner: GroupId, size: u32) -> Self {
        Header { owner: owner.as_u32(), size }
    }

    pub(crate) fn owner(self) -> GroupId {
        GroupId::from_u32(self.owner)
    }

    pub(crate) fn size(self) -> u32 {
        self.size
    }

    /// What the block costs its owner (I2).
    pub(crate) fn charged_bytes(self) -> u64 {
        charged_bytes(self.size)
    }
}

/// The size SQLite gets when it asks for `asked` bytes: the next multiple of eight.
pub(crate) fn rounded_size(asked: i32) -> Option<u32> {
    if asked > SIZE_MAX {
        return None;
    }
    u32::try_from(asked).ok().map(|bytes| (bytes + 7) & !7)
}

/// What a block of `size` bytes costs its owner: what is asked from the system.
pub(crate) fn charged_bytes(size: u32) -> u64 {
    u64::from(size) + HEADER_BYTES
}

/// A new block of `size` bytes whose header is still to be written with [`write_header`].
pub(crate) fn allocate(size: u32) -> Option<NonNull<c_void>> {
    // SAFETY: malloc may be called with any size; `size` is at most SIZE_MAX, so the sum cannot wrap.
    let base = unsafe { libc::malloc(charged_bytes(size) as usize) };
    // SAFETY: a block that malloc did return is HEADER_BYTES long at least, so one header further is inside it or
    // one past its end.
    NonNull::new(base).map(|base| unsafe { base.byte_add(HEADER_BYTES as usize) })
}

/// Gives `block` the length `size`; it keeps its old place and content when this fails. The header is to be written anew.
///
/// # Safety
///
/// `block` is live (I1) and no other thread uses it.
pub(crate) unsafe fn resize(block: NonNull<c_void>, size: u32) -> Option<NonNull<c_void>> {
    // SAFETY: by the caller's word and I1 a malloc block starts one header before.
    let base = unsafe { block.byte_sub(HEADER_BYTES as usize) };
    // SAFETY: `base` is a live malloc block; the new length cannot wrap.
    let base = unsafe { libc::realloc(base.as_ptr(), charged_bytes(size) as usize) };
    // SAFETY: as in `allocate`.
    NonNull::new(base).map(|base| unsafe { base.byte_add(HEADER_BYTES as usize) })
}

/// Returns `block` to the system.
///
/// # Safety
///
/// `block` is live (I1) and nobody uses it any more.
pub(crate) unsafe fn release(block: NonNull<c_void>) {
    // SAFETY: by the caller's word and I1 a malloc block starts one header before.
    let base = unsafe { block.byte_sub(HEADER_BYTES as usize) };
    // SAFETY: `base` is a live malloc block that nobody uses any more.
    unsafe { libc::free(base.as_ptr()) }
}

/// The header of `block`.
///
/// # Safety
///
/// `block` is live (I1), its header is written, and the calling thread was handed the block (I3).
pub(crate) unsafe fn header(block: NonNull<c_void>) -> Header {
    let at = block.cast::<Header>();
    // SAFETY: the header lies right before the block (I1).
    let at = unsafe { at.sub(1) };
    // SAFETY: it is inside the malloc block, aligned as malloc aligns, and written (caller's word).
    unsafe { at.read() }
}

/// Writes the header of `block`.
///
/// # Safety
///
/// `block` came from [`allocate`] or [`resize`] with the header's size, and only this thread uses it.
pub(crate) unsafe fn write_header(block: NonNull<c_void>, header: Header) {
    let at = block.cast::<Header>();
    // SAFETY: the header lies right before the block (I1).
    let at = unsafe { at.sub(1) };
    // SAFETY: it is inside the malloc block and aligned as malloc aligns; nobody else looks at it (caller's word).
    unsafe { at.write(header) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_to_the_next_multiple_of_eight() {
        for (asked, expected) in [(0, 0), (1, 8), (8, 8), (9, 16), (4360, 4360), (4361, 4368)] {
            assert_eq!(rounded_size(asked), Some(expected), "{asked}");
        }
    }

    #[test]
    fn refuses_sizes_that_no_longer_fit_an_int() {
        assert_eq!(rounded_size(-1), None);
        assert_eq!(rounded_size(i32::MAX), None);
        let largest = rounded_size(SIZE_MAX).expect("the largest size is allowed");
        assert!(i32::try_from(charged_bytes(largest)).is_ok(), "{largest} plus its header overflows an int");
    }

    #[test]
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one argument covers them all")]
    fn a_block_keeps_content_and_header_when_it_grows() {
        let small = allocate(16).expect("16 bytes");
        assert_eq!(small.as_ptr() as usize % 8, 0);
        // SAFETY: `small` is fresh, 16 bytes long, and ours alone.
        let grown = unsafe {
            write_header(small, Header::new(GroupId::from_u32(7), 16));
            small.cast::<[u8; 16]>().write([0xA5; 16]);
            assert_eq!(header(small).owner(), GroupId::from_u32(7));
            assert_eq!(header(small).charged_bytes(), 24);
            resize(small, 1 << 20).expect("a mebibyte")
        };
        assert_eq!(grown.as_ptr() as usize % 8, 0);
        // SAFETY: `grown` replaced `small` and is ours alone; its header was carried over by realloc.
        unsafe {
            assert_eq!(grown.cast::<[u8; 16]>().read(), [0xA5; 16]);
            assert_eq!(header(grown).owner(), GroupId::from_u32(7));
            release(grown);
        }
    }
}
