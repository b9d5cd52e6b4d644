//! Measurements of groups and statements. The report's JSON consists of these types.

pub(crate) mod control;
pub(crate) mod kills;
pub(crate) mod latencies;
pub(crate) mod shrinkers;
pub(crate) mod statistics;

use memgroup::{Group, Hierarchy};
use serde::{Deserialize, Serialize};

/// Memory of a group, or of all tenants together.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Held {
    /// Bytes charged now, prepaid bytes included.
    pub(crate) usage: u64,
    /// Highest usage so far.
    pub(crate) peak: u64,
    /// None: no limit.
    pub(crate) max: Option<u64>,
    /// Share of the charges that the stock served.
    pub(crate) hit_rate: Option<f64>,
}

impl Held {
    pub(crate) fn of(group: &Group) -> Held {
        Held {
            usage: group.usage(),
            peak: group.peak(),
            max: group.max(),
            hit_rate: group.stock().hit_rate(),
        }
    }
}

/// Per-CPU memory of the hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PerCpu {
    /// Bytes backed by the system.
    pub(crate) populated: u64,
    /// Bytes in the groups' records, over all used slots.
    pub(crate) live: u64,
    /// Used slots.
    pub(crate) slots: usize,
}

impl PerCpu {
    pub(crate) fn of(hierarchy: &Hierarchy) -> PerCpu {
        let stats = hierarchy.percpu();
        PerCpu { populated: stats.populated_bytes, live: stats.live_bytes, slots: stats.slots }
    }
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, Hierarchy};

    use super::Held;

    #[test]
    fn takes_the_hit_rate_from_the_stock() {
        let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
        let group = hierarchy.root().create("a").expect("a group");
        assert_eq!(Held::of(&group).hit_rate, None);
        let charges: Vec<_> = (0..100).map(|_| group.try_charge(100).expect("no limit")).collect();
        let stock = group.stock();
        let expected = stock.hits as f64 / (stock.hits + stock.misses) as f64;
        assert!(0.0 < expected && expected < 1.0, "{stock:?}");
        assert_eq!(Held::of(&group).hit_rate, Some(expected));
        drop(charges);
    }
}
