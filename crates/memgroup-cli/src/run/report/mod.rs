//! Report: the model behind the tables and the JSON.
//!
//! Bytes are bytes and latencies are microseconds. A figure that is unknown is `null` in the JSON.

mod merge;

use memgroup::{Group, GroupSnapshot, Snapshot};
use serde::{Deserialize, Serialize};

use crate::run::backend::{Backend, Groups, Regime};
use crate::run::data::Job;
use crate::run::data::files::Database;
use crate::run::measure::kills::Kills;
use crate::run::measure::latencies::Latencies;
use crate::run::measure::shrinkers::Shrinker;
use crate::run::measure::{Figures, Held, Idle, PerCpu, Share};
use crate::run::spec::{Kind, Spec, TenantSpec};
use crate::run::work::Ran;

/// The report of `memgroup run`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) memgroup: RegimeReport,
    /// The same work without limits, with `--baseline`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unlimited: Option<RegimeReport>,
    /// The same work under SQLite's heap limit, with `--baseline`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) baseline: Option<RegimeReport>,
}

impl Report {
    /// A report without comparison.
    pub(crate) fn of(memgroup: RegimeReport) -> Report {
        Report { memgroup, ..Report::default() }
    }

    /// The reports of all regimes of SQLite that ran.
    pub(crate) fn regimes(&self) -> Vec<(Regime, &RegimeReport)> {
        let reports = [Some(&self.memgroup), self.unlimited.as_ref(), self.baseline.as_ref()];
        Regime::ALL.into_iter().zip(reports).filter_map(|(regime, report)| Some((regime, report?))).collect()
    }
}

/// The process of an HTTP server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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

/// Result of one process, with the latencies that are needed to add results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Turn {
    pub(crate) report: RegimeReport,
    /// Latencies of each tenant, in the order of the SPEC.
    pub(crate) latencies: Vec<Latencies>,
}

/// Report of one regime, from one process or several.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct RegimeReport {
    /// Run time of the statements.
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
    /// The run ended early.
    pub(crate) interrupted: bool,
    /// The server; none with SQLite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<Server>,
    /// Whether caches were reclaimed; none without groups.
    pub(crate) reclaim: Option<bool>,
    /// Limit of the root in a run without limits; none otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) guard: Option<u64>,
    /// None without turns in which no statement was retried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) without_retries: Option<WithoutRetries>,
    /// In the order of the SPEC.
    pub(crate) tenants: Vec<TenantReport>,
    /// Stopped tenants; none without groups.
    pub(crate) kills: Option<Vec<Kills>>,
    /// Memory of all tenants together: of their parent group, or of SQLite's heap.
    pub(crate) all: Held,
    /// Of all tenants and their parent's limit.
    #[serde(flatten)]
    pub(crate) figures: Figures,
    /// Memory that SQLite took for no tenant; none without groups.
    pub(crate) unattributed: Option<Held>,
    /// Per-CPU memory of the hierarchy; none without groups.
    pub(crate) percpu: Option<PerCpu>,
}

/// Well-behaved tenants in turns of their own, in which no statement was retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WithoutRetries {
    /// Their failed statements. One that fails at once is followed by the next.
    pub(crate) failed: u64,
    /// The tenants that had any.
    pub(crate) failing: u64,
}

/// Report of one tenant, or the sum of all.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct TenantReport {
    pub(crate) name: String,
    /// None for the sum of all tenants.
    pub(crate) workload: Option<Kind>,
    pub(crate) threads: u32,
    /// Statements that returned their last row.
    pub(crate) done: u64,
    /// Statements that failed for lack of memory.
    pub(crate) refused: u64,
    /// Statements stopped to free memory.
    pub(crate) killed: u64,
    /// Retries of statements that found no memory.
    pub(crate) retried: u64,
    /// Requests without an answer, because the connection was lost or the server was gone; HTTP's only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lost: Option<u64>,
    /// Statements interrupted by the end of the run.
    pub(crate) interrupted: u64,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    #[serde(flatten)]
    pub(crate) held: Held,
    /// Whether the SPEC protects its memory, in every regime: by `min` or `low`, or by fair shares if it is well-behaved.
    pub(crate) protected: bool,
    #[serde(flatten)]
    pub(crate) figures: Figures,
    /// Delays of its threads because of `high` or of forced charges.
    pub(crate) throttled_us: Option<u64>,
    /// Charges that a limit which is not enforced would have refused; none without groups.
    pub(crate) would_refuse: Option<u64>,
    /// Size of the tenant's database.
    pub(crate) database: u64,
    /// Text of the first refusal.
    pub(crate) first_refusal: Option<String>,
    /// Bytes of the page caches of its connections at the end.
    pub(crate) page_cache: u64,
    /// None if it worked to the end.
    pub(crate) idle: Option<Idle>,
    /// None without fair shares.
    pub(crate) share: Option<Share>,
    /// Its caches; none without groups.
    pub(crate) shrinkers: Option<Vec<Shrinker>>,
}

impl TenantReport {
    /// Statements that failed for lack of memory: refused, stopped, or lost with their server.
    pub(crate) fn failed(&self) -> u64 {
        self.refused + self.killed + self.lost.unwrap_or(0)
    }

