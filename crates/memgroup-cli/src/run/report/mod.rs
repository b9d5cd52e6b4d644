//! Report: the model behind the tables and the JSON.
//!
//! Bytes are bytes and latencies are microseconds. A figure that is unknown is `null` in the JSON.

mod merge;

use serde::{Deserialize, Serialize};

use crate::run::backend::{Backend, Regime};
use crate::run::data::files::Database;
use crate::run::measure::control::{Events, Pressure};
use crate::run::measure::kills::Kills;
use crate::run::measure::latencies::Latencies;
use crate::run::measure::shrinkers::Shrinker;
use crate::run::measure::statistics::Statistics;
use crate::run::measure::{Held, PerCpu};
use crate::run::spec::{Kind, Spec};
use crate::run::work::{Idle, Ran};

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

/// Result of one process, with the latencies that are needed to add results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Turn {
    pub(crate) report: RegimeReport,
    /// Latencies of each tenant, in the order of the SPEC.
    pub(crate) latencies: Vec<Latencies>,
}

/// Report of one regime, from one process or several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct RegimeReport {
    /// Run time of the statements.
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
    /// The run ended early.
    pub(crate) interrupted: bool,
    /// Whether caches were reclaimed; none without groups.
    pub(crate) reclaim: Option<bool>,
    /// Limit of the root in a run without limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) guard: Option<u64>,
    /// In the order of the SPEC.
    pub(crate) tenants: Vec<TenantReport>,
    /// Stopped tenants; none without groups.
    pub(crate) kills: Option<Vec<Kills>>,
    /// Memory of all tenants together: of their parent group, or of SQLite's heap.
    pub(crate) all: Held,
    /// Events of all tenants and of their parent's limit; none without groups.
    pub(crate) events: Option<Events>,
    pub(crate) pressure: Option<Pressure>,
    /// Memory that SQLite took for no tenant; none without groups.
    pub(crate) unattributed: Option<Held>,
    /// Statistics of all tenants; none without groups.
    pub(crate) statistics: Option<Statistics>,
    /// Per-CPU memory of the hierarchy; none without groups.
    pub(crate) percpu: Option<PerCpu>,
}

/// Report of one tenant, or the sum of all.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct TenantReport {
    pub(crate) name: String,
    pub(crate) workload: String,
    pub(crate) threads: u32,
    /// Statements that returned their last row.
    pub(crate) done: u64,
    /// Statements that failed for lack of memory.
    pub(crate) refused: u64,
    /// Statements stopped to free memory.
    pub(crate) killed: u64,
    /// Retries of statements that found no memory.
    pub(crate) retried: u64,
    /// Statements interrupted by the end of the run.
    pub(crate) interrupted: u64,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) usage: Option<u64>,
    pub(crate) peak: Option<u64>,
    pub(crate) max: Option<u64>,
    /// Whether the SPEC sets `min` or `low`, in every regime.
    pub(crate) protected: bool,
    /// None without groups.
    pub(crate) events: Option<Events>,
    pub(crate) pressure: Option<Pressure>,
    /// Delays of its threads because of `high` or of forced charges.
    pub(crate) throttled_us: Option<u64>,
    /// Charges that a limit which is not enforced would have refused; none without groups.
    pub(crate) would_refuse: Option<u64>,
    /// Share of the charges that the stock served.
    pub(crate) hit_rate: Option<f64>,
    /// Size of the tenant's database.
    pub(crate) database: u64,
    /// Text of the first refusal.
    pub(crate) first_refusal: Option<String>,
    /// None without groups.
    pub(crate) statistics: Option<Statistics>,
    /// Bytes of the page caches of its connections at the end.
    pub(crate) page_cache: u64,
    /// State when its work was over; none if it worked to the end.
    pub(crate) idle: Option<IdleReport>,
    /// Its caches; none without groups.
    pub(crate) shrinkers: Option<Vec<Shrinker>>,
}

/// State of a tenant whose work was over before the run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct IdleReport {
    /// Seconds since the run began.
    pub(crate) since_seconds: f64,
    /// Bytes of the page caches then.
    pub(crate) page_cache: u64,
    /// Bytes reclaimed from it since then; none without groups.
    pub(crate) reclaimed: Option<u64>,
}

impl IdleReport {
    fn of(idle: Idle, statistics: Option<Statistics>) -> IdleReport {
        let reclaimed = statistics.map(|statistics| statistics.memory.reclaimed);
        IdleReport {
            since_seconds: idle.since.as_secs_f64(),
            page_cache: idle.page_cache_bytes,
            reclaimed: reclaimed.zip(idle.reclaimed_bytes).map(|(all, before)| all.saturating_sub(before)),
        }
    }
}

