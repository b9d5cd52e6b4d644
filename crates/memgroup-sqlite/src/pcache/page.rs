//! The memory of one page: what SQLite reads and writes, in one block.
//!
//! ```text
//!   from alloc ─▶ ┌─────────────────────┬───────────────────────────────┬─────────────────────────┐
//!                 │ buffer (szPage)     │ Header { pBuf, pExtra, .. }   │ extra (szExtra)         │
//!                 └─────────────────────┴───────────────────────────────┴─────────────────────────┘
//!                   ▲ pBuf                ▲ what SQLite holds             ▲ pExtra, 8-aligned
//! ```
//!
//! The header lies behind the buffer because SQLite, when it reads a corrupt page, may read a few bytes past the buffer.
//! It lies before the extra bytes because who asks for one asks for the other.
//!
//! - I1. A [`Page`] owns its block: it came from [`alloc::allocate`], and dropping it frees it. A [`Pin`] points to the same
//!   block while it stands in the table of a cache.
//! - I2. All blocks of a cache are equally long ([`Format`]), so bytes are pages times [`Format::charged_bytes`].
//! - I3. A header's cells are used by the holder of the cache's lock. But `key` is written under the lock by the connection
//!   alone, which therefore may read it without.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use rusqlite::ffi;

use crate::{alloc, block};

/// What stands between the buffer and the extra bytes. SQLite sees the first field.
#[repr(C)]
pub(super) struct Header {
    for_sqlite: ffi::sqlite3_pcache_page,
    /// The page's number.
    pub(super) key: Cell<u32>,
    /// Whether the page is in the list of `lru`.
    pub(super) is_listed: Cell<bool>,
    /// The next page in the bucket of the table.
    pub(super) chain: Cell<Option<Pin>>,
    /// The neighbours in the list.
    pub(super) newer: Cell<Option<Pin>>,
    pub(super) older: Cell<Option<Pin>>,
}

/// How long the parts of a page are.
#[derive(Clone, Copy)]
pub(super) struct Format {
    buffer_bytes: usize,
    block_bytes: c_int,
}

impl Format {
    /// For SQLite's figures; `None` if they cannot be.
    pub(super) fn new(buffer: c_int, extra: c_int) -> Option<Format> {
        let (buffer_bytes, extra_bytes) = (usize::try_from(buffer).ok()?, usize::try_from(extra).ok()?);
        let is_aligned = buffer_bytes.is_multiple_of(align_of::<Header>());
        let has_room = extra_bytes >= size_of::<*mut c_void>();
        let total = buffer_bytes.checked_add(size_of::<Header>())?.checked_add(extra_bytes)?;
        let block_bytes = c_int::try_from(total).ok()?;
        block::rounded_size(block_bytes)?;
        (is_aligned && has_room).then_some(Format { buffer_bytes, block_bytes })
    }

    /// What a page costs who pays for it.
    #[inline]
    pub(super) fn charged_bytes(self) -> u64 {
        block::rounded_size(self.block_bytes).map_or(0, block::charged_bytes)
    }
}

/// A page that stands in no table.
pub(super) struct Page(Pin);

impl Page {
    /// A page charged to the group in force, new to SQLite; `None` when that is refused, and the shortage is noted.
    pub(super) fn allocate(format: Format) -> Option<Page> {
        let buffer = alloc::allocate(format.block_bytes)?;
        // SAFETY: the block is longer than the buffer (`Format::new`).
        let header = unsafe { buffer.byte_add(format.buffer_bytes) }.cast::<Header>();
        // SAFETY: the header lies inside the block, and the extra bytes follow it (`Format::new`).
        let extra = unsafe { header.add(1) };
        let made = Header {
            for_sqlite: ffi::sqlite3_pcache_page {
                pBuf: buffer.as_ptr(),
                pExtra: extra.as_ptr().cast::<c_void>(),
            },
            key: Cell::new(0),
            is_listed: Cell::new(false),
            chain: Cell::new(None),
            newer: Cell::new(None),
            older: Cell::new(None),
        };
        // SAFETY: inside the block, and aligned because the block and the length of the buffer are.
        unsafe { header.write(made) };
        // SAFETY: the block is fresh, and nobody else has it.
        Some(Page(unsafe { Pin(header).renewed() }))
    }

