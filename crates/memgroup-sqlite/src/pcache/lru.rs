//! The order in which pages that may go were used: a list through their headers.
//!
//! ```text
//!   newest ──▶ page ──older──▶ page ──older──▶ .. ──▶ page ◀── oldest
//! ```
//!
//! - I1. A page is in the list if and only if its header says so (`is_listed`); then it stands in the cache's table, too, and is
//!   not pinned.
//! - I2. A list is used by the holder of the cache's lock.

#![allow(unsafe_code)]

use super::page::Pin;

/// The pages of a cache that may go.
pub(super) struct List {
    newest: Option<Pin>,
    oldest: Option<Pin>,
    len: u32,
}

impl List {
    pub(super) const fn new() -> List {
        List { newest: None, oldest: None, len: 0 }
    }

    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// The page that was let go the longest time ago.
    #[inline]
    pub(super) fn oldest(&self) -> Option<Pin> {
        self.oldest
    }

    /// Puts a page in that was just let go.
    ///
    /// # Safety
    ///
    /// The page stands in the table of this list's cache, and in no list.
    #[inline]
    pub(super) unsafe fn push(&mut self, page: Pin) {
        // SAFETY: it stands in the table (caller's word), and this thread holds the lock (I2).
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

    /// Takes a page out of the list, if it is in it.
    ///
    /// # Safety
    ///
    /// The page stands in the table of this list's cache.
    #[inline]
    pub(super) unsafe fn unlink(&mut self, page: Pin) {
        // SAFETY: it stands in the table (caller's word), and this thread holds the lock (I2).
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
