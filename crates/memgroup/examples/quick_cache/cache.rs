//! A tenant's cache: `quick_cache` behind a [`Shrinker`].
//!
//! ```text
//!   insert ── charge ──▶ part, by the key's hash ──▶ an entry that holds its charge
//!   scan ──▶ the heaviest part ── wedge in ──▶ evicted by the cache's own policy, dropped outside its lock, uncharged ── wedge out
//! ```
//!
//! `quick_cache` has no call that evicts so many bytes. Two come near. `set_capacity` to less and back waits for locks. Each time it also rounds
//! down the number of evicted keys that the cache remembers, until it remembers none. Removing keys one by one ignores the cache's policy. But
//! an insertion evicts entries until it has the bytes. So a **wedge**, an entry that is nothing but weight, is inserted and removed again. In
//! a cache of `capacity` bytes that holds `held`, a wedge of `capacity - held + wanted` evicts `wanted` bytes. It is pinned, because the cache
//! takes in nothing else above the hot part's target. It is never looked up, because an entry that is used twice becomes hot. Each part has
//! one shard, so that the bytes of that shard are known.
//!
//! - I1. An entry holds the charge of its bytes, and is dropped outside the cache's locks. So uncharged bytes are freed, also when the value's drop
//!   panics, and an entry stays charged while a reader has it.
//! - I2. No charge is made while a lock of the cache is held. Of the user's code only a key's `Hash` and `Eq` run there. So a charge that reclaims may
//!   come to the very cache that it fills, and no thread waits in a cycle.
//! - I3. One thread at a time scans a group's cache (the engine's promise), so there is one wedge.
//! - B1. While a wedge is in, other insertions evict for themselves: for some instructions.
//! - B2. `held` runs ahead of an insertion that is under way, so a wedge may be too small by that.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::{Ask, Charge, Count, Group, GroupShrinker, Scan, Shrinker, ShrinkerConfig, ShrinkerError};
use quick_cache::sync::Cache;
use quick_cache::{Equivalent, Lifecycle, OptionsBuilder, Weighter};

/// Shards, each under a lock of its own.
const PARTS: usize = 4;
/// Bytes of an entry without its value: its place in the cache's tables, and its own two counts, bytes and charge.
pub(crate) const ENTRY_BYTES: u64 = 128;
/// From here on a part that doubles is marked as grown.
const GROWN_BYTES: u64 = 16 << 10;

/// A value in the cache, or one that did not fit.
pub(crate) struct Entry<V> {
    // Before the charge: its memory is free when its bytes are uncharged.
    value: V,
    bytes: u64,
    charge: Option<Charge>,
}

impl<V> Entry<V> {
    /// Whether it is charged, and so may be in the cache.
    pub(crate) fn is_charged(&self) -> bool {
        self.charge.is_some()
    }
}

impl<V> Deref for Entry<V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.value
    }
}

/// The content of the cache under a key, or under none.
enum Held<V> {
    Entry(Arc<Entry<V>>),
    Wedge(u64),
}

impl<V> Clone for Held<V> {
    fn clone(&self) -> Self {
        match self {
            Held::Entry(entry) => Held::Entry(Arc::clone(entry)),
            Held::Wedge(bytes) => Held::Wedge(*bytes),
        }
    }
}

#[derive(Clone)]
struct ByBytes;

impl<K, V> Weighter<Option<K>, Held<V>> for ByBytes {
    fn weight(&self, _: &Option<K>, held: &Held<V>) -> u64 {
        match held {
            Held::Entry(entry) => entry.bytes,
            Held::Wedge(bytes) => *bytes,
        }
    }
}

/// The bytes and entries of a part.
#[derive(Default)]
struct Tally {
    bytes: AtomicU64,
    entries: AtomicU64,
}

