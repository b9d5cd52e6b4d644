//! Measurements of groups and statements. The report's JSON consists of these types. Without groups most figures are unknown.

pub(crate) mod counts;
pub(crate) mod kills;
pub(crate) mod latencies;
pub(crate) mod pressure;
pub(crate) mod shrinkers;
pub(crate) mod statistics;

use memgroup::{FairShare, GroupSnapshot, Hierarchy, Snapshot};
use serde::{Deserialize, Serialize};

use counts::Counts;
use pressure::Pressure;
use statistics::Statistics;

/// Memory of a group, or of all tenants together.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Held {
    /// Bytes charged now, prepaid bytes included.
    pub(crate) usage: Option<u64>,
    /// Highest usage so far.
    pub(crate) peak: Option<u64>,
    /// None also without a limit.
    pub(crate) max: Option<u64>,
    /// Share of the charges that the stock served; none also without charges.
    pub(crate) hit_rate: Option<f64>,
}

impl Held {
    pub(crate) fn of(group: &GroupSnapshot) -> Held {
        Held {
            usage: Some(group.usage_bytes),
            peak: Some(group.peak_bytes),
            max: group.limits.max_bytes,
            hit_rate: group.stock.hit_rate(),
        }
    }

    /// Adds a `later` run: the highest peak of both, and the state at the end of the later one.
    pub(crate) fn add(self, later: Held) -> Held {
        Held { peak: self.peak.max(later.peak), hit_rate: later.hit_rate.or(self.hit_rate), ..later }
    }
}

/// A tenant's fair share of the common limit, and the memory that went between it and other tenants.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Share {
    /// Bytes that it could use at the end, beside the others.
    pub(crate) bytes: u64,
    /// Bytes that it could use whatever the others asked for.
    pub(crate) even: u64,
    /// Bytes that its caches gave to other tenants.
    pub(crate) given: u64,
    /// Bytes that caches of other tenants gave to it.
    pub(crate) taken: u64,
    /// The tenant that was given bytes last.
    pub(crate) given_to: Option<String>,
}

impl Share {
    /// The share of a group in `snapshot`, if it has one.
    pub(crate) fn of(group: &GroupSnapshot, snapshot: &Snapshot) -> Option<Share> {
        let FairShare { bytes, even, given, taken, given_to, .. } = group.fair_share?;
        let name = |id| snapshot.groups.iter().find(|other| other.id == id).map(|other| other.name.clone());
        Some(Share { bytes, even, given, taken, given_to: given_to.and_then(name) })
    }

    /// Adds a `later` run.
    pub(crate) fn add(self, later: Share) -> Share {
        let given_to = later.given_to.or(self.given_to);
        Share { given: self.given + later.given, taken: self.taken + later.taken, given_to, ..later }
    }
}

/// Effects of limits on a group and the groups below it, and their statistics.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) events: Option<Counts>,
    pub(crate) pressure: Option<Pressure>,
    pub(crate) statistics: Option<Statistics>,
}

impl Figures {
    /// The figures of `group` after a run of that many `seconds`.
    pub(crate) fn of(group: &GroupSnapshot, seconds: f64) -> Figures {
        Figures {
            events: Some(Counts::of_events(&group.events)),
            pressure: Some(Pressure::of(group, seconds)),
            statistics: Some(Statistics::of(group)),
        }
    }

    /// Count of the event `key`; 0 without groups.
    pub(crate) fn event(&self, key: &str) -> u64 {
        self.events.as_ref().map_or(0, |events| events.get(key))
    }

    /// Statistic `key` of the memory; 0 without groups.
    pub(crate) fn memory(&self, key: &str) -> u64 {
        self.statistics.as_ref().map_or(0, |statistics| statistics.memory.get(key))
    }

    /// Statistic `key` of files; 0 without groups.
    pub(crate) fn io(&self, key: &str) -> u64 {
        self.statistics.as_ref().map_or(0, |statistics| statistics.io.get(key))
    }

    /// Adds a `later` run; both together took that many `seconds`.
    pub(crate) fn add(self, later: Figures, seconds: f64) -> Figures {
        Figures {
            events: both(self.events, later.events, |before, later| before.add(later, &[])),
            pressure: both(self.pressure, later.pressure, |before, later| before.add(later, seconds)),
            statistics: both(self.statistics, later.statistics, Statistics::add),
        }
    }
}

/// Adds two values. Runs of one regime either both have a value or both have none.
pub(crate) fn both<T>(before: Option<T>, later: Option<T>, add: impl FnOnce(T, T) -> T) -> Option<T> {
    before.zip(later).map(|(before, later)| add(before, later))
}

/// State of a tenant when its work was over, before the end of the run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Idle {
    /// Seconds since the run began.
    pub(crate) since_seconds: f64,
    /// Bytes of the page caches then.
    pub(crate) page_cache: u64,
    /// Bytes reclaimed from it: until then while the run lasts, since then in the report. None without groups.
    pub(crate) reclaimed: Option<u64>,
}

impl Idle {
    /// Combines two threads of a tenant: it is idle when its last thread is.
    pub(crate) fn and(self, other: Idle) -> Idle {
        let last = if self.since_seconds < other.since_seconds { other } else { self };
        Idle { page_cache: self.page_cache + other.page_cache, ..last }
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

    use super::{Held, Idle};

    #[test]
    fn becomes_idle_with_the_last_thread() {
        let of = |since_seconds, page_cache, reclaimed| Idle { since_seconds, page_cache, reclaimed };
        let (first, last) = (of(3.0, 10, Some(1)), of(5.0, 20, Some(2)));
        for (one, other) in [(first, last), (last, first)] {
            assert_eq!(one.and(other), of(5.0, 30, Some(2)));
        }
    }

    #[test]
    fn takes_the_hit_rate_from_the_stock() {
        let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
        let group = hierarchy.root().create("a").expect("a group");
        let hit_rate = || Held::of(&group.snapshot().groups[0]).hit_rate;
        assert_eq!(hit_rate(), None);
        let charges: Vec<_> = (0..100).map(|_| group.try_charge(100).expect("no limit")).collect();
        let stock = group.stock();
        let expected = stock.hits as f64 / (stock.hits + stock.misses) as f64;
        assert!(0.0 < expected && expected < 1.0, "{stock:?}");
        assert_eq!(hit_rate(), Some(expected));
        drop(charges);
    }
}
