//! Runs every experiment and writes the figures, the page and the charts that the documentation
//! quotes.
//!
//! ```text
//!   quiet? ─▶ a process for each experiment ─▶ its JSON ─▶ figures.json, figures.md, figures/*.svg
//! ```
//!
//! - I1. What comes from a machine that isn't quiet is called noisy, and stays under
//!   `target/figures` without `--accept-noise`. What comes from `--quick` always does.
//! - I2. Each figure has an id that is used once. It follows from the names in the experiment, so
//!   it lasts as long as they do.

mod chart;
mod page;
mod quiet;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::args::{Args, Experiment, word};
use crate::harness::prelude::*;
use crate::harness::report::{Check, Row};

/// The experiments in the order of the page, each with its title, and about how many minutes it
/// takes on two CPUs.
const EXPERIMENTS: [(Experiment, &str, u32); 7] = [
    (Experiment::Charge, "Charges: the stock (seed 004)", 1),
    (Experiment::Drain, "Draining the stocks of all CPUs (seed 000)", 2),
    (Experiment::Percpu, "Per-CPU memory that goes back (seed 001)", 5),
    (Experiment::Rstat, "Statistics (seed 002)", 3),
    (Experiment::Shrink, "Reclaim from caches (seed 003)", 5),
    (Experiment::Limits, "Away from the best case", 4),
    (Experiment::Alloc, "Servers", 10),
];

/// All figures of one run.
#[derive(Debug, Serialize)]
struct Figures {
    commit: String,
    machine: String,
    /// Why the figures may be wrong; none if the machine was quiet.
    noisy: Option<String>,
    figures: Vec<Figure>,
}

/// One figure, as a page quotes it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct Figure {
    id: String,
    /// The value with its unit: "5.2 ns".
    text: String,
    what: String,
    value: Option<f64>,
    unit: String,
    /// The smallest sample and the ninetieth percentile, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    spread: Option<[f64; 2]>,
    /// The same in the controls of the experiment.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    controls: BTreeMap<String, f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    goal: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    met: Option<bool>,
    command: String,
}

/// One experiment's report, as its process wrote it.
struct Part {
    title: &'static str,
    name: String,
    report: Written,
}

#[derive(Deserialize)]
struct Written {
    machine: Value,
    rows: Vec<Row>,
    checks: Vec<Check>,
    tables: Vec<Table>,
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the crate lies in crates/");
    let program =
        args.program.clone().ok_or("only the program memgroup-lab has them").set_up("the processes")?;
    let scratch = root.join("target/figures");
    fs::create_dir_all(&scratch).map_err(Error::system(format!("make {}", scratch.display())))?;
    // Taken now: a commit that comes during the run isn't what is measured.
    let commit = commit(root);
    let short = args.quick || args.tiny;
    let mut noisy =
        if short { Some("it was a short run".to_owned()) } else { quiet::wait(out, args.accept_noise)? };
    let (stolen, mut parts) = (quiet::Stolen::now(), Vec::new());
    for (number, (experiment, title, _)) in EXPERIMENTS.into_iter().enumerate() {
        let (name, minutes) = (word(experiment), EXPERIMENTS[number..].iter().map(|it| it.2).sum::<u32>());
        let left = if short { String::new() } else { format!(", about {minutes} min left") };
        say(out, &format!("[{}/{}] {name}{left}", number + 1, EXPERIMENTS.len()))?;
        parts.push(part(args, &program, &scratch, name, title)?);
    }
    if let Some(why) = stolen.since().filter(|_| noisy.is_none()) {
        noisy = Some(format!("during the run {why}"));
    }
    let machine = parts[0].report.machine["text"].as_str().unwrap_or_default().to_owned();
    // A figure without a goal or a control is in its experiment's table only.
    let quoted = |figure: &Figure| {
        figure.goal.is_some() || !figure.controls.is_empty() || figure.what.contains("(control)")
    };
    let figures = parts.iter().flat_map(of_part).filter(quoted).collect::<Vec<_>>();
    let all = Figures { commit, machine, noisy, figures: with_unique_ids(figures) };
    let is_published = all.noisy.is_none() || (args.accept_noise && !short);
    let docs = if is_published { root.join("docs") } else { scratch };
    let charts = chart::charts(&all);
    let with_charts: Vec<&str> = charts.iter().map(|(name, _)| *name).collect();
    let mut files = vec![
        ("figures.json".to_owned(), json_text(&all)),
        ("figures.md".to_owned(), page::markdown(&all, &parts, &with_charts)),
    ];
    files.extend(charts.into_iter().map(|(name, svg)| (format!("figures/{name}.svg"), svg)));
    let folder = docs.join("figures");
    fs::create_dir_all(&folder).map_err(Error::system(format!("make {}", folder.display())))?;
    for (name, text) in files {
        let path = docs.join(name);
        fs::write(&path, text).map_err(Error::system(format!("write {}", path.display())))?;
    }
    let missed = all.figures.iter().filter(|figure| figure.met == Some(false)).count();
    let noise = all.noisy.as_ref().map_or_else(String::new, |why| format!(", noisy: {why}"));
    say(out, &format!("{} figures, {missed} missed goals, in {}{noise}", all.figures.len(), docs.display()))
}

