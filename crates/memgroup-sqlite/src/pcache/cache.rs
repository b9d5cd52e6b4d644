//! One page cache: its state, its shrinker, and the part of it that any thread may call.
//!
//! ```text
//!   a charge that does not fit ──▶ shrinkers of the full group's subtree ──▶ PageCache::try_shrink ──▶ pages freed, uncharged
//!   the kill hook of an idle group ──▶ try_shrink_group ──▶ the same
//! ```
//!
//! Any thread may shrink any cache, even while its connection is running a statement: pinned pages
//! stay, and the cache's lock is tried, never waited for. So shrinking does not need the
//! connection's mutex, which would not help anyway: it is recursive, so it would let a thread
//! shrink a cache in the middle of a call. A thread that allocates a page does not hold the cache's
//! lock (`pcache` I2), and may get memory from its own cache.
//!
//! - I1. A purgeable cache is registered with its group's shrinkers from its creation to its end.
//!   Its removal waits for running calls of the shrinker, each of which frees pages in batches.
//! - B1. An empty cache counts as one that has nothing now, not as one that the engine can skip,
//!   because it does not report its first evictable page. So the engine counts it at the last
//!   priorities.

#![allow(unsafe_code)]

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, LazyLock, Weak};

use memgroup::{Ask, Charge, Count, GroupId, GroupShrinker, Scan, Shrinker, ShrinkerConfig};
use memgroup_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use memgroup_sync::{Mutex, interleave};

use super::lock::{Guard, Lock};
use super::page::Format;
use super::pages::Pages;
use super::recent::RecentPages;
use crate::account::ACCOUNT;
use crate::allocation_error::{self, AllocationError};

/// The shrinkers' name in reports.
const SHRINKER_NAME: &str = "sqlite page cache";

/// The registered caches of each group.
static CACHES: LazyLock<Mutex<HashMap<GroupId, Vec<Weak<PageCache>>>>> = LazyLock::new(Mutex::default);

/// The pages of one database of one connection.
pub(super) struct PageCache {
    pub(super) recent: RecentPages,
    pages: Lock<Pages>,
    /// Pages in the list of evictable ones. Written under the lock.
    listed: AtomicU32,
    /// Whether an unpinned page does not become recent: the cache has more pages than SQLite
    /// advises, or its pages are not evictable. Written under the lock.
    pub(super) skips_recent: AtomicBool,
    pub(super) format: Format,
    /// Whether unpinned pages are evictable, because they are in a file too. SQLite says so when it
    /// creates the cache.
    pub(super) is_purgeable: bool,
    pub(super) shrinker: Mutex<Option<GroupShrinker>>,
    /// The charge for this structure.
    charge: Charge,
}

/// A held lock of a cache. Dropping it publishes the counts that are read without the lock.
pub(super) struct LockedPages<'c> {
    pub(super) pages: Guard<'c, Pages>,
    cache: &'c PageCache,
}

impl Drop for LockedPages<'_> {
    #[inline]
    fn drop(&mut self) {
        let skips_recent = !self.cache.is_purgeable || self.pages.table.pages > self.pages.advised;
        // ORDERING: Relaxed, because a stale count causes at most a futile attempt.
        self.cache.listed.store(self.pages.list.len, Ordering::Relaxed);
        // ORDERING: Relaxed; only the connection reads it, and only its own calls make it true.
        self.cache.skips_recent.store(skips_recent, Ordering::Relaxed);
    }
}

/// Evictable pages of a cache, and their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Evictable {
    pub(super) bytes: u64,
    pub(super) pages: u32,
}

impl PageCache {
    /// A cache without pages, charged to the current group and registered with its shrinkers;
    /// `None` when the charge is refused.
    pub(super) fn create(format: Format, is_purgeable: bool) -> Option<Arc<PageCache>> {
        let charge = match ACCOUNT.get()?.charge(size_of::<PageCache>() as u64) {
            Ok(charge) => charge,
            Err(refusal) => return allocation_error::record(AllocationError::Refused(refusal)),
        };
        let cache = Arc::new(PageCache {
            recent: RecentPages::default(),
            pages: Lock::new(Pages::new()),
            listed: AtomicU32::new(0),
            skips_recent: AtomicBool::new(!is_purgeable),
            format,
            is_purgeable,
            shrinker: Mutex::new(None),
            charge,
        });
        if is_purgeable {
            cache.register();
        }
        Some(cache)
    }

    fn register(self: &Arc<Self>) {
        let group = self.charge.group();
        let shrinker = CacheShrinker(Arc::downgrade(self));
        // It fails for a group that was just removed. Such a cache is not shrunk, and goes with its
        // connection.
        if let Ok(shrinker) = group.add_shrinker(ShrinkerConfig::new(SHRINKER_NAME), shrinker) {
            shrinker.mark();
            CACHES.lock().entry(group.id()).or_default().push(Arc::downgrade(self));
            *self.shrinker.lock() = Some(shrinker);
        }
    }

