//! What a cache does for SQLite: the methods of methods.rs, past the language's border.
//!
//! - I1. The connection's thread is here, one at a time. It takes the lock for some instructions, with everything that it has let go of put
//!   into the list ([`PageCache::lock`]), and allocates and frees without it.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::Arc;

use memgroup_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use memgroup_sync::interleave;

use super::front::Front;
use super::lock::Lock;
use super::page::{Format, Page, Pin};
use super::shelf::{BATCH, Batch, Progress, Shelf};
use super::table::more_buckets;
use super::{Held, LISTENER, PageCache};
use crate::alloc;
use crate::shortage::{self, Shortage};

/// New pages for which a group is not asked after it has refused one.
pub(super) const ABSTAIN: u32 = 64;

/// What a fetch does when the page is not in the cache.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Create {
    No,
    IfEasy,
    IfPossible,
}

/// SQLite's number for a [`Create`].
impl From<c_int> for Create {
    fn from(flag: c_int) -> Create {
        match flag {
            0 => Create::No,
            1 => Create::IfEasy,
            _ => Create::IfPossible,
        }
    }
}

impl PageCache {
    /// A cache without pages, charged to the group in force, which is told to the listener; `None` when it is refused.
    pub(super) fn create(format: Format, is_purgeable: bool) -> Option<Arc<PageCache>> {
        let account = alloc::ACCOUNT.get()?;
        let (charged, group) = match account.hierarchy.try_charge_current(size_of::<PageCache>() as u64) {
            Some(Ok(charge)) => {
                let (id, bytes) = charge.into_parts();
                (Ok(account.hierarchy.charge_from_parts(id, bytes)), Some(id))
            }
            Some(Err(refusal)) => (Err(refusal), None),
            None => (account.unattributed.try_charge(size_of::<PageCache>() as u64), None),
        };
        let charge = match charged {
            Ok(charge) => charge,
            Err(refusal) => {
                shortage::note(Shortage::Refused(refusal));
                return None;
            }
        };
        let cache = Arc::new(PageCache {
            front: Front::default(),
            shelf: Lock::new(Shelf::new()),
            listed: AtomicU32::new(0),
            keeps_none: AtomicBool::new(!is_purgeable),
            format,
            is_purgeable,
            _charge: charge,
        });
        if is_purgeable && let Some(listener) = LISTENER.get() {
            listener.created(&cache, group);
        }
        Some(cache)
    }

    /// The end of the cache for SQLite.
    pub(super) fn destroy(self: Arc<Self>) {
        if self.is_purgeable
            && let Some(listener) = LISTENER.get()
        {
            listener.destroyed(&self);
        }
        self.truncate(0);
        let room = self.lock().table.vacate();
        drop(room);
    }

    /// Advises to keep up to `pages`.
    pub(super) fn advise(&self, pages: u32) {
        self.lock().advised = pages;
        self.trim(pages);
    }

    /// Frees everything that may go, and what an empty cache does not need.
    pub(super) fn empty(&self) {
        self.trim(0);
        let room = self.lock().table.vacate();
        drop(room);
    }

    /// Frees least recently used pages until there are not more than `pages`, or no page is left that may go.
    fn trim(&self, pages: u32) {
        loop {
            let mut shelf = self.lock();
            let excess = shelf.table.pages().saturating_sub(pages);
            let batch = if self.is_purgeable {
                shelf.take_oldest(excess.into(), &self.front)
            } else {
                Batch::default()
            };
            drop(shelf);
            if batch.len() < BATCH {
                return;
            }
        }
    }

    pub(super) fn pages(&self) -> u32 {
        self.lock().table.pages()
    }

    /// The page with this key, pinned.
    #[inline]
    pub(super) fn fetch(&self, key: u32, create: c_int) -> Option<Pin> {
        match self.front.claim(key) {
            Some(page) => Some(page),
            None => self.look_up(key, create),
        }
    }

    // Not inlined, nor is `make`: who finds the page before does not pay for what they need.
    #[inline(never)]
    fn look_up(&self, key: u32, create: c_int) -> Option<Pin> {
        let create = Create::from(create);
        let mut shelf = self.lock();
        match shelf.pin(key) {
            Some(page) => Some(page),
            None if create == Create::No => None,
            None => self.make(shelf, key, create),
        }
    }

