//! What the stocks of one group did, for its hit rate.

use crate::rstat::builtin::memory;

/// Figures of one group's stocks over all slots, since the group was created.
///
/// Every charge of at least one byte is a hit or a miss (in a hierarchy without stock nothing is counted). The figures are those of the
/// subsystem `memory` ([`Hierarchy::memory`](crate::Hierarchy::memory)), of the group alone. Uncharges are not counted one by one (that would cost a second atomic operation each);
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

impl StockStats {
    /// The figures in values of the subsystem `memory`.
    pub(crate) fn of(values: &[i64; memory::STOCK_DRAINED + 1], prepaid_bytes: u64) -> StockStats {
        let [charges, misses] = [memory::CHARGES, memory::STOCK_MISSES].map(|stat| values[stat] as u64);
        StockStats {
            // A thread that changed its slot between the two may have them come in either order.
            hits: charges.saturating_sub(misses),
            misses,
            refills: values[memory::STOCK_REFILLS] as u64,
            returns: values[memory::STOCK_RETURNS] as u64,
            drains: values[memory::STOCK_DRAINS] as u64,
            drained_bytes: values[memory::STOCK_DRAINED] as u64,
            prepaid_bytes,
        }
    }
}

/// Counting what stocks and shrinkers do. The caller holds the node: by a handle, by charged bytes, by PENDING or by the tree lock.
pub(crate) mod count {
    use crate::node::Node;
    use crate::rstat::builtin::{MEMORY, memory};
    use crate::rstat::update;

    fn add(node: &'static Node, stat: usize, delta: u64) {
        if delta > 0 && is_counted(node, stat) {
            update::add(node, MEMORY, stat, delta as i64);
        }
    }

    /// In a model only if it has the statistic.
    fn is_counted(node: &'static Node, stat: usize) -> bool {
        !cfg!(memgroup_loom) || node.stats[MEMORY].get().is_some_and(|entry| stat < entry.store.words())
    }

    pub(crate) fn charges(node: &'static Node, attempts: u64) {
        add(node, memory::CHARGES, attempts);
    }

    pub(crate) fn miss(node: &'static Node) {
        add(node, memory::STOCK_MISSES, 1);
    }

    pub(crate) fn refill(node: &'static Node) {
        add(node, memory::STOCK_REFILLS, 1);
    }

    pub(crate) fn one_return(node: &'static Node) {
        add(node, memory::STOCK_RETURNS, 1);
    }

    pub(crate) fn drain(node: &'static Node, bytes: u64) {
        add(node, memory::STOCK_DRAINS, u64::from(bytes > 0));
        add(node, memory::STOCK_DRAINED, bytes);
    }

    pub(crate) fn refusal(node: &'static Node) {
        add(node, memory::REFUSALS, 1);
    }

    pub(crate) fn forced(node: &'static Node) {
        add(node, memory::FORCED, 1);
    }

    /// A cache of the group was asked to give back, and so much was uncharged.
    pub(crate) fn reclaim(node: &'static Node, bytes: u64) {
        add(node, memory::RECLAIMS, 1);
        add(node, memory::RECLAIMED, bytes);
    }

    /// A thread was slowed down for so long.
    pub(crate) fn throttle(node: &'static Node, nanos: u64) {
        add(node, memory::THROTTLES, 1);
        add(node, memory::THROTTLED_USEC, nanos);
    }
}
