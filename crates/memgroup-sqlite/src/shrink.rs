//! Shrink: each page cache of SQLite's is a shrinker of the group that was in force when it was made.
//!
//! ```text
//!   a charge that does not fit ──▶ shrinkers of the full group's subtree ──▶ PageCache::try_shrink ──▶ pages freed, uncharged
//! ```
//!
//! Any thread shrinks any cache, also one whose connection is running a statement: pages in use stay, and the cache's lock is tried, never
//! waited for. So nothing here needs the connection's mutex, which is recursive and would let a thread shrink the connection it is
//! just using; a thread that allocates a page does not hold the cache's lock (`pcache` I3), and may well get memory out of its own cache.
//!
//! - I1. A cache is registered from its making to its end, whose removal waits for calls of it that run: a batch of pages.
//! - B1. An empty cache says that it holds nothing, not that it is empty: nobody tells when the first page may go. So it is counted at
//!   the last priorities.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use memgroup::{Ask, Count, Group, GroupId, GroupShrinker, Scan, Shrinker, ShrinkerConfig};

use crate::alloc::ACCOUNT;
use crate::pcache::{self, Listener, PageCache, Shrunk};

/// What the shrinkers are called.
const NAME: &str = "sqlite page cache";

/// The caches that are registered.
#[derive(Default)]
struct Registered {
    /// By address, with the group's id.
    shrinkers: HashMap<usize, (GroupShrinker, GroupId)>,
    of_group: HashMap<GroupId, Vec<Weak<PageCache>>>,
}

struct Caches(LazyLock<Mutex<Registered>>);

static CACHES: Caches = Caches(LazyLock::new(Mutex::default));

/// From now on page caches give way to whoever needs memory. Whoever was told of caches before goes on being told, and then they do not.
pub(crate) fn begin() {
    pcache::listen(&CACHES);
}

/// Frees up to `bytes`, and less than a page more, of what caches of this group hold and can do without; for who is asked within a charge. Waits for nothing and allocates nothing.
///
/// A cache that is shrunk or destroyed meanwhile may be passed over.
pub(crate) fn shrink_group(group: GroupId, bytes: u64) -> u64 {
    let mut freed = 0;
    let mut at = 0;
    while freed < bytes {
        // One after the other, so that the caches can come and go meanwhile.
        let Some(cache) = CACHES.try_nth(group, at) else { break };
        if let Some(cache) = cache.upgrade()
            && let Shrunk::Freed(more) = cache.try_shrink(bytes - freed)
        {
            freed += more;
        }
        at += 1;
    }
    freed
}

/// One page cache; it goes with its connection, whoever is about to call it.
struct CacheShrinker(Weak<PageCache>);

impl Shrinker for CacheShrinker {
    fn count(&self, _token: u64) -> Count {
        let Some(cache) = self.0.upgrade() else { return Count::Empty };
        let evictable = cache.evictable();
        Count::Holds { bytes: evictable.bytes, objects: u64::from(evictable.pages) }
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        let Some(cache) = self.0.upgrade() else { return Scan::Stopped { bytes: 0 } };
        match cache.try_shrink(ask.bytes()) {
            Shrunk::Freed(bytes) if bytes > 0 => Scan::Freed { bytes },
            Shrunk::Freed(_) | Shrunk::Busy => Scan::Stopped { bytes: 0 },
        }
    }
}

impl Caches {
    fn lock(&self) -> MutexGuard<'_, Registered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A cache of the group; `None` behind the last, and where the caches are being changed.
    fn try_nth(&self, group: GroupId, at: usize) -> Option<Weak<PageCache>> {
        let registered = match self.0.try_lock() {
            Ok(registered) => registered,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        registered.of_group.get(&group)?.get(at).cloned()
    }
}

impl Registered {
    fn remove(&mut self, cache: &Arc<PageCache>) -> Option<GroupShrinker> {
        let (registered, group) = self.shrinkers.remove(&key(cache))?;
        if let Entry::Occupied(mut caches) = self.of_group.entry(group) {
            caches.get_mut().retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(cache)));
            if caches.get().is_empty() {
                caches.remove();
            }
        }
        Some(registered)
    }
}

fn key(cache: &PageCache) -> usize {
    std::ptr::from_ref(cache).addr()
}

/// The group with this id, or the one that pays where none is in force.
fn group(id: Option<GroupId>) -> Option<Group> {
    let account = ACCOUNT.get()?;
    id.map_or_else(|| Some(account.unattributed.clone()), |id| account.hierarchy.group(id))
}

impl Listener for Caches {
    fn created(&self, cache: &Arc<PageCache>, id: Option<GroupId>) {
        let Some(group) = group(id) else { return };
        let shrinker = CacheShrinker(Arc::downgrade(cache));
        // A group that was removed meanwhile has a cache that nobody shrinks, and that goes with its connection.
        if let Ok(registered) = group.add_shrinker(ShrinkerConfig::new(NAME), shrinker) {
            registered.mark();
            let mut all = self.lock();
            all.of_group.entry(group.id()).or_default().push(Arc::downgrade(cache));
            all.shrinkers.insert(key(cache), (registered, group.id()));
        }
    }

    fn grown(&self, cache: &PageCache) {
        if let Some((registered, _)) = self.lock().shrinkers.get(&key(cache)) {
            registered.mark();
        }
    }

    fn destroyed(&self, cache: &Arc<PageCache>) {
        let registered = self.lock().remove(cache);
        if let Some(registered) = registered {
            // SQLite destroys no cache within a call of ours, so this is never told that it waits for itself.
            let _ = registered.remove();
        }
    }
}
