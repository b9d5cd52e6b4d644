//! DataFusion's caches of files' metadata, charged to a group, as shrinkers.
//!
//! - I1. The charge of a cache is at least the bytes that the cache holds, by its own figures. All
//!   changes take one lock, except that a look-up may remove an expired entry; it takes the lock
//!   afterwards.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use datafusion::common::{HashMap, Result as DataFusionResult, TableReference};
use datafusion::execution::cache::cache_manager::CacheManagerConfig;
use datafusion::execution::cache::default_cache::DefaultCache;
use datafusion::execution::cache::{Cache, CacheEntryInfo, CacheKey, CacheValue};
use memgroup::{
    Ask, Charge, Count, Effort, Group, GroupShrinker, Scan, Shrinker, ShrinkerConfig, ShrinkerError,
};

/// The entries of one cache, with their charge.
struct Entries<K: CacheKey, V: CacheValue> {
    cache: DefaultCache<K, V>,
    charge: Mutex<Charge>,
    /// The bytes of the cache when a walk of the engine last counted it, or when a mark last asked
    /// for a new count.
    counted: AtomicU64,
}

impl<K: CacheKey, V: CacheValue> Entries<K, V> {
    fn lock(&self) -> MutexGuard<'_, Charge> {
        self.charge.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uncharges the bytes that the cache no longer holds.
    fn settle(&self, charge: &mut Charge) {
        charge.shrink(charge.bytes().saturating_sub(self.cache.memory_used() as u64));
    }

    /// Looks up an entry. The cache removes an expired one, and returns none.
    fn look_up<T>(&self, look: impl FnOnce(&DefaultCache<K, V>) -> T, is_miss: impl FnOnce(&T) -> bool) -> T {
        let result = look(&self.cache);
        if is_miss(&result) {
            self.settle(&mut self.lock());
        }
        result
    }

    /// Changes the entries, none of which becomes larger.
    fn change<T>(&self, act: impl FnOnce(&DefaultCache<K, V>) -> T) -> T {
        let mut charge = self.lock();
        let result = act(&self.cache);
        self.settle(&mut charge);
        result
    }

    /// Inserts an entry if its group has room for it. Returns the previous value.
    ///
    /// It calls `mark` under the lock if the engine has to count the cache again. Without the lock,
    /// others could fill a cache that no walk sees.
    fn put(&self, key: &K, value: V, mark: impl FnOnce()) -> Option<V> {
        let bytes = (key.size() + value.size()) as u64;
        let mut charge = self.lock();
        let before = match charge.try_grow_by(bytes, Effort::Count) {
            Ok(()) => self.cache.put(key, value),
            // An old value must not stay for the new one.
            Err(_) => self.cache.remove(key),
        };
        self.settle(&mut charge);
        // ORDERING: Relaxed, both, because they are made under the lock.
        if charge.bytes() > 2 * self.counted.load(Ordering::Relaxed) {
            self.counted.store(charge.bytes(), Ordering::Relaxed);
            mark();
        }
        before
    }
}

/// Frees the least recently used entries.
struct LeastUsed<K: CacheKey, V: CacheValue>(Arc<Entries<K, V>>);

impl<K: CacheKey + 'static, V: CacheValue + 'static> Shrinker for LeastUsed<K, V> {
    fn count(&self, _: u64) -> Count {
        // Counts under the lock or not at all. An insertion between a count of nothing and its note
        // would find the note of an older count, and leave the cache unmarked.
        let _held = match self.0.charge.try_lock() {
            Ok(charge) => charge,
            Err(TryLockError::Poisoned(charge)) => charge.into_inner(),
            Err(TryLockError::WouldBlock) => return Count::Unknown,
        };
        let bytes = self.0.cache.memory_used() as u64;
        // ORDERING: Relaxed; as in `put`.
        self.0.counted.store(bytes, Ordering::Relaxed);
        Count::of(bytes, self.0.cache.len() as u64)
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        let mut charge = match self.0.charge.try_lock() {
            Ok(charge) => charge,
            Err(TryLockError::Poisoned(charge)) => charge.into_inner(),
            Err(TryLockError::WouldBlock) => return Scan::Stopped { bytes: 0 },
        };
        let (cache, before) = (&self.0.cache, charge.bytes());
        let limit = cache.cache_limit();
        cache.update_cache_limit(cache.memory_used().saturating_sub(ask.bytes() as usize));
        cache.update_cache_limit(limit);
        self.0.settle(&mut charge);
        Scan::Freed { bytes: before - charge.bytes() }
    }
}