impl TenantReport {
    /// Statements that failed for lack of memory: refused or stopped.
    pub(crate) fn failed(&self) -> u64 {
        self.refused + self.killed
    }

    /// Whether its statements ask for more memory than any limit allows.
    pub(crate) fn is_runaway(&self) -> bool {
        self.workload == Kind::Runaway.name()
    }

    /// Whether this is a tenant whose statements should not fail. The sum of all tenants has no workload.
    pub(crate) fn is_well_behaved(&self) -> bool {
        !self.workload.is_empty() && !self.is_runaway()
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
            retried: sum(|tenant| tenant.retried),
            usage: Some(self.all.usage),
            peak: Some(self.all.peak),
            max: self.all.max,
            hit_rate: self.all.hit_rate,
            database: sum(|tenant| tenant.database),
            events: self.events.clone(),
            pressure: self.pressure,
            throttled_us: self.statistics.map(|all| all.memory.throttled_us),
            statistics: self.statistics,
            shrinkers: Some(self.tenants.iter().filter_map(caches).flatten().collect()),
            ..TenantReport::default()
        }
    }
}

impl Turn {
    /// Measures `backend` after `ran`, while the connections are still open.
    pub(crate) fn of(
        backend: &Backend,
        spec: &Spec,
        databases: &[Database],
        ran: &Ran,
        ended_early: bool,
    ) -> Turn {
        let seconds = ran.elapsed.as_secs_f64();
        let groups = backend.groups();
        let shrinkers = groups.map(|groups| Shrinker::all(&groups.hierarchy));
        let mut tenants = Vec::new();
        for (index, (tenant, (counters, tally))) in spec.tenants.iter().zip(&ran.tenants).enumerate() {
            let group = groups.map(|groups| &groups.tenants[index]);
            let held = group.map(Held::of);
            let statistics = groups.map(|groups| Statistics::of(&groups.hierarchy, &groups.tenants[index]));
            let [done, refused, killed, retried, interrupted] = counters.read();
            let own_shrinkers = shrinkers.as_ref().zip(group).map(|(all, group)| {
                let path = group.path();
                all.iter().filter(|shrinker| shrinker.group == path).cloned().collect()
            });
            tenants.push(TenantReport {
                name: tenant.name.clone(),
                workload: tenant.workload.name().to_owned(),
                threads: tenant.threads,
                done,
                refused,
                killed,
                retried,
                interrupted,
                p50_us: tally.latencies.quantile_us(0.50),
                p99_us: tally.latencies.quantile_us(0.99),
                usage: held.map(|held| held.usage),
                peak: held.map(|held| held.peak),
                max: held.and_then(|held| held.max),
                protected: tenant.is_protected(),
                events: group.map(Events::of),
                pressure: group.map(|group| Pressure::of(group, seconds)),
                throttled_us: statistics.map(|statistics| statistics.memory.throttled_us),
                would_refuse: group.map(|group| group.would_refuse()),
                hit_rate: held.and_then(|held| held.hit_rate),
                database: databases[index].bytes,
                first_refusal: tally.first_refusal.clone(),
                statistics,
                page_cache: tally.page_cache_bytes,
                idle: tally.idle.map(|idle| IdleReport::of(idle, statistics)),
                shrinkers: own_shrinkers,
            });
        }
        let report = RegimeReport {
            seconds,
            seed: spec.seed,
            interrupted: ended_early,
            reclaim: groups.map(|groups| groups.reclaim),
            guard: groups.and_then(|groups| groups.guard_bytes),
            tenants,
            kills: groups.map(|groups| groups.kills()),
            all: backend.held_by_all(),
            events: groups.map(|groups| Events::of(&groups.parent)),
            pressure: groups.map(|groups| Pressure::of(&groups.parent, seconds)),
            unattributed: groups.map(|groups| Held::of(&groups.unattributed)),
            statistics: groups.map(|groups| Statistics::of(&groups.hierarchy, &groups.parent)),
            percpu: groups.map(|groups| PerCpu::of(&groups.hierarchy)),
        };
        let latencies = ran.tenants.iter().map(|(_, tally)| tally.latencies.clone()).collect();
        Turn { report, latencies }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{IdleReport, RegimeReport, Report, TenantReport};
    use crate::run::measure::control::{Events, Pressure, Stalled};
    use crate::run::measure::kills::Kills;
    use crate::run::measure::shrinkers::Shrinker;
    use crate::run::measure::statistics::{Io, Memory, Statistics};
    use crate::run::measure::{Held, PerCpu};

    /// Fixed statistics.
    fn statistics() -> Statistics {
        Statistics {
            memory: Memory {
                file: 14 << 20,
                schema: 60 << 10,
                statements: 4 << 10,
                other: 960 << 10,
                prepaid: 128 << 10,
                charges: 1_000,
                stock_misses: 3,
                reclaims: 5,
                reclaimed: 2 << 20,
                gained: 1 << 20,
                throttled_us: 1_500_000,
                throttles: 3,
            },
            io: Io { rbytes: 3 << 30, wbytes: 0, rios: 786_432, wios: 0 },
            scope_us: 19_500_000,
        }
    }

    /// A tenant with fixed figures.
    pub(crate) fn tenant(name: &str, workload: &str, done: u64, refused: u64) -> TenantReport {
        TenantReport {
            name: name.to_owned(),
            workload: workload.to_owned(),
            threads: 1,
            done,
            refused,
            killed: 0,
            retried: 0,
            interrupted: 1,
            p50_us: (done > 0).then_some(12.5),
            p99_us: (done > 0).then_some(2_500.0),
            usage: Some(15 << 20),
            peak: Some(16 << 20),
            max: Some(16 << 20),
            protected: workload == "lookups",
            events: Some(Events::with(refused, refused / 2)),
            pressure: Some(Pressure { some: stalled(40_000), full: stalled(10_000) }),
            throttled_us: Some(1_500_000),
            would_refuse: Some(0),
            hit_rate: Some(0.9971),
            database: 45 << 20,
            first_refusal: (refused > 0).then(|| format!("/tenants/{name} is full")),
            statistics: Some(statistics()),
            page_cache: 14 << 20,
            idle: None,
            shrinkers: Some(vec![shrinker(name)]),
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
            died: took_us.len() as u64,
            took_us,
            ..Kills::default()
        }
    }

    /// The page cache of that tenant, with fixed figures.
    fn shrinker(tenant: &str) -> Shrinker {
        Shrinker {
            name: "sqlite page cache".to_owned(),
            group: format!("/tenants/{tenant}"),
            holds: Some(13 << 20),
            scans: 5,
            asked: 3 << 20,
            claimed: 2 << 20,
            freed: 2 << 20,
            last_freed: 4_096,
            time_ns: 1_250_000,
            stopped: 1,
            panics: 0,
            overruns: 0,
            quarantine: None,
        }
    }

    /// `tenant`, idle since second 5 with `page_cache` bytes, of which `reclaimed` were reclaimed.
    pub(crate) fn idle(tenant: TenantReport, page_cache: u64, reclaimed: u64) -> TenantReport {
        let idle = IdleReport { since_seconds: 5.02, page_cache, reclaimed: Some(reclaimed) };
        TenantReport { idle: Some(idle), page_cache: page_cache - reclaimed, ..tenant }
    }

    /// A report with a look-up tenant and a runaway.
    pub(crate) fn report(lookups_refused: u64) -> RegimeReport {
        RegimeReport {
            seconds: 20.0,
            seed: 1,
            interrupted: false,
            reclaim: Some(true),
            guard: None,
            tenants: vec![
                tenant("lookups", "lookups", 1_234_567, lookups_refused),
                tenant("runaway", "runaway", 0, 120),
            ],
            kills: Some(Vec::new()),
            all: Held { usage: 30 << 20, peak: 32 << 20, max: Some(128 << 20), hit_rate: None },
            events: Some(Events::with(130, 65)),
            pressure: Some(Pressure { some: stalled(60_000), full: stalled(5_000) }),
            unattributed: Some(Held { usage: 2_048, peak: 4_096, max: None, hit_rate: None }),
            statistics: Some(statistics()),
            percpu: Some(PerCpu { populated: 8_192, live: 128, slots: 2 }),
        }
    }

    #[test]
    fn has_the_documented_json_keys() {
        let mut whole = Report::of(report(0));
        whole.memgroup.tenants[1].max = None;
        whole.memgroup.kills = Some(vec![kills("runaway", "lookups", vec![8_000])]);
        whole.memgroup.tenants.push(idle(tenant("archive", "dashboards", 9, 0), 30 << 20, 9 << 20));
        let json = serde_json::to_value(&whole).expect("JSON");
        assert_eq!(json["memgroup"]["seconds"], 20.0);
        let tenant = &json["memgroup"]["tenants"][0];
        assert_eq!(tenant["name"], "lookups");
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
