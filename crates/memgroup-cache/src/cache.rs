//! The cache that users have, with its settings: it charges an entry, then passes it to the store.

use std::borrow::Borrow;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use memgroup::{Effort, Group, GroupShrinker, Shrinker, ShrinkerConfig, ShrinkerError};

use crate::entry::{Charged, Entry, NotCached, NotCachedReason, discard};

/// The settings of a cache.
///
/// ```
/// use std::time::Duration;
/// use memgroup::ShrinkerConfig;
/// use memgroup_cache::CacheConfig;
///
/// let config = CacheConfig::new(64 << 20)
///     .entries(10_000)
///     .shrinker(ShrinkerConfig::new("sessions").cost(4))
///     .settle(Duration::from_millis(500));
/// assert_eq!(config.capacity_bytes(), 64 << 20);
/// ```
#[derive(Clone, Debug)]
pub struct CacheConfig {
    pub(crate) capacity: u64,
    pub(crate) entries: usize,
    pub(crate) entry_bytes: Option<u64>,
    pub(crate) settle: Duration,
    pub(crate) effort: Effort,
    pub(crate) shrinker: ShrinkerConfig,
}

impl CacheConfig {
    /// Settings of a cache that never holds more than `capacity_bytes`, at least 1. The group's
    /// limits may allow less at any time.
    #[must_use]
    pub fn new(capacity_bytes: u64) -> CacheConfig {
        let capacity = capacity_bytes.max(1);
        CacheConfig {
            capacity,
            entries: (capacity / 4096).clamp(64, 1 << 16) as usize,
            entry_bytes: None,
            settle: Duration::ZERO,
            effort: Effort::Reclaim,
            shrinker: ShrinkerConfig::new("cache"),
        }
    }

    /// The bytes that the cache never exceeds.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity
    }

    /// Sets the estimated number of entries, by which the cache sizes its tables. The default is
    /// one for each 4 KiB, from 64 to 65,536.
    #[must_use]
    pub fn entries(self, entries: usize) -> CacheConfig {
        CacheConfig { entries: entries.max(1), ..self }
    }

    /// Sets the bytes that are charged for an entry in addition to its weight. The default is about
    /// the room of one in the cache's tables, by the example `entry_bytes`: 128 with `quick_cache`,
    /// 352 with `moka`.
    #[must_use]
    pub fn entry_bytes(self, bytes: u64) -> CacheConfig {
        CacheConfig { entry_bytes: Some(bytes), ..self }
    }

    /// Sets how long a cache keeps its lower capacity after it freed memory. Until then an
    /// insertion evicts the cache's own entries, and each further scan restarts the time. The
    /// default is 0: the next insertion has the full capacity. A longer time makes scans rarer and
    /// hits fewer; the example `tenants` measures both.
    #[must_use]
    pub fn settle(self, settle: Duration) -> CacheConfig {
        CacheConfig { settle, ..self }
    }

    /// Sets how far an insertion goes to make room: [`Effort::Reclaim`] by default, so that no
    /// tenant is stopped for a cache entry. [`Effort::Count`] is for the threads of an asynchronous
    /// executor, because it runs no shrinker.
    #[must_use]
    pub fn effort(self, effort: Effort) -> CacheConfig {
        CacheConfig { effort, ..self }
    }

    /// Sets the name, batch, cost and patience of the cache's shrinker.
    #[must_use]
    pub fn shrinker(self, shrinker: ShrinkerConfig) -> CacheConfig {
        CacheConfig { shrinker, ..self }
    }
}

/// The underlying cache, which is also the shrinker.
///
/// - S1. No method runs the user's code under a lock of the cache, except `Hash`, `Eq` and, in
///   `moka`, the drop of a key.
/// - S2. No method charges.
pub trait Store<K, V>: Shrinker {
    /// The bytes of an entry in the tables of the cache.
    const ENTRY_BYTES: u64;
    /// The most bytes that an entry may have.
    fn most(&self) -> u64;
    /// The shard of an entry that is inserted next.
    fn shard(&self, key: &K) -> usize;
    /// Inserts an entry. If the shrinker's slot has to be marked, calls `mark` before the entry is
    /// in the cache, so that no thread can fill a cache that no walk sees.
    fn put(&self, key: K, entry: Entry<V>, mark: &dyn Fn());
    /// The entry under a key.
    fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Entry<V>>
    where
        K: Borrow<Q>;
    /// Removes the entry under a key.
    fn take<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Entry<V>>
    where
        K: Borrow<Q>;
    /// Removes all entries.
    fn clear(&self);
    /// Bytes that are charged for the entries.
    fn bytes(&self) -> u64;
    /// The number of entries.
    fn len(&self) -> u64;
}

/// The weight of an entry.
pub(crate) type Weigh<K, V> = Box<dyn Fn(&K, &V) -> u64 + Send + Sync>;

/// A cache that charges every entry to one group, and frees memory when others need it below a
/// common limit.
///
/// It is a `QuickCache` or a `MokaCache`. All methods take `&self`: threads share it by reference
/// or in an `Arc`.
///
/// - An entry is charged before the cache is touched, and no charge is made while a lock of the
///   cache is held. So an insertion may make its own cache free memory, and a value may use the
///   cache when it is dropped.
/// - An insertion without room is an error that returns the value. The old value under that key is
///   removed, so that no reader finds it.
/// - An entry that a reader holds is charged until the reader drops it.
/// - A panic of a value's drop is caught, wherever the cache drops it. Its bytes are uncharged
///   nevertheless.
/// - A weight is a value's bytes with its key. Weights may be 0: an entry is charged for one byte
///   at least.
pub struct Cache<K, V, S: Store<K, V>> {
    /// `None` while the cache is being dropped, when no call can begin.
    registered: Option<GroupShrinker>,
    store: Arc<S>,
    group: Group,
    capacity: u64,
    entry_bytes: u64,
    effort: Effort,
    weigh: Weigh<K, V>,
}