impl Tally {
    /// Counts an entry that is inserted next. Returns the bytes before.
    fn add(&self, bytes: u64) -> u64 {
        // ORDERING: Relaxed, both; figures for a wedge and for a count. The mark that follows shows them to the count that decides whether the
        // cache is empty.
        self.entries.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed)
    }

    /// Counts an entry out that was removed.
    fn sub(&self, bytes: u64) {
        // ORDERING: Relaxed, both; as in `add`.
        self.entries.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn bytes(&self) -> u64 {
        // ORDERING: Relaxed; as in `add`.
        self.bytes.load(Ordering::Relaxed)
    }

    fn entries(&self) -> u64 {
        // ORDERING: Relaxed; as in `add`.
        self.entries.load(Ordering::Relaxed)
    }
}

/// Counts evicted entries, and hands them to the evicting thread, which drops them outside the lock.
#[derive(Clone)]
struct Leaving(Arc<Tally>);

impl<K, V> Lifecycle<Option<K>, Held<V>> for Leaving {
    type RequestState = Vec<(Option<K>, Held<V>)>;

    fn is_pinned(&self, _: &Option<K>, held: &Held<V>) -> bool {
        matches!(held, Held::Wedge(_))
    }

    fn on_evict(&self, left: &mut Self::RequestState, key: Option<K>, held: Held<V>) {
        if let Held::Entry(entry) = &held {
            self.0.sub(entry.bytes);
        }
        left.push((key, held));
    }
}

/// A key to look up without making it an `Option`.
struct KeyRef<'k, K>(&'k K);

impl<K: Hash> Hash for KeyRef<'_, K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Some(self.0).hash(state);
    }
}

impl<K: Eq> Equivalent<Option<K>> for KeyRef<'_, K> {
    fn equivalent(&self, key: &Option<K>) -> bool {
        key.as_ref() == Some(self.0)
    }
}

struct Part<K, V> {
    held: Arc<Tally>,
    capacity: u64,
    map: Cache<Option<K>, Held<V>, ByBytes, RandomState, Leaving>,
}

impl<K: Eq + Hash, V> Part<K, V> {
    fn new(capacity: u64, entries: usize) -> Part<K, V> {
        let held = Arc::<Tally>::default();
        let mut options = OptionsBuilder::new();
        options.shards(1).estimated_items_capacity(entries).weight_capacity(capacity);
        let options = options.build().expect("both capacities are set");
        let map = Cache::with_options(options, ByBytes, RandomState::new(), Leaving(Arc::clone(&held)));
        Part { held, capacity, map }
    }

    /// Evicts at least `bytes`, or all. Returns the bytes that this frees; `None` if another thread holds the lock.
    fn give(&self, bytes: u64) -> Option<u64> {
        let held = self.held.bytes();
        let wedge = Held::Wedge(self.capacity.saturating_sub(held) + bytes.min(held));
        let mut left = Vec::new();
        self.map.try_insert_with_lifecycle(None, wedge, &mut left).ok()?;
        // Waits for threads that took the lock since; this one has not (I2).
        self.map.remove(&None);
        // An entry that a reader holds is not free yet.
        let free = left.iter().filter_map(|(_, held)| match held {
            Held::Entry(entry) if Arc::strong_count(entry) == 1 => Some(entry.bytes),
            Held::Entry(_) | Held::Wedge(_) => None,
        });
        Some(free.sum())
    }
}

/// The parts of a cache, which the shrinker holds.
struct Parts<K, V> {
    parts: [Part<K, V>; PARTS],
    hasher: RandomState,
}

impl<K: Eq + Hash, V> Parts<K, V> {
    fn of(&self, key: &K) -> &Part<K, V> {
        &self.parts[self.hasher.hash_one(key) as usize % PARTS]
    }
}

