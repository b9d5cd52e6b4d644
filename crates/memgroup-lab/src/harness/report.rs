//! A report: the seed's figures, if there is one, the machine, rows and checks. The tables on the
//! terminal and the JSON come from it.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::machine::Machine;
use super::prelude::*;
use crate::Error;
use crate::error::Result;

/// A name in the JSON or a table.
type Name = &'static str;

/// The results of one run of one experiment.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) experiment: String,
    /// The options of the command line.
    pub(crate) options: Vec<String>,
    /// None where no patch series has such figures; the goals are the project's own.
    pub(crate) seed: Option<Seed>,
    pub(crate) machine: Machine,
    pub(crate) rows: Vec<Row>,
    pub(crate) checks: Vec<Check>,
    /// The tables as they were printed, for a page.
    pub(crate) tables: Vec<Table>,
}

/// The patch series with the mechanism that an experiment shows, and the figures of its author.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Seed {
    pub(crate) name: Name,
    pub(crate) title: Name,
    pub(crate) machine: Name,
    /// The origin of the figures, as in "its cover letter's".
    pub(crate) source: Name,
    /// Where it can be read, if an address is known.
    pub(crate) address: Option<Name>,
    pub(crate) figures: &'static [SeedFigure],
}

/// One figure of a seed; `before` and `after` its patches, where both were given.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct SeedFigure {
    pub(crate) what: Name,
    pub(crate) unit: Name,
    pub(crate) before: Option<f64>,
    pub(crate) after: Option<f64>,
}

/// One measured figure.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) variant: String,
    /// The settings that distinguish the row from others of its variant.
    pub(crate) params: Value,
    pub(crate) metric: String,
    pub(crate) unit: String,
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) p90: f64,
}

/// A goal, and whether this run met it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Check {
    pub(crate) name: String,
    /// None when the run could not measure it.
    pub(crate) value: Option<f64>,
    pub(crate) goal: String,
    pub(crate) unit: String,
    pub(crate) met: bool,
    /// A count, which is shown without decimals.
    #[serde(skip)]
    is_count: bool,
}

impl Check {
    /// `relation` is "<=" or ">=".
    pub(crate) fn new(name: String, value: Option<f64>, relation: &str, bound: f64, unit: &str) -> Check {
        let met = value.is_some_and(|value| if relation == "<=" { value <= bound } else { value >= bound });
        // Units of which there are only whole ones.
        let is_count = matches!(unit, "" | "kB" | "pages");
        Check { name, value, goal: goal(relation, bound, unit), unit: unit.to_owned(), met, is_count }
    }
}

/// "<= 6,220 kB"; a goal is not rounded.
fn goal(relation: &str, value: f64, unit: &str) -> String {
    let value = if value >= 1000.0 && value.fract() == 0.0 { figure(value) } else { value.to_string() };
    format!("{relation} {value} {unit}").trim_end().to_owned()
}

/// Adds rows that share a variant and its settings. Each method adds one figure and returns it as
/// the cell of a table.
pub(crate) struct Record<'r> {
    pub(crate) rows: &'r mut Vec<Row>,
    /// Where the machine counts cycles.
    pub(crate) cycles_per_ns: Option<f64>,
    pub(crate) variant: String,
    pub(crate) params: Value,
}

impl Record<'_> {
    /// A time in nanoseconds, recorded in cycles too: median, smallest, ninetieth percentile.
    pub(crate) fn time(&mut self, metric: &str, ns: Option<Summary>) -> String {
        if let (Some(ns), Some(cycles_per_ns)) = (ns, self.cycles_per_ns) {
            self.add(metric, "cycles", ns.scaled(cycles_per_ns));
        }
        self.summary(metric, "ns", ns)
    }

    /// A figure of many samples.
    pub(crate) fn summary(&mut self, metric: &str, unit: Name, of: Option<Summary>) -> String {
        if let Some(of) = of {
            self.add(metric, unit, of);
        }
        spread(of)
    }

    /// A single figure.
    pub(crate) fn value(&mut self, metric: &str, unit: Name, value: Option<f64>) -> String {
        if let Some(value) = value {
            self.add(metric, unit, Summary { median: value, min: value, p90: value, count: 1 });
        }
        figure_or_dash(value)
    }

    fn add(&mut self, metric: &str, unit: Name, of: Summary) {
        let (variant, mut params) = (self.variant.clone(), self.params.clone());
        // The number of samples behind the figure.
        params["windows"] = of.count.into();
        let (metric, unit) = (metric.to_owned(), unit.to_owned());
        self.rows.push(Row { variant, params, metric, unit, median: of.median, min: of.min, p90: of.p90 });
    }
}

