//! The store of `moka::sync`.
//!
//! ```text
//!   put ──▶ moka's table and its log of writes ──▶ maintenance, on some calling thread: admitted or not, oldest ones evicted
//!   scan ──▶ maintenance ── wedge grows ── maintenance ──▶ oldest entries out of the table, each to the listener
//!        └── listener: its holder waits on this thread ──▶ outside of the call: dropped, uncharged
//!   the first put after the time to settle ── wedge shrinks to nothing
//! ```
//!
//! No released version of `moka` can change its capacity. But maintenance evicts the oldest entries
//! until the weights fit. So a **wedge**, an entry of weight 0, gets the weight `capacity - held +
//! wanted`, and maintenance evicts `wanted` bytes. The admission policy does not refuse an entry
//! that is already in the cache, and it becomes the newest. If it expired or was evicted, a scan
//! inserts it again. `moka` has weights of 32 bits, so if the capacity is larger, a unit of weight
//! is several bytes.
//!
//! `moka` drops an evicted value when no thread can read its table any longer, so a preempted
//! reader of any such cache keeps all of them. So the table has a **holder** of each value. The
//! listener of evictions takes the value out of it, and only the holder is dropped late.
//!
//! - I1. An entry has its charge, and is dropped outside the cache's locks (I4), soon after the
//!   listener was called for it.
//! - I2. No charge is made while a lock of the cache is held. Of the user's code only a key's
//!   `Hash`, `Eq` and `Drop` run there. A thread that is in a call of any such cache does not scan.
//!   So a scan may wait for the maintenance of another thread, and that thread waits for none.
//! - I3. One thread at a time scans a group's cache (the engine's promise).
//! - I4. A value is never dropped while its thread is in a call of a `moka` cache, so a value may
//!   use the cache when it is dropped.
//! - B1. The weights of insertions since the last maintenance are unknown, so a wedge may be too
//!   small by those inserted within a few instructions.

use std::borrow::Borrow;
use std::cell::{Cell, RefCell};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use memgroup::{Ask, Count, Group, Scan, Shrinker, ShrinkerError};
use moka::policy::EvictionPolicy;

use crate::cache::{Cache, CacheConfig, Store};
use crate::entry::{Entry, discard};
use crate::key::{Held, KeyRef, Slot};
use crate::tally::{FLOOR_BYTES, Settle, Tally};

/// The number of the one wedge.
const WEDGE: u64 = 0;

/// A [`Cache`] with its entries in a `moka::sync::Cache`.
///
/// Its calls never suspend, and may be made in asynchronous code; see [`CacheConfig::effort`]. The
/// crate's page says why there is no `moka::future`.
///
/// ```
/// use std::time::Duration;
/// use memgroup::{Config, Hierarchy};
/// use memgroup_cache::{CacheConfig, MokaCache, MokaConfig};
///
/// let hierarchy = Hierarchy::new(Config::new())?;
/// let tenants = hierarchy.create("/tenants")?;
/// tenants.set_max(1 << 20)?;
/// let (idle, busy) = (tenants.create("idle")?, tenants.create("busy")?);
///
/// let config = MokaConfig::new(CacheConfig::new(64 << 20)).time_to_live(Duration::from_secs(60));
/// let pages = MokaCache::new(&idle, config, |_: &u64, page: &Vec<u8>| page.len() as u64)?;
/// for number in 0..200 {
///     pages.insert(number, vec![0; 4000])?;
/// }
/// assert_eq!(pages.bytes(), 200 * 4352);
///
/// // The idle group's pages fill the limit. The busy group gets its bytes from them.
/// let charge = busy.try_charge(600_000)?;
/// assert!(pages.len() < 200);
/// # drop(charge);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type MokaCache<K, V> = Cache<K, V, MokaStore<K, V>>;

impl<K, V> MokaCache<K, V>
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
        config: impl Into<MokaConfig>,
        weigh: impl Fn(&K, &V) -> u64 + Send + Sync + 'static,
    ) -> Result<MokaCache<K, V>, ShrinkerError> {
        let config = config.into();
        let store = MokaStore::new(&config);
        Cache::with_store(group, config.cache, Box::new(weigh), store)
    }

    /// Runs `moka`'s maintenance, which evicts excess and expired entries. `moka` does so by itself
    /// at about every 64 insertions.
    pub fn run_pending_tasks(&self) {
        inside(|| self.store().map.run_pending_tasks());
    }
}

/// The settings of a [`MokaCache`]. A [`CacheConfig`] is one, too.
#[derive(Debug)]
pub struct MokaConfig {
    cache: CacheConfig,
    time_to_live: Option<Duration>,
    time_to_idle: Option<Duration>,
    policy: EvictionPolicy,
}