    /// Ends the registration, and waits for running calls of the shrinker (I1).
    pub(super) fn unregister(&self) {
        let shrinker = self.shrinker.lock().take();
        let Some(shrinker) = shrinker else { return };
        if let Entry::Occupied(mut caches) = CACHES.lock().entry(self.charge.group().id()) {
            caches.get_mut().retain(|other| !std::ptr::eq(other.as_ptr(), self));
            if caches.get().is_empty() {
                caches.remove();
            }
        }
        // It fails only within a call of the shrinker itself, and SQLite destroys no cache there.
        let _ = shrinker.remove();
    }

    /// Pages and bytes that [`PageCache::try_shrink`] could free now: loads only, without the lock.
    pub(super) fn evictable(&self) -> Evictable {
        // ORDERING: Relaxed; as in `LockedPages::drop`.
        let pages = self.listed.load(Ordering::Relaxed) + self.recent.count();
        Evictable { bytes: u64::from(pages) * self.format.charged_bytes(), pages }
    }

    /// Frees least recently used pages until at least `bytes` are freed, and less than one page
    /// more; or until no page is evictable. Uncharges their owners. Returns the freed bytes; `None`
    /// when another thread holds the lock at the first batch.
    ///
    /// It never waits for the lock, which is tried for each batch of pages. If another thread holds
    /// it at a later batch, fewer bytes are freed than asked for. Pages are uncharged and freed
    /// after it is released.
    pub(super) fn try_shrink(&self, bytes: u64) -> Option<u64> {
        let page_bytes = self.format.charged_bytes();
        let wanted_pages = bytes.div_ceil(page_bytes);
        let mut freed_pages = 0;
        while freed_pages < wanted_pages {
            let Some(pages) = self.pages.try_lock() else {
                if freed_pages == 0 {
                    return None;
                }
                break;
            };
            let mut locked = LockedPages { pages, cache: self };
            let batch = locked.pages.take_oldest(wanted_pages - freed_pages, &self.recent);
            drop(locked);
            interleave::point();
            if batch.len == 0 {
                break;
            }
            freed_pages += batch.len as u64;
        }
        Some(freed_pages * page_bytes)
    }

    /// For the connection: takes the lock, and moves all recent pages to the list.
    #[inline]
    pub(super) fn lock(&self) -> LockedPages<'_> {
        let mut pages = self.pages.lock();
        // SAFETY: the pages were recent: they are in the table, not in the list, and SQLite has
        // unpinned them.
        self.recent.take_all(|page| unsafe { pages.list.push(page) });
        LockedPages { pages, cache: self }
    }
}

/// The shrinker of one cache.
struct CacheShrinker(Weak<PageCache>);

impl Shrinker for CacheShrinker {
    fn count(&self, _token: u64) -> Count {
        let Some(cache) = self.0.upgrade() else { return Count::Empty };
        let Evictable { bytes, pages } = cache.evictable();
        Count::Holds { bytes, objects: pages.into() }
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        match self.0.upgrade().and_then(|cache| cache.try_shrink(ask.bytes())) {
            Some(bytes) if bytes > 0 => Scan::Freed { bytes },
            _ => Scan::Stopped { bytes: 0 },
        }
    }
}

/// Frees at least `bytes` of evictable pages in caches of this group, and less than a page more; or
/// all it finds. Returns the freed bytes. Waits for no lock of this crate and allocates nothing,
/// for callers within a charge.
///
/// A cache that is shrunk or destroyed at the same time may be skipped.
pub(crate) fn try_shrink_group(group: GroupId, bytes: u64) -> u64 {
    let (mut freed, mut at) = (0, 0);
    // The lock is released between two caches, so that caches can come and go.
    while freed < bytes
        && let Some(cache) = try_nth(group, at)
    {
        freed += cache.upgrade().and_then(|cache| cache.try_shrink(bytes - freed)).unwrap_or(0);
        at += 1;
    }
    freed
}

/// A cache of the group; `None` behind the last, and when another thread holds the lock.
fn try_nth(group: GroupId, at: usize) -> Option<Weak<PageCache>> {
    CACHES.try_lock()?.get(&group)?.get(at).cloned()
}

#[cfg(all(test, not(memgroup_loom)))]
pub(super) fn caches_of(group: &memgroup::Group) -> Vec<Arc<PageCache>> {
    let caches = CACHES.lock();
    caches.get(&group.id()).into_iter().flatten().filter_map(Weak::upgrade).collect()
}
