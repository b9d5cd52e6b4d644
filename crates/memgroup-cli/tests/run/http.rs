//! The engine `http`: a server in a child process, and the requests of its tenants.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::{Place, interrupt, stderr, stdout, tenant, wait_for};

pub(super) const SPEC: &str = r#"
engine = "http"
seconds = 2
max = "16M"
share = 8
process_max = "64M"

[[tenant]]
name = "shop"
workload = "requests"
threads = 2
pause_us = 1000
patience_ms = 60000

[[tenant]]
name = "hog"
workload = "runaway"
"#;

fn memgroup(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_memgroup")).args(words).output().expect("the program starts")
}

/// Runs `text` with `more` arguments. Returns the JSON, the tables and the exit code.
fn run(place: &Place, text: &str, more: &[&str]) -> (Value, String, Option<i32>) {
    let spec = place.write("http.toml", text);
    let (spec, json) = (spec.to_str().expect("text"), place.path("report.json"));
    let words = [&["run", spec, "--json", json.to_str().expect("text")], more].concat();
    let output = memgroup(&words);
    let text = fs::read(&json).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    (serde_json::from_slice(&text).expect("JSON"), stdout(&output), output.status.code())
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn refuses_only_the_runaway_and_outlives_its_neighbour_without_memgroup() {
    let place = Place::new();
    let (report, table, code) = run(&place, SPEC, &["--baseline", "--seconds", "4"]);
    assert_eq!(code, Some(0), "{table}");
    let own = &report["memgroup"];
    let (shop, hog) = (tenant(own, "shop"), tenant(own, "hog"));
    let number = |tenant: &Value, key: &str| tenant[key].as_u64().expect(key);
    assert!(number(shop, "done") > 0, "{table}");
    assert_eq!(["refused", "killed", "lost"].map(|key| number(shop, key)), [0; 3], "{shop}\n{table}");
    assert!(number(hog, "refused") + number(hog, "killed") > 0, "{table}");
    assert_eq!((number(hog, "lost"), number(hog, "done")), (0, 0), "{table}");
    assert_eq!(shop["workload"], "requests");
    for key in ["p50_us", "p99_us", "usage", "peak"] {
        assert!(shop[key].is_number(), "{key}: {shop}");
    }
    let server = &own["server"];
    assert!(server["died_seconds"].is_null() && server["bound"].is_string(), "{server}");
    assert_eq!(server["max"], 64 << 20);
    assert!(server["resident_peak"].as_u64() > Some(0), "{server}");
    assert_eq!(own["all"]["max"], 16 << 20);
    assert!(table.contains("With memgroup the server lived; "), "{table}");
    assert!(table.contains("`shop`: no request failed; without memgroup "), "{table}");

    // Without memgroup nothing but the bound ends the runaway.
    let other = &report["baseline"];
    assert!(other["server"]["died_of"].as_str().is_some_and(|of| of.contains("signal")), "{table}");
    assert!(number(tenant(other, "shop"), "lost") > 0, "{table}");
    assert!(tenant(other, "shop")["peak"].is_null(), "{table}");
    assert!(table.contains("Without memgroup the server died after "), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
}

#[test]
fn reports_that_a_server_without_a_runaway_lived() {
    let place = Place::new();
    let quiet = &SPEC[..SPEC.rfind("[[tenant]]").expect("a runaway")];
    let (report, table, code) = run(&place, quiet, &["--baseline", "--seconds", "1"]);
    assert_eq!(code, Some(0), "{table}");
    assert!(report["baseline"]["server"]["died_seconds"].is_null(), "{table}");
    for title in ["With memgroup", "Without memgroup"] {
        assert!(table.contains(&format!("{title} the server lived; ")), "{table}");
        assert!(table.contains("`shop`: no request failed; without memgroup no request failed."), "{table}");
    }
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn begins_after_an_idle_tenant() {
    let place = Place::new();
    let text = &SPEC[..SPEC.rfind("[[tenant]]").expect("a runaway")];
    let text = text.replace("threads = 2", "threads = 2\nwork_seconds = 0.3");
    let text = text + "[[tenant]]\nname = 'later'\nworkload = 'requests'\nafter = 'shop'\n";
    let (report, table, _) = run(&place, &text, &["--seconds", "2"]);
    let [shop, later] = ["shop", "later"].map(|name| tenant(&report["memgroup"], name)["done"].as_u64());
    assert!(shop > Some(0) && later > Some(0), "{table}");
}

/// The server of a run that has just begun, which stands still from now on.
fn stopped_server(child: &Child) -> String {
    let id = child.id();
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("a file");
    let server = children.trim().to_owned();
    signal("-STOP", &server);
    server
}

fn signal(name: &str, process: &str) {
    assert!(Command::new("kill").args([name, process]).status().expect("kill starts").success());
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn tells_how_long_a_tenant_has_waited_for_an_answer() {
    let place = Place::new();
    let text = "engine = 'http'\nseconds = 2\n[[tenant]]\nname = 'shop'\nworkload = 'requests'\n";
    let (spec, json) = (place.write("http.toml", text), place.path("report.json"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_memgroup"));
    command.arg("run").arg(spec).arg("--json").arg(&json).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut rest = wait_for(&mut child, |line| line.starts_with("running with memgroup for "));
    let server = stopped_server(&child);
    // The requests end, and the program asks for the figures.
    std::thread::sleep(Duration::from_secs(3));
    signal("-CONT", &server);
    let mut said = String::new();
    rest.read_to_string(&mut said).expect("text");
    assert_eq!(child.wait().expect("it ends").code(), Some(0), "{said}");
    let report: Value = serde_json::from_str(&fs::read_to_string(json).expect("a file")).expect("JSON");
    let shop = tenant(&report["memgroup"], "shop");
    assert_eq!(shop["interrupted"], 1, "{shop}");
    assert!(shop["p99_us"].as_f64() > Some(1e6), "{shop}");
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn ends_a_server_that_never_answers() {
    let place = Place::new();
    let spec = place.write("http.toml", SPEC);
    let mut command = Command::new(env!("CARGO_BIN_EXE_memgroup"));
    command.arg("run").arg(spec).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut rest = wait_for(&mut child, |line| line.starts_with("running with memgroup for "));
    let server = stopped_server(&child);
    let mut said = String::new();
    rest.read_to_string(&mut said).expect("text");
    assert_eq!(child.wait().expect("it ends").code(), Some(1), "{said}");
    assert!(said.contains("failed to ask the server for its figures: no answer within 5 s"), "{said}");
    assert!(!Path::new(&format!("/proc/{server}/exe")).exists(), "the server is ended");
}

#[test]
fn ends_the_server_with_the_program() {
    let place = Place::new();
    let spec = place.write("http.toml", SPEC);
    let mut command = Command::new(env!("CARGO_BIN_EXE_memgroup"));
    command.arg("run").arg(spec).args(["--seconds", "86400"]).stdout(Stdio::null()).stderr(Stdio::piped());
    for signal in ["-KILL", "-INT"] {
        let mut child = command.spawn().expect("the program starts");
        let _rest = wait_for(&mut child, |line| line.starts_with("running with memgroup for "));
        let id = child.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("a file");
        let server = children.trim().to_owned();
        assert!(server.parse::<u32>().is_ok(), "one child: {children:?}");
        if signal == "-INT" {
            interrupt(&child);
            assert_eq!(child.wait().expect("it ends").code(), Some(130));
        } else {
            child.kill().expect("it is killed");
            child.wait().expect("it ends");
        }
        // The server ends when its input does.
        while Path::new(&format!("/proc/{server}/exe")).exists() {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

#[test]
fn prints_the_built_in_spec_of_the_engine() {
    let output = memgroup(&["run", "--engine", "http", "--print-spec"]);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    assert_eq!(stdout(&output), include_str!("../../specs/http.toml"));
}

#[test]
fn names_keys_and_options_without_meaning() {
    let place = Place::new();
    for (from, to, expected) in [
        ("share = 8", "reclaim = true", "http.toml:5: key `reclaim` is unknown; allowed: engine, max, oom"),
        (
            "threads = 2",
            "scale = 0.1",
            "http.toml:11: key `scale` of tenant `shop` is unknown; allowed: after",
        ),
        ("threads = 2", "cache = '1M'", "http.toml:11: key `cache` of tenant `shop` is unknown"),
        ("\"requests\"", "\"lookups\"", "is \"lookups\"; allowed: \"requests\" or \"runaway\""),
        ("\"http\"", "\"grpc\"", "http.toml:2: key `engine` is \"grpc\"; allowed: \"sqlite\" or \"http\""),
        ("\"http\"", "\"sqlite\"", "http.toml:6: key `process_max` is unknown"),
    ] {
        let spec = place.write("http.toml", &SPEC.replacen(from, to, 1));
        let output = memgroup(&["run", spec.to_str().expect("text")]);
        assert_eq!(output.status.code(), Some(2), "{to}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{to}: {}", stderr(&output));
    }
    let spec = place.write("http.toml", SPEC);
    let spec = spec.to_str().expect("text");
    for (more, expected) in [
        (&["--no-reclaim"][..], "--no-reclaim has no meaning with the engine `http`"),
        (&["--engine", "sqlite"], "key `engine` is \"http\"; allowed: \"sqlite\", as --engine says"),
    ] {
        let output = memgroup(&[&["run", spec], more].concat());
        assert_eq!(output.status.code(), Some(2), "{more:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{more:?}: {}", stderr(&output));
    }
}
