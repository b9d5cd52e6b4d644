//! The methods of a cache for SQLite, behind the C interface of methods.rs.
//!
//! - I1. One thread at a time runs these methods: the one that uses the connection. It holds the
//!   lock for a few instructions, with all recent pages moved to the list ([`PageCache::lock`]),
//!   and allocates and frees without it.

#![allow(unsafe_code)]

use std::ffi::c_int;

use memgroup_sync::atomic::Ordering;
use memgroup_sync::interleave;

use super::cache::{LockedPages, PageCache};
use super::page::{Page, PagePtr};
use super::pages::BATCH;
use super::table::Buckets;

/// New pages for which a group is not asked after it has refused one.
pub(super) const RECYCLED_AFTER_REFUSAL: u32 = 64;

/// SQLite's flags for a page that is not in the cache: create none; or create one only if that
/// takes no write of a dirty page.
const CREATE_NONE: c_int = 0;
const CREATE_IF_EASY: c_int = 1;

impl PageCache {
    /// Ends the cache for SQLite.
    pub(super) fn destroy(&self) {
        self.unregister();
        self.truncate(0);
        self.free_buckets();
    }

    /// Sets the advised size.
    pub(super) fn advise(&self, pages: u32) {
        self.lock().pages.advised = pages;
        self.trim(pages);
    }

    /// Frees all evictable pages, and the table of an empty cache.
    pub(super) fn empty(&self) {
        self.trim(0);
        self.free_buckets();
    }

    fn free_buckets(&self) {
        // The lock is released at the end of the statement, the buckets are freed after it.
        let buckets = self.lock().pages.table.take_buckets();
        drop(buckets);
    }

    /// Frees least recently used pages until at most `pages` are left, or no page is evictable.
    fn trim(&self, pages: u32) {
        loop {
            let mut locked = self.lock();
            let excess = locked.pages.table.pages.saturating_sub(pages);
            let count = if self.is_purgeable { excess.into() } else { 0 };
            let batch = locked.pages.take_oldest(count, &self.recent);
            drop(locked);
            if batch.len < BATCH {
                return;
            }
        }
    }

    /// The page with this key, pinned.
    #[inline]
    pub(super) fn fetch(&self, key: u32, create: c_int) -> Option<PagePtr> {
        match self.recent.claim(key) {
            Some(page) => Some(page),
            None => self.fetch_slow(key, create),
        }
    }

    // Neither this nor `create_page` is inlined, so that a fetch that finds the page earlier does
    // not pay for their stack frames.
    #[inline(never)]
    fn fetch_slow(&self, key: u32, create: c_int) -> Option<PagePtr> {
        let mut locked = self.lock();
        match locked.pages.pin(key) {
            Some(page) => Some(page),
            None if create == CREATE_NONE => None,
            None => self.create_page(locked, key, create == CREATE_IF_EASY),
        }
    }

