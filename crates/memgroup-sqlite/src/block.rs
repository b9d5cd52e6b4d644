//! The block that SQLite gets: eight bytes of header, then the bytes for SQLite.
//!
//! ```text
//!   from malloc ──▶ ┌─────────────┬────────────┬───────────────────────┐
//!                   │ owner: u32  │ size: u32  │ size bytes for SQLite │
//!                   └─────────────┴────────────┴───────────────────────┘
//!                                              ▲ SQLite's pointer, 8-aligned
//! ```
//!
//! - I1. A pointer that SQLite has came from [`allocate`] or [`resize`]. It is [`HEADER_BYTES`]
//!   after the start of a live `malloc` block, which begins with its `Header`.
//! - I2. `size` is a multiple of eight, at most [`SIZE_MAX`]. The block is `size + HEADER_BYTES`
//!   long. Exactly that many bytes are charged to `owner` while the block lives.
//! - I3. The thread that makes or resizes a block writes its header. Only a thread that was given
//!   the block reads it. SQLite orders this hand-over, or the cache's lock does for a page of the
//!   page cache.
//!
//! SQLite's own allocator also adds eight bytes to each block, for the size, so the owner costs no
//! memory.
//!
//! This file also counts the bytes that this thread frees for one group. SQLite does not report how
//! many bytes a call has freed: its figure for the page cache is an estimate, which also drops for
//! pages that SQLite keeps for later. A group's usage changes with all its connections. So blocks
//! are counted where they are freed.
//!
//! - I4. The cell of the count holds a `Copy` value without a destructor, so it can be read and
//!   written at any time in a thread's life.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::NonNull;

use memgroup::GroupId;

/// Bytes before the block, charged with it.
pub(crate) const HEADER_BYTES: u64 = size_of::<Header>() as u64;

/// The largest size that SQLite may request. Rounded up and with a header, it still fits in an
/// `int`.
pub(crate) const SIZE_MAX: i32 = i32::MAX - 15;

/// The owner of a block, and the block's length without this header.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Header {
    /// The node number of the group. A group with charged bytes keeps its node, so the number is
    /// not reused while the block lives.
    pub(crate) owner: u32,
    pub(crate) size: u32,
}

impl Header {
    /// Bytes charged to the owner for the block (I2).
    pub(crate) fn charged_bytes(self) -> u64 {
        charged_bytes(self.size)
    }
}

/// The size of the block for a request of `asked` bytes: the next multiple of eight.
pub(crate) fn rounded_size(asked: i32) -> Option<u32> {
    if asked > SIZE_MAX {
        return None;
    }
    u32::try_from(asked).ok().map(|bytes| (bytes + 7) & !7)
}

/// Bytes charged for a block of `size` bytes, and requested from the system.
pub(crate) fn charged_bytes(size: u32) -> u64 {
    u64::from(size) + HEADER_BYTES
}

/// Allocates a block of `size` bytes. The caller must write its header with [`write_header`].
pub(crate) fn allocate(size: u32) -> Option<NonNull<c_void>> {
    // SAFETY: malloc may be called with any size; `size` is at most SIZE_MAX, so the sum cannot
    // wrap.
    behind_header(unsafe { libc::malloc(charged_bytes(size) as usize) })
}

/// Gives `block` the length `size`. On failure the block stays where it is, with its content. The
/// caller must write the header again.
///
/// # Safety
///
/// `block` is live (I1) and no other thread uses it.
pub(crate) unsafe fn resize(block: NonNull<c_void>, size: u32) -> Option<NonNull<c_void>> {
    // SAFETY: a live malloc block begins one header before `block` (I1); the new length cannot
    // wrap.
    behind_header(unsafe { libc::realloc(base(block), charged_bytes(size) as usize) })
}

/// Returns `block` to the system.
///
/// # Safety
///
/// `block` is live (I1) and is not used after this.
pub(crate) unsafe fn release(block: NonNull<c_void>) {
    // SAFETY: a live malloc block begins one header before `block` (I1), and is not used after
    // this.
    unsafe { libc::free(base(block)) }
}

fn behind_header(base: *mut c_void) -> Option<NonNull<c_void>> {
    // SAFETY: a block from malloc is at least HEADER_BYTES long, so one header further is inside it
    // or one past its end.
    NonNull::new(base).map(|base| unsafe { base.byte_add(HEADER_BYTES as usize) })
}

