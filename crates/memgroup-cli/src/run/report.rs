//! Report: the model behind the table, the sentences and the JSON.
//!
//! Bytes are bytes and latencies are microseconds. A figure that is unknown is `null` in the JSON.
//! All other figures of a group are in its snapshot.

use memgroup::{GroupSnapshot, Snapshot};
use serde::{Deserialize, Serialize};

use crate::run::backend::Groups;
use crate::run::base::latencies::Latencies;
use crate::run::spec::{Kind, Spec};

/// The report of `memgroup run`.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Report {
    pub(crate) memgroup: RegimeReport,
    /// The same work without memgroup, with `--baseline`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) baseline: Option<RegimeReport>,
}

/// The process of an HTTP server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Server {
    /// Its bound: a memory cgroup, or RLIMIT_AS. None: it has none.
    pub(crate) bound: Option<String>,
    pub(crate) max: Option<u64>,
    /// Most bytes of it that were in memory.
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
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Idle {
    /// The second at which its last thread became idle.
    pub(crate) since_seconds: f64,
    /// Bytes of its page caches then.
    pub(crate) page_cache: u64,
}

impl Idle {
    /// Both threads of a tenant.
    pub(crate) fn and(self, other: Idle) -> Idle {
        let last = if self.since_seconds < other.since_seconds { other } else { self };
        Idle { page_cache: self.page_cache + other.page_cache, ..last }
    }
}

/// Results of the statements or requests of a tenant, or of one of its threads.
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
    /// Adds the results of another thread.
    pub(crate) fn add(&mut self, other: Tally) {
        self.done += other.done;
        self.refused += other.refused;
        self.killed += other.killed;
        self.retried += other.retried;
        self.lost += other.lost;
        self.interrupted += other.interrupted;
        self.first_refusal = self.first_refusal.take().or(other.first_refusal);
    }

    /// Those that failed for lack of memory: refused, stopped, or lost with their server.
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

impl TenantReport {
    /// Takes the results of the tenant's statements or requests.
    pub(crate) fn set(&mut self, tally: Tally, latencies: &Latencies) {
        self.tally = tally;
        self.p50_us = latencies.quantile_us(0.50);
        self.p99_us = latencies.quantile_us(0.99);
    }
}

impl RegimeReport {
    /// Figures of the groups of `spec` after a run of that many `seconds`. Without groups they are
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

    /// The group of a tenant at the end.
    pub(crate) fn group(&self, tenant: &str) -> Option<&GroupSnapshot> {
        self.groups.as_ref()?.group(&format!("/tenants/{tenant}"))
    }

    /// The results of all tenants together.
    pub(crate) fn sum(&self) -> Tally {
        let mut sum = Tally::default();
        self.tenants.iter().for_each(|tenant| sum.add(tenant.tally.clone()));
        sum
    }
}
