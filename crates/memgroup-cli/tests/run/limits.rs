//! Settings besides `max`, and their effects in the report.

use std::fs;

use serde_json::Value;

use super::{Place, group, run_until, stderr, stdout, tenant};

/// Like `reclaim::GIVING`, but the memory of the archive is protected by the settings in place of
/// `{}`.
const KEEPING: &str = r#"
max = "10M"

[[tenant]]
name = "archive"
workload = "dashboards"
scale = 0.008
work_seconds = 0.5
max = "8M"
cache = "5M"
{}

[[tenant]]
name = "hog"
workload = "runaway"
after = "archive"
scale = 0.001
max = "8M"
cache = "256K"
temp = "memory"
"#;

/// Runs `KEEPING` with `settings` until the hog was refused several times.
fn keeping(settings: &str) -> (Value, String) {
    let place = Place::new();
    let spec = place.write("keeping.toml", &KEEPING.replace("{}", settings));
    run_until(&place, &spec, |line| {
        line.starts_with("running ") && line.contains(", idle  hog ") && !line.contains("  hog 0")
    })
}

#[test]
fn keeps_memory_within_min() {
    let (report, table) = keeping("min = 'max'");
    let half = &report["memgroup"];
    let [archive, hog] = ["archive", "hog"].map(|name| tenant(half, name));
    assert!(archive["page_cache"].as_u64() > Some(5 << 20), "{archive}");
    assert_eq!(archive["idle"]["page_cache"], archive["page_cache"], "{archive}");
    let own = group(half, "archive");
    let reclaimed = &own["statistics"]["memory"]["hierarchical"]["reclaimed"];
    assert_eq!((reclaimed, &own["events"]["low"]), (&0.into(), &0.into()), "{own}");
    assert!(hog["refused"].as_u64() > Some(0), "{hog}");
    assert!(hog["first_refusal"].as_str().expect("a text").contains("refused by group /tenants,"), "{hog}");
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
}

#[test]
fn reclaims_memory_within_low_last() {
    let (report, _) = keeping("low = '4M'");
    let half = &report["memgroup"];
    let (archive, own) = (tenant(half, "archive"), group(half, "archive"));
    assert!(archive["page_cache"].as_u64() < Some(4 << 20), "{archive}");
    assert!(own["statistics"]["memory"]["hierarchical"]["reclaimed"].as_u64() > Some(0), "{own}");
    assert!(own["events"]["low"].as_u64() > Some(0), "{own}");
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn counts_refusals_of_a_limit_that_is_not_enforced() {
    let place = Place::new();
    let spec = place.write(
        "keeping.toml",
        &KEEPING
            .replace("{}", "")
            .replace("max = \"8M\"\ncache = \"256K\"", "max = \"1M\"\nenforced = false\ncache = \"256K\"")
            .replace("max = \"10M\"\n", ""),
    );
    let (report, table) =
        run_until(&place, &spec, |line| line.contains("  hog ") && !line.contains("  hog 0"));
    let hog = tenant(&report["memgroup"], "hog");
    assert_eq!((&hog["max"], &hog["refused"]), (&(1 << 20).into(), &0.into()), "{hog}");
    assert!(hog["done"].as_u64() > Some(0) && hog["peak"].as_u64() > Some(10 << 20), "{hog}");
    let own = group(&report["memgroup"], "hog");
    assert!(own["events_local"]["would_refuse"].as_u64() > Some(0), "{own}");
    let table = table.replace("\n  ", " ");
    assert!(table.contains("its limit is not enforced, and would have refused "), "{table}");
}

/// The night needs more memory than the full hog leaves. Both have small caches.
const STOPPING: &str = r#"
max = "10M"

[[tenant]]
name = "night"
workload = "etl"
scale = 0.003
max = "5M"
cache = "512K"
temp = "memory"
patience_ms = 3600000

[[tenant]]
name = "hog"
workload = "runaway"
scale = 0.001
max = "10M"
cache = "256K"
temp = "memory"
oom_score = 500
"#;

/// Runs `spec` for 1, 2, 4 ... seconds until `is_enough`.
fn stopping(spec: &str, is_enough: impl Fn(&Value) -> bool) -> (Value, String) {
    let place = Place::new();
    let (spec, json) = (place.write("stopping.toml", spec), place.path("report.json"));
    for seconds in (0..8).map(|doubled| 1 << doubled) {
        let seconds = seconds.to_string();
        let output = place.output(&spec, &["--seconds", &seconds, "--json", json.to_str().expect("text")]);
        assert!(output.status.success(), "{}", stderr(&output));
        let report: Value = serde_json::from_slice(&fs::read(&json).expect("a file")).expect("JSON");
        if is_enough(&report["memgroup"]) {
            return (report, stdout(&output));
        }
    }
    panic!("not enough after two minutes: {}", fs::read_to_string(json).expect("a file"));
}

#[test]
fn stops_the_runaway_for_a_waiting_tenant() {
    let (report, table) = stopping(STOPPING, |half| {
        let night = |key: &str| tenant(half, "night")[key].as_u64() > Some(0);
        tenant(half, "hog")["killed"].as_u64() > Some(0) && night("done") && night("retried")
    });
    let half = &report["memgroup"];
    let night = tenant(half, "night");
    assert_eq!((&night["refused"], &night["killed"]), (&0.into(), &0.into()), "{night}");
    let events = [&group(half, "hog")["events"]["oom_kill"], &group(half, "")["events"]["oom"]];
    assert!(events.into_iter().all(|count| count.as_u64() > Some(0)), "{events:?}");
    assert_eq!(group(half, "night")["events"]["oom_kill"], 0);
    assert!(table.contains("`night`: no statement failed") && table.contains(" stopped)"), "{table}");
}

#[test]
fn refuses_impatient_tenants_without_oom() {
    let spec = format!("oom = false{}", STOPPING.replace("patience_ms = 3600000\n", ""));
    let (report, table) = stopping(&spec, |half| tenant(half, "night")["refused"].as_u64() > Some(0));
    let half = &report["memgroup"];
    let kills = &group(half, "")["events"]["oom_kill"];
    assert_eq!((&tenant(half, "hog")["killed"], kills), (&0.into(), &0.into()), "{half}");
    assert!(table.contains(" failed for lack of memory ("), "{table}");
}

#[test]
fn ends_waits_with_the_run() {
    let night = r#"
[[tenant]]
name = "night"
workload = "etl"
after = "archive"
scale = 0.008
max = "9M"
cache = "256K"
temp = "memory"
patience_ms = 3600000
"#;
    let (archive, _) = KEEPING.split_once("[[tenant]]\nname = \"hog\"").expect("the hog");
    let spec = archive.replace("{}", "min = 'max'\noom_score = -1000") + night;
    let waited = |half: &Value| group(half, "night")["pressure"]["full"]["total_us"].as_u64() > Some(0);
    let (report, _) = stopping(&spec, waited);
    let night = tenant(&report["memgroup"], "night");
    // No memory becomes free: the archive's cache is within `min`, and its score is the lowest. So
    // the night was waiting.
    let counts = ["done", "refused", "interrupted"].map(|key| night[key].as_u64());
    let archive = tenant(&report["memgroup"], "archive");
    assert_eq!(counts, [0, 0, 1].map(Some), "{night} beside {archive}");
}
