//! A cache of charged pages that counts its calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memgroup::{
    Ask, Charge, Config, Count, Group, GroupShrinker, Hierarchy, Scan, Shrinker, ShrinkerConfig, SlotSource,
};

pub(crate) const PAGE: u64 = 4096;
pub(crate) const BATCH: u64 = 16 * PAGE;

/// Pages, oldest first.
#[derive(Default)]
pub(crate) struct Cache {
    pages: Mutex<Vec<Charge>>,
    pub(crate) counts: AtomicU64,
    pub(crate) scans: AtomicU64,
}

impl Cache {
    pub(crate) fn len(&self) -> usize {
        self.pages.lock().unwrap().len()
    }

    pub(crate) fn push(&self, page: Charge) {
        self.add(page);
    }

    /// Returns how many there are with it.
    pub(crate) fn add(&self, page: Charge) -> usize {
        self.add_and(page, |count| count)
    }

    /// Has `act` told how many there are with it, while none comes and none goes.
    pub(crate) fn add_and<T>(&self, page: Charge, act: impl FnOnce(usize) -> T) -> T {
        let mut pages = self.pages.lock().unwrap();
        pages.push(page);
        act(pages.len())
    }

    pub(crate) fn clear(&self) {
        self.pages.lock().unwrap().clear();
    }

    /// How often it was counted since the last time.
    pub(crate) fn counted(&self) -> u64 {
        self.counts.swap(0, Ordering::Relaxed)
    }
}

impl Shrinker for Cache {
    fn count(&self, _token: u64) -> Count {
        self.counts.fetch_add(1, Ordering::Relaxed);
        let pages = self.pages.lock().unwrap();
        Count::of(pages.len() as u64 * PAGE, pages.len() as u64)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        self.scans.fetch_add(1, Ordering::Relaxed);
        let mut pages = self.pages.lock().unwrap();
        let count = (ask.bytes().div_ceil(PAGE) as usize).min(pages.len());
        let given: Vec<Charge> = pages.drain(..count).collect();
        drop(pages);
        Scan::Freed { bytes: given.len() as u64 * PAGE }
    }
}

/// A group and its cache.
pub(crate) struct Tenant {
    pub(crate) group: Group,
    pub(crate) cache: Arc<Cache>,
    pub(crate) shrinker: GroupShrinker,
}

impl Tenant {
    pub(crate) fn new(parent: &Group, name: &str) -> Tenant {
        let group = parent.create(name).unwrap();
        let cache = Arc::new(Cache::default());
        let shrinker = group.add_shrinker(ShrinkerConfig::new(name), Arc::clone(&cache)).unwrap();
        Tenant { group, cache, shrinker }
    }

    /// Puts so many pages into the cache, and marks it once.
    pub(crate) fn fill(&self, pages: u64) {
        for _ in 0..pages {
            self.cache.push(self.group.try_charge(PAGE).unwrap());
        }
        self.shrinker.mark();
    }
}

/// A patience that no test exhausts. With the default of a second, a charge on a busy machine may
/// be refused before it has made all its rounds, and a thread that loses its CPU within a callback
/// looks like a shrinker that hangs.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// A parent with a limit of `pages` pages, on `slots` virtual slots. Its charges have [`LONG`] to
/// make room.
pub(crate) fn parent(slots: usize, pages: u64) -> (Hierarchy, Group) {
    let config = Config::with_slots(SlotSource::virtual_slots(slots).unwrap()).reclaim_patience(LONG);
    let hierarchy = Hierarchy::new(config).unwrap();
    let tenants = hierarchy.create("/tenants").unwrap();
    tenants.set_max(pages * PAGE).unwrap();
    (hierarchy, tenants)
}

/// A shrinker of two functions.
pub(crate) struct Made<C, S>(pub(crate) C, pub(crate) S);

impl<C, S> Shrinker for Made<C, S>
where
    C: Fn() -> Count + Send + Sync + 'static,
    S: Fn(&Ask<'_>) -> Scan + Send + Sync + 'static,
{
    fn count(&self, _token: u64) -> Count {
        (self.0)()
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        (self.1)(ask)
    }
}

/// Adds a shrinker of two functions, and marks it.
pub(crate) fn add(
    group: &Group,
    name: &str,
    count: impl Fn() -> Count + Send + Sync + 'static,
    scan: impl Fn(&Ask<'_>) -> Scan + Send + Sync + 'static,
) -> GroupShrinker {
    let shrinker = group.add_shrinker(ShrinkerConfig::new(name), Made(count, scan)).unwrap();
    shrinker.mark();
    shrinker
}

/// More than there can be.
pub(crate) fn plenty() -> Count {
    Count::of(1 << 30, 1 << 18)
}
