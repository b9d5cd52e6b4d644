//! A report: the seed's figures, if there is one, the machine, rows, checks. The tables on the terminal and the JSON come from it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::clock::Clock;
use super::machine::Machine;
use super::stats::Summary;
use super::table::{Table, count, figure, figure_or_dash};
use crate::Error;

/// What a run of one experiment found.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) experiment: &'static str,
    /// What was given on the command line.
    pub(crate) options: Vec<String>,
    /// None where no patch series has figures of the kind; the goals are the project's own.
    pub(crate) seed: Option<Seed>,
    pub(crate) machine: Machine,
    pub(crate) rows: Vec<Row>,
    pub(crate) checks: Vec<Check>,
}

/// The patch series whose mechanism an experiment shows, with the figures its author gave.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Seed {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) machine: &'static str,
    /// Whose figures these are, as in "its cover letter's".
    pub(crate) source: &'static str,
    /// Where it can be read, if an address is known.
    pub(crate) address: Option<&'static str>,
    pub(crate) figures: &'static [SeedFigure],
}

/// One figure of a seed; `before` and `after` its patches, where both were given.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct SeedFigure {
    pub(crate) what: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) before: Option<f64>,
    pub(crate) after: Option<f64>,
}

/// One figure of ours.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    pub(crate) variant: String,
    pub(crate) params: Params,
    pub(crate) metric: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) p90: f64,
}

/// What distinguishes a row from others of its variant.
pub(crate) type Params = BTreeMap<&'static str, Value>;