/// One of DataFusion's caches, charged to a group.
struct ChargedCache<K: CacheKey, V: CacheValue> {
    entries: Arc<Entries<K, V>>,
    shrinker: GroupShrinker,
}

impl<K: CacheKey + 'static, V: CacheValue + 'static> ChargedCache<K, V> {
    fn new(group: &Group, name: &str, limit: usize) -> Result<Arc<ChargedCache<K, V>>, ShrinkerError> {
        let cache = DefaultCache::new(limit).with_name(name);
        let charge = group.try_charge(0).expect("a charge of no bytes is not refused");
        let entries = Arc::new(Entries { cache, charge: Mutex::new(charge), counted: AtomicU64::new(0) });
        let shrinker = group.add_shrinker(ShrinkerConfig::new(name), LeastUsed(Arc::clone(&entries)))?;
        Ok(Arc::new(ChargedCache { entries, shrinker }))
    }
}

impl<K: CacheKey + 'static, V: CacheValue + 'static> Cache<K, V> for ChargedCache<K, V> {
    fn get(&self, key: &K) -> Option<V> {
        self.entries.look_up(|cache| cache.get(key), Option::is_none)
    }

    fn put(&self, key: &K, value: V) -> Option<V> {
        self.entries.put(key, value, || self.shrinker.mark())
    }

    fn remove(&self, key: &K) -> Option<V> {
        self.entries.change(|cache| cache.remove(key))
    }

    fn contains_key(&self, key: &K) -> bool {
        self.entries.look_up(|cache| cache.contains_key(key), |is_there| !is_there)
    }

    fn len(&self) -> usize {
        self.entries.cache.len()
    }

    fn clear(&self) {
        self.entries.change(Cache::clear);
    }

    fn name(&self) -> String {
        self.entries.cache.name()
    }

    fn cache_limit(&self) -> usize {
        self.entries.cache.cache_limit()
    }

    fn update_cache_limit(&self, limit: usize) {
        self.entries.change(|cache| cache.update_cache_limit(limit));
    }

    fn cache_ttl(&self) -> Option<Duration> {
        self.entries.cache.cache_ttl()
    }

    fn update_cache_ttl(&self, ttl: Option<Duration>) {
        self.entries.cache.update_cache_ttl(ttl);
    }

    fn drop_table_entries(&self, table: &TableReference) -> DataFusionResult<()> {
        self.entries.change(|cache| cache.drop_table_entries(table))
    }

    fn list_entries(&self) -> HashMap<K, CacheEntryInfo<V>> {
        self.entries.cache.list_entries()
    }
}

