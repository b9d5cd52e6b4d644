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
    let [kills] = &json["memgroup"]["kills"].as_array().expect("a list")[..] else { panic!("one: {json}") };
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
