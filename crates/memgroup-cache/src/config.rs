//! The settings of a cache.

use std::time::Duration;

use memgroup::{Effort, ShrinkerConfig};

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
