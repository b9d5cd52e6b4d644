//! What the stocks of one group did, for its hit rate.

use memgroup_sync::atomic::{AtomicU64, Ordering};

/// Figures of one group's stocks over all slots, since the group was created.
///
/// Every charge of at least one byte is a hit or a miss (in a hierarchy without stock nothing is counted); the figures are exact when nobody charges and at most a
/// moment old otherwise. Uncharges are not counted one by one (that would cost a second atomic operation each);
/// `returns` counts those that overflowed the stock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StockStats {
    /// Charges served by the stock alone.
    pub hits: u64,
    /// Charges that went to the counters, refused ones included.
    pub misses: u64,
    /// Misses that bought a batch for the charges to come.
    pub refills: u64,
    /// Uncharges that overflowed the stock and returned a batch.
    pub returns: u64,
    /// Stocks emptied by a drain, a refusal, a lowered limit, removal or the slot's budget.
    pub drains: u64,
    /// Bytes those drains returned to the counters.
    pub drained_bytes: u64,
    /// Bytes prepaid now: part of `usage`, not yet spent.
    pub prepaid_bytes: u64,
}

impl StockStats {
    /// Share of charges that the stock served, 0 to 1; `None` before the first charge.
    ///
    /// ```
    /// let stats = memgroup::StockStats { hits: 3, misses: 1, ..Default::default() };
    /// assert_eq!(stats.hit_rate(), Some(0.75));
    /// ```
    pub fn hit_rate(&self) -> Option<f64> {
        let charges = self.hits + self.misses;
        (charges > 0).then(|| self.hits as f64 / charges as f64)
    }
}

/// The live counts behind [`StockStats`]. All Relaxed: they order nothing and are read for reports.
pub(crate) struct StockCounts {
    harvested_attempts: AtomicU64,
    misses: AtomicU64,
    refills: AtomicU64,
    returns: AtomicU64,
    drains: AtomicU64,
    drained_bytes: AtomicU64,
}

fn bump(count: &AtomicU64, by: u64) {
    // ORDERING: Relaxed; a count for reports.
    count.fetch_add(by, Ordering::Relaxed);
}

fn read(count: &AtomicU64) -> u64 {
    // ORDERING: Relaxed; a count for reports.
    count.load(Ordering::Relaxed)
}

impl StockCounts {
    pub(crate) fn new() -> StockCounts {
        StockCounts {
            harvested_attempts: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            refills: AtomicU64::new(0),
            returns: AtomicU64::new(0),
            drains: AtomicU64::new(0),
            drained_bytes: AtomicU64::new(0),
        }
    }

    pub(crate) fn harvest(&self, attempts: u64) {
        if attempts > 0 {
            bump(&self.harvested_attempts, attempts);
        }
    }

    pub(crate) fn count_miss(&self) {
        bump(&self.misses, 1);
    }

    pub(crate) fn count_refill(&self) {
        bump(&self.refills, 1);
    }

    pub(crate) fn count_return(&self) {
        bump(&self.returns, 1);
    }

    pub(crate) fn count_drain(&self, bytes: u64) {
        if bytes > 0 {
            bump(&self.drains, 1);
            bump(&self.drained_bytes, bytes);
        }
    }

    /// Changes with every charge and uncharge that was not the stock's alone.
    pub(crate) fn activity(&self) -> u64 {
        read(&self.harvested_attempts).wrapping_add(read(&self.misses)).wrapping_add(read(&self.returns))
    }

    pub(crate) fn reset(&self) {
        for count in [
            &self.harvested_attempts,
            &self.misses,
            &self.refills,
            &self.returns,
            &self.drains,
            &self.drained_bytes,
        ] {
            // ORDERING: Relaxed; the group has no handle yet.
            count.store(0, Ordering::Relaxed);
        }
    }

    /// The figures, with what the words themselves hold added.
    pub(crate) fn read(&self, attempts_in_words: u64, prepaid_bytes: u64) -> StockStats {
        let misses = read(&self.misses);
        let attempts = read(&self.harvested_attempts) + attempts_in_words;
        StockStats {
            // A miss counted after its attempt was looked at would make it negative for a moment.
            hits: attempts.saturating_sub(misses),
            misses,
            refills: read(&self.refills),
            returns: read(&self.returns),
            drains: read(&self.drains),
            drained_bytes: read(&self.drained_bytes),
            prepaid_bytes,
        }
    }
}
