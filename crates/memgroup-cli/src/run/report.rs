//! What a run found: one model, from which the table, the comparison and the JSON are made.
//!
//! Bytes are bytes and latencies microseconds; a number that nobody knows is none (`null` in the JSON).

use serde::{Deserialize, Serialize};

use super::control::{Events, Pressure};
use super::data::Database;
use super::house::{Held, House, PerCpu, Regime};
use super::kills::Kills;
use super::latencies::Latencies;
use super::shrinkers::Shrinker;
use super::spec::Spec;
use super::statistics::Statistics;
use super::tenant::{Idle, Ran};
use super::workload::Kind;

/// What `--json` writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) memgroup: Half,
    /// The same work with no limit of any kind; there with `--baseline`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unlimited: Option<Half>,
    /// The same work without groups; there with `--baseline`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) baseline: Option<Half>,
}

impl Report {
    /// Of memgroup's own run.
    pub(crate) fn of(memgroup: Half) -> Report {
        Report { memgroup, unlimited: None, baseline: None }
    }

    /// All that ran, memgroup's own first.
    pub(crate) fn halves(&self) -> Vec<(Regime, &Half)> {
        let others = [(Regime::Unlimited, &self.unlimited), (Regime::HeapLimit, &self.baseline)];
        let others = others.into_iter().filter_map(|(regime, half)| Some((regime, half.as_ref()?)));
        [(Regime::Groups, &self.memgroup)].into_iter().chain(others).collect()
    }
}

/// What one process prints for another that compares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) half: Half,
    /// Of each tenant's statements done, in the SPEC's order.
    pub(crate) latencies: Vec<Latencies>,
}

impl Measured {
    /// Reads what `house` holds after `ran`, while the connections are still open.
    pub(crate) fn of(
        house: &House,
        spec: &Spec,
        databases: &[Database],
        ran: &Ran,
        interrupted: bool,
    ) -> Measured {
        Measured {
            half: Half::of(house, spec, databases, ran, interrupted),
            latencies: ran.tallies.iter().map(|tally| tally.latencies.clone()).collect(),
        }
    }
}

/// The report of one process, or of several that did the same work one after the other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Half {
    /// How long statements ran.
    pub(crate) seconds: f64,
    pub(crate) seed: u64,
    /// Ended by Ctrl-C.
    pub(crate) interrupted: bool,
    /// Whether caches gave way before a tenant was refused; none where nobody could have them do so.
    pub(crate) reclaim: Option<bool>,
    /// The limit over everything in a run without limits, so that the machine survived it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) guard: Option<u64>,
    /// In the SPEC's order.
    pub(crate) tenants: Vec<TenantReport>,
    /// Who was stopped for whom; none where there are no groups.
    pub(crate) kills: Option<Vec<Kills>>,
    /// All tenants together: their parent group, or SQLite's whole heap.
    pub(crate) all: Held,
    /// What limits did to all tenants together, their parent's own limit among them; none where there are no groups.
    pub(crate) events: Option<Events>,
    pub(crate) pressure: Option<Pressure>,
    /// Memory that SQLite took for no tenant; none where nobody tells tenants apart.
    pub(crate) unattributed: Option<Held>,
    /// The statistics of all tenants together; none where nobody keeps any.
    pub(crate) statistics: Option<Statistics>,
    /// The per-CPU memory of the groups themselves; none where there are none.
    pub(crate) percpu: Option<PerCpu>,
}