impl<K: Eq + Hash, V, S: Store<K, V>> Cache<K, V, S> {
    pub(crate) fn with_store(
        group: &Group,
        config: CacheConfig,
        weigh: Weigh<K, V>,
        store: S,
    ) -> Result<Self, ShrinkerError> {
        let store = Arc::new(store);
        let registered = group.add_shrinker(config.shrinker, Arc::clone(&store))?;
        Ok(Cache {
            registered: Some(registered),
            store,
            group: group.clone(),
            capacity: config.capacity,
            entry_bytes: config.entry_bytes.unwrap_or(S::ENTRY_BYTES),
            effort: config.effort,
            weigh,
        })
    }

    /// The entry under a key.
    pub fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Entry<V>>
    where
        K: Borrow<Q>,
    {
        self.store.get(key)
    }

    /// Charges a value to the group, and inserts it.
    ///
    /// The cache's own policy may evict it at once, in favour of others. The returned entry is
    /// charged nevertheless.
    ///
    /// # Errors
    /// Without room in the group, after [as much effort](CacheConfig::effort) as was set; or if the
    /// value is too large for the cache. The error returns the value. No value is left under the
    /// key.
    pub fn insert(&self, key: K, value: V) -> Result<Entry<V>, NotCached<V>> {
        let bytes = (self.weigh)(&key, &value).saturating_add(self.entry_bytes).max(1);
        let most = self.store.most();
        let charge = if bytes > most {
            Err(NotCachedReason::TooLarge { bytes, most })
        } else {
            self.group.try_charge_by(bytes, self.effort).map_err(NotCachedReason::Charge)
        };
        match charge {
            Ok(charge) => {
                let entry = Entry(Arc::new(Charged::new(value, charge, self.store.shard(&key))));
                let mark = || self.registered.iter().for_each(GroupShrinker::mark);
                self.store.put(key, entry.clone(), &mark);
                Ok(entry)
            }
            Err(reason) => {
                discard(self.remove(&key));
                Err(NotCached::new(value, reason))
            }
        }
    }

    /// Returns the entry under a key, or inserts the value from `make`. Two threads that miss the
    /// same key both make a value, because a thread that waited for the other would also wait for
    /// its charge.
    ///
    /// # Errors
    /// As for [`insert`](Cache::insert).
    pub fn get_or_insert_with(&self, key: K, make: impl FnOnce(&K) -> V) -> Result<Entry<V>, NotCached<V>> {
        if let Some(entry) = self.get(&key) {
            return Ok(entry);
        }
        let value = make(&key);
        self.insert(key, value)
    }

    /// Removes the entry under a key, and returns it.
    pub fn remove<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Entry<V>>
    where
        K: Borrow<Q>,
    {
        self.store.take(key)
    }

    /// Removes all entries.
    pub fn clear(&self) {
        self.store.clear();
    }

    /// The bytes that are charged for the entries in the cache, without those that only readers
    /// hold.
    pub fn bytes(&self) -> u64 {
        self.store.bytes()
    }

    /// The number of entries in the cache.
    pub fn len(&self) -> u64 {
        self.store.len()
    }

    /// Returns whether the cache has no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes that the cache never exceeds.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity
    }

    /// The group that pays.
    pub fn group(&self) -> &Group {
        &self.group
    }

    #[cfg(feature = "moka")]
    pub(crate) fn store(&self) -> &S {
        &self.store
    }
}

impl<K, V, S: Store<K, V>> Drop for Cache<K, V, S> {
    fn drop(&mut self) {
        drop(self.registered.take());
        // Entries are removed one by one, because the underlying cache would drop the values
        // itself, and two panics would end the process.
        self.store.clear();
    }
}

impl<K, V, S: Store<K, V>> fmt::Debug for Cache<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("group", &self.group)
            .field("bytes", &self.store.bytes())
            .field("capacity_bytes", &self.capacity)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use memgroup::{Config, Hierarchy};

    use super::*;

    /// An empty cache is marked before its first entry is inserted, so a walk in between finds a
    /// superfluous mark, and not a full cache without one.
    fn marks_first<S: Store<u32, u32>>(store: &S) {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let charge = hierarchy.create("/tenant").unwrap().try_charge(100).unwrap();
        let entry = Entry(Arc::new(Charged::new(7, charge, store.shard(&1))));
        let marks = Cell::new(0);
        store.put(1, entry, &|| {
            marks.set(marks.get() + 1);
            assert!(store.get(&1).is_none(), "the entry is there before the mark");
        });
        assert_eq!((marks.get(), store.get(&1).map(|entry| *entry)), (1, Some(7)));
    }

    #[cfg(feature = "quick_cache")]
    #[test]
    fn quick_cache_marks_before_an_entry_is_there() {
        marks_first(&crate::quick::QuickStore::new(&CacheConfig::new(1 << 20)));
    }

    #[cfg(feature = "moka")]
    #[test]
    fn moka_marks_before_an_entry_is_there() {
        marks_first(&crate::moka::MokaStore::new(&crate::MokaConfig::new(CacheConfig::new(1 << 20))));
    }
}
