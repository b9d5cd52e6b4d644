//! The store of `quick_cache`.
//!
//! ```text
//!   put ──▶ shard, by the key's hash ──▶ an entry that holds its charge
//!   scan ──▶ the heaviest shard ── wedge in ──▶ evicted by the cache's own policy, dropped outside its lock, uncharged
//!   the first put after the time to settle ── wedge out
//! ```
//!
//! `quick_cache` has no call that evicts a given number of bytes. Two come close. Calling
//! `set_capacity` to lower the capacity and raise it again waits for locks, and each time it rounds
//! down the number of evicted keys that the cache remembers, until it remembers none. Removing keys
//! one by one ignores the cache's policy. But an insertion evicts entries until it has the bytes.
//! So a **wedge**, an entry that consists only of weight, is inserted. In a shard of `capacity`
//! bytes that holds `held`, a wedge of `capacity - held + wanted` evicts `wanted` bytes. While it
//! stays, the shard's capacity is `held - wanted`. It is pinned, because the cache admits nothing
//! else above the hot part's target. It is never looked up or replaced, because an entry that is
//! used twice becomes hot. Each shard has its own wedge, under a key that its hash sends there.
//!
//! - I1. An entry has the charge of its bytes, and is dropped outside the cache's locks. So
//!   uncharged bytes are free memory, and an entry stays charged while a reader has it.
//! - I2. No charge is made while a lock of the cache is held, and a scan only tries locks. Of the
//!   user's code only a key's `Hash` and `Eq` run there. So a charge that reclaims may scan the
//!   very cache that it fills, and no thread waits in a cycle.
//! - I3. One thread at a time scans a group's cache (the engine's promise).
//! - B1. While a wedge is in the cache, other insertions evict for themselves. This ends with the
//!   first insertion after the time to settle.
//! - B2. `held` already counts a running insertion, so a wedge may be too small by that.

use std::borrow::Borrow;
use std::collections::hash_map::RandomState;
use std::hash::Hash;
use std::sync::Arc;

use memgroup::{Ask, Count, Group, Scan, Shrinker, ShrinkerError};
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};

use crate::cache::{Cache, CacheConfig, Store};
use crate::entry::{Entry, discard};
use crate::key::{Held, KeyRef, Slot, WedgeRef};
use crate::tally::{FLOOR_BYTES, Settle, Tally};

/// A [`Cache`] with its entries in a `quick_cache::sync::Cache`.
///
/// ```
/// use memgroup::{Config, Hierarchy};
/// use memgroup_cache::{CacheConfig, QuickCache};
///
/// let hierarchy = Hierarchy::new(Config::new())?;
/// let tenants = hierarchy.create("/tenants")?;
/// tenants.set_max(1 << 20)?;
/// let (idle, busy) = (tenants.create("idle")?, tenants.create("busy")?);
///
/// let pages = QuickCache::new(&idle, CacheConfig::new(64 << 20), |_: &u64, page: &Vec<u8>| page.len() as u64)?;
/// for number in 0..200 {
///     pages.insert(number, vec![0; 4000])?;
/// }
/// assert_eq!(idle.usage_exact(), pages.bytes());
/// assert_eq!(pages.bytes(), 200 * 4128);
///
/// // The idle group's pages fill the limit. The busy group gets its bytes from them.
/// let charge = busy.try_charge(600_000)?;
/// assert!(pages.len() < 200);
/// assert_eq!(idle.usage_exact(), pages.bytes());
/// # drop(charge);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type QuickCache<K, V> = Cache<K, V, QuickStore<K, V>>;

impl<K, V> QuickCache<K, V>
where
    K: Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// Creates a cache for a group. `weigh` returns the bytes of a value with its key.
    ///
    /// # Errors
    /// As [`Group::add_shrinker`].
    pub fn new(
        group: &Group,
        config: CacheConfig,
        weigh: impl Fn(&K, &V) -> u64 + Send + Sync + 'static,
    ) -> Result<QuickCache<K, V>, ShrinkerError> {
        let store = QuickStore::new(&config);
        Cache::with_store(group, config, Box::new(weigh), store)
    }
}