impl<K, V> Shrinker for Parts<K, V>
where
    K: Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    fn count(&self, _token: u64) -> Count {
        let sum = |of: fn(&Tally) -> u64| self.parts.iter().map(|part| of(&part.held)).sum();
        Count::of(sum(Tally::bytes), sum(Tally::entries))
    }

    fn scan(&self, ask: &Ask<'_>) -> Scan {
        let mut parts: Vec<&Part<K, V>> = self.parts.iter().collect();
        parts.sort_by_key(|part| std::cmp::Reverse(part.held.bytes()));
        let mut bytes = 0;
        for part in parts {
            if bytes >= ask.bytes() {
                break;
            }
            bytes += part.give(ask.bytes() - bytes).unwrap_or(0);
        }
        if bytes > 0 { Scan::Freed { bytes } } else { Scan::Stopped { bytes: 0 } }
    }
}

/// A cache that charges every entry to one group, and gives memory back when others need it below a common limit.
pub(crate) struct TenantCache<K, V> {
    // Before the parts: when it is dropped, no call begins.
    registered: GroupShrinker,
    inner: Arc<Parts<K, V>>,
    group: Group,
    weigh: fn(&K, &V) -> u64,
}

impl<K, V> TenantCache<K, V>
where
    K: Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// A cache of at most `capacity_bytes`, made for about so many entries. `weigh` tells the bytes of a value with its key.
    ///
    /// # Errors
    /// As [`Group::add_shrinker`].
    pub(crate) fn new(
        group: &Group,
        capacity_bytes: u64,
        entries: usize,
        weigh: fn(&K, &V) -> u64,
    ) -> Result<TenantCache<K, V>, ShrinkerError> {
        let part = |_| Part::new(capacity_bytes / PARTS as u64, entries.div_ceil(PARTS));
        let inner = Arc::new(Parts { parts: std::array::from_fn(part), hasher: RandomState::new() });
        let registered = group.add_shrinker(ShrinkerConfig::new("quick_cache"), Arc::clone(&inner))?;
        Ok(TenantCache { registered, inner, group: group.clone(), weigh })
    }

    /// The entry under a key.
    pub(crate) fn get(&self, key: &K) -> Option<Arc<Entry<V>>> {
        match self.inner.of(key).map.get(&KeyRef(key))? {
            Held::Entry(entry) => Some(entry),
            Held::Wedge(_) => None,
        }
    }

    /// Inserts a value if its group can charge it; else the value is only returned.
    pub(crate) fn insert(&self, key: K, value: V) -> Arc<Entry<V>> {
        let bytes = (self.weigh)(&key, &value) + ENTRY_BYTES;
        let charge = self.group.try_charge(bytes).ok();
        let entry = Arc::new(Entry { value, bytes, charge });
        if entry.is_charged() {
            let part = self.inner.of(&key);
            let before = part.held.add(bytes);
            part.map.insert(Some(key), Held::Entry(Arc::clone(&entry)));
            let after = before + bytes;
            if before == 0 || after >= GROWN_BYTES && before.ilog2() < after.ilog2() {
                self.registered.mark();
            }
        }
        entry
    }

    /// The entry under a key, or a new one from `make`. Two threads may make the same.
    pub(crate) fn get_or_insert_with(&self, key: K, make: impl FnOnce(&K) -> V) -> Arc<Entry<V>> {
        self.get(&key).unwrap_or_else(|| {
            let value = make(&key);
            self.insert(key, value)
        })
    }

    /// Bytes that are charged for the entries.
    pub(crate) fn bytes(&self) -> u64 {
        self.inner.parts.iter().map(|part| part.held.bytes()).sum()
    }

    /// The same, of all entries one by one.
    #[cfg(test)]
    pub(crate) fn bytes_of_entries(&self) -> u64
    where
        K: Clone,
    {
        let entries = self.inner.parts.iter().flat_map(|part| part.map.iter());
        let bytes = entries.map(|(_, held)| match held {
            Held::Entry(entry) => entry.charge.as_ref().map_or(0, Charge::bytes),
            Held::Wedge(bytes) => bytes,
        });
        bytes.sum()
    }
}
