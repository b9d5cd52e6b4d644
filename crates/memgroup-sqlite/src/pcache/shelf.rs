//! What the lock of a cache protects: its pages by key, and those that may go by use.
//!
//! - I1. A page in the table is pinned, in `front`, or in the list.
//! - I2. Pages are put in, pinned and unpinned by the thread that uses the connection alone; others take out those that may go.
//! - I3. `max_key` is at least the greatest key in the table.
//! - I4. No page is allocated or freed here: what is taken out goes to the caller, who frees it after releasing the lock.

#![allow(unsafe_code)]

use super::front::Front;
use super::lru::List;
use super::page::{Page, Pin};
use super::table::Table;

/// Pages that are taken out under one holding of the lock.
pub(super) const BATCH: usize = 32;

/// Pages that were taken out; dropping it frees them.
#[derive(Default)]
pub(super) struct Batch {
    pages: [Option<Page>; BATCH],
    len: usize,
}

impl Batch {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn is_full(&self) -> bool {
        self.len == BATCH
    }

    fn push(&mut self, page: Page) {
        self.pages[self.len] = Some(page);
        self.len += 1;
    }
}

/// How far a truncation has come; see [`Shelf::take_from`].
#[derive(Default)]
pub(super) struct Progress(u32);

/// The pages of a cache.
pub(super) struct Shelf {
    pub(super) table: Table,
    list: List,
    /// Pages that SQLite advises to keep at the most.
    pub(super) advised: u32,
    /// New pages for which the group is not asked, because it refused the last one.
    pub(super) abstain: u32,
    max_key: u32,
}

impl Shelf {
    pub(super) const fn new() -> Shelf {
        Shelf { table: Table::new(), list: List::new(), advised: 0, abstain: 0, max_key: 0 }
    }

    /// Pages in the list.
    #[inline]
    pub(super) fn listed(&self) -> u32 {
        self.list.len()
    }

    /// Pages that are not in the list.
    pub(super) fn unlisted(&self) -> u32 {
        self.table.pages() - self.list.len()
    }

    /// The page with this key, pinned from here on.
    #[inline]
    pub(super) fn pin(&mut self, key: u32) -> Option<Pin> {
        let page = self.table.find(key)?;
        // SAFETY: it stands in the table.
        unsafe { self.list.unlink(page) };
        Some(page)
    }

    /// Puts a page into the list: it may be taken out from now on.
    ///
    /// # Safety
    ///
    /// The page stands in this shelf's table, not in its list, and SQLite has let it go.
    #[inline]
    pub(super) unsafe fn unpin(&mut self, page: Pin) {
        // SAFETY: the caller's word.
        unsafe { self.list.push(page) };
    }

    /// Puts `page` in, pinned, under a key that no page has. There is a bucket for it.
    pub(super) fn put(&mut self, page: Page, key: u32) -> Pin {
        self.max_key = self.max_key.max(key);
        let page = page.into_pin();
        // SAFETY: it was a page that stands nowhere.
        unsafe { self.table.insert(page, key) };
        page
    }

    /// Takes a page out, wherever it stands.
    ///
    /// # Safety
    ///
    /// The page stands in this shelf's table, and not in `front`. If it is pinned, SQLite has given it up.
    pub(super) unsafe fn take(&mut self, page: Pin) -> Page {
        // SAFETY: the caller's word.
        unsafe { self.list.unlink(page) };
        // SAFETY: as above.
        unsafe { self.table.remove(page) };
        // SAFETY: the page is in no table any more, and nobody uses it.
        unsafe { page.into_page() }
    }

    /// The least recently used page of the list, and whether the group that would be charged for a new page has paid for it.
    pub(super) fn oldest(&self) -> Option<(Pin, bool)> {
        let page = self.list.oldest()?;
        // SAFETY: the page is in the list, and the shelf is borrowed from the lock's guard.
        Some((page, unsafe { page.is_paid_by_current() }))
    }

    /// Pins a page of the list under another key, which no page has, as a new one.
    ///
    /// # Safety
    ///
    /// The page stands in this shelf's list.
    pub(super) unsafe fn reuse(&mut self, page: Pin, key: u32) -> Pin {
        // SAFETY: the caller's word.
        unsafe { self.list.unlink(page) };
        // SAFETY: as above.
        unsafe { self.rekey(page, key) };
        // SAFETY: it is live, and SQLite has let it go.
        unsafe { page.renewed() }
    }

    /// Gives a page the key `new`, which no page has.
    ///
    /// # Safety
    ///
    /// The page stands in this shelf's table.
    pub(super) unsafe fn rekey(&mut self, page: Pin, new: u32) {
        self.max_key = self.max_key.max(new);
        // SAFETY: the caller's word.
        unsafe { self.table.rekey(page, new) };
    }

    /// Takes out the page with this key, which is not pinned, if there is one.
    pub(super) fn take_key(&mut self, key: u32) -> Option<Page> {
        let page = self.table.find(key)?;
        // SAFETY: it stands in the table, not in `front`, which is empty while the connection holds the lock.
        Some(unsafe { self.take(page) })
    }

    /// Up to `count` pages that may go, and not more than a batch, least recently used first; last of all those in `front`.
    pub(super) fn take_oldest(&mut self, count: u64, front: &Front) -> Batch {
        let mut batch = Batch::default();
        while !batch.is_full()
            && (batch.len() as u64) < count
            && let Some(page) = self.list.oldest().or_else(|| front.take())
        {
            // SAFETY: it is in the list, or was just taken from `front`, so it stands in the table and SQLite has let it go.
            batch.push(unsafe { self.take(page) });
        }
        batch
    }

    /// The next pages, up to a batch, whose keys are `limit` or more, pinned or not; SQLite has given them up. A batch that is not
    /// full is the last. For the connection: `front` is empty.
    pub(super) fn take_from(&mut self, limit: u32, progress: &mut Progress) -> Batch {
        let mut batch = Batch::default();
        let Some(above) = self.max_key.checked_sub(limit) else { return batch };
        // A short range is looked up key by key; else every bucket is looked through. Neither bound moves between two batches (I2).
        let by_key = above < self.table.buckets();
        let last = if by_key { above } else { self.table.buckets().saturating_sub(1) };
        while !batch.is_full() && progress.0 <= last {
            let at = progress.0;
            let found = if by_key { self.table.find(limit + at) } else { self.table.find_from(at, limit) };
            match found {
                // SAFETY: it stands in the table, and SQLite has given it up.
                Some(page) => batch.push(unsafe { self.take(page) }),
                None => progress.0 += 1,
            }
        }
        if !batch.is_full() {
            self.max_key = limit.saturating_sub(1);
        }
        batch
    }
}