/// Gives a configuration caches that are charged to `group`: of files' metadata, of their
/// statistics, and of lists of files. They are DataFusion's own caches, with the limits of the
/// configuration.
///
/// An entry that the group has no room for is not cached. When a charge below the same limits lacks
/// memory, the engine frees the least recently used entries first, on the threads of waiting
/// charges and on the reclaimer's ([`Hierarchy::reclaimer`](memgroup::Hierarchy::reclaimer)).
///
/// ```
/// use datafusion::execution::cache::cache_manager::CacheManagerConfig;
/// use datafusion::execution::runtime_env::RuntimeEnvBuilder;
/// use memgroup::{Config, Hierarchy};
/// use memgroup_datafusion::charged_caches;
///
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let caches = hierarchy.create("/caches").unwrap();
/// let config = charged_caches(&caches, CacheManagerConfig::default()).unwrap();
/// let runtime = RuntimeEnvBuilder::new().with_cache_manager(config).build_arc().unwrap();
/// # assert_eq!(hierarchy.shrinkers().len(), 3);
/// ```
///
/// # Errors
/// As [`Group::add_shrinker`].
pub fn charged_caches(
    group: &Group,
    config: CacheManagerConfig,
) -> Result<CacheManagerConfig, ShrinkerError> {
    let metadata = ChargedCache::new(group, "file metadata", config.metadata_cache_limit)?;
    let statistics = ChargedCache::new(group, "file statistics", config.file_statistics_cache_limit)?;
    let lists = ChargedCache::new(group, "file lists", config.list_files_cache_limit)?;
    lists.update_cache_ttl(config.list_files_cache_ttl);
    Ok(config
        .with_file_metadata_cache(Some(metadata))
        .with_file_statistics_cache(Some(statistics))
        .with_list_files_cache(Some(lists)))
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, Hierarchy, SlotSource};

    use super::*;

    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct Key(u8);

    impl CacheKey for Key {
        fn size(&self) -> usize {
            0
        }

        fn table_ref(&self) -> Option<&TableReference> {
            None
        }
    }

    #[derive(Clone, Debug, PartialEq)]
    struct Value(usize);

    impl CacheValue for Value {
        fn size(&self) -> usize {
            self.0
        }
    }

    /// An empty cache with a limit of 400 KiB, in a group with room for 300.
    fn cache() -> (Hierarchy, Group, Arc<ChargedCache<Key, Value>>) {
        let slots = SlotSource::virtual_slots(2).unwrap();
        let hierarchy = Hierarchy::new(Config::with_slots(slots).stock_cap_bytes(0)).unwrap();
        let group = hierarchy.create("/caches").unwrap();
        group.set_max(300 << 10).unwrap();
        let cache = ChargedCache::new(&group, "values", 400 << 10).unwrap();
        (hierarchy, group, cache)
    }

    #[test]
    fn an_old_value_does_not_stay_for_a_new_one_without_room() {
        let (_hierarchy, group, cache) = cache();
        assert_eq!(cache.put(&Key(1), Value(100 << 10)), None);
        let _full = group.try_charge(200 << 10).unwrap();
        assert_eq!(cache.put(&Key(1), Value(90 << 10)), Some(Value(100 << 10)));
        assert_eq!((cache.get(&Key(1)), group.usage_exact()), (None, 200 << 10));
    }

    #[test]
    fn a_scan_keeps_the_limit_of_the_cache() {
        let (_hierarchy, group, cache) = cache();
        for key in 0..3 {
            cache.put(&Key(key), Value(100 << 10));
        }
        cache.get(&Key(0));
        let _charge = group.try_charge(150 << 10).unwrap();
        assert_eq!((cache.len(), cache.cache_limit(), group.usage_exact()), (1, 400 << 10, 250 << 10));
        assert!(cache.contains_key(&Key(0)), "it was used last");
    }

    #[test]
    fn a_look_up_uncharges_an_entry_that_is_too_old() {
        let (_hierarchy, group, cache) = cache();
        cache.update_cache_ttl(Some(Duration::ZERO));
        let put = || {
            cache.put(&Key(1), Value(100 << 10));
            assert_eq!(group.usage_exact(), 100 << 10);
            std::thread::sleep(Duration::from_millis(1));
        };
        put();
        assert_eq!(cache.get(&Key(1)), None);
        assert_eq!((cache.len(), group.usage_exact()), (0, 0));
        put();
        assert!(!cache.contains_key(&Key(1)));
        assert_eq!((cache.len(), group.usage_exact()), (0, 0));
    }
}