/// One tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TenantReport {
    pub(crate) name: String,
    pub(crate) workload: String,
    pub(crate) threads: u32,
    /// Statements answered in full.
    pub(crate) done: u64,
    /// Statements that failed for want of memory.
    pub(crate) refused: u64,
    /// Statements stopped, because others needed the memory.
    pub(crate) killed: u64,
    /// Times that a statement that found no memory was tried again.
    pub(crate) retried: u64,
    /// Statements cut short by the end of the run.
    pub(crate) interrupted: u64,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
    pub(crate) usage: Option<u64>,
    pub(crate) peak: Option<u64>,
    pub(crate) max: Option<u64>,
    /// Whether the SPEC keeps some of its memory for it, by `min` or `low`; also where nobody heeds it.
    pub(crate) protected: bool,
    /// What its limits did to it; none where there are none.
    pub(crate) events: Option<Events>,
    pub(crate) pressure: Option<Pressure>,
    /// Time that its threads were held up because they were above `high`, or owed what they took by force.
    pub(crate) throttled_us: Option<u64>,
    /// Charges that its own limit would have refused, had it been enforced; none where there are no groups.
    pub(crate) would_refuse: Option<u64>,
    /// The share of charges that the stock served alone.
    pub(crate) hit_rate: Option<f64>,
    /// Size of the tenant's database.
    pub(crate) database: u64,
    /// What the first refusal said.
    pub(crate) first_refusal: Option<String>,
    /// Memory by kind, files, time, reclaim; none where nobody keeps statistics.
    pub(crate) statistics: Option<Statistics>,
    /// Bytes of the page caches of its connections at the end.
    pub(crate) page_cache: u64,
    /// How it was when its work was over; none if it worked to the end.
    pub(crate) idle: Option<IdleReport>,
    /// Its caches that give way; none where nobody knows them.
    pub(crate) shrinkers: Option<Vec<Shrinker>>,
}

/// A tenant whose work was over before the run was.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct IdleReport {
    /// Since the run began.
    pub(crate) since_seconds: f64,
    /// Bytes of the page caches then.
    pub(crate) page_cache: u64,
    /// Bytes that were reclaimed from it from then on; none where nobody reclaims.
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
    /// Statements that came to nothing for want of memory, its own or others'.
    pub(crate) fn lost(&self) -> u64 {
        self.refused + self.killed
    }

    /// Whether the tenant's work asks for the impossible, so that refusing it is right.
    pub(crate) fn is_runaway(&self) -> bool {
        self.workload == Kind::Runaway.name()
    }
}

impl Half {
    /// Reads what `house` holds after `ran`, while the connections are still open.
    fn of(house: &House, spec: &Spec, databases: &[Database], ran: &Ran, interrupted: bool) -> Half {
        let seconds = ran.elapsed.as_secs_f64();
        let mut tenants = Vec::new();
        let mut shrinkers = house.shrinkers();
        for (index, (tenant, tally)) in spec.tenants.iter().zip(&ran.tallies).enumerate() {
            let held = house.held(index);
            let statistics = house.statistics(index);
            let control = house.control(index, seconds);
            tenants.push(TenantReport {
                name: tenant.name.clone(),
                workload: tenant.workload.name().to_owned(),
                threads: tenant.threads,
                done: tally.done,
                refused: tally.refused,
                killed: tally.killed,
                retried: tally.retried,
                interrupted: tally.interrupted,
                p50_us: tally.latencies.quantile_us(0.50),
                p99_us: tally.latencies.quantile_us(0.99),
                usage: held.map(|held| held.usage),
                peak: held.map(|held| held.peak),
                max: held.and_then(|held| held.max),
                protected: tenant.is_protected(),
                events: control.map(|control| control.events),
                pressure: control.map(|control| control.pressure),
                throttled_us: statistics.map(|statistics| statistics.memory.throttled_us),
                would_refuse: control.map(|control| control.would_refuse),
                hit_rate: held.and_then(|held| held.hit_rate),
                database: databases[index].bytes,
                first_refusal: tally.first_refusal.clone(),
                statistics,
                page_cache: tally.page_cache_bytes,
                idle: tally.idle.map(|idle| IdleReport::of(idle, statistics)),
                shrinkers: shrinkers.as_mut().map(|all| std::mem::take(&mut all[index])),
            });
        }
        let control = house.control_of_all(seconds);
        Half {
            seconds,
            seed: spec.seed,
            interrupted,
            reclaim: house.reclaims(),
            guard: house.guard_bytes(),
            tenants,
            kills: house.kills(),
            all: house.held_by_all(),
            events: control.map(|control| control.events),
            pressure: control.map(|control| control.pressure),
            unattributed: house.held_by_nobody(),
            statistics: house.statistics_of_all(),
            percpu: house.percpu(),
        }
    }

