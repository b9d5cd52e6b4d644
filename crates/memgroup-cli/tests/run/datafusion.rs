//! The engine `datafusion`: TPC-H queries in child processes, under memgroup and under DataFusion's pools.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Place, interrupt, stderr, stdout, tenant, wait_for};

const SPEC: &str = r#"
engine = "datafusion"
seconds = 4
max = "16M"
share = 8

[[tenant]]
name = "shop"
workload = "queries"
queries = [6, 1, 14]
scale = 0.01
partitions = 2
pause_us = 1000

[[tenant]]
name = "hog"
workload = "runaway"
scale = 0.01
partitions = 2
"#;

/// A part of a report under a key that it must have.
fn number(part: &Value, key: &str) -> u64 {
    part[key].as_u64().unwrap_or_else(|| panic!("{key} in {part}"))
}

/// Runs `text` with `more` arguments. Returns the JSON and the tables.
fn run(place: &Place, text: &str, more: &[&str]) -> (Value, String) {
    let (spec, json) = (place.write("a.toml", text), place.path("report.json"));
    let words = [&["--json", json.to_str().expect("text")], more].concat();
    let output = place.output(&spec, &words);
    assert_eq!(output.status.code(), Some(0), "{}{}", stderr(&output), stdout(&output));
    let report = serde_json::from_slice(&fs::read(&json).expect("a file")).expect("JSON");
    (report, stdout(&output))
}

#[test]
fn compares_the_pools_on_the_same_work() {
    let (report, table) = run(&Place::new(), SPEC, &["--baseline", "--seconds", "5"]);
    let own = &report["memgroup"];
    let (shop, hog) = (tenant(own, "shop"), tenant(own, "hog"));
    assert!(number(shop, "done") > 0, "{table}");
    assert_eq!(["refused", "killed", "spilled"].map(|key| number(shop, key)), [0; 3], "{shop}\n{table}");
    assert_eq!((&shop["workload"], &shop["protected"]), (&"queries".into(), &true.into()));
    assert_eq!((&hog["workload"], &hog["protected"]), (&"runaway".into(), &false.into()));
    assert!(number(hog, "begun_anew") + number(hog, "spilled") > 0, "{table}");
    assert!(shop["p50_us"].is_number() && shop["p99_us"].is_number(), "{shop}");
    assert!(own["kills"].is_null() && own["server"].is_null(), "{own}");
    let all = &own["all"];
    assert!(number(all, "peak") > 0 && number(all, "peak") <= number(all, "max"), "{all}");
    assert_eq!(number(all, "max"), 16 << 20);
    for regime in ["memgroup", "alone", "greedy", "fair_spill", "track_consumers"] {
        let part = &report[regime];
        assert!(number(part, "resident_peak") > 16 << 20, "{regime}");
        let hog = tenant(part, "hog");
        let ended = number(hog, "done") + number(hog, "refused") + number(hog, "interrupted");
        assert_eq!(ended == 0, regime == "alone", "{regime}: {hog}");
        let has_groups = matches!(regime, "memgroup" | "alone");
        assert_eq!(part["all"]["peak"].is_number(), has_groups, "{regime}");
    }
    assert!(report["baseline"].is_null() && report["unlimited"].is_null());
    for title in ["memgroup", "alone", "Greedy", "FairSpill", "TrackConsumers"] {
        assert!(table.lines().nth(2).expect("titles").contains(title), "{table}");
    }
    let limit = ", seed 1, limit 16M";
    assert!(table.lines().next().expect("a heading").ends_with(limit), "{table}");
    assert!(table.contains("shop: p99 over alone"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
}

#[test]
fn tells_the_bytes_that_a_runaway_spills() {
    let hog = &SPEC[SPEC.rfind("[[tenant]]").expect("a runaway")..];
    let text = format!("engine = 'datafusion'\nseconds = 4\nmax = '4M'\n{hog}");
    let (report, table) = run(&Place::new(), &text, &[]);
    let hog = tenant(&report["memgroup"], "hog");
    assert!(number(hog, "spilled") > 1 << 20, "{table}");
    assert!(number(hog, "spilled") <= number(&hog["statistics"]["io"], "wbytes"), "{hog}");
    assert!(table.contains("4M charged."), "{table}");
    assert!(report.as_object().expect("keys").keys().eq(["memgroup"]), "{report}");
}

#[test]
fn fails_where_queries_could_not_spill_and_names_the_directory() {
    let place = Place::new();
    let none = place.path("none");
    let mut command = place.run(&place.write("a.toml", SPEC), &[]);
    let output = command.env("TMPDIR", &none).output().expect("the program starts");
    let expected = format!("failed to make a file in {}, where queries spill: ", none.display());
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&expected) && said.contains("TMPDIR chooses another directory"), "{said}");
}

