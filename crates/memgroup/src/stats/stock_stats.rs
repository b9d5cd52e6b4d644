//! Figures of one group's stocks.

use crate::state::stats::builtin::memory;
use crate::state::stats::stat::StatKey;

/// Figures of one group's stocks over all slots, since the group was created.
///
/// Every charge of at least one byte is a hit or a miss. In a hierarchy without stock none is
/// counted. The figures are those of the subsystem `memory`
/// ([`Hierarchy::memory`](crate::Hierarchy::memory)) for the group alone. Uncharges are not
/// counted, because that would cost a second atomic operation; `returns` counts those that
/// overflowed the stock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct StockStats {
    /// Charges that the stock served alone.
    pub hits: u64,
    /// Charges that went to the counters, refused ones included.
    pub misses: u64,
    /// Misses that bought a batch for later charges.
    pub refills: u64,
    /// Uncharges that overflowed the stock and returned a batch.
    pub returns: u64,
    /// Stocks emptied by a drain, a refusal, a lowered limit, removal or the slot's budget.
    pub drains: u64,
    /// Bytes that those drains returned to the counters.
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
        let charges = self.hits.saturating_add(self.misses);
        (charges > 0).then(|| self.hits as f64 / charges as f64)
    }

    /// Takes the figures from values of the subsystem `memory`.
    pub(crate) fn of(values: &[i64], prepaid_bytes: u64) -> StockStats {
        let value = |key: StatKey| values[key.index()] as u64;
        StockStats {
            // Misses may exceed charges for a moment where a thread changed its slot between the
            // two additions.
            hits: value(memory::CHARGES).saturating_sub(value(memory::STOCK_MISSES)),
            misses: value(memory::STOCK_MISSES),
            refills: value(memory::STOCK_REFILLS),
            returns: value(memory::STOCK_RETURNS),
            drains: value(memory::STOCK_DRAINS),
            drained_bytes: value(memory::STOCK_DRAINED),
            prepaid_bytes,
        }
    }
}