/// A key of the underlying cache, with its content.
type Slotted<K, V> = (Slot<K>, Held<Entry<V>>);

#[derive(Clone)]
struct ByBytes;

impl<K, V> Weighter<Slot<K>, Held<Entry<V>>> for ByBytes {
    fn weight(&self, _: &Slot<K>, held: &Held<Entry<V>>) -> u64 {
        match held {
            Held::Entry(entry) => entry.bytes(),
            Held::Wedge(bytes) => *bytes,
        }
    }
}

/// Entries that the cache released, which this thread drops outside the lock. An insertion rarely
/// evicts more than one, and needs no allocation in that case.
struct Left<K, V> {
    first: Option<Slotted<K, V>>,
    others: Vec<Slotted<K, V>>,
}

impl<K, V> Default for Left<K, V> {
    fn default() -> Self {
        Left { first: None, others: Vec::new() }
    }
}

impl<K, V> Left<K, V> {
    fn iter(&self) -> impl Iterator<Item = &Slotted<K, V>> {
        self.first.iter().chain(&self.others)
    }

    fn discard(self) {
        self.first.into_iter().for_each(discard);
        self.others.into_iter().for_each(discard);
    }
}

/// Counts evicted entries, and hands them to the evicting thread.
#[derive(Clone)]
struct Leaving(Arc<[Shard]>);

impl<K, V> Lifecycle<Slot<K>, Held<Entry<V>>> for Leaving {
    type RequestState = Left<K, V>;

    fn is_pinned(&self, _: &Slot<K>, held: &Held<Entry<V>>) -> bool {
        matches!(held, Held::Wedge(_))
    }

    fn on_evict(&self, left: &mut Left<K, V>, key: Slot<K>, held: Held<Entry<V>>) {
        if let Held::Entry(entry) = &held {
            self.0[entry.0.shard].held.sub(entry.bytes());
        }
        match left.first {
            None => left.first = Some((key, held)),
            Some(_) => left.others.push((key, held)),
        }
    }
}

/// The figures of a shard of the cache.
struct Shard {
    held: Tally,
    settle: Settle,
}

/// The entries of a [`QuickCache`].
pub struct QuickStore<K, V> {
    map: quick_cache::sync::Cache<Slot<K>, Held<Entry<V>>, ByBytes, RandomState, Leaving>,
    shards: Arc<[Shard]>,
    /// The key of each shard's wedge.
    wedges: Box<[Option<u64>]>,
    capacity: u64,
}

/// Fewest entries and bytes of a shard.
const SHARD_ENTRIES: usize = 32;
const SHARD_BYTES: u64 = 64 << 10;

/// As many shards as the cache makes by itself, or fewer if they would be small.
fn shard_count(config: &CacheConfig) -> usize {
    let threads = std::thread::available_parallelism().map_or(4, |count| 4 * count.get());
    let by_bytes = usize::try_from(config.capacity / SHARD_BYTES).unwrap_or(usize::MAX);
    let most = threads.min(config.entries / SHARD_ENTRIES).min(by_bytes).max(1);
    1 << most.ilog2()
}

impl<K: Eq + Hash, V> QuickStore<K, V> {
    pub(crate) fn new(config: &CacheConfig) -> QuickStore<K, V> {
        let count = shard_count(config);
        let mut options = OptionsBuilder::new();
        options.shards(count).estimated_items_capacity(config.entries).weight_capacity(config.capacity);
        let options = options.build().expect("both capacities are set");
        let shard = |_| Shard { held: Tally::default(), settle: Settle::new(config.settle) };
        let shards: Arc<[Shard]> = (0..count).map(shard).collect();
        let leaving = Leaving(Arc::clone(&shards));
        let map = quick_cache::sync::Cache::with_options(options, ByBytes, RandomState::new(), leaving);
        assert_eq!(map.num_shards(), count, "an index of a shard has to be one of the tallies");
        let mut wedges = vec![None; count];
        // This almost certainly finds a key for each shard. A shard without one frees nothing.
        for number in 0..64 * count as u64 {
            wedges[map.shard_index(&WedgeRef(number))].get_or_insert(number);
        }
        let capacity = map.shard_capacity();
        QuickStore { map, shards, wedges: wedges.into(), capacity }
    }

