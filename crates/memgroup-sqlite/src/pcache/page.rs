//! The memory of one page: the part that SQLite reads and writes, and this cache's header, in one
//! block.
//!
//! ```text
//!   from alloc ─▶ ┌─────────────────────┬───────────────────────────────┬─────────────────────────┐
//!                 │ buffer (szPage)     │ Header { pBuf, pExtra, .. }   │ extra (szExtra)         │
//!                 └─────────────────────┴───────────────────────────────┴─────────────────────────┘
//!                   ▲ pBuf                ▲ SQLite's pointer              ▲ pExtra, 8-aligned
//! ```
//!
//! The header is after the buffer because SQLite may read a few bytes past the buffer of a corrupt
//! page. It is before the extra bytes because both are accessed together.
//!
//! - I1. A [`Page`] owns its block: the block came from [`alloc::allocate`], and dropping the page
//!   frees it. A [`PagePtr`] points to the same block while the page is in the table of a cache.
//! - I2. All blocks of a cache have the same length ([`Format`]), so bytes are pages times
//!   [`Format::charged_bytes`].
//! - I3. The holder of the cache's lock uses the cells of a header. Only the connection writes
//!   `key`, under the lock. So the connection may read it without the lock.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use rusqlite::ffi;

use crate::alloc;
use crate::block;

/// The header between the buffer and the extra bytes. SQLite sees its first field.
#[repr(C)]
pub(super) struct Header {
    for_sqlite: ffi::sqlite3_pcache_page,
    /// The page's number.
    pub(super) key: Cell<u32>,
    /// Whether the page is in the list of evictable pages.
    pub(super) is_listed: Cell<bool>,
    /// The next page in the table's bucket.
    pub(super) chain: Cell<Option<PagePtr>>,
    /// The neighbours in the list.
    pub(super) newer: Cell<Option<PagePtr>>,
    pub(super) older: Cell<Option<PagePtr>>,
}

/// The lengths of a page's parts.
#[derive(Clone, Copy)]
pub(super) struct Format {
    buffer_bytes: usize,
    block_bytes: c_int,
}

impl Format {
    /// The format for SQLite's figures; `None` if a page of it cannot be laid out.
    pub(super) fn new(buffer: c_int, extra: c_int) -> Option<Format> {
        let (buffer_bytes, extra_bytes) = (usize::try_from(buffer).ok()?, usize::try_from(extra).ok()?);
        let is_aligned = buffer_bytes.is_multiple_of(align_of::<Header>());
        let total = buffer_bytes.checked_add(size_of::<Header>())?.checked_add(extra_bytes)?;
        let block_bytes = c_int::try_from(total).ok()?;
        block::rounded_size(block_bytes)?;
        let is_valid = is_aligned && extra_bytes >= size_of::<*mut c_void>();
        is_valid.then_some(Format { buffer_bytes, block_bytes })
    }

    /// Bytes charged for a page.
    #[inline]
    pub(super) fn charged_bytes(self) -> u64 {
        block::rounded_size(self.block_bytes).map_or(0, block::charged_bytes)
    }
}

/// A page that is in no table.
pub(super) struct Page(PagePtr);

impl Page {
    /// Makes a page, charged to the current group. If that is refused, records the reason and
    /// returns `None`.
    pub(super) fn allocate(format: Format) -> Option<Page> {
        let buffer = alloc::allocate(format.block_bytes)?;
        // SAFETY: the block is longer than the buffer (`Format::new`).
        let header = unsafe { buffer.byte_add(format.buffer_bytes) }.cast::<Header>();
        let extra = header.as_ptr().wrapping_add(1).cast::<c_void>();
        let made = Header {
            for_sqlite: ffi::sqlite3_pcache_page { pBuf: buffer.as_ptr(), pExtra: extra },
            key: Cell::new(0),
            is_listed: Cell::new(false),
            chain: Cell::new(None),
            newer: Cell::new(None),
            older: Cell::new(None),
        };
        // SAFETY: inside the block, and aligned because the block and the length of the buffer are.
        unsafe { header.write(made) };
        let page = PagePtr(header);
        // SAFETY: the block is fresh, and only this thread has it.
        unsafe { page.mark_new() };
        Some(Page(page))
    }

    /// The pointer to the page, which a table owns from here on.
    pub(super) fn into_ptr(self) -> PagePtr {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the page is live and only this value has it (I1).
        let block = unsafe { self.0.block() };
        // SAFETY: the page is live and only this value has it (I1).
        unsafe { alloc::release(block) };
    }
}

/// A page in a table. A pinned page belongs to SQLite, which uses it from one thread at a time. Any
/// other belongs to the holder of the cache's lock.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct PagePtr(NonNull<Header>);

// SAFETY: a page is memory that its holder may use on any thread; each function states its
// requirements.
unsafe impl Send for PagePtr {}

impl PagePtr {
    /// The pointer that SQLite holds, to the first field of the header.
    #[inline]
    pub(super) fn as_ptr(self) -> *mut Header {
        self.0.as_ptr()
    }

    #[inline]
    pub(super) fn from_ptr(page: *mut Header) -> Option<PagePtr> {
        NonNull::new(page).map(PagePtr)
    }

    /// The page's header.
    ///
    /// # Safety
    ///
    /// The page is live while the reference is used, and the caller uses the header as I3 says.
    #[inline]
    pub(super) unsafe fn header<'p>(self) -> &'p Header {
        // SAFETY: the page is live (caller's promise), and its header was written when it was made.
        unsafe { self.0.as_ref() }
    }

    /// The page, to be freed or put into a table again.
    ///
    /// # Safety
    ///
    /// It was taken out of its table, and no other value uses it.
    #[inline]
    pub(super) unsafe fn into_page(self) -> Page {
        Page(self)
    }

    /// Returns whether the group that would be charged for a new page pays for this one.
    ///
    /// # Safety
    ///
    /// The page is not pinned, and the caller holds the lock of its cache.
    pub(super) unsafe fn is_owned_by_current(self) -> bool {
        // SAFETY: the page is live (caller's promise).
        let block = unsafe { self.block() };
        // SAFETY: the page is live (caller's promise), and its block came from `allocate`.
        unsafe { alloc::is_owned_by_current(block) }
    }

    /// Makes the page look new to SQLite: zero in the first word of the extra bytes makes SQLite
    /// fill the rest and the buffer.
    ///
    /// # Safety
    ///
    /// The page is live, and SQLite does not have it.
    pub(super) unsafe fn mark_new(self) {
        let extra = self.0.as_ptr().wrapping_add(1).cast::<*mut c_void>();
        // SAFETY: the extra bytes lie behind the header, aligned as it is, and are at least a word
        // (`Format::new`).
        unsafe { extra.write(ptr::null_mut()) };
    }

    /// The page's block, which begins with the buffer.
    ///
    /// # Safety
    ///
    /// The page is live.
    unsafe fn block(self) -> NonNull<c_void> {
        // SAFETY: the page is live (caller's promise).
        let buffer = unsafe { self.header() }.for_sqlite.pBuf;
        // SAFETY: the buffer begins the block, which is not null.
        unsafe { NonNull::new_unchecked(buffer) }
    }
}
