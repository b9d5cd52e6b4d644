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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
        Report { memgroup, unlimited: None, baseline: None }
    }

    /// The reports of all regimes that ran.
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
    /// Requests without an answer, because the connection was lost or the server was gone; none with SQLite.
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
pub(crate) mod tests {
    use super::{RegimeReport, Report, TenantReport};
    use crate::run::measure::counts::Counts;
    use crate::run::measure::kills::Kills;
    use crate::run::measure::pressure::{Pressure, Stalled};
    use crate::run::measure::shrinkers::Shrinker;
    use crate::run::measure::statistics::Statistics;
    use crate::run::measure::{Figures, Held, Idle, PerCpu};
    use crate::run::spec::Kind;

    /// Fixed statistics.
    fn statistics() -> Statistics {
        Statistics {
            memory: Counts::of([
                ("file", 14 << 20),
                ("schema", 60 << 10),
                ("statements", 4 << 10),
                ("other", 960 << 10),
                ("prepaid", 128 << 10),
                ("charges", 1_000),
                ("stock_misses", 3),
                ("reclaims", 5),
                ("reclaimed", 2 << 20),
                ("gained", 1 << 20),
                ("throttled_us", 1_500_000),
                ("throttles", 3),
            ]),
            io: Counts::of([("rbytes", 3 << 30), ("wbytes", 0), ("rios", 786_432), ("wios", 0)]),
            scope_us: 19_500_000,
        }
    }

    /// A tenant with fixed figures.
    pub(crate) fn tenant(name: &str, workload: Kind, done: u64, refused: u64) -> TenantReport {
        TenantReport {
            name: name.to_owned(),
            workload: Some(workload),
            threads: 1,
            done,
            refused,
            killed: 0,
            retried: 0,
            lost: None,
            interrupted: 1,
            p50_us: (done > 0).then_some(12.5),
            p99_us: (done > 0).then_some(2_500.0),
            held: held(15 << 20, 16 << 20, Some(16 << 20), Some(0.9971)),
            protected: workload == Kind::Lookups,
            figures: figures(refused, refused / 2, stalled(40_000), stalled(10_000)),
            throttled_us: Some(1_500_000),
            would_refuse: Some(0),
            database: 45 << 20,
            first_refusal: (refused > 0).then(|| format!("/tenants/{name} is full")),
            page_cache: 14 << 20,
            idle: None,
            share: None,
            shrinkers: Some(vec![shrinker(name)]),
        }
    }

    fn held(usage: u64, peak: u64, max: Option<u64>, hit_rate: Option<f64>) -> Held {
        Held { usage: Some(usage), peak: Some(peak), max, hit_rate }
    }

    /// Fixed statistics, with these counts of `max` and `oom` and these stalls.
    fn figures(max: u64, oom: u64, some: Stalled, full: Stalled) -> Figures {
        let (low, high, kill, group_kill) = (("low", 0), ("high", 0), ("oom_kill", 0), ("oom_group_kill", 0));
        Figures {
            events: Some(Counts::of([low, high, ("max", max), ("oom", oom), kill, group_kill])),
            pressure: Some(Pressure { some, full }),
            statistics: Some(statistics()),
        }
    }

    /// A stall of that part of twenty seconds.
    fn stalled(total_us: u64) -> Stalled {
        Stalled { avg10: 0.25, avg60: 0.5, avg300: 0.75, total_us, share: total_us as f64 / 2e7 }
    }

    /// Kills of `victim` for `requester` that took these times.
    pub(crate) fn kills(victim: &str, requester: &str, took_us: Vec<u64>) -> Kills {
        Kills {
            victim: victim.to_owned(),
            requester: requester.to_owned(),
            full: "/tenants".to_owned(),
            counts: Counts::of([("died", took_us.len() as u64)]),
            took_us,
        }
    }

    /// The page cache of that tenant, with fixed figures.
    fn shrinker(tenant: &str) -> Shrinker {
        Shrinker {
            name: "sqlite page cache".to_owned(),
            group: format!("/tenants/{tenant}"),
            holds: Some(13 << 20),
            counts: Counts::of([
                ("scans", 5),
                ("asked", 3 << 20),
                ("claimed", 2 << 20),
                ("freed", 2 << 20),
                ("last_freed", 4_096),
                ("time_ns", 1_250_000),
                ("stopped", 1),
                ("panics", 0),
                ("overruns", 0),
            ]),
            quarantine: None,
        }
    }

    /// `tenant`, idle since second 5 with `page_cache` bytes, of which `reclaimed` were reclaimed.
    pub(crate) fn idle(tenant: TenantReport, page_cache: u64, reclaimed: u64) -> TenantReport {
        let idle = Idle { since_seconds: 5.02, page_cache, reclaimed: Some(reclaimed) };
        TenantReport { idle: Some(idle), page_cache: page_cache - reclaimed, ..tenant }
    }

    /// A report with a look-up tenant and a runaway.
    pub(crate) fn report(lookups_refused: u64) -> RegimeReport {
        RegimeReport {
            seconds: 20.0,
            seed: 1,
            interrupted: false,
            server: None,
            reclaim: Some(true),
            without_retries: None,
            guard: None,
            tenants: vec![
                tenant("lookups", Kind::Lookups, 1_234_567, lookups_refused),
                tenant("runaway", Kind::Runaway, 0, 120),
            ],
            kills: Some(Vec::new()),
            all: held(30 << 20, 32 << 20, Some(128 << 20), None),
            figures: figures(130, 65, stalled(60_000), stalled(5_000)),
            unattributed: Some(held(2_048, 4_096, None, None)),
            percpu: Some(PerCpu { populated: 8_192, live: 128, slots: 2 }),
        }
    }