    /// Evicts at least `bytes` from a shard, or all. Returns the bytes that this frees; `None` if
    /// another thread holds the lock.
    fn give(&self, index: usize, bytes: u64) -> Option<u64> {
        let (shard, number) = (&self.shards[index], self.wedges[index]?);
        self.map.try_remove(&WedgeRef(number)).ok()?;
        let stays = shard.held.bytes().saturating_sub(bytes);
        let mut left = Left::default();
        self.try_wedge(number, stays, &mut left).ok()?;
        shard.settle.start();
        let floor = FLOOR_BYTES / self.shards.len() as u64;
        if stays < floor && self.map.try_remove(&WedgeRef(number)).is_ok() {
            // If another thread has the lock now, the shard has its full capacity.
            _ = self.try_wedge(number, floor, &mut left);
        }
        // An entry that a reader holds is not free yet.
        let free = left.iter().filter_map(|(_, held)| match held {
            Held::Entry(entry) if Arc::strong_count(&entry.0) == 1 => Some(entry.bytes()),
            Held::Entry(_) | Held::Wedge(_) => None,
        });
        let free = free.sum();
        left.discard();
        Some(free)
    }

    /// Inserts a wedge that leaves `bytes` bytes to the shard's entries.
    fn try_wedge(&self, number: u64, stays: u64, left: &mut Left<K, V>) -> Result<(), Slotted<K, V>> {
        let wedge = Held::Wedge(self.capacity.saturating_sub(stays));
        self.map.try_insert_with_lifecycle(Slot::Wedge(number), wedge, left)
    }

    /// Counts a removed entry, and drops its key.
    fn leave(&self, (key, held): Slotted<K, V>) -> Option<Entry<V>> {
        discard(key);
        let entry = held.into_entry()?;
        self.shards[entry.0.shard].held.sub(entry.bytes());
        Some(entry)
    }
}

impl<K, V> Shrinker for QuickStore<K, V>
where
    K: Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn count(&self, _token: u64) -> Count {
        let bytes = self.shards.iter().map(|shard| shard.held.visit()).sum();
        Count::of(bytes, self.len())
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        let mut heaviest: Vec<(u64, usize)> =
            self.shards.iter().enumerate().map(|(index, shard)| (shard.held.bytes(), index)).collect();
        heaviest.sort_unstable_by(|one, other| other.cmp(one));
        let mut bytes = 0;
        for (_, index) in heaviest {
            if bytes >= ask.bytes() {
                break;
            }
            bytes += self.give(index, ask.bytes() - bytes).unwrap_or(0);
        }
        if bytes > 0 { Scan::Freed { bytes } } else { Scan::Stopped { bytes: 0 } }
    }
}

impl<K, V> Store<K, V> for QuickStore<K, V>
where
    K: Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    const ENTRY_BYTES: u64 = 128;

    fn most(&self) -> u64 {
        // The cache takes in nothing above its hot part, 97 % by default.
        self.capacity - self.capacity / 10
    }

    fn shard(&self, key: &K) -> usize {
        self.map.shard_index(&KeyRef(key))
    }

    fn put(&self, key: K, entry: Entry<V>, mark: &dyn Fn()) {
        let index = entry.0.shard;
        let shard = &self.shards[index];
        if shard.settle.is_over()
            && let Some(number) = self.wedges[index]
        {
            self.map.remove(&WedgeRef(number));
        }
        shard.held.add(entry.bytes(), mark);
        let mut left = Left::default();
        self.map.insert_with_lifecycle(Slot::Key(key), Held::Entry(entry), &mut left);
        left.discard();
    }

    fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Entry<V>>
    where
        K: Borrow<Q>,
    {
        self.map.get(&KeyRef(key))?.into_entry()
    }

    fn take<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Entry<V>>
    where
        K: Borrow<Q>,
    {
        self.leave(self.map.remove(&KeyRef(key))?)
    }

    fn clear(&self) {
        // `Cache::clear` would drop the values under its lock.
        for gone in self.map.drain() {
            self.leave(gone).into_iter().for_each(discard);
        }
    }

    fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.held.bytes()).sum()
    }

    fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.held.entries()).sum()
    }
}
