//! Report: the model behind the table, the sentences and the JSON.
//!
//! Bytes are bytes and latencies are microseconds. A figure that is unknown is `null` in the JSON.
//! All other figures of a group are in its snapshot.

use std::time::Duration;

use hdrhistogram::Histogram;
use memgroup::{GroupSnapshot, Snapshot};
use serde::{Deserialize, Serialize};

use crate::run::backend::Groups;
use crate::run::spec::{Kind, Spec};

/// Significant decimal digits of a latency.
const DIGITS: u8 = 3;
/// One hour. Longer statements count as one hour.
const NS_MAX: u64 = 3_600_000_000_000;

/// The report of `memgroup run`.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) memgroup: RegimeReport,
    /// The same work without memgroup, with `--baseline`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) baseline: Option<RegimeReport>,
}

/// The process of an HTTP server.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Server {
    /// Its bound, if it has one: a memory cgroup, or RLIMIT_AS.
    pub(crate) bound: Option<String>,
    pub(crate) max: Option<u64>,
    /// The most bytes of it that were in memory.
    pub(crate) resident_peak: u64,
    /// Seconds since the first request; none if it lived to the end.
    pub(crate) died_seconds: Option<f64>,
    /// Its exit status, if it died.
    pub(crate) died_of: Option<String>,
}

/// Report of one run of all tenants.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RegimeReport {
    /// Run time of the statements.
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
    /// The run ended early.
    pub(crate) interrupted: bool,
    /// The server; none with SQLite.
    pub(crate) server: Option<Server>,
    /// Whether caches were reclaimed; none without groups.
    pub(crate) reclaim: Option<bool>,
    /// In the order of the SPEC.
    pub(crate) tenants: Vec<TenantReport>,
    /// Memory of all tenants together: of their parent group, or of SQLite's heap.
    pub(crate) all: Held,
    /// The groups at the end; none without memgroup.
    pub(crate) groups: Option<Snapshot>,
}

/// Memory of a group, or of SQLite's heap.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Held {
    pub(crate) usage: Option<u64>,
    pub(crate) peak: Option<u64>,
    pub(crate) max: Option<u64>,
}

impl Held {
    fn of(group: &GroupSnapshot) -> Held {
        Held { usage: Some(group.usage_bytes), peak: Some(group.peak_bytes), max: group.limits.max_bytes }
    }
}

/// A tenant whose work was over before the end.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Idle {
    /// The second at which its last thread became idle.
    pub(crate) since_seconds: f64,
    /// Bytes of its page caches then.
    pub(crate) page_cache: u64,
}

/// The latencies of statements or requests.
#[derive(Debug)]
pub(crate) struct Latencies {
    /// In nanoseconds.
    ns: Histogram<u64>,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies { ns: Histogram::new_with_bounds(1, NS_MAX, DIGITS).expect("the bounds are valid") }
    }
}

impl Latencies {
    pub(crate) fn record(&mut self, took: Duration) {
        self.ns.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Returns the latency in microseconds that `share` of the statements did not exceed; none
    /// without statements.
    pub(crate) fn quantile_us(&self, share: f64) -> Option<f64> {
        (!self.ns.is_empty()).then(|| self.ns.value_at_quantile(share) as f64 / 1e3)
    }
}

/// Results of the statements or requests of a tenant.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Those that returned their last row.
    pub(crate) done: u64,
    /// Those that failed for lack of memory.
    pub(crate) refused: u64,
    /// Those stopped to free memory.
    pub(crate) killed: u64,
    /// Retries of those that found no memory.
    pub(crate) retried: u64,
    /// Requests without an answer, because the connection was lost or the server was gone.
    pub(crate) lost: u64,
    /// Those interrupted by the end of the run.
    pub(crate) interrupted: u64,
    /// Text of the first refusal.
    pub(crate) first_refusal: Option<String>,
}

impl Tally {
    /// Returns how many failed for lack of memory: refused, stopped, or lost with their server.
    pub(crate) fn failed(&self) -> u64 {
        self.refused + self.killed + self.lost
    }
}

/// Report of one tenant.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct TenantReport {
    pub(crate) name: String,
    pub(crate) workload: Kind,
    pub(crate) threads: u32,
    #[serde(flatten)]
    pub(crate) tally: Tally,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    #[serde(flatten)]
    pub(crate) held: Held,
    /// Size of the tenant's database.
    pub(crate) database: u64,
    /// Bytes of the page caches of its connections at the end.
    pub(crate) page_cache: u64,
    /// None if it worked to the end.
    pub(crate) idle: Option<Idle>,
}

impl RegimeReport {
    /// Reports the groups of `spec` after a run of `seconds`. Without groups, their figures are
    /// unknown.
    pub(crate) fn of_groups(groups: Option<&Groups>, spec: &Spec, seconds: f64) -> RegimeReport {
        let snapshot = groups.map(|groups| groups.hierarchy.snapshot());
        let held = |path: &str| {
            let group = snapshot.as_ref().and_then(|snapshot| snapshot.group(path));
            group.map(Held::of).unwrap_or_default()
        };
        let tenants = spec.tenants.iter().map(|tenant| TenantReport {
            name: tenant.name.clone(),
            workload: tenant.workload,
            threads: tenant.threads,
            held: held(&format!("/tenants/{}", tenant.name)),
            ..TenantReport::default()
        });
        RegimeReport {
            seconds,
            seed: spec.seed,
            reclaim: groups.map(|_| spec.reclaim),
            tenants: tenants.collect(),
            all: held("/tenants"),
            groups: snapshot,
            ..RegimeReport::default()
        }
    }

    /// Returns the group of a tenant at the end.
    pub(crate) fn group(&self, tenant: &str) -> Option<&GroupSnapshot> {
        self.groups.as_ref()?.group(&format!("/tenants/{tenant}"))
    }

    /// Returns the results of all tenants together.
    pub(crate) fn sum(&self) -> Tally {
        let mut sum = Tally::default();
        for TenantReport { tally, .. } in &self.tenants {
            sum.done += tally.done;
            sum.refused += tally.refused;
            sum.killed += tally.killed;
            sum.retried += tally.retried;
            sum.lost += tally.lost;
            sum.interrupted += tally.interrupted;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Latencies;

    #[test]
    fn has_no_quantile_without_statements() {
        assert_eq!(Latencies::default().quantile_us(0.5), None);
    }

    #[test]
    fn counts_a_statement_of_more_than_an_hour_as_an_hour() {
        let mut latencies = Latencies::default();
        latencies.record(Duration::from_nanos(1_500));
        latencies.record(Duration::MAX);
        let [half, most] = [0.5, 1.0].map(|share| latencies.quantile_us(share).expect("two statements"));
        assert!((1.49..1.51).contains(&half), "{half}");
        assert!((most / 3.6e9 - 1.0).abs() < 1e-3, "{most}");
    }
}
