//! The evictable pages in order of use: a list through their headers.
//!
//! ```text
//!   newest ──▶ page ──older──▶ page ──older──▶ .. ──▶ page ◀── oldest
//! ```
//!
//! - I1. A page is in the list if and only if its header says so (`is_listed`). Then it is in the cache's table too, and is not pinned.
//! - I2. The holder of the cache's lock uses the list.

#![allow(unsafe_code)]

use super::page::PagePtr;

/// The evictable pages of a cache.
#[derive(Default)]
pub(super) struct LruList {
    newest: Option<PagePtr>,
    /// The least recently used page.
    pub(super) oldest: Option<PagePtr>,
    pub(super) len: u32,
}

impl LruList {
    /// Adds a page as the most recently used one.
    ///
    /// # Safety
    ///
    /// The page is in the table of this list's cache and in no list, and SQLite has unpinned it.
    #[inline]
    pub(super) unsafe fn push(&mut self, page: PagePtr) {
        // SAFETY: it is in the table (caller's promise), and this thread holds the lock (I2).
        let header = unsafe { page.header() };
        header.is_listed.set(true);
        header.newer.set(None);
        header.older.set(self.newest);
        match self.newest.replace(page) {
            // SAFETY: it is in the list, hence in the table (I1).
            Some(before) => unsafe { before.header() }.newer.set(Some(page)),
            None => self.oldest = Some(page),
        }
        self.len += 1;
    }

    /// Removes a page from the list, if it is in it.
    ///
    /// # Safety
    ///
    /// The page is in the table of this list's cache.
    #[inline]
    pub(super) unsafe fn remove(&mut self, page: PagePtr) {
        // SAFETY: it is in the table (caller's promise), and this thread holds the lock (I2).
        let header = unsafe { page.header() };
        if !header.is_listed.replace(false) {
            return;
        }
        let (newer, older) = (header.newer.get(), header.older.get());
        match newer {
            // SAFETY: it is in the list, hence in the table (I1).
            Some(newer) => unsafe { newer.header() }.older.set(older),
            None => self.newest = older,
        }
        match older {
            // SAFETY: as above.
            Some(older) => unsafe { older.header() }.newer.set(newer),
            None => self.oldest = newer,
        }
        self.len -= 1;
    }
}
