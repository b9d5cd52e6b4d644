//! The figures, alerts and dashboard for Prometheus and Grafana, checked by `promtool` where it is
//! installed (Debian: `prometheus`).

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use memgroup::{KillAnswer, KillRequest};
use serde_json::Value;

use crate::fixture::Fixture;

/// Runs `promtool` with an input. `None`, with a line that says so, where it is missing.
fn promtool(arguments: &[&str], folder: &Path, input: &[u8]) -> Option<Output> {
    let mut command = Command::new("promtool");
    command.args(arguments).current_dir(folder);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        println!("SKIPPED: promtool is not installed; Debian has it in the package prometheus");
        return None;
    };
    // It may end before it has read all.
    let _sent = child.stdin.take().unwrap().write_all(input);
    Some(child.wait_with_output().unwrap())
}

fn succeeds(arguments: &[&str], folder: &Path, input: &[u8]) {
    if let Some(output) = promtool(arguments, folder, input) {
        let text = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "promtool {arguments:?}: {}", String::from_utf8_lossy(&text));
        assert!(!String::from_utf8_lossy(&text).contains("FAILED"));
    }
}

fn ops() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("ops")
}

/// A tree in which each family has a series.
fn fill(fixture: &Fixture) -> Vec<memgroup::Charge> {
    let tenants = fixture.hierarchy.create("/t").unwrap();
    tenants.set_max(1000).unwrap();
    let victim = tenants.create("a \"b\" \\c").unwrap();
    for set in [memgroup::Group::set_low, memgroup::Group::set_min] {
        set(&victim, 10).unwrap();
    }
    victim.set_high(2000).unwrap();
    let held = std::sync::Mutex::new(Some(victim.try_charge(1000).unwrap()));
    let hook = victim
        .set_kill_hook(move |_: &KillRequest<'_>| {
            drop(held.lock().unwrap().take());
            KillAnswer::Dying
        })
        .unwrap();
    let charge = tenants.create("other").unwrap().try_charge(800).unwrap();
    drop(hook);
    vec![charge]
}

fn scrape(fixture: &Fixture, accept: &str) -> String {
    // The answers before are counted in this one.
    fixture.unix().get("/v1/about");
    fixture.unix().with("accept", accept).get("/metrics").text().to_owned()
}

#[test]
fn a_scrape_passes_promtool() {
    let fixture = Fixture::new();
    let _charges = fill(&fixture);
    let text = scrape(&fixture, "text/plain;version=0.0.4");
    assert!(text.contains("{id=\"/t/a \\\"b\\\" \\\\c\"}"), "labels are escaped");
    succeeds(&["check", "metrics"], fixture.folder.path(), text.as_bytes());
}

#[test]
fn the_openmetrics_text_is_read_by_prometheus() {
    let fixture = Fixture::new();
    let _charges = fill(&fixture);
    let text = scrape(&fixture, "application/openmetrics-text");
    // The parser of promtool takes samples with a time only, and so for a file of the past.
    let line =
        |line: &str| if line.starts_with('#') { format!("{line}\n") } else { format!("{line} 1700000000\n") };
    let timed: String = text.lines().map(line).collect();
    std::fs::write(fixture.folder.path().join("scrape.txt"), timed).unwrap();
    let arguments = ["tsdb", "create-blocks-from", "openmetrics", "scrape.txt", "blocks"];
    succeeds(&arguments, fixture.folder.path(), b"");
}

#[test]
fn the_alerts_pass_promtool() {
    succeeds(&["check", "rules", "alerts.yml"], &ops(), b"");
    succeeds(&["test", "rules", "alerts_test.yml"], &ops(), b"");
}

/// The names of the metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = text.split(|letter: char| !is_part(letter));
    words.filter(|word| word.starts_with("memgroup_")).map(str::to_owned).collect()
}

#[test]
fn alerts_and_dashboard_use_figures_that_there_are() {
    struct Nothing;
    impl memgroup::Shrinker for Nothing {
        fn count(&self, _: u64) -> memgroup::Count {
            memgroup::Count::Empty
        }
        fn scan(&self, _: &memgroup::Ask<'_>) -> memgroup::Scan {
            memgroup::Scan::Freed { bytes: 0 }
        }
    }
    let fixture = Fixture::new();
    let _charges = fill(&fixture);
    let root = fixture.hierarchy.root();
    let _shrinker = root.add_shrinker(memgroup::ShrinkerConfig::new("plans"), Nothing).unwrap();
    let samples = scrape(&fixture, "text/plain");
    let there: BTreeSet<String> =
        samples.lines().filter(|line| !line.starts_with('#')).flat_map(names).collect();
    let read = |name: &str| std::fs::read_to_string(ops().join(name)).unwrap();
    let dashboard: Value = serde_json::from_str(&read("dashboard.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let exprs: Vec<&str> = targets.map(|target| target["expr"].as_str().unwrap()).collect();
    assert!(panels.len() >= 10 && exprs.len() >= panels.len());
    for text in [read("alerts.yml"), read("alerts_test.yml"), exprs.join("\n")] {
        let used = names(&text);
        let lacking: Vec<_> = used.difference(&there).collect();
        assert!(!used.is_empty() && lacking.is_empty(), "{lacking:?} are not among {there:?}");
    }
    // An expression that does not parse fails as a rule.
    let rule = |(number, expr): (usize, &&str)| {
        let expr = expr.replace("$job", "job").replace("$instance", ".*").replace("$id", ".*");
        format!("  - record: panel:{number}\n    expr: {}\n", serde_json::to_string(&expr).unwrap())
    };
    let rules: String = exprs.iter().enumerate().map(rule).collect();
    let path = fixture.folder.path().join("panels.yml");
    std::fs::write(&path, format!("groups:\n- name: panels\n  rules:\n{rules}")).unwrap();
    succeeds(&["check", "rules", "panels.yml"], fixture.folder.path(), b"");
}