    /// The tenants of which `count` is more than none, runaways or the others.
    pub(crate) fn with(&self, count: fn(&TenantReport) -> u64, runaways: bool) -> Vec<&TenantReport> {
        let wanted = |tenant: &&TenantReport| count(tenant) > 0 && tenant.is_runaway() == runaways;
        self.tenants.iter().filter(wanted).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{
        Events, Half, Held, IdleReport, Kills, PerCpu, Pressure, Report, Shrinker, Statistics, TenantReport,
    };
    use crate::run::control::Stalled;
    use crate::run::statistics::{Io, Memory};

    /// Statistics whose every number is known.
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

    /// A tenant whose every number is known.
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
            events: Some(Events { max: refused, oom: refused / 2, ..Events::default() }),
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

    /// So much of twenty seconds.
    fn stalled(total_us: u64) -> Stalled {
        Stalled { avg10: 0.25, avg60: 0.5, avg300: 0.75, total_us, share: total_us as f64 / 2e7 }
    }

    /// `victim` was stopped for `requester`, and took so long.
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

    /// The page cache of that tenant, its every number known.
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

    /// `tenant`, idle since the fifth second, when it had `page_cache` bytes of which `reclaimed` are gone.
    pub(crate) fn idle(tenant: TenantReport, page_cache: u64, reclaimed: u64) -> TenantReport {
        let idle = IdleReport { since_seconds: 5.02, page_cache, reclaimed: Some(reclaimed) };
        TenantReport { idle: Some(idle), page_cache: page_cache - reclaimed, ..tenant }
    }

    /// A half of a look-up tenant and a runaway.
    pub(crate) fn half(lookups_refused: u64) -> Half {
        Half {
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
            events: Some(Events { max: 130, oom: 65, ..Events::default() }),
            pressure: Some(Pressure { some: stalled(60_000), full: stalled(5_000) }),
            unattributed: Some(Held { usage: 2_048, peak: 4_096, max: None, hit_rate: None }),
            statistics: Some(statistics()),
            percpu: Some(PerCpu { populated: 8_192, live: 128, slots: 2 }),
        }
    }

    #[test]
    fn runaways_are_told_from_the_others() {
        let (troubled, calm) = (half(3), half(0));
        assert_eq!(troubled.with(TenantReport::lost, true), [&troubled.tenants[1]]);
        assert_eq!(troubled.with(TenantReport::lost, false), [&troubled.tenants[0]]);
        assert!(calm.with(TenantReport::lost, false).is_empty());
    }

    #[test]
    fn the_json_has_the_promised_form() {
        let mut report = Report::of(half(0));
        report.memgroup.tenants[1].max = None;
        report.memgroup.kills = Some(vec![kills("runaway", "lookups", vec![8_000])]);
        report.memgroup.tenants.push(idle(tenant("archive", "dashboards", 9, 0), 30 << 20, 9 << 20));
        let json = serde_json::to_value(&report).expect("a report is JSON");
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

        report.baseline = Some(half(3));
        report.unlimited = Some(Half { guard: Some(1 << 30), ..half(1) });
        let json = serde_json::to_value(&report).expect("a report is JSON");
        assert_eq!(json["baseline"]["tenants"][0]["refused"], 3);
        assert_eq!(json["unlimited"]["tenants"][0]["refused"], 1);
        assert_eq!(json["unlimited"]["guard"], 1 << 30);
        assert!(json["baseline"].get("guard").is_none());
        let back: Report = serde_json::from_value(json).expect("it reads back");
        assert_eq!(back, report);
    }
}