impl MokaConfig {
    /// Settings without expiry, with `moka`'s policy TinyLFU.
    #[must_use]
    pub fn new(cache: CacheConfig) -> MokaConfig {
        MokaConfig { cache, time_to_live: None, time_to_idle: None, policy: EvictionPolicy::tiny_lfu() }
    }

    /// Sets how long an entry lasts after it was inserted. It stays charged until maintenance finds
    /// that it has expired.
    #[must_use]
    pub fn time_to_live(self, time: Duration) -> MokaConfig {
        MokaConfig { time_to_live: Some(time), ..self }
    }

    /// Sets how long an entry lasts after it was last read.
    #[must_use]
    pub fn time_to_idle(self, time: Duration) -> MokaConfig {
        MokaConfig { time_to_idle: Some(time), ..self }
    }

    /// Sets which entries are evicted first, and which are not admitted.
    #[must_use]
    pub fn eviction_policy(self, policy: EvictionPolicy) -> MokaConfig {
        MokaConfig { policy, ..self }
    }
}

impl From<CacheConfig> for MokaConfig {
    fn from(cache: CacheConfig) -> MokaConfig {
        MokaConfig::new(cache)
    }
}

/// The holder of an entry in `moka`'s table.
struct Holder<V> {
    entry: Mutex<Option<Entry<V>>>,
    bytes: u64,
    tally: Arc<Tally>,
}

impl<V> Holder<V> {
    fn entry(&self) -> MutexGuard<'_, Option<Entry<V>>> {
        // No code of the user's runs under the lock.
        self.entry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the entry out of the cache; once.
    fn take(&self) -> Option<Entry<V>> {
        let entry = self.entry().take()?;
        self.tally.sub(self.bytes);
        Some(entry)
    }
}

impl<V> Vacate for Holder<V> {
    fn vacate(&self) {
        discard(self.take());
    }
}

impl<V> Drop for Holder<V> {
    /// A holder still has a value only when `moka` itself is dropped, because the listener isn't
    /// called then.
    fn drop(&mut self) {
        self.vacate();
    }
}

/// The entries of a [`MokaCache`].
pub struct MokaStore<K, V> {
    /// A wedge's weight is in units.
    map: moka::sync::Cache<Slot<K>, Held<Arc<Holder<V>>>>,
    tally: Arc<Tally>,
    settle: Settle,
    capacity: u64,
    /// Bytes of a unit of weight.
    unit: u64,
}

impl<K, V> MokaStore<K, V>
where
    K: Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    pub(crate) fn new(config: &MokaConfig) -> MokaStore<K, V> {
        let capacity = config.cache.capacity;
        let unit = capacity / u64::from(u32::MAX) + 1;
        let weigh = move |_: &Slot<K>, held: &Held<Arc<Holder<V>>>| {
            let units = match held {
                Held::Entry(holder) => holder.bytes.div_ceil(unit),
                Held::Wedge(units) => *units,
            };
            u32::try_from(units).unwrap_or(u32::MAX)
        };
        let mut builder = moka::sync::Cache::builder()
            .max_capacity(capacity / unit)
            .eviction_policy(config.policy.clone())
            .weigher(weigh)
            .eviction_listener(|_, held, _| {
                if let Held::Entry(holder) = held {
                    vacate_outside(holder);
                }
            });
        if let Some(time) = config.time_to_live {
            builder = builder.time_to_live(time);
        }
        if let Some(time) = config.time_to_idle {
            builder = builder.time_to_idle(time);
        }
        let settle = Settle::new(config.cache.settle);
        MokaStore { map: builder.build(), tally: Arc::default(), settle, capacity, unit }
    }

    /// Makes the wedge weigh `units` units, from the next maintenance on.
    fn set_wedge(&self, weight: u64) {
        self.map.insert(Slot::Wedge(WEDGE), Held::Wedge(weight));
    }

    /// Evicts at least `bytes`, or all.
    fn give(&self, bytes: u64) {
        // The wedge is in the cache from here on, even if it had expired.
        self.set_wedge(0);
        self.map.run_pending_tasks();
        let (held, capacity) = (self.map.weighted_size(), self.capacity / self.unit);
        let stays = held.saturating_sub(bytes.div_ceil(self.unit));
        self.set_wedge(capacity.saturating_sub(stays));
        self.settle.start();
        self.map.run_pending_tasks();
        let floor = FLOOR_BYTES / self.unit;
        if stays < floor {
            self.set_wedge(capacity.saturating_sub(floor));
        }
    }
}