impl Report {
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
            table.row(&check.name, [value, check.goal.clone(), verdict.to_owned()]);
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
    pub(crate) fn write_json(&self, path: &Path) -> Result<()> {
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

impl SeedFigure {
    pub(crate) const fn new(what: Name, unit: Name, before: f64, after: f64) -> SeedFigure {
        SeedFigure::part(what, unit, Some(before), Some(after))
    }

    /// A figure that is given with the patches only, or without them only.
    pub(crate) const fn part(what: Name, unit: Name, before: Option<f64>, after: Option<f64>) -> SeedFigure {
        SeedFigure { what, unit, before, after }
    }
}

impl Seed {
    /// The figures of a row, before and after the patches; none where the seed has none.
    pub(crate) fn figure(&self, what: &str) -> [Option<f64>; 2] {
        let figure = self.figures.iter().find(|figure| figure.what == what);
        [figure.and_then(|figure| figure.before), figure.and_then(|figure| figure.after)]
    }

    /// The same as cells of a table, with dashes.
    pub(crate) fn cells(&self, what: &str) -> [String; 2] {
        self.figure(what).map(figure_or_dash)
    }

    /// Names the series, its address, and the origin of the figures.
    pub(crate) fn explanation(&self) -> String {
        let address = self.address.map_or_else(String::new, |address| format!(" ({address})"));
        format!("seed: the Linux patch series this comes from{address}; the figures are {}", self.source)
    }

    pub(crate) fn table(&self) -> Table {
        let title = format!("seed {}: {} ({})", self.name, self.title, self.machine);
        let mut table = Table::new(title, ["the author's figures", "before", "after", "", "unit"]);
        for one in self.figures {
            let change = times(ratio(one.after, one.before));
            let value = |value| figure_of(value, one.unit == "count");
            table.row(one.what, [value(one.before), value(one.after), change, one.unit.to_owned()]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let figures = &[SeedFigure { what: "faults", unit: "count", before: Some(2.0), after: Some(3.0) }];
        let machine = Machine { cpus: 2, slots: 2, text: "c".into() };
        let mut report = Report {
            experiment: "charge".to_owned(),
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
            tables: Vec::new(),
            checks: vec![
                Check::new("pair".into(), Some(5.0), "<=", 6.0, "ns"),
                Check::new("gain".into(), None, ">=", 40.0, "x"),
            ],
        };
        let (variant, params) = ("stock".to_owned(), serde_json::json!({"threads": 1}));
        let mut record = Record { rows: &mut report.rows, cycles_per_ns: None, variant, params };
        let cell = record.time("pair", Some(Summary { median: 5.0, min: 4.0, p90: 6.0, count: 60 }));
        assert_eq!(cell, "5.00 (4.00..6.00)");
        report
    }

    #[test]
    fn writes_the_agreed_form_of_the_json() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(
            json["rows"],
            serde_json::json!([{"variant": "stock", "params": {"threads": 1, "windows": 60}, "metric": "pair",
                "unit": "ns", "median": 5.0, "min": 4.0, "p90": 6.0}])
        );
        assert_eq!(
            json["checks"],
            serde_json::json!([{"name": "pair", "value": 5.0, "goal": "<= 6 ns", "unit": "ns", "met": true},
                {"name": "gain", "value": null, "goal": ">= 40 x", "unit": "x", "met": false}])
        );
        assert_eq!(json["experiment"], "charge");
        assert_eq!(json["seed"]["name"], "004");
        assert_eq!(json["seed"]["figures"][0]["after"], 3.0);
        assert_eq!(json["machine"]["cpus"], 2);
        assert_eq!(json["options"], serde_json::json!(["--quick", "--depth 3"]));
        assert_eq!(json.as_object().unwrap().len(), 7);
    }

    #[test]
    fn explains_a_seed_with_its_address_if_there_is_one() {
        let mut seed = report().seed.unwrap();
        let text = "seed: the Linux patch series this comes from (a); the figures are its cover letter's";
        assert_eq!(seed.explanation(), text);
        seed.address = None;
        assert_eq!(seed.explanation(), text.replace(" (a)", ""));
    }

    #[test]
    fn prints_goals_with_separators_and_unrounded() {
        let goal_of = |most, unit| Check::new("a".into(), None, "<=", most, unit).goal;
        assert_eq!(goal_of(57_273.0, "kB"), "<= 57,273 kB");
        assert_eq!(goal_of(1_234.5, "us"), "<= 1234.5 us");
        assert_eq!(goal_of(9.09, "%"), "<= 9.09 %");
        assert_eq!(goal_of(0.0, ""), "<= 0");
    }

    #[test]
    fn meets_a_goal_exactly_and_misses_it_unmeasured() {
        assert!(Check::new("a".into(), Some(6.0), "<=", 6.0, "").met);
        assert!(!Check::new("a".into(), Some(6.01), "<=", 6.0, "").met);
        assert!(Check::new("a".into(), Some(40.0), ">=", 40.0, "").met);
        assert!(!Check::new("a".into(), None, ">=", 40.0, "").met);
    }

    #[test]
    fn names_a_missed_check() {
        let text = report().checks_table().render();
        assert!(text.contains("met") && text.contains("NOT MEASURED"), "{text}");
        assert_eq!(report().verdict(), "1 of 2 met; missed: gain");
    }

    #[test]
    fn names_a_file_that_cannot_be_written() {
        let error = report().write_json(Path::new("/nowhere/at/all.json")).unwrap_err();
        assert!(error.to_string().starts_with("write the JSON file /nowhere/at/all.json: "), "{error}");
    }
}