    #[test]
    fn has_the_documented_json_keys() {
        let mut whole = Report::of(report(0));
        whole.memgroup.tenants[1].held.max = None;
        whole.memgroup.kills = Some(vec![kills("runaway", "lookups", vec![8_000])]);
        whole.memgroup.tenants.push(idle(tenant("archive", Kind::Dashboards, 9, 0), 30 << 20, 9 << 20));
        let json = serde_json::to_value(&whole).expect("JSON");
        assert_eq!(json["memgroup"]["seconds"], 20.0);
        let tenant = &json["memgroup"]["tenants"][0];
        assert_eq!((&tenant["name"], &tenant["workload"]), (&"lookups".into(), &"lookups".into()));
        assert_eq!((&tenant["done"], &tenant["refused"]), (&1_234_567.into(), &0.into()));
        assert_eq!((&tenant["p50_us"], &tenant["p99_us"]), (&12.5.into(), &2_500.0.into()));
        assert_eq!(tenant["usage"], 15 << 20);
        assert_eq!((&tenant["peak"], &tenant["max"]), (&(16 << 20).into(), &(16 << 20).into()));
        assert_eq!(tenant["hit_rate"], 0.9971);
        assert_eq!(json["memgroup"]["percpu"]["populated"], 8_192);
        assert_eq!(tenant["statistics"]["memory"]["file"], 14 << 20);
        assert_eq!(tenant["statistics"]["io"]["rios"], 786_432);
        assert_eq!(json["memgroup"]["statistics"]["scope_us"], 19_500_000);
        assert_eq!(json["memgroup"]["reclaim"], true);
        let memory = &tenant["statistics"]["memory"];
        assert_eq!((&memory["reclaims"], &memory["reclaimed"]), (&5.into(), &(2 << 20).into()));
        assert_eq!((&memory["gained"], &tenant["page_cache"]), (&(1 << 20).into(), &(14 << 20).into()));
        let cache = &tenant["shrinkers"][0];
        assert_eq!((&cache["group"], &cache["holds"]), (&"/tenants/lookups".into(), &(13 << 20).into()));
        assert_eq!((&cache["asked"], &cache["claimed"]), (&(3 << 20).into(), &(2 << 20).into()));
        assert_eq!((&cache["freed"], &cache["last_freed"]), (&(2 << 20).into(), &4_096.into()));
        assert_eq!((&cache["time_ns"], &cache["stopped"]), (&1_250_000.into(), &1.into()));
        assert!(cache["quarantine"].is_null() && tenant["idle"].is_null());
        let idle = &json["memgroup"]["tenants"][2]["idle"];
        assert_eq!((&idle["since_seconds"], &idle["page_cache"]), (&5.02.into(), &(30 << 20).into()));
        assert_eq!(idle["reclaimed"], 9 << 20);
        let runaway = &json["memgroup"]["tenants"][1];
        assert_eq!((&tenant["protected"], &runaway["protected"]), (&true.into(), &false.into()));
        assert_eq!((&tenant["killed"], &tenant["throttled_us"]), (&0.into(), &1_500_000.into()));
        let keys = ["low", "high", "max", "oom", "oom_kill", "oom_group_kill"];
        assert_eq!(keys.map(|key| runaway["events"][key].as_u64()), [0, 0, 120, 60, 0, 0].map(Some));
        assert_eq!(
            (&json["memgroup"]["events"]["max"], &json["memgroup"]["pressure"]["full"]["total_us"]),
            (&130.into(), &5_000.into())
        );
        let some = &tenant["pressure"]["some"];
        assert_eq!(
            (&some["total_us"], &some["share"], &some["avg10"]),
            (&40_000.into(), &0.002.into(), &0.25.into())
        );
        assert_eq!(tenant["pressure"]["full"]["total_us"], 10_000);
        let [kills] = &json["memgroup"]["kills"].as_array().expect("a list")[..] else {
            panic!("one: {json}")
        };
        assert_eq!((&kills["victim"], &kills["requester"]), (&"runaway".into(), &"lookups".into()));
        assert_eq!(
            (&kills["died"], &kills["took_us"][0], &kills["full"]),
            (&1.into(), &8_000.into(), &"/tenants".into())
        );
        assert!(runaway["max"].is_null() && runaway["p50_us"].is_null());
        assert!(json.get("baseline").is_none());

        whole.baseline = Some(report(3));
        whole.unlimited = Some(RegimeReport { guard: Some(1 << 30), ..report(1) });
        let json = serde_json::to_value(&whole).expect("JSON");
        assert_eq!(json["baseline"]["tenants"][0]["refused"], 3);
        assert_eq!(json["unlimited"]["tenants"][0]["refused"], 1);
        assert_eq!(json["unlimited"]["guard"], 1 << 30);
        assert!(json["baseline"].get("guard").is_none());
        let back: Report = serde_json::from_value(json).expect("readable JSON");
        assert_eq!(back, whole);
    }
}
