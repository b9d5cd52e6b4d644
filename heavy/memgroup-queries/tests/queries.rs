//! The program: queries in child processes, under memgroup and under DataFusion's pools.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn program(data: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memgroup-queries"));
    command.arg("--data").arg(data).args(["--scale", "0.01"]).args(arguments);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn expect_failure(output: &Output, code: i32, parts: &[&str]) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for part in parts {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
fn compares_the_pools_on_the_same_work() {
    let data = tempfile::tempdir().expect("a directory");
    let json = data.path().join("report.json");
    let mut command = program(data.path(), &["--seconds", "5", "--max", "16M"]);
    let output = command.arg("--json").arg(&json).output().expect("the program starts");
    let (table, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{said}{table}");
    let report: Value = serde_json::from_slice(&fs::read(&json).expect("a file")).expect("JSON");
    let number = |part: &Value, key: &str| part[key].as_u64().unwrap_or_else(|| panic!("{key} in {part}"));
    for pool in ["memgroup", "alone", "Greedy", "FairSpill", "TrackConsumers"] {
        let part = &report[pool];
        assert!(table.contains(pool) && number(part, "resident_peak") > 16 << 20, "{pool}: {part}");
        let hog = &part["tenants"][3];
        let ended = ["done", "refused", "killed", "interrupted"].map(|key| number(hog, key));
        assert_eq!(ended.iter().sum::<u64>() == 0, pool == "alone", "{pool}: {hog}");
        let has_groups = matches!(pool, "memgroup" | "alone");
        assert_eq!(part["charged_peak"].is_number(), has_groups, "{pool}");
        if has_groups {
            let peak = number(part, "charged_peak");
            assert!(peak > 0 && peak <= 16 << 20, "{pool}: {peak}");
            for tenant in &part["tenants"].as_array().expect("tenants")[..3] {
                assert!(number(tenant, "done") > 0, "{pool}: {tenant}");
                let failed = ["refused", "killed"].map(|key| number(tenant, key));
                assert_eq!(failed, [0; 2], "{pool}: {tenant}");
            }
        }
    }
    let hog = &report["memgroup"]["tenants"][3];
    assert!(number(hog, "spilled") + number(hog, "restarted") > 0, "{hog}");
    for name in ["dashboards", "reports", "analysts"] {
        assert!(table.contains(&format!("`{name}`: with memgroup 0 of ")), "{table}");
    }
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    let entries = fs::read_dir(data.path()).expect("a list").count();
    assert_eq!(entries, 2, "the tables and the report");
}

#[test]
fn names_what_is_wrong() {
    let data = tempfile::tempdir().expect("a directory");
    let run = |arguments: &[&str]| program(data.path(), arguments).output().expect("the program starts");
    expect_failure(&run(&["--seconds", "0"]), 2, &["--seconds", "from 1 to 86400"]);
    expect_failure(&run(&["--max=max"]), 2, &["--max", "expected a limit"]);
    let none = data.path().join("none");
    let output = program(data.path(), &[]).env("TMPDIR", &none).output().expect("the program starts");
    expect_failure(&output, 1, &[&none.display().to_string(), "where queries spill", "set TMPDIR"]);
    fs::write(&none, "").expect("a file");
    let output = program(&none, &[]).output().expect("the program starts");
    expect_failure(&output, 1, &["cannot make the tables in", &none.display().to_string()]);
}