    /// The page, about to stand in a table, which has it from here on.
    pub(super) fn into_pin(self) -> Pin {
        let pin = self.0;
        std::mem::forget(self);
        pin
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the page is live and nobody else has it (I1).
        let block = unsafe { self.0.block() };
        // SAFETY: as above.
        unsafe { alloc::release(block) };
    }
}

/// A page that stands in a table. Pinned, it is SQLite's, which is one thread at a time; else it belongs to who holds
/// the cache's lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Pin(NonNull<Header>);

// SAFETY: a page is memory that belongs to whoever has it, on any thread; what a thread may do with it is said with each
// function.
unsafe impl Send for Pin {}

impl Pin {
    /// What SQLite holds as a page.
    #[inline]
    pub(super) fn from_sqlite(page: *mut ffi::sqlite3_pcache_page) -> Option<Pin> {
        Pin::from_pointer(page.cast())
    }

    /// The page as SQLite holds it.
    #[inline]
    pub(super) fn for_sqlite(self) -> *mut ffi::sqlite3_pcache_page {
        self.0.as_ptr().cast()
    }

    /// The page as a pointer to keep.
    #[inline]
    pub(super) fn as_pointer(self) -> *mut Header {
        self.0.as_ptr()
    }

    /// The page behind a pointer that was kept.
    #[inline]
    pub(super) fn from_pointer(page: *mut Header) -> Option<Pin> {
        NonNull::new(page).map(Pin)
    }

    /// The page's header.
    ///
    /// # Safety
    ///
    /// The page stands in a table for as long as the reference is used, and the caller uses the header as I3 says.
    #[inline]
    pub(super) unsafe fn header<'p>(self) -> &'p Header {
        // SAFETY: the page is live (caller's word), and its header was written when it was made.
        unsafe { self.0.as_ref() }
    }

    /// The page, to be freed or put into a table again.
    ///
    /// # Safety
    ///
    /// It was taken out of its table, and nobody uses it any more.
    #[inline]
    pub(super) unsafe fn into_page(self) -> Page {
        Page(self)
    }

    /// Whether the group that would be charged for a new page has paid for this one.
    ///
    /// # Safety
    ///
    /// The page is unpinned, and the caller holds the lock of its cache.
    pub(super) unsafe fn is_paid_by_current(self) -> bool {
        // SAFETY: the page is live (caller's word).
        let block = unsafe { self.block() };
        // SAFETY: as above; it came from `allocate`.
        unsafe { alloc::is_paid_by_current(block) }
    }

    /// Makes the page new to SQLite, which looks at the first word of the extra bytes: zero means that the rest, and the
    /// buffer, are to be filled.
    ///
    /// # Safety
    ///
    /// The page is live, and SQLite does not have it.
    pub(super) unsafe fn renewed(self) -> Pin {
        // SAFETY: the extra bytes lie behind the header, in the same block.
        let extra = unsafe { self.0.add(1) }.cast::<*mut c_void>();
        // SAFETY: they are aligned as the header is, are a word at least (`Format::new`), and are the caller's.
        unsafe { extra.write(ptr::null_mut()) };
        self
    }

    /// The page's block.
    ///
    /// # Safety
    ///
    /// The page is live.
    unsafe fn block(self) -> NonNull<c_void> {
        // SAFETY: the page is live (caller's word), and its header was written when it was made.
        let buffer = unsafe { self.0.as_ref() }.for_sqlite.pBuf;
        // SAFETY: the buffer begins the block, which is not null.
        unsafe { NonNull::new_unchecked(buffer) }
    }
}