    /// A new page with this key, pinned.
    #[inline(never)]
    fn make<'c>(&'c self, mut shelf: Held<'c>, key: u32, create: Create) -> Option<Pin> {
        let mut foreign = None;
        if self.is_purgeable {
            if create == Create::IfEasy && u64::from(shelf.unlisted()) >= u64::from(shelf.advised) * 9 / 10 {
                return None;
            }
            let abstains = shelf.abstain > 0;
            shelf.abstain = shelf.abstain.saturating_sub(1);
            if abstains || shelf.table.pages() + 1 >= shelf.advised {
                match shelf.oldest() {
                    Some((page, is_ours)) if is_ours || abstains => {
                        // SAFETY: it is in the list.
                        return Some(unsafe { shelf.reuse(page, key) });
                    }
                    // SAFETY: it is in the list.
                    Some((page, _)) => foreign = Some(unsafe { shelf.take(page) }),
                    // SQLite writes a dirty page now, which then may go, and asks for more than what is easy.
                    None if abstains && create == Create::IfEasy => return None,
                    None => {}
                }
            }
        }
        let (is_full, buckets) = (shelf.table.is_full(), shelf.table.buckets());
        drop(shelf);
        interleave::point();
        // What may lead into reclaim comes while the lock is free (I3). Without more buckets the chains get longer.
        let has_bucket = !is_full || self.grow(buckets) || buckets > 0;
        let allocated = if has_bucket { Page::allocate(self.format) } else { None };
        let is_refused = allocated.is_none();
        let page = allocated.or(foreign);
        let mut shelf = self.lock();
        if is_refused {
            shelf.abstain = ABSTAIN;
        }
        match page {
            Some(page) => Some(shelf.put(page, key)),
            None => {
                let (page, _) = shelf.oldest()?;
                // SAFETY: it is in the list.
                Some(unsafe { shelf.reuse(page, key) })
            }
        }
    }

    /// Gets the table more buckets; whether that was granted.
    fn grow(&self, buckets: u32) -> bool {
        let Some(more) = more_buckets(buckets) else { return false };
        let old = self.lock().table.move_into(more);
        drop(old);
        if self.is_purgeable
            && let Some(listener) = LISTENER.get()
        {
            listener.grown(self);
        }
        true
    }

    /// Lets go of a pinned page, which is dropped if SQLite says so or the cache is above its advised size.
    ///
    /// # Safety
    ///
    /// SQLite has the page pinned, in this cache.
    #[inline]
    pub(super) unsafe fn unpin(&self, page: Pin, discard: bool) {
        // SAFETY: the page stands in the table (caller's word), and the connection may read the key (page.rs, I3).
        let key = unsafe { page.header() }.key.get();
        // ORDERING: Relaxed; as in `Held::drop`.
        let keeps_none = self.keeps_none.load(Ordering::Relaxed);
        if discard || keeps_none || !self.front.offer(page, key) {
            // SAFETY: the caller's word.
            unsafe { self.unpin_slowly(page, discard) };
        }
    }

    /// # Safety
    ///
    /// As for [`PageCache::unpin`].
    unsafe fn unpin_slowly(&self, page: Pin, discard: bool) {
        let mut shelf = self.lock();
        if discard || (self.is_purgeable && shelf.table.pages() > shelf.advised) {
            // SAFETY: the caller's word; SQLite gives the page up.
            let page = unsafe { shelf.take(page) };
            drop(shelf);
            drop(page);
        } else if self.is_purgeable {
            // SAFETY: the caller's word; SQLite lets the page go.
            unsafe { shelf.unpin(page) };
        }
    }

    /// Gives a pinned page another key; a page that has it is dropped.
    ///
    /// # Safety
    ///
    /// SQLite has the page pinned, in this cache, and no other page with the new key.
    pub(super) unsafe fn rekey(&self, page: Pin, new: u32) {
        let mut shelf = self.lock();
        let displaced = shelf.take_key(new);
        // SAFETY: the caller's word.
        unsafe { shelf.rekey(page, new) };
        drop(shelf);
        drop(displaced);
    }

    /// Drops all pages whose keys are `limit` or more, pinned or not.
    pub(super) fn truncate(&self, limit: u32) {
        let mut progress = Progress::default();
        loop {
            // The lock is released at the end of the statement, the pages are freed after it.
            let batch = self.lock().take_from(limit, &mut progress);
            if batch.len() < BATCH {
                return;
            }
        }
    }

    /// For the connection: everything that it has let go of is in the list.
    #[inline]
    fn lock(&self) -> Held<'_> {
        let mut shelf = self.shelf.lock();
        // SAFETY: the pages are just taken from `front`: they are in the table, not in the list, and SQLite has let them go.
        self.front.take_all(|page| unsafe { shelf.unpin(page) });
        Held { shelf, cache: self }
    }
}