    /// Figures of the group of `tenant` in `snapshot` after a run of that many `seconds`. All that the group does not know is left out.
    fn of_group(
        spec: &Spec,
        tenant: &TenantSpec,
        found: Option<(&GroupSnapshot, &Snapshot)>,
        seconds: f64,
    ) -> TenantReport {
        let group = found.map(|(group, _)| group);
        let figures = group.map(|group| Figures::of(group, seconds)).unwrap_or_default();
        TenantReport {
            name: tenant.name.clone(),
            workload: Some(tenant.workload),
            threads: tenant.threads,
            held: group.map(Held::of).unwrap_or_default(),
            protected: tenant.is_protected() || (spec.share.is_some() && !tenant.workload.is_greedy()),
            throttled_us: group.map(|_| figures.memory("throttled_us")),
            would_refuse: group.map(|group| group.events_local.would_refuse),
            share: found.and_then(|(group, all)| Share::of(group, all)),
            figures,
            ..TenantReport::default()
        }
    }

    /// Whether it asks for more memory than any limit allows.
    pub(crate) fn is_greedy(&self) -> bool {
        self.workload.is_some_and(Kind::is_greedy)
    }

    /// Whether this is a tenant, and its statements should not fail.
    pub(crate) fn is_well_behaved(&self) -> bool {
        self.workload.is_some_and(|kind| !kind.is_greedy())
    }
}

impl RegimeReport {
    /// Sum of `count` over the tenants that `select` accepts.
    pub(crate) fn sum(&self, select: fn(&TenantReport) -> bool, count: fn(&TenantReport) -> u64) -> u64 {
        self.tenants.iter().filter(|tenant| select(tenant)).map(count).sum()
    }

    /// All tenants together as one row of a table.
    pub(crate) fn total(&self) -> TenantReport {
        let sum = |count| self.sum(|_| true, count);
        let caches = |tenant: &TenantReport| tenant.shrinkers.clone();
        TenantReport {
            name: "all tenants".to_owned(),
            done: sum(|tenant| tenant.done),
            refused: sum(|tenant| tenant.refused),
            killed: sum(|tenant| tenant.killed),
            lost: self.server.as_ref().map(|_| sum(|tenant| tenant.lost.unwrap_or(0))),
            retried: sum(|tenant| tenant.retried),
            held: self.all,
            database: sum(|tenant| tenant.database),
            figures: self.figures.clone(),
            shrinkers: Some(self.tenants.iter().filter_map(caches).flatten().collect()),
            ..TenantReport::default()
        }
    }
}

impl RegimeReport {
    /// Figures of the groups of `spec` after a run of that many `seconds`, all of one moment. Without groups they are unknown.
    pub(crate) fn of_groups(groups: Option<&Groups>, spec: &Spec, seconds: f64) -> RegimeReport {
        let snapshot = groups.map(|groups| groups.hierarchy.snapshot());
        let find = |group: &Group| {
            let all = snapshot.as_ref()?;
            Some((all.groups.iter().find(|found| found.id == group.id())?, all))
        };
        let tenant = |(index, tenant)| {
            let found = groups.and_then(|groups| find(&groups.tenants[index]));
            TenantReport::of_group(spec, tenant, found, seconds)
        };
        let parent = groups.and_then(|groups| find(&groups.parent)).map(|(parent, _)| parent);
        RegimeReport {
            seconds,
            seed: spec.seed,
            guard: snapshot.as_ref().and_then(|snapshot| snapshot.groups[0].limits.max_bytes),
            tenants: spec.tenants.iter().enumerate().map(tenant).collect(),
            kills: groups.map(Groups::kills),
            all: parent.map(Held::of).unwrap_or_default(),
            figures: parent.map(|parent| Figures::of(parent, seconds)).unwrap_or_default(),
            unattributed: groups
                .and_then(|groups| find(groups.unattributed.as_ref()?))
                .map(|(group, _)| Held::of(group)),
            percpu: groups.map(|groups| PerCpu::of(&groups.hierarchy)),
            ..RegimeReport::default()
        }
    }
}

impl Turn {
    /// Measures `backend` after `ran`, while the connections are still open.
    pub(crate) fn of(backend: &Backend, job: &Job<'_>, databases: &[Database], ran: &Ran) -> Turn {
        let spec = job.spec;
        let seconds = ran.elapsed.as_secs_f64();
        let groups = backend.groups();
        let mut report = RegimeReport::of_groups(groups, spec, seconds);
        let shrinkers = groups.map(|groups| Shrinker::all(&groups.hierarchy));
        for (index, tenant) in report.tenants.iter_mut().enumerate() {
            let (counters, tally) = &ran.tenants[index];
            [tenant.done, tenant.refused, tenant.killed, tenant.retried, tenant.interrupted] =
                counters.read();
            let path = groups.map(|groups| groups.tenants[index].path());
            let is_own = |shrinker: &&Shrinker| path.as_ref() == Some(&shrinker.group);
            tenant.p50_us = tally.latencies.quantile_us(0.50);
            tenant.p99_us = tally.latencies.quantile_us(0.99);
            tenant.idle = tally.idle.map(|idle| {
                let since = |before| tenant.figures.memory("reclaimed").saturating_sub(before);
                Idle { reclaimed: idle.reclaimed.map(since), ..idle }
            });
            tenant.database = databases[index].bytes;
            tenant.first_refusal = tally.first_refusal.clone();
            tenant.page_cache = tally.page_cache;
            tenant.shrinkers = shrinkers.as_ref().map(|all| all.iter().filter(is_own).cloned().collect());
        }
        if groups.is_none() {
            report.all = backend.held_by_heap();
        }
        report.interrupted = job.stop.requested();
        report.reclaim = groups.map(|_| spec.reclaim);
        let latencies = ran.tenants.iter().map(|(_, tally)| tally.latencies.clone()).collect();
        Turn { report, latencies }
    }
}

#[cfg(test)]
pub(crate) mod tests;