fn say(out: &mut dyn Write, line: &str) -> Result<()> {
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(Error::Output)
}

/// Runs one experiment in a process of its own, so that no memory or thread of another is there.
fn part(args: &Args, program: &Path, scratch: &Path, name: String, title: &'static str) -> Result<Part> {
    let (json, printed) = (scratch.join(format!("{name}.json")), scratch.join(format!("{name}.txt")));
    let file = fs::File::create(&printed).map_err(Error::system(format!("write {}", printed.display())))?;
    let status = Command::new(program)
        .arg(&name)
        .args(args.length())
        .arg("--json")
        .arg(&json)
        .stdout(Stdio::from(file))
        .status()
        .map_err(Error::system(format!("start {}", program.display())))?;
    ensure(status.success(), || format!("{name} ended with {status}; see {}", printed.display()))?;
    let text = fs::read_to_string(&json).map_err(Error::system(format!("read {}", json.display())))?;
    Ok(Part { title, name, report: serde_json::from_str(&text).or_wrong("the experiment's JSON")? })
}

/// The commit of the sources, and whether they differ from it.
fn commit(root: &Path) -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").current_dir(root).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changes| !changes.is_empty());
    if changed { commit + "+" } else { commit }
}

/// The figures of one experiment: those with a goal, then all that were measured.
fn of_part(Part { name, report, .. }: &Part) -> Vec<Figure> {
    let figure = |id: String, what: String, value: Option<f64>, unit: &str| Figure {
        id: format!("{name}.{id}"),
        text: value_text(value, unit),
        what,
        value,
        unit: unit.to_owned(),
        command: format!("memgroup-lab {name}"),
        ..Figure::default()
    };
    let checks = report.checks.iter().map(|check| Figure {
        goal: Some(check.goal.clone()),
        met: Some(check.met),
        ..figure(slug(&check.name), check.name.clone(), check.value, &check.unit)
    });
    // Cycles are left out: they are nanoseconds times the clock's rate.
    let measured = report.rows.iter().filter(|row| row.unit != "cycles").map(|row| {
        let (metric, variant, params) = (&row.metric, &row.variant, params(&row.params));
        let is_control = |other: &&Row| {
            let same = (&other.metric, &other.unit) == (metric, &row.unit);
            same && self::params(&other.params) == params && other.variant.contains("(control)")
        };
        let controls = report.rows.iter().filter(is_control);
        let controls = controls.map(|other| (other.variant.replace(" (control)", ""), other.median));
        let mut parts = vec![slug(metric), slug(&variant.replace("(control)", "")), params.join(".")];
        parts.retain(|part| !part.is_empty());
        let what = [metric.clone(), variant.clone()].into_iter().chain(params.clone());
        Figure {
            spread: Some([row.min, row.p90]),
            controls: controls.filter(|(name, _)| !variant.starts_with(name)).collect(),
            ..figure(parts.join("."), what.collect::<Vec<_>>().join(", "), Some(row.median), &row.unit)
        }
    });
    checks.chain(measured).collect()
}

/// The settings of a row in words: "threads-2", "same-group".
fn params(of: &Value) -> Vec<String> {
    let settings =
        of.as_object().into_iter().flatten().filter(|(key, value)| *key != "windows" && !value.is_null());
    let word = |(key, value): (&String, &Value)| match value {
        Value::String(text) => slug(text),
        Value::Bool(false) => format!("no-{}", slug(key)),
        Value::Bool(true) => slug(key),
        value => format!("{}-{}", slug(key), slug(&value.to_string())),
    };
    settings.map(word).collect()
}

/// "a pair, 1 thread" as "a-pair-1-thread".
fn slug(text: &str) -> String {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect::<Vec<_>>().join("-")
}

/// A value with its unit, as pages have it.
fn value_text(value: Option<f64>, unit: &str) -> String {
    let Some(value) = value else { return "not measured".to_owned() };
    match unit {
        "ns" if value >= 1e6 => format!("{} ms", figure(value / 1e6)),
        "ns" if value >= 1e3 => format!("{} us", figure(value / 1e3)),
        "x" => format!("{} times", figure(value)),
        "" | "count" | "1" if value.fract() == 0.0 => count(value as u64),
        "" | "1" => figure(value),
        "count" => count(value as u64),
        "kB" | "pages" | "bytes" => format!("{} {unit}", count(value.round() as u64)),
        unit => format!("{} {unit}", figure(value)),
    }
}

