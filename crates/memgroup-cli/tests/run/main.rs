//! The program itself on tiny data: report, JSON, errors, early end.
//!
//! All tests share one data directory, except those about its files.

mod http;
mod limits;
mod reclaim;
mod serve;
mod shares;
mod spec;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

const TINY: &str = r#"
seconds = 1.5
max = "16M"

[[tenant]]
name = "shop"
workload = "lookups"
threads = 2
scale = 0.001
max = "3M"
cache = "512K"

[[tenant]]
name = "board"
workload = "dashboards"
scale = 0.001
max = "4M"
cache = "512K"

[[tenant]]
name = "night"
workload = "etl"
scale = 0.002
max = "6M"
cache = "1M"

[[tenant]]
name = "hog"
workload = "runaway"
scale = 0.001
max = "2M"
cache = "256K"
temp = "memory"
"#;

/// Limits that refuse the runaway many times a second.
const DUEL: &str = r#"
seconds = 3
max = "3M"

[[tenant]]
name = "shop"
workload = "lookups"
scale = 0.001
max = "2M"
cache = "256K"

[[tenant]]
name = "hog"
workload = "runaway"
scale = 0.001
max = "1M"
cache = "64K"
temp = "memory"
"#;

/// One tenant with little data.
const SINGLE: &str = r#"
[[tenant]]
name = "shop"
workload = "lookups"
scale = 0.001
max = "2M"
cache = "256K"
"#;

/// Directory of one test.
struct Place {
    directory: TempDir,
    data: PathBuf,
}

impl Place {
    /// With the shared data.
    fn new() -> Place {
        let data = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tpch");
        Place { directory: TempDir::new().expect("a directory"), data }
    }

    /// With data of its own, in `data`.
    fn with_own_data() -> Place {
        let directory = TempDir::new().expect("a directory");
        Place { data: directory.path().join("data"), directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).expect("a file");
        path
    }

    /// `memgroup run SPEC --data ...` with `more` arguments.
    fn run(&self, spec: &Path, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_memgroup"));
        command.arg("run").arg(spec).arg("--data").arg(&self.data).args(more);
        command.stdin(Stdio::null());
        command
    }

    fn output(&self, spec: &Path, more: &[&str]) -> Output {
        self.run(spec, more).output().expect("the program starts")
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("text")
}

fn tenant<'a>(half: &'a Value, name: &str) -> &'a Value {
    let tenants = half["tenants"].as_array().expect("a list of tenants");
    tenants.iter().find(|tenant| tenant["name"] == name).expect(name)
}

/// The tenant's group at the end, or with an empty name that of all tenants.
fn group<'a>(half: &'a Value, name: &str) -> &'a Value {
    let groups = half["groups"]["groups"].as_array().expect("a list of groups");
    let path = format!("/tenants/{name}");
    groups.iter().find(|group| group["path"] == path.trim_end_matches('/')).expect(name)
}

/// Reads standard error of the child until a line is as wanted.
fn wait_for(child: &mut Child, wanted: impl Fn(&str) -> bool) -> BufReader<ChildStderr> {
    let mut reader = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut said = String::new();
    while !said.lines().any(&wanted) {
        let more = reader.read_line(&mut said).expect("text");
        assert!(more > 0, "it ended too early: {said}");
    }
    reader
}

/// Runs SPEC without end, interrupts it after a line on standard error is as wanted, and returns
/// the JSON and the table. It works on a slow machine too.
fn run_until(place: &Place, spec: &Path, wanted: impl Fn(&str) -> bool) -> (Value, String) {
    let json = place.path("report.json");
    let mut command = place.run(spec, &["--seconds", "86400", "--json", json.to_str().expect("text")]);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut rest = wait_for(&mut child, wanted);
    interrupt(&child);
    let (ended, is_over) = mpsc::channel::<()>();
    let pid = child.id().to_string();
    let watchdog = thread::spawn(move || {
        if is_over.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
            let _ = Command::new("kill").args(["-KILL", &pid]).status();
        }
    });
    let output = child.wait_with_output().expect("it ends");
    drop(ended);
    watchdog.join().expect("it does not panic");
    let mut said = String::new();
    rest.read_to_string(&mut said).expect("text");
    assert_eq!(
        output.status.code(),
        Some(130),
        "without a code it was killed, a minute after the interruption: {said}"
    );
    let report = serde_json::from_slice(&fs::read(&json).expect("a file")).expect("JSON");
    (report, stdout(&output))
}