/// The start of the malloc block (I1).
fn base(block: NonNull<c_void>) -> *mut c_void {
    block.as_ptr().wrapping_byte_sub(HEADER_BYTES as usize)
}

/// The header of `block`.
///
/// # Safety
///
/// `block` is live (I1), its header is written, and the calling thread was handed the block (I3).
pub(crate) unsafe fn header(block: NonNull<c_void>) -> Header {
    // SAFETY: the header begins the malloc block (I1), is aligned as malloc aligns, and is written
    // (caller's promise).
    unsafe { base(block).cast::<Header>().read() }
}

/// Writes the header of `block`.
///
/// # Safety
///
/// `block` came from [`allocate`] or [`resize`] with the header's size, and only this thread uses
/// it.
pub(crate) unsafe fn write_header(block: NonNull<c_void>, header: Header) {
    // SAFETY: the header begins the malloc block (I1), is aligned as malloc aligns, and no other
    // thread reads it (caller's promise).
    unsafe { base(block).cast::<Header>().write(header) }
}

thread_local! {
    /// The group that is counted, and its bytes freed since the count began.
    static COUNT: Cell<Option<(GroupId, u64)>> = const { Cell::new(None) };
}

/// Counts a block with this header as freed, if its group is being counted.
#[inline]
pub(crate) fn count_freed(header: Header) {
    if let Some((owner, bytes)) = COUNT.get()
        && owner.node() == header.owner
    {
        COUNT.set(Some((owner, bytes + header.charged_bytes())));
    }
}

/// Returns the bytes of `owner` that this thread frees during `work`, which are exactly the bytes
/// uncharged for it. An outer count pauses during an inner one.
pub(crate) fn freed_by(owner: GroupId, work: impl FnOnce()) -> u64 {
    let outer = COUNT.replace(Some((owner, 0)));
    work();
    COUNT.replace(outer).map_or(0, |(_, bytes)| bytes)
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
    fn refuses_sizes_that_do_not_fit_an_int() {
        assert_eq!(rounded_size(-1), None);
        assert_eq!(rounded_size(i32::MAX), None);
        let largest = rounded_size(SIZE_MAX).expect("the largest size is allowed");
        assert!(i32::try_from(charged_bytes(largest)).is_ok(), "{largest} plus its header overflows an int");
    }

    #[test]
    #[expect(clippy::multiple_unsafe_ops_per_block, reason = "one argument covers them all")]
    fn keeps_content_and_header_when_it_grows() {
        let small = allocate(16).expect("16 bytes");
        assert_eq!(small.as_ptr() as usize % 8, 0);
        // SAFETY: `small` is fresh, 16 bytes long, and ours alone.
        let grown = unsafe {
            write_header(small, Header { owner: 7, size: 16 });
            small.cast::<[u8; 16]>().write([0xA5; 16]);
            assert_eq!(header(small).owner, 7);
            assert_eq!(header(small).charged_bytes(), 24);
            resize(small, 1 << 20).expect("a mebibyte")
        };
        assert_eq!(grown.as_ptr() as usize % 8, 0);
        // SAFETY: `grown` replaced `small` and is ours alone; its header was carried over by
        // realloc.
        unsafe {
            assert_eq!(grown.cast::<[u8; 16]>().read(), [0xA5; 16]);
            assert_eq!(header(grown).owner, 7);
            release(grown);
        }
    }

    /// Frees a block that cost its owner `charged_bytes` bytes.
    fn free(owner: u32, charged_bytes: u32) {
        let size = charged_bytes - crate::block::HEADER_BYTES as u32;
        count_freed(Header { owner, size });
    }

    #[test]
    fn counts_for_the_innermost_count_only() {
        let (outer, inner) = (GroupId::from_u128(1), GroupId::from_u128(2));
        free(1, 1000);
        let mut of_inner = 0;
        let of_outer = freed_by(outer, || {
            free(1, 16);
            free(2, 2000);
            of_inner = freed_by(inner, || {
                free(1, 4000);
                free(2, 32);
            });
            free(1, 64);
        });
        free(1, 1000);
        assert_eq!((of_outer, of_inner), (16 + 64, 32));
        assert!(COUNT.get().is_none(), "the count has ended");
    }
}
