//! The pages of one cache, by key and in order of use: the state that the cache's lock protects.
//!
//! - I1. A page in the table is pinned, recent (`recent`), or in the list.
//! - I2. Only the thread that uses the connection inserts, pins and unpins pages. Other threads
//!   take out evictable ones.
//! - I3. `max_key` is at least the greatest key in the table.
//! - I4. No page is allocated or freed here. A page that is taken out goes to the caller, which
//!   frees it after releasing the lock.
//! - I5. A page is in the list of evictable pages if and only if its header says so (`is_listed`).
//!   It is then in the table too, and is not pinned.
//! - I6. The holder of the cache's lock uses the list.
//!
//! ```text
//!   newest ──▶ page ──older──▶ page ──older──▶ .. ──▶ page ◀── oldest
//! ```

#![allow(unsafe_code)]

use super::page::{Page, PagePtr};
use super::recent::RecentPages;
use super::table::Table;

/// The most pages that are taken out while the lock is held once.
pub(super) const BATCH: usize = 32;

/// Pages that were taken out; dropping it frees them.
#[derive(Default)]
pub(super) struct Batch {
    pages: [Option<Page>; BATCH],
    pub(super) len: usize,
}

impl Batch {
    fn push(&mut self, page: Page) {
        self.pages[self.len] = Some(page);
        self.len += 1;
    }
}

/// The evictable pages in order of use: a list through their headers.
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
        // SAFETY: it is in the table (caller's promise), and this thread holds the lock (I6).
        let header = unsafe { page.header() };
        header.is_listed.set(true);
        header.newer.set(None);
        header.older.set(self.newest);
        match self.newest.replace(page) {
            // SAFETY: it is in the list, hence in the table (I5).
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
        // SAFETY: it is in the table (caller's promise), and this thread holds the lock (I6).
        let header = unsafe { page.header() };
        if !header.is_listed.replace(false) {
            return;
        }
        let (newer, older) = (header.newer.get(), header.older.get());
        match newer {
            // SAFETY: it is in the list, hence in the table (I5).
            Some(newer) => unsafe { newer.header() }.older.set(older),
            None => self.newest = older,
        }
        match older {
            // SAFETY: it is in the list, hence in the table (I5).
            Some(older) => unsafe { older.header() }.newer.set(newer),
            None => self.oldest = newer,
        }
        self.len -= 1;
    }
}

/// The pages of a cache.
pub(super) struct Pages {
    pub(super) table: Table,
    /// The evictable pages that are not recent.
    pub(super) list: LruList,
    /// The most pages that SQLite advises to keep.
    pub(super) advised: u32,
    /// New pages for which the group is not asked, because it refused one.
    pub(super) recycle_only: u32,
    max_key: u32,
}

impl Pages {
    pub(super) fn new() -> Pages {
        Pages { table: Table::new(), list: LruList::default(), advised: 0, recycle_only: 0, max_key: 0 }
    }

    /// The page with this key, pinned from here on.
    #[inline]
    pub(super) fn pin(&mut self, key: u32) -> Option<PagePtr> {
        let page = self.table.find(key)?;
        // SAFETY: it is in the table.
        unsafe { self.list.remove(page) };
        Some(page)
    }

    /// Inserts `page`, pinned, under a key that no page has. The table has buckets.
    pub(super) fn insert(&mut self, page: Page, key: u32) -> PagePtr {
        let page = page.into_ptr();
        self.max_key = self.max_key.max(key);
        // SAFETY: it was an owned page, so it is live and in no chain.
        unsafe { self.table.insert(page, key) };
        page
    }

    /// Takes a page out of the table, and out of the list if it is there.
    ///
    /// # Safety
    ///
    /// The page is in the table and not recent. If it is pinned, SQLite has given it up.
    pub(super) unsafe fn take(&mut self, page: PagePtr) -> Page {
        // SAFETY: the caller's promise.
        unsafe { self.list.remove(page) };
        // SAFETY: the caller's promise.
        unsafe { self.table.remove(page) };
        // SAFETY: the page is no longer in a table, and is not used.
        unsafe { page.into_page() }
    }

    /// Recycles a page of the list: pins it under another key, which no page has, as a new one.
    ///
    /// # Safety
    ///
    /// The page is in the list.
    pub(super) unsafe fn recycle(&mut self, page: PagePtr, key: u32) -> PagePtr {
        // SAFETY: the caller's promise.
        let page = unsafe { self.take(page) };
        let page = self.insert(page, key);
        // SAFETY: it is live, and SQLite has unpinned it.
        unsafe { page.mark_new() };
        page
    }

    /// Up to `count` evictable pages, and at most a batch: least recently used first, recent ones
    /// last.
    pub(super) fn take_oldest(&mut self, count: u64, recent: &RecentPages) -> Batch {
        let mut batch = Batch::default();
        while batch.len < BATCH
            && (batch.len as u64) < count
            && let Some(page) = self.list.oldest.or_else(|| recent.take())
        {
            // SAFETY: it is in the list, or was just taken from the recent ones: it is in the
            // table, and SQLite has unpinned it.
            batch.push(unsafe { self.take(page) });
        }
        batch
    }

    /// Takes the next pages, up to a batch, with keys of `limit` or more, pinned or not. SQLite
    /// must have given them up. `progress` begins at 0 and is passed on to the next call. A batch
    /// that is not full is the last one. Only for the connection, while no page is recent.
    pub(super) fn take_from(&mut self, limit: u32, progress: &mut u32) -> Batch {
        let mut batch = Batch::default();
        let Some(above) = self.max_key.checked_sub(limit) else { return batch };
        // A short range is looked up key by key. Otherwise every bucket is searched. Neither bound
        // changes between two batches (I2).
        let by_key = above < self.table.buckets();
        let last = if by_key { above } else { self.table.buckets().saturating_sub(1) };
        while batch.len < BATCH && *progress <= last {
            let at = *progress;
            let found = if by_key { self.table.find(limit + at) } else { self.table.find_from(at, limit) };
            match found {
                // SAFETY: it is in the table, and SQLite has given it up.
                Some(page) => batch.push(unsafe { self.take(page) }),
                None => *progress += 1,
            }
        }
        if batch.len < BATCH {
            self.max_key = limit.saturating_sub(1);
        }
        batch
    }
}