/// Numbers the ids that several figures have (I2).
fn with_unique_ids(mut figures: Vec<Figure>) -> Vec<Figure> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for figure in &mut figures {
        let times = seen.entry(figure.id.clone()).or_default();
        *times += 1;
        if *times > 1 {
            figure.id = format!("{}.{times}", figure.id);
        }
    }
    figures
}

/// A line for each figure, so that a change of one is a change of one line.
fn json_text(all: &Figures) -> String {
    let line = |figure: &Figure| format!("    {}", json!(figure));
    let figures: Vec<String> = all.figures.iter().map(line).collect();
    format!(
        "{{\n  \"commit\": {},\n  \"machine\": {},\n  \"noisy\": {},\n  \"figures\": [\n{}\n  ]\n}}\n",
        json!(all.commit),
        json!(all.machine),
        json!(all.noisy),
        figures.join(",\n")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part() -> Part {
        let report = json!({
            "rows": [
                {"variant": "memgroup", "params": {"threads": 1, "windows": 60}, "metric": "pair", "unit": "ns", "median": 5.21, "min": 5.0, "p90": 6.0},
                {"variant": "memgroup", "params": {"threads": 1, "windows": 60}, "metric": "pair", "unit": "cycles", "median": 11.0, "min": 10.0, "p90": 12.0},
                {"variant": "no stock (control)", "params": {"threads": 1, "windows": 9}, "metric": "pair", "unit": "ns", "median": 1234.0, "min": 1000.0, "p90": 2000.0},
                {"variant": "no stock (control)", "params": {"threads": 2}, "metric": "pair", "unit": "ns", "median": 9.0, "min": 9.0, "p90": 9.0},
            ],
            "checks": [{"name": "a pair, 1 thread", "value": null, "unit": "ns", "goal": "<= 6 ns", "met": false}],
            "machine": {"text": "m"},
            "tables": [],
        });
        let report = serde_json::from_value(report).unwrap();
        Part { title: "Charges", name: "charge".to_owned(), report }
    }

    #[test]
    fn gives_each_figure_an_id_its_text_its_control_and_its_goal() {
        let figures = of_part(&part());
        let ids: Vec<&str> = figures.iter().map(|figure| figure.id.as_str()).collect();
        assert_eq!(
            ids,
            [
                "charge.a-pair-1-thread",
                "charge.pair.memgroup.threads-1",
                "charge.pair.no-stock.threads-1",
                "charge.pair.no-stock.threads-2"
            ]
        );
        let [goal, ours, control, _] = &figures[..] else { panic!("{figures:?}") };
        assert_eq!(
            (goal.text.as_str(), goal.goal.as_deref(), goal.met),
            ("not measured", Some("<= 6 ns"), Some(false))
        );
        assert_eq!((ours.text.as_str(), ours.spread), ("5.21 ns", Some([5.0, 6.0])));
        assert_eq!(ours.controls, [("no stock".to_owned(), 1234.0)].into());
        assert_eq!((control.text.as_str(), control.controls.len()), ("1.23 us", 0));
    }

    #[test]
    fn uses_no_id_twice() {
        let twice = [of_part(&part()), of_part(&part())].concat();
        let ids: Vec<String> = with_unique_ids(twice).into_iter().map(|figure| figure.id).collect();
        assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), 8, "{ids:?}");
        assert!(ids.contains(&"charge.a-pair-1-thread.2".to_owned()));
    }

    #[test]
    fn writes_units_as_pages_have_them() {
        let text = |value, unit| value_text(Some(value), unit);
        let texts = [
            text(0.61, "us"),
            text(1.2, "x"),
            text(9.28, "%"),
            text(7.6e6, "ns"),
            text(3.0, "count"),
            text(12345.6, "kB"),
        ];
        assert_eq!(texts, ["0.61 us", "1.20 times", "9.28 %", "7.60 ms", "3", "12,346 kB"]);
    }

    #[test]
    fn writes_a_line_for_each_figure_that_reads_back() {
        let all = Figures { commit: "c".into(), machine: "m".into(), noisy: None, figures: of_part(&part()) };
        let text = json_text(&all);
        assert_eq!(text.lines().filter(|line| line.contains("\"id\"")).count(), 4);
        let read: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((read["commit"].as_str(), read["noisy"].is_null()), (Some("c"), true));
        assert_eq!(read["figures"][1]["id"], "charge.pair.memgroup.threads-1");
    }
}