/// Parameters from pairs.
pub(crate) fn params<const N: usize>(pairs: [(&'static str, Value); N]) -> Params {
    pairs.into()
}

/// A goal, and whether this run met it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Check {
    pub(crate) name: String,
    /// None when the run could not measure it.
    pub(crate) value: Option<f64>,
    pub(crate) goal: String,
    pub(crate) met: bool,
    /// A count, which is shown without decimals.
    #[serde(skip)]
    is_count: bool,
}

impl Check {
    pub(crate) fn at_most(name: impl Into<String>, value: Option<f64>, most: f64, unit: &str) -> Check {
        let goal = goal("<=", most, unit);
        Check {
            name: name.into(),
            value,
            goal,
            met: value.is_some_and(|value| value <= most),
            is_count: is_count(unit),
        }
    }

    pub(crate) fn at_least(name: impl Into<String>, value: Option<f64>, least: f64, unit: &str) -> Check {
        let goal = goal(">=", least, unit);
        Check {
            name: name.into(),
            value,
            goal,
            met: value.is_some_and(|value| value >= least),
            is_count: is_count(unit),
        }
    }
}

/// "<= 6,220 kB"; a goal is not rounded.
fn goal(relation: &str, value: f64, unit: &str) -> String {
    let value = if value >= 1000.0 && value.fract() == 0.0 { figure(value) } else { value.to_string() };
    format!("{relation} {value} {unit}").trim_end().to_owned()
}

/// Units of which there are only whole ones.
fn is_count(unit: &str) -> bool {
    matches!(unit, "" | "kB" | "pages")
}

/// `above / below`, where both were measured.
pub(crate) fn ratio(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    match (above, below) {
        (Some(above), Some(below)) if below > 0.0 => Some(above / below),
        _ => None,
    }
}

impl Report {
    /// Adds a time in nanoseconds, and in cycles where the machine counts them.
    pub(crate) fn add_time(
        &mut self,
        clock: &Clock,
        variant: &str,
        params: Params,
        metric: &'static str,
        ns: Option<Summary>,
    ) {
        let Some(ns) = ns else { return };
        if let Some(cycles_per_ns) = clock.cycles(1.0) {
            self.add(variant, params.clone(), metric, "cycles", ns.scaled(cycles_per_ns));
        }
        self.add(variant, params, metric, "ns", ns);
    }

    /// Adds a figure; the number of samples behind it goes into its parameters.
    pub(crate) fn add(
        &mut self,
        variant: &str,
        mut params: Params,
        metric: &'static str,
        unit: &'static str,
        summary: Summary,
    ) {
        params.insert("windows", summary.count.into());
        self.rows.push(Row {
            variant: variant.to_owned(),
            params,
            metric,
            unit,
            median: summary.median,
            min: summary.min,
            p90: summary.p90,
        });
    }

    /// Adds a single count.
    pub(crate) fn add_count(
        &mut self,
        variant: &str,
        params: Params,
        metric: &'static str,
        unit: &'static str,
        value: f64,
    ) {
        self.add(variant, params, metric, unit, Summary { median: value, min: value, p90: value, count: 1 });
    }

    /// The goals of the experiment and how this run stands to them.
    pub(crate) fn checks_table(&self) -> Table {
        let mut table = Table::new("checks", ["figure", "this run", "goal", ""]);
        for check in &self.checks {
            let verdict = match (check.met, check.value) {
                (true, _) => "met",
                (false, Some(_)) => "MISSED",
                (false, None) => "NOT MEASURED",
            };
            let value = figure_of(check.value, check.is_count);
            table.row(vec![check.name.clone(), value, check.goal.clone(), verdict.to_owned()]);
        }
        table
    }

    /// One line: how many goals were met, and which were not.
    pub(crate) fn verdict(&self) -> String {
        let missed: Vec<&str> =
            self.checks.iter().filter(|check| !check.met).map(|check| check.name.as_str()).collect();
        let met = format!("{} of {} met", self.checks.len() - missed.len(), self.checks.len());
        if missed.is_empty() { met } else { format!("{met}; missed: {}", missed.join("; ")) }
    }

    /// Writes the JSON form.
    pub(crate) fn write_json(&self, path: &Path) -> Result<(), Error> {
        let write = || -> std::io::Result<()> {
            let mut text = serde_json::to_string_pretty(self)?;
            text.push('\n');
            fs::write(path, text)
        };
        write().map_err(|source| Error::Json { path: path.to_owned(), source })
    }
}

fn figure_of(value: Option<f64>, is_count: bool) -> String {
    match value {
        Some(value) if is_count => count(value as u64),
        value => figure_or_dash(value),
    }
}

impl Seed {
    /// What a seed is, where it is, and whose figures the table shows.
    pub(crate) fn explanation(&self) -> String {
        let address = self.address.map_or_else(String::new, |address| format!(" ({address})"));
        format!("seed: the Linux patch series this comes from{address}; the figures are {}", self.source)
    }

    pub(crate) fn table(&self) -> Table {
        let title = format!("seed {}: {} ({})", self.name, self.title, self.machine);
        let mut table = Table::new(title, ["the author's figures", "before", "after", "", "unit"]);
        for one in self.figures {
            let change = match (one.before, one.after) {
                (Some(before), Some(after)) if before > 0.0 => format!("x{}", figure(after / before)),
                _ => String::new(),
            };
            let value = |value| figure_of(value, one.unit == "count");
            let cells = [value(one.before), value(one.after), change, one.unit.to_owned()];
            table.row(std::iter::once(one.what.to_owned()).chain(cells).collect());
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let figures = &[SeedFigure { what: "faults", unit: "count", before: Some(2.0), after: Some(3.0) }];
        let machine = Machine {
            cpu: "c".into(),
            cpus: 2,
            kernel: "k".into(),
            slot_source: "s".into(),
            slots: 2,
            tsc_ghz: None,
            line_transfer_ns: None,
            threads_pinned: true,
        };
        let mut report = Report {
            experiment: "charge",
            options: vec!["--quick".to_owned(), "--depth 3".to_owned()],
            seed: Some(Seed {
                name: "004",
                title: "t",
                machine: "m",
                source: "its cover letter's",
                address: Some("a"),
                figures,
            }),
            machine,
            rows: Vec::new(),
            checks: vec![
                Check::at_most("pair", Some(5.0), 6.0, "ns"),
                Check::at_least("gain", None, 40.0, "x"),
            ],
        };
        let summary = Summary { median: 5.0, min: 4.0, p90: 6.0, count: 60 };
        report.add("stock", params([("threads", 1.into())]), "pair", "ns", summary);
        report
    }

    #[test]
    fn the_json_has_the_agreed_form() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(
            json["rows"],
            serde_json::json!([{"variant": "stock", "params": {"threads": 1, "windows": 60}, "metric": "pair",
                "unit": "ns", "median": 5.0, "min": 4.0, "p90": 6.0}])
        );
        assert_eq!(
            json["checks"],
            serde_json::json!([{"name": "pair", "value": 5.0, "goal": "<= 6 ns", "met": true},
                {"name": "gain", "value": null, "goal": ">= 40 x", "met": false}])
        );
        assert_eq!(json["experiment"], "charge");
        assert_eq!(json["seed"]["name"], "004");
        assert_eq!(json["seed"]["figures"][0]["after"], 3.0);
        assert_eq!(json["machine"]["cpus"], 2);
        assert_eq!(json["options"], serde_json::json!(["--quick", "--depth 3"]));
        assert_eq!(json.as_object().unwrap().len(), 6);
    }

    #[test]
    fn a_seed_is_explained_with_its_address_if_there_is_one() {
        let mut seed = report().seed.unwrap();
        let text = "seed: the Linux patch series this comes from (a); the figures are its cover letter's";
        assert_eq!(seed.explanation(), text);
        seed.address = None;
        assert_eq!(seed.explanation(), text.replace(" (a)", ""));
    }

    #[test]
    fn goals_have_separators_and_are_not_rounded() {
        let goal_of = |most, unit| Check::at_most("a", None, most, unit).goal;
        assert_eq!(goal_of(57_273.0, "kB"), "<= 57,273 kB");
        assert_eq!(goal_of(1_234.5, "us"), "<= 1234.5 us");
        assert_eq!(goal_of(9.09, "%"), "<= 9.09 %");
        assert_eq!(goal_of(0.0, ""), "<= 0");
    }

    #[test]
    fn a_check_at_its_goal_is_met_and_one_not_measured_is_not() {
        assert!(Check::at_most("a", Some(6.0), 6.0, "").met);
        assert!(!Check::at_most("a", Some(6.01), 6.0, "").met);
        assert!(Check::at_least("a", Some(40.0), 40.0, "").met);
        assert!(!Check::at_least("a", None, 40.0, "").met);
    }

    #[test]
    fn a_missed_check_says_so() {
        let text = report().checks_table().render();
        assert!(text.contains("met") && text.contains("NOT MEASURED"), "{text}");
        assert_eq!(report().verdict(), "1 of 2 met; missed: gain");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let error = report().write_json(Path::new("/nowhere/at/all.json")).unwrap_err();
        assert!(error.to_string().starts_with("write the JSON file /nowhere/at/all.json: "), "{error}");
    }

    #[test]
    fn a_ratio_needs_both_sides() {
        assert_eq!(ratio(Some(6.0), Some(2.0)), Some(3.0));
        assert_eq!(ratio(None, Some(2.0)), None);
        assert_eq!(ratio(Some(6.0), Some(0.0)), None);
    }
}