fn interrupt(child: &Child) {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill starts");
    assert!(status.success());
}

#[test]
fn refuses_an_unknown_slot_source() {
    let output = Command::new(env!("CARGO_BIN_EXE_memgroup"))
        .arg("run")
        .env("MEMGROUP_SLOTS", "rings")
        .output()
        .expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("MEMGROUP_SLOTS") && said.contains("rings") && said.contains("mm_cid"), "{said}");
    assert!(output.stdout.is_empty());
}

#[test]
fn refuses_only_the_runaway_and_reports_after_ctrl_c() {
    let place = Place::new();
    let spec = place.write("tiny.toml", TINY);
    let (report, table) = run_until(&place, &spec, |line| {
        // A tenant without statements is printed as "board 0".
        let started = |name: &str| !line.contains(&format!("{name} 0"));
        line.starts_with("running ")
            && line.contains(" s: ")
            && ["shop", "board", "night", "hog"].into_iter().all(started)
    });
    assert!(table.starts_with("4 tenants, ") && table.contains("seed 1, ended by Ctrl-C"), "{table}");
    assert!(table.contains("`hog`: all statements failed for lack of memory ("), "{table}");
    assert!(table.contains("`shop`: no statement failed"), "{table}");
    assert!(!table.contains('\x1b'), "no colours where there is no terminal: {table}");
    for name in ["shop", "board", "night", "hog", "all tenants"] {
        assert!(table.lines().any(|line| line.trim_start().starts_with(name)), "{table}");
    }
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");

    let half = &report["memgroup"];
    assert!(half["seconds"].as_f64().expect("a number") > 0.0);
    assert_eq!(half["interrupted"], true);
    assert!(report.get("baseline").is_none());
    for name in ["shop", "board", "night", "hog"] {
        let tenant = tenant(half, name);
        let number = |key: &str| tenant[key].as_u64().expect(key);
        assert!(number("peak") <= number("max") && number("usage") <= number("peak"), "{tenant}");
        if name == "hog" {
            assert!(number("refused") > 0 && number("done") == 0 && tenant["p50_us"].is_null(), "{tenant}");
            assert!(
                tenant["first_refusal"].as_str().is_some_and(|text| text.contains("/tenants/hog")),
                "{tenant}"
            );
            assert!(number("peak") > number("max") * 9 / 10, "{tenant}");
        } else {
            assert!(number("done") > 0 && number("refused") == 0, "{tenant}");
            assert!(tenant["p50_us"].as_f64() <= tenant["p99_us"].as_f64(), "{tenant}");
        }
    }
    assert_eq!(half["all"]["max"], 16 << 20);
    assert!(half["groups"]["groups"].as_array().is_some_and(|groups| groups.len() > 5), "{half}");
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn ends_after_its_seconds_and_keeps_its_data() {
    let place = Place::with_own_data();
    let spec = place.write("tiny.toml", TINY);
    let json = place.path("report.json");
    let output = place.output(&spec, &["--json", json.to_str().expect("text")]);
    assert!(output.status.success(), "{}", stderr(&output));
    for line in
        ["loaded shop: TPC-H at scale 0.001", "loaded night: TPC-H at scale 0.002", "running for 1.5 s"]
    {
        assert!(stderr(&output).contains(line), "{}", stderr(&output));
    }
    assert!(stdout(&output).starts_with("4 tenants, "), "{}", stdout(&output));
    let report: Value = serde_json::from_slice(&fs::read(&json).expect("a file")).expect("JSON");
    assert!(report["memgroup"]["seconds"].as_f64().expect("a number") >= 1.5);
    assert_eq!(report["memgroup"]["interrupted"], false);

    let again = place.output(&spec, &["--seconds", "0.1"]);
    assert!(again.status.success() && !stderr(&again).contains("load"), "{}", stderr(&again));
}

#[test]
fn prints_only_json_on_standard_output() {
    let place = Place::new();
    let spec = place.write("tiny.toml", TINY);
    let output = place.output(&spec, &["--seconds", "0.2", "--json", "-"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON and nothing else");
    assert_eq!(report["memgroup"]["tenants"].as_array().map(Vec::len), Some(4));
    assert!(stderr(&output).contains("all tenants"), "{}", stderr(&output));
}

#[test]
fn compares_with_and_without_memgroup_by_a_spec_from_a_pipe() {
    let place = Place::new();
    let json = place.path("report.json");
    // A pipe can be read only once, although three processes read its SPEC.
    let more = ["--baseline", "--seed", "7", "--json", json.to_str().expect("text")];
    let mut command = place.run(Path::new("/dev/stdin"), &more);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    child.stdin.take().expect("a pipe").write_all(DUEL.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", stderr(&output));
    let table = stdout(&output);
    assert!(table.contains("`shop`: no statement failed; without memgroup "), "{table}");
    assert_eq!(table.matches("\n   without memgroup ").count(), 3, "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    assert!(table.lines().count() <= 24, "{table}");
    for turn in ["1 of 2: with memgroup", "2 of 2: without memgroup, under SQLite's heap limit"] {
        assert!(stderr(&output).lines().any(|line| line == turn), "{}", stderr(&output));
    }
    let report: Value = serde_json::from_slice(&fs::read(&json).expect("a file")).expect("JSON");
    for half in [&report["memgroup"], &report["baseline"]] {
        assert_eq!(half["seed"], 7);
        assert!(tenant(half, "hog")["refused"].as_u64().expect("a number") > 0, "{half}");
        assert!(tenant(half, "shop")["done"].as_u64().expect("a number") > 0, "{half}");
        assert!(half["all"]["peak"].as_u64() <= half["all"]["max"].as_u64(), "{half}");
        assert!(half["seconds"].as_f64() >= Some(3.0), "{half}");
    }
    // Without groups the memory of one tenant is unknown, and the runaway exceeds its own limit.
    assert!(tenant(&report["baseline"], "hog")["peak"].is_null());
    assert!(report["baseline"]["groups"].is_null());
    assert!(report["baseline"]["all"]["peak"].as_u64() > report["memgroup"]["all"]["peak"].as_u64());
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn serves_a_runaway_without_a_limit() {
    let place = Place::new();
    let unlimited = DUEL.replace("max = \"3M\"\n", "").replace("max = \"1M\"\n", "");
    let spec = place.write("unlimited.toml", &unlimited);
    let (report, _) = run_until(&place, &spec, |line| line.contains("  hog ") && !line.contains("  hog 0"));
    let hog = tenant(&report["memgroup"], "hog");
    assert!(hog["max"].is_null() && hog["refused"] == 0 && hog["done"].as_u64() > Some(0), "{hog}");
    assert!(hog["peak"].as_u64().expect("a number") > 10 * (1 << 20), "{hog}");
    assert!(report["memgroup"]["all"]["max"].is_null());
}

#[test]
fn reports_the_finished_turns_after_ctrl_c() {
    let place = Place::new();
    let spec = place.write("tiny.toml", TINY);
    let mut command = place.run(&spec, &["--seconds", "86400", "--baseline"]);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut rest = wait_for(&mut child, |line| line == "running for 86400 s");
    // Only the parent gets the signal; it ends its child.
    interrupt(&child);
    let output = child.wait_with_output().expect("it ends");
    let mut said = String::new();
    rest.read_to_string(&mut said).expect("text");
    assert_eq!(output.status.code(), Some(130), "{said}");
    let table = stdout(&output);
    assert!(table.contains("ended by Ctrl-C") && table.contains("all tenants"), "{table}");
    assert!(!table.contains("without memgroup"), "{table}");
}

#[test]
fn reports_nothing_after_ctrl_c_before_a_statement() {
    let place = Place::with_own_data();
    let spec = place.write("tiny.toml", TINY);
    fs::create_dir(place.path("data")).expect("a directory");
    let lock = place.write("data/.lock", "");
    let lock = fs::File::open(lock).expect("a file");
    lock.lock().expect("a lock");
    let mut command = place.run(&spec, &[]);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut rest = wait_for(&mut child, |line| line.starts_with("waiting for another run"));
    interrupt(&child);
    let output = child.wait_with_output().expect("it ends");
    let mut said = String::new();
    rest.read_to_string(&mut said).expect("text");
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(output.stdout.is_empty() && said.contains("nothing to report"), "{said}");
}

#[test]
fn ends_normally_when_its_pipe_is_closed() {
    let place = Place::new();
    let spec = place.write("tiny.toml", TINY);
    for more in [&["--seconds", "0.2"][..], &["--seconds", "0.2", "--json", "-"]] {
        let mut command = place.run(&spec, more);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("it ends");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
    }
}

/// Runs for `seconds` with a closed standard output, and interrupts it if asked to. Returns JSON
/// and exit code.
fn run_unread(place: &Place, seconds: &str, interrupted: bool) -> (Value, Option<i32>) {
    let spec = place.write("tiny.toml", TINY);
    let json = place.write("report.json", "old");
    let mut command = place.run(&spec, &["--seconds", seconds, "--json", json.to_str().expect("text")]);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    drop(child.stdout.take());
    let mut rest = wait_for(&mut child, |line| line.starts_with("running for "));
    if interrupted {
        interrupt(&child);
    }
    let mut said = String::new();
    rest.read_to_string(&mut said).expect("text");
    let status = child.wait().expect("it ends");
    assert!(!said.contains("panicked"), "{said}");
    (serde_json::from_slice(&fs::read(json).expect("a file")).expect("JSON"), status.code())
}

#[test]
fn writes_json_and_exit_code_with_a_closed_pipe() {
    let place = Place::new();
    let (report, code) = run_unread(&place, "0.2", false);
    assert_eq!((&report["memgroup"]["interrupted"], code), (&Value::Bool(false), Some(0)));
    let (report, code) = run_unread(&place, "86400", true);
    assert_eq!((&report["memgroup"]["interrupted"], code), (&Value::Bool(true), Some(130)));
}

#[test]
fn keeps_the_old_json_after_a_failure() {
    let place = Place::with_own_data();
    let spec = place.write("tiny.toml", TINY);
    let json = place.write("report.json", "old");
    fs::create_dir(place.path("data")).expect("a directory");
    place.write("data/shop-0.001.sqlite", "dear diary");
    let output = place.output(&spec, &["--json", json.to_str().expect("text")]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fs::read_to_string(json).expect("a file"), "old");
    let new = place.path("new.json");
    let output = place.output(&spec, &["--json", new.to_str().expect("text")]);
    assert!(output.status.code() == Some(1) && !new.exists());
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn reports_the_turns_before_a_failure() {
    let place = Place::with_own_data();
    let spec = place.write("duel.toml", DUEL);
    let json = place.path("report.json");
    let mut command = place.run(&spec, &["--baseline", "--json", json.to_str().expect("text")]);
    let mut child =
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    // The first turn has opened its files; the second has not.
    let mut rest = wait_for(&mut child, |line| line.starts_with("running for "));
    fs::remove_file(place.path("data/shop-0.001.sqlite")).expect("a file");
    place.write("data/shop-0.001.sqlite", "dear diary");
    let mut said = String::new();
    rest.read_to_string(&mut said).expect("text");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(
        said.matches("failed to run the work without memgroup, under SQLite's heap limit: ").count(),
        1,
        "{said}"
    );
    let table = stdout(&output);
    assert!(table.contains("`hog`: all statements failed "), "{table}");
    let report: Value = serde_json::from_slice(&fs::read(&json).expect("a file")).expect("JSON");
    assert!(tenant(&report["memgroup"], "shop")["done"].as_u64() > Some(0), "{report}");
    assert!(report.get("baseline").is_none(), "{report}");
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn accepts_a_data_directory_named_like_a_uri() {
    let place = Place::new();
    let spec = place.write("single.toml", SINGLE);
    let mut command = Command::new(env!("CARGO_BIN_EXE_memgroup"));
    command.arg("run").arg(&spec).args(["--data", "file:foo", "--seconds", "0.2"]);
    let output = command.current_dir(place.directory.path()).output().expect("the program starts");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(place.path("file:foo/shop-0.001.sqlite").is_file());
}

#[test]
fn refuses_a_wrong_spec_before_it_builds_data() {
    let place = Place::with_own_data();
    for (from, to, expected) in [
        (
            "threads = 2",
            "threads = 0",
            "wrong.toml:8: key `threads` of tenant `shop` is 0; allowed: an integer from 1 to 64",
        ),
        ("\"4M\"", "\"4X\"", "wrong.toml:17: key `max` of tenant `board` is \"4X\""),
        (
            "\"etl\"",
            "\"elt\"",
            "wrong.toml:22: key `workload` of tenant `night` is \"elt\"; allowed: \"lookups\"",
        ),
        (
            "\"hog\"",
            "\"shop\"",
            "wrong.toml:28: key `name` of tenant 4 is \"shop\"; another tenant has that name",
        ),
        (
            "cache",
            "cash",
            "wrong.toml:11: key `cash` of tenant `shop` is unknown; allowed: after, cache, enforced, high",
        ),
    ] {
        let spec = place.write("wrong.toml", &TINY.replacen(from, to, 1));
        let output = place.output(&spec, &[]);
        assert_eq!(output.status.code(), Some(2), "{to}");
        assert!(output.stdout.is_empty() && stderr(&output).starts_with("memgroup: "), "{}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{to}: {}", stderr(&output));
    }
    let output = place.output(&place.path("none.toml"), &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("none.toml: cannot be read: "), "{}", stderr(&output));
    assert!(!place.path("data").exists());
}

#[test]
fn refuses_a_wrong_command_line() {
    let place = Place::new();
    let spec = place.write("tiny.toml", TINY);
    for (more, expected) in [
        (
            &["--seconds", "0"][..],
            "invalid value '0' for '--seconds <N>': allowed: a number from 0.1 to 86400, in seconds",
        ),
        (&["--seconds", "NaN"], "invalid value 'NaN' for '--seconds <N>'"),
        (&["--seed", "-1"], "invalid value '-1' for '--seed <N>': allowed: an integer from 0 up"),
        (&["--seconds", "-3"], "invalid value '-3' for '--seconds <N>'"),
        (&["--sekonds", "1"], "--sekonds"),
    ] {
        let output = place.output(&spec, more);
        assert_eq!(output.status.code(), Some(2), "{more:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{more:?}: {}", stderr(&output));
    }
    let unlimited = place.write("unlimited.toml", &TINY.replace("max = \"16M\"\n", ""));
    let output = place.output(&unlimited, &["--baseline"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--baseline needs a number to compare with"), "{}", stderr(&output));
}

#[test]
fn names_files_that_cannot_be_used() {
    let place = Place::with_own_data();
    let spec = place.write("tiny.toml", TINY);
    let output = place.output(&spec, &["--json", "/no/such/directory/report.json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("failed to write the report to /no/such/directory/report.json"));
    assert!(!place.path("data").exists(), "checked before the run");

    fs::create_dir(place.path("data")).expect("a directory");
    let diary = place.write("data/shop-0.001.sqlite", "dear diary");
    let output = place.output(&spec, &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("was not made by this program"), "{}", stderr(&output));
    assert_eq!(fs::read_to_string(diary).expect("a file"), "dear diary");
}

#[test]
fn names_the_tenant_with_a_limit_that_is_too_small() {
    let place = Place::new();
    let spec =
        place.write("small.toml", &TINY.replace("threads = 2", "threads = 64").replace("\"3M\"", "\"1M\""));
    let output = place.output(&spec, &[]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("failed to open a connection of tenant `shop`: "),
        "{}",
        stderr(&output)
    );
    assert!(stderr(&output).contains("takes about 200 KiB of its `max` (64 threads)"), "{}", stderr(&output));
}
