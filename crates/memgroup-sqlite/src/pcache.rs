//! The page cache: what stands behind `SQLITE_CONFIG_PCACHE2`. It can give back just as many bytes as are asked for, least
//! recently used first, from any thread, also while its connection runs a statement.
//!
//! ```text
//!   SQLite ── fetch ──▶ found: pinned, returned
//!                   ──▶ not found: at the advised size, recycle the least recently used
//!                                  below it, allocate; refused, recycle
//!          ── unpin ──▶ most recently used of those that may go
//!
//!   anybody ── try_shrink(bytes) ──▶ take out least recently used pages ──▶ uncharge their owners, free them
//! ```
//!
//! - I1. A page in the cache is pinned, which is to say SQLite's, or may go; dirty pages are pinned until they are written.
//!   A cache for a database in memory has no page that may go.
//! - I2. SQLite calls the methods of one cache from one thread at a time, and only they put pages in or grow the table. So between
//!   two holdings of the lock a method finds pages that may go gone, and nothing else changed.
//! - I3. No page is charged, allocated or freed, no table got or freed, while the lock is held. A charge may lead into reclaim,
//!   which may come to this very cache: it finds the lock free and takes pages, or finds another thread there and goes on.
//! - I4. A page is paid by the group that was in force when it was allocated, until it is freed. It is recycled in place where
//!   that group is in force again; else it is freed and another one charged to the group in force, so that nobody goes on
//!   paying for what others read. When that group is full the page is recycled all the same.
//! - B1. A group that has refused a page is not asked for the next `ABSTAIN` ones: a refusal returns what all groups prepaid,
//!   which is dear where the cache has a page to recycle. So that long a cache may stay small where there is room again.
//! - B2. When the table gets more buckets, its pages are linked anew under the lock, some tens of nanoseconds each. Nobody waits for that:
//!   a connection waits only for those who shrink, for a batch of pages, and those who shrink do not wait.
//! - E1. Everything under the lock: lock.rs. [`PageCache::evictable`] reads a count that is written under it, and is told what was
//!   true a moment ago.

mod array;
mod front;
mod lock;
#[cfg(all(test, memgroup_loom))]
mod loom;
mod lru;
mod methods;
#[cfg(all(test, not(memgroup_loom)))]
mod model;
mod page;
mod serve;
mod shelf;
#[cfg(all(test, not(memgroup_loom)))]
mod stress;
mod table;
#[cfg(all(test, not(memgroup_loom)))]
mod tests;

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use memgroup::{Charge, GroupId};
use memgroup_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use memgroup_sync::interleave;

use front::Front;
use lock::{Guard, Lock};
use page::Format;
use shelf::Shelf;

pub(crate) use methods::methods;
#[cfg(all(test, not(memgroup_loom)))]
pub(crate) use tests::refused;

/// Who is told of page caches as they come and go.
pub(crate) trait Listener: Send + Sync {
    /// SQLite has made a cache whose pages can go, while `group` was in force on the thread, if any of the hierarchy was. The
    /// thread may hold SQLite's mutexes.
    fn created(&self, cache: &Arc<PageCache>, group: Option<GroupId>);

    /// The cache has got twice the buckets, because so many pages have come.
    fn grown(&self, _cache: &PageCache) {}

    /// SQLite is about to destroy the cache; it has no page when somebody still holds it after that.
    fn destroyed(&self, cache: &Arc<PageCache>);
}

static LISTENER: OnceLock<&'static dyn Listener> = OnceLock::new();

/// Tells `listener` of all page caches from now on; false if there is one already.
pub(crate) fn listen(listener: &'static dyn Listener) -> bool {
    LISTENER.set(listener).is_ok()
}

/// What [`PageCache::try_shrink`] could free now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Evictable {
    pub(crate) bytes: u64,
    pub(crate) pages: u32,
}

/// What became of a [`PageCache::try_shrink`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shrunk {
    /// Pages that cost their owners so many bytes were freed.
    Freed(u64),
    /// The cache's lock was held; nothing was freed.
    Busy,
}

/// One cache of SQLite's: the pages of one database of one connection.
pub(crate) struct PageCache {
    front: Front,
    shelf: Lock<Shelf>,
    /// Pages in the list of those that may go, written under the lock.
    listed: AtomicU32,
    /// Whether a page that SQLite lets go is not kept: there are more than SQLite advises, or it stays pinned, because the database is in memory. Written under the lock.
    keeps_none: AtomicBool,
    format: Format,
    is_purgeable: bool,
    /// What this structure costs.
    _charge: Charge,
}

/// The lock of a cache, held. Releasing it tells how many pages may go.
struct Held<'c> {
    shelf: Guard<'c, Shelf>,
    cache: &'c PageCache,
}

impl Deref for Held<'_> {
    type Target = Shelf;

    #[inline]
    fn deref(&self) -> &Shelf {
        &self.shelf
    }
}

impl DerefMut for Held<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Shelf {
        &mut self.shelf
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING: Relaxed; a figure that is out of date when it is read, and leads to nothing but an attempt.
        self.cache.listed.store(self.shelf.listed(), Ordering::Relaxed);
        let keeps_none = !self.cache.is_purgeable || self.shelf.table.pages() > self.shelf.advised;
        // ORDERING: Relaxed; read by the connection, which makes it true itself.
        self.cache.keeps_none.store(keeps_none, Ordering::Relaxed);
    }
}

/// For whoever shrinks the cache, on any thread.
impl PageCache {
    /// What [`PageCache::try_shrink`] could free now. Some loads: the lock is not taken.
    pub(crate) fn evictable(&self) -> Evictable {
        // ORDERING: Relaxed; as in `Held::drop`.
        let pages = self.listed.load(Ordering::Relaxed) + self.front.count();
        Evictable { bytes: u64::from(pages) * self.format.charged_bytes(), pages }
    }

    /// Frees least recently used pages until at least `bytes` are freed, which is less than one page more, or no page is left
    /// that may go. Who paid for them gets the bytes back.
    ///
    /// Never waits. The lock is taken for a batch of pages at a time; when another thread has it then, fewer bytes are freed than
    /// asked for. Pages are freed, and their owners uncharged, after it is released.
    pub(crate) fn try_shrink(&self, bytes: u64) -> Shrunk {
        let page_bytes = self.format.charged_bytes();
        let wanted_pages = bytes.div_ceil(page_bytes);
        let mut freed_pages = 0;
        while freed_pages < wanted_pages {
            let Some(mut shelf) = self.try_lock() else {
                if freed_pages == 0 {
                    return Shrunk::Busy;
                }
                break;
            };
            let batch = shelf.take_oldest(wanted_pages - freed_pages, &self.front);
            drop(shelf);
            interleave::point();
            if batch.len() == 0 {
                break;
            }
            freed_pages += batch.len() as u64;
        }
        Shrunk::Freed(freed_pages * page_bytes)
    }

    fn try_lock(&self) -> Option<Held<'_>> {
        self.shelf.try_lock().map(|shelf| Held { shelf, cache: self })
    }
}