impl<K, V> Shrinker for MokaStore<K, V>
where
    K: Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn count(&self, _token: u64) -> Count {
        Count::of(self.tally.visit(), self.tally.entries())
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        if is_inside() {
            return Scan::Stopped { bytes: 0 };
        }
        let before = self.tally.gone();
        inside(|| self.give(ask.bytes()));
        match self.tally.gone() - before {
            0 => Scan::Stopped { bytes: 0 },
            bytes => Scan::Freed { bytes },
        }
    }
}

impl<K, V> Store<K, V> for MokaStore<K, V>
where
    K: Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    const ENTRY_BYTES: u64 = 352;

    fn most(&self) -> u64 {
        self.capacity
    }

    fn shard(&self, _: &K) -> usize {
        0
    }

    fn put(&self, key: K, entry: Entry<V>, mark: &dyn Fn()) {
        let bytes = entry.bytes();
        self.tally.add(bytes, mark);
        let holder = Holder { entry: Mutex::new(Some(entry)), bytes, tally: Arc::clone(&self.tally) };
        inside(|| {
            if self.settle.is_over() {
                self.set_wedge(0);
            }
            self.map.insert(Slot::Key(key), Held::Entry(Arc::new(holder)));
        });
    }

    fn get<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Entry<V>>
    where
        K: Borrow<Q>,
    {
        // It may have been evicted since.
        inside(|| self.map.get(&KeyRef(key)))?.into_entry()?.entry().clone()
    }

    fn take<Q: Hash + Eq + ?Sized>(&self, key: &Q) -> Option<Entry<V>>
    where
        K: Borrow<Q>,
    {
        // Taken within the call: at its end the listener's holders are vacated.
        inside(|| self.map.remove(&KeyRef(key))?.into_entry()?.take())
    }

    fn clear(&self) {
        inside(|| self.map.invalidate_all());
        let mut before = u64::MAX;
        // A run of maintenance ends after 100 ms.
        while self.tally.gone() != before {
            before = self.tally.gone();
            inside(|| self.map.run_pending_tasks());
        }
    }

    fn bytes(&self) -> u64 {
        self.tally.bytes()
    }

    fn len(&self) -> u64 {
        self.tally.entries()
    }
}

/// The holder of a value.
trait Vacate {
    /// Drops the value, if it is still there.
    fn vacate(&self);
}

thread_local! {
    /// Calls of caches that this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static WAITING: RefCell<Vec<Arc<dyn Vacate>>> = const { RefCell::new(Vec::new()) };
}

/// A call of a cache. At the end of the outermost one the waiting values are dropped.
struct Inside;

impl Drop for Inside {
    fn drop(&mut self) {
        let depth = DEPTH.get() - 1;
        DEPTH.set(depth);
        if depth > 0 {
            return;
        }
        // One by one, because dropping a value may add others.
        while let Ok(Some(holder)) = WAITING.try_with(|waiting| waiting.borrow_mut().pop()) {
            holder.vacate();
        }
    }
}

/// Returns whether this thread is in a call of a cache.
fn is_inside() -> bool {
    DEPTH.get() > 0
}

/// Runs a call of a cache.
fn inside<T>(call: impl FnOnce() -> T) -> T {
    DEPTH.set(DEPTH.get() + 1);
    let _inside = Inside;
    call()
}

/// Vacates a holder when this thread is in no call. This is at once if it is in none, or is ending.
fn vacate_outside(holder: Arc<dyn Vacate>) {
    let mut holder = Some(holder);
    if is_inside() {
        _ = WAITING.try_with(|waiting| waiting.borrow_mut().extend(holder.take()));
    }
    if let Some(holder) = holder {
        holder.vacate();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::{Vacate, inside, is_inside, vacate_outside};

    /// Checks that it is vacated outside, and vacates others there.
    struct Holder(Arc<AtomicU32>, u32);

    impl Vacate for Holder {
        fn vacate(&self) {
            // ORDERING: Relaxed; one thread.
            self.0.fetch_add(1, Ordering::Relaxed);
            assert!(!is_inside());
            if self.1 > 0 {
                let next = Holder(Arc::clone(&self.0), self.1 - 1);
                inside(|| vacate_outside(Arc::new(next)));
            }
        }
    }

    #[test]
    fn vacates_outside_of_the_outermost_call() {
        let vacated = Arc::new(AtomicU32::new(0));
        // ORDERING: Relaxed; one thread.
        let count = || vacated.load(Ordering::Relaxed);
        let holder = |more| Arc::new(Holder(Arc::clone(&vacated), more));
        inside(|| {
            inside(|| vacate_outside(holder(3)));
            assert_eq!(count(), 0);
        });
        assert_eq!(count(), 4);
        vacate_outside(holder(0));
        assert_eq!(count(), 5);
    }
}