#[test]
fn tells_where_the_error_of_a_refused_query_is() {
    let text = SPEC.replace("16M", "1M").replace("share = 8", "").replace("[6, 1, 14]", "[9]");
    let (report, table) = run(&Place::new(), &text, &[]);
    let refusals = report["memgroup"]["tenants"]
        .as_array()
        .expect("tenants")
        .iter()
        .filter_map(|tenant| tenant["first_refusal"].as_str());
    let refusals: Vec<_> = refusals.collect();
    assert!(
        !refusals.is_empty() && refusals.iter().all(|text| text.contains("Resources exhausted")),
        "{report}"
    );
    assert!(table.contains("With --json FILE"), "{table}");
}

#[test]
fn reports_after_ctrl_c_and_ends_with_the_program() {
    let place = Place::new();
    let (spec, json) = (place.write("a.toml", SPEC), place.path("report.json"));
    let words = ["--seconds", "86400", "--json", json.to_str().expect("text")];
    for signal in ["KILL", "INT"] {
        let mut command = place.run(&spec, &words);
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let mut rest = wait_for(&mut child, |line| line == "running with memgroup for 86400 s");
        let id = child.id();
        let turn = loop {
            let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("a file");
            if !children.trim().is_empty() {
                break children.trim().to_owned();
            }
        };
        assert!(turn.parse::<u32>().is_ok(), "one child: {turn:?}");
        if signal == "INT" {
            interrupt(&child);
            let mut said = String::new();
            rest.read_to_string(&mut said).expect("text");
            assert_eq!(child.wait().expect("it ends").code(), Some(130), "{said}");
            let report: Value = serde_json::from_slice(&fs::read(&json).expect("a file")).expect("JSON");
            assert_eq!(report["memgroup"]["interrupted"], true);
        } else {
            child.kill().expect("it is killed");
            child.wait().expect("it ends");
        }
        // The turn ends when its input does.
        while Path::new(&format!("/proc/{turn}/exe")).exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

#[test]
fn prints_the_built_in_spec_of_the_engine() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memgroup"));
    let output = command.args(["run", "--engine", "datafusion", "--print-spec"]).output();
    let output = output.expect("the program starts");
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    assert_eq!(stdout(&output), include_str!("../../specs/datafusion.toml"));
}

#[test]
fn names_keys_and_options_without_meaning() {
    let place = Place::new();
    for (from, to, expected) in [
        ("share = 8", "reclaim = true", "a.toml:5: key `reclaim` is unknown; allowed: engine, max, oom"),
        ("share = 8", "process_max = '1G'", "a.toml:5: key `process_max` is unknown"),
        (
            "partitions = 2",
            "cache = '1M'",
            "a.toml:12: key `cache` of tenant `shop` is unknown; allowed: after",
        ),
        ("partitions = 2", "high = '1M'", "a.toml:12: key `high` of tenant `shop` is unknown"),
        (
            "partitions = 2",
            "partitions = 0",
            "key `partitions` of tenant `shop` is 0; allowed: an integer from 1 to 64",
        ),
        (
            "[6, 1, 14]",
            "[6, 23]",
            "a.toml:10: key `queries` of tenant `shop` is [6, 23]; allowed: numbers of TPC-H queries from 1 to 22",
        ),
        ("[6, 1, 14]", "[]", "a.toml:10: key `queries` of tenant `shop` is []; allowed: numbers"),
        ("\"runaway\"", "\"runaway\"\nqueries = [1]", "key `queries` of tenant `hog` is unknown"),
        ("\"queries\"", "\"lookups\"", "is \"lookups\"; allowed: \"queries\" or \"runaway\""),
        ("scale = 0.01\n", "", "key `scale` of tenant `shop` is missing"),
    ] {
        let spec = place.write("a.toml", &SPEC.replacen(from, to, 1));
        let output = place.output(&spec, &[]);
        assert_eq!(output.status.code(), Some(2), "{to}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{to}: {}", stderr(&output));
    }
    for (text, more, expected) in [
        (SPEC, &["--details"][..], "--details has no meaning with the engine `datafusion`"),
        (SPEC, &["--watch"], "--watch has no meaning with the engine `datafusion`"),
        (SPEC, &["--no-reclaim"], "--no-reclaim has no meaning with the engine `datafusion`"),
        (&SPEC.replace("max = \"16M\"", ""), &["--baseline"], "--baseline needs a number to compare with"),
    ] {
        let output = place.output(&place.write("a.toml", text), more);
        assert_eq!(output.status.code(), Some(2), "{more:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{more:?}: {}", stderr(&output));
    }
}
