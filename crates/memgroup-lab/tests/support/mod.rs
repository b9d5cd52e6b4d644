//! What the tests of experiments share: the least run of one, and the form of its report.

use std::fs;

use memgroup_lab::{Args, Experiment, run_to};
use serde_json::Value;

pub(crate) fn tiny(experiment: Experiment) -> Args {
    Args { tiny: true, ..Args::new(experiment) }
}

/// Runs an experiment; its printed report and its JSON.
pub(crate) fn report_of(mut args: Args) -> (String, Value) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lab.json");
    args.json = Some(path.clone());
    let mut printed = Vec::new();
    run_to(&args, &mut printed).unwrap();
    let json = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    (String::from_utf8(printed).unwrap(), json)
}

/// No line is wider than a terminal, bars included.
pub(crate) fn assert_fits(printed: &str) {
    for line in printed.lines() {
        assert!(line.chars().count() <= 125, "{line}\nin:\n{printed}");
    }
}

pub(crate) fn rows<'j>(json: &'j Value, metric: &str) -> Vec<&'j Value> {
    json["rows"].as_array().unwrap().iter().filter(|row| row["metric"] == metric).collect()
}

pub(crate) fn assert_form<'s>(json: &Value, experiment: &str, seed: impl Into<Option<&'s str>>) {
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let sorted = |names: &[&str]| {
        let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(keys(json), sorted(&["experiment", "options", "seed", "machine", "rows", "checks", "tables"]));
    assert_eq!((json["experiment"].as_str(), json["seed"]["name"].as_str()), (Some(experiment), seed.into()));
    let rows = json["rows"].as_array().unwrap();
    assert!(!rows.is_empty());
    for row in rows {
        assert_eq!(
            keys(row),
            sorted(&["variant", "params", "metric", "unit", "median", "min", "p90"]),
            "{row}"
        );
        let [min, median, p90] = ["min", "median", "p90"].map(|name| row[name].as_f64().unwrap());
        assert!(min <= median && median <= p90, "{row}");
    }
    for check in json["checks"].as_array().unwrap() {
        assert_eq!(keys(check), sorted(&["name", "value", "goal", "unit", "met"]), "{check}");
        assert!(check["met"].is_boolean() && check["goal"].is_string());
    }
}