    /// A new page with this key, pinned.
    #[inline(never)]
    fn create_page(&self, mut locked: LockedPages<'_>, key: u32, only_if_easy: bool) -> Option<PagePtr> {
        let (pages, mut of_other_group) = (&mut *locked.pages, None);
        if self.is_purgeable {
            let pinned = pages.table.pages - pages.list.len;
            if only_if_easy && u64::from(pinned) >= u64::from(pages.advised) * 9 / 10 {
                return None;
            }
            let recycle_only = pages.recycle_only > 0;
            pages.recycle_only = pages.recycle_only.saturating_sub(1);
            if recycle_only || pages.table.pages + 1 >= pages.advised {
                match pages.list.oldest {
                    // SAFETY: it is in the list, so it is not pinned; the lock is held.
                    Some(page) if recycle_only || unsafe { page.is_owned_by_current() } => {
                        // SAFETY: it is in the list.
                        return Some(unsafe { pages.recycle(page, key) });
                    }
                    // SAFETY: it is in the list.
                    Some(page) => of_other_group = Some(unsafe { pages.take(page) }),
                    // SQLite now writes a dirty page, which makes it evictable, and fetches again
                    // with another flag.
                    None if recycle_only && only_if_easy => return None,
                    None => {}
                }
            }
        }
        let (is_full, buckets) = (pages.table.pages >= pages.table.buckets(), pages.table.buckets());
        drop(locked);
        interleave::point();
        // These allocations may reclaim memory from this cache, so the lock is free (`pcache` I2).
        // Without more buckets the chains grow.
        let has_bucket = !is_full || self.grow(buckets) || buckets > 0;
        let allocated = if has_bucket { Page::allocate(self.format) } else { None };
        let is_refused = allocated.is_none();
        let mut locked = self.lock();
        if is_refused {
            locked.pages.recycle_only = RECYCLED_AFTER_REFUSAL;
        }
        match allocated.or(of_other_group) {
            Some(page) => Some(locked.pages.insert(page, key)),
            None => {
                let page = locked.pages.list.oldest?;
                // SAFETY: it is in the list.
                Some(unsafe { locked.pages.recycle(page, key) })
            }
        }
    }

    /// Doubles the table's buckets; false when they are refused.
    fn grow(&self, buckets: u32) -> bool {
        let Some(more) = Buckets::double(buckets) else { return false };
        let old = self.lock().pages.table.move_into(more);
        drop(old);
        if let Some(shrinker) = &*self.shrinker.lock() {
            shrinker.mark();
        }
        true
    }

    /// Unpins a page. It is freed if SQLite discards it or the cache is above its advised size.
    ///
    /// # Safety
    ///
    /// SQLite has the page pinned, in this cache.
    #[inline]
    pub(super) unsafe fn unpin(&self, page: PagePtr, discard: bool) {
        // SAFETY: the page is in the table (caller's promise), and the connection may read the key
        // (page.rs, I3).
        let key = unsafe { page.header() }.key.get();
        // ORDERING: Relaxed; as in `LockedPages::drop`.
        if discard || self.skips_recent.load(Ordering::Relaxed) || !self.recent.offer(page, key) {
            // SAFETY: the caller's promise.
            unsafe { self.unpin_slow(page, discard) };
        }
    }

    /// # Safety
    ///
    /// As for [`PageCache::unpin`].
    unsafe fn unpin_slow(&self, page: PagePtr, discard: bool) {
        let mut locked = self.lock();
        if discard || (self.is_purgeable && locked.pages.table.pages > locked.pages.advised) {
            // SAFETY: the caller's promise; SQLite gives the page up.
            let page = unsafe { locked.pages.take(page) };
            drop(locked);
            drop(page);
        } else if self.is_purgeable {
            // SAFETY: the caller's promise; SQLite unpins the page.
            unsafe { locked.pages.list.push(page) };
        }
    }

    /// Gives a pinned page another key. A page that has this key is freed.
    ///
    /// # Safety
    ///
    /// SQLite has the page pinned, in this cache, and no other page with the new key.
    pub(super) unsafe fn rekey(&self, page: PagePtr, new: u32) {
        let mut locked = self.lock();
        // SAFETY: it is in the table and, with the lock held by the connection, not recent.
        let displaced = locked.pages.table.find(new).map(|other| unsafe { locked.pages.take(other) });
        // SAFETY: the caller's promise; SQLite does not use the page in the meantime.
        let page = unsafe { locked.pages.take(page) };
        locked.pages.insert(page, new);
        drop(locked);
        drop(displaced);
    }

    /// Frees all pages with keys of `limit` or more, pinned or not.
    pub(super) fn truncate(&self, limit: u32) {
        let mut progress = 0;
        loop {
            // The lock is released at the end of the statement, the pages are freed after it.
            let batch = self.lock().pages.take_from(limit, &mut progress);
            if batch.len < BATCH {
                return;
            }
        }
    }
}
