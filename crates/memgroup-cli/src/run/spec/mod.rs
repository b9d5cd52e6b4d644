//! SPEC: the tenants of a run, their work and their limits, read from a TOML file.
//!
//! - I1. A `Spec` is valid: every bound was checked when it was read, and no later code checks again.
//! - I2. Every error names the file, the line, the key and the allowed values.

mod notes;
mod source;
mod tenant;

use std::path::Path;
use std::time::Duration;
use std::{fmt, fs};

use serde::{Deserialize, Serialize};

use crate::run::base::error::RunError;
use source::{Found, Source, SpecError, Table};

/// The built-in scenario, a SPEC like any other.
pub(crate) const BUILT_IN: &str = include_str!("../../../specs/tenants.toml");

/// The smallest limit: opening one connection takes about 200 KiB.
const MAX_BYTES_MIN: u64 = 1 << 20;
/// The upper end is the most that a group can count.
const MAX_ALLOWED: &str = "1M to less than 256T, or \"max\" for no limit; bytes are an integer, or a text of digits with \
                           K, M, G or T, such as \"64M\"";
const TENANTS_MAX: usize = 64;
/// Bounds of the run time of the statements.
pub(crate) const SECONDS_MIN: f64 = 0.1;
const SECONDS_MAX: f64 = 86_400.0;

/// Kind of the statements that a tenant runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    /// Single rows by primary key.
    Lookups,
    /// Aggregates over `lineitem` and `orders`, similar to TPC-H queries 1 and 6.
    Dashboards,
    /// Sorts and joins over all of `lineitem`.
    Etl,
    /// A sorted join without its join condition.
    Runaway,
}

impl Kind {
    pub(crate) const ALL: [Kind; 4] = [Kind::Lookups, Kind::Dashboards, Kind::Etl, Kind::Runaway];

    /// The kind with that name in a SPEC.
    pub(crate) fn of_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Its name in a SPEC.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Lookups => "lookups",
            Kind::Dashboards => "dashboards",
            Kind::Etl => "etl",
            Kind::Runaway => "runaway",
        }
    }
}

/// TPC-H scale factor in thousandths. 1,000 is about a gigabyte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Scale {
    milli: u32,
}

impl Scale {
    const MILLI_MAX: u32 = 10_000;

    /// A scale of 0.001 to 10, given in thousandths.
    pub(crate) fn from_milli(milli: u32) -> Option<Scale> {
        (1..=Scale::MILLI_MAX).contains(&milli).then_some(Scale { milli })
    }

    pub(crate) fn milli(self) -> u32 {
        self.milli
    }

    pub(crate) fn factor(self) -> f64 {
        f64::from(self.milli) / 1_000.0
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.factor())
    }
}

/// Place where SQLite keeps the intermediate results of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Temp {
    /// In memory up to the size of the cache, then in temporary files.
    File,
    /// In memory only.
    Memory,
}

/// Settings of a tenant's group besides `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Settings {
    /// Bytes that are never reclaimed for other tenants. None: all.
    pub(crate) min_bytes: Option<u64>,
    /// Bytes that are reclaimed for other tenants only when nothing else is left. None: all.
    pub(crate) low_bytes: Option<u64>,
    /// Usage above which the tenant is slowed down. None: it never is.
    pub(crate) high_bytes: Option<u64>,
    /// When nothing is left to reclaim, the tenant with the highest score is stopped first.
    pub(crate) oom_score: i32,
    /// Stopping one statement stops all statements of the tenant.
    pub(crate) oom_group: bool,
    /// Waiting tenants with more weight get memory first.
    pub(crate) weight: u32,
    /// `max` refuses charges; otherwise it only counts them.
    pub(crate) enforced: bool,
}

impl Default for Settings {
    /// The settings of a new group.
    fn default() -> Settings {
        Settings {
            min_bytes: Some(0),
            low_bytes: Some(0),
            high_bytes: None,
            oom_score: 0,
            oom_group: false,
            weight: 100,
            enforced: true,
        }
    }
}

/// One tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TenantSpec {
    /// Its group is `/tenants/<name>`.
    pub(crate) name: String,
    pub(crate) workload: Kind,
    /// Each has its own connection.
    pub(crate) threads: u32,
    pub(crate) scale: Scale,
    /// None: no limit.
    pub(crate) max_bytes: Option<u64>,
    pub(crate) settings: Settings,
    /// Page cache of each connection.
    pub(crate) cache_bytes: u64,
    pub(crate) temp: Temp,
    /// Pause after each statement.
    pub(crate) pause: Duration,
    /// Time for which a statement that finds no memory waits and is retried.
    pub(crate) patience: Duration,
    /// Index of an earlier tenant with `work`: this tenant begins when that one is idle. None: at once.
    pub(crate) after: Option<usize>,
    /// Time for which it begins statements; then it is idle with open connections. None: to the end.
    pub(crate) work: Option<Duration>,
}

impl TenantSpec {
    /// Whether `min` or `low` protect some of its memory.
    pub(crate) fn is_protected(&self) -> bool {
        self.settings.min_bytes != Some(0) || self.settings.low_bytes != Some(0)
    }
}

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spec {
    /// Run time of the statements.
    pub(crate) seconds: f64,
    /// Seed of all keys.
    pub(crate) seed: u64,
    /// Limit of `/tenants`, the parent of all tenants. None: no limit.
    pub(crate) max_bytes: Option<u64>,
    /// Caches are reclaimed before a tenant is refused.
    pub(crate) reclaim: bool,
    /// A statement of one tenant is stopped when another finds no memory; never without `reclaim`.
    pub(crate) oom: bool,
    /// At least one; the names differ.
    pub(crate) tenants: Vec<TenantSpec>,
}

impl Spec {
    /// Reads `file` once, because it may be a pipe or change during a run; without one the built-in scenario.
    pub(crate) fn read(file: Option<&Path>) -> Result<Spec, SpecError> {
        let Some(file) = file else { return Spec::parse("the built-in scenario", BUILT_IN) };
        let name = file.display().to_string();
        let text = fs::read_to_string(file);
        let text = text.map_err(|error| SpecError::whole_file(&name, format!("cannot be read: {error}")))?;
        Spec::parse(&name, &text)
    }

    /// The same work without any limit.
    pub(crate) fn without_limits(&self) -> Spec {
        let (max_bytes, settings) = (None, Settings::default());
        let tenants = self.tenants.iter().map(|tenant| TenantSpec { max_bytes, settings, ..tenant.clone() });
        Spec { max_bytes, oom: false, tenants: tenants.collect(), ..self.clone() }
    }

    /// Reads the SPEC `text`; errors call it `file`.
    pub(crate) fn parse(file: &str, text: &str) -> Result<Spec, SpecError> {
        let source = Source { file, text };
        let mut top = source.parse()?;
        let mut run = top.table("run")?;
        let seconds = match once(&mut top, &mut run, |table| table.number("seconds"))? {
            None => 20.0,
            Some(seconds) => check_seconds(seconds.value).map_err(|allowed| seconds.wrong(&allowed))?,
        };
        let seed = match once(&mut top, &mut run, |table| table.integer("seed"))? {
            None => 1,
            Some(seed) => {
                u64::try_from(seed.value).map_err(|_| seed.wrong("allowed: an integer from 0 up"))?
            }
        };
        let max_bytes = limit(once(&mut top, &mut run, |table| table.bytes("max", MAX_ALLOWED))?)?;
        let reclaim = once(&mut top, &mut run, |table| table.truth("reclaim"))?;
        let oom = once(&mut top, &mut run, |table| table.truth("oom"))?;
        if let Some(run) = run {
            run.finish()?;
        }
        let mut tenants: Vec<TenantSpec> = Vec::new();
        let tables = top.tables("tenant")?;
        if let Some(first_too_many) = tables.get(TENANTS_MAX) {
            let text = format!("key `tenant` stands {} times; allowed: 1 to {TENANTS_MAX}", tables.len());
            return Err(first_too_many.wrong(text));
        }
        for table in tables {
            let tenant = tenant::read(table, &tenants, seconds)?;
            tenants.push(tenant);
        }
        top.finish()?;
        if tenants.is_empty() {
            let text = "key `tenant` is missing; allowed: at least one [[tenant]]";
            return Err(SpecError::whole_file(file, text.to_owned()));
        }
        let [reclaim, oom] = [reclaim, oom].map(|found| found.is_none_or(|found| found.value));
        Ok(Spec { seconds, seed, max_bytes, reclaim, oom, tenants })
    }
}

impl From<SpecError> for RunError {
    fn from(error: SpecError) -> RunError {
        RunError::Usage(error.to_string())
    }
}

/// Checks the run time; the error says what is allowed.
pub(crate) fn check_seconds(seconds: f64) -> Result<f64, String> {
    // NaN is outside of every range.
    if (SECONDS_MIN..=SECONDS_MAX).contains(&seconds) {
        Ok(seconds)
    } else {
        Err(format!("allowed: {SECONDS_MIN} to {SECONDS_MAX} seconds"))
    }
}

/// Reads a key of the document or of its table `[run]`. It may stand in both with the same value.
fn once<'a, T: PartialEq>(
    top: &mut Table<'a>,
    run: &mut Option<Table<'a>>,
    read: impl Fn(&mut Table<'a>) -> Result<Option<Found<'a, T>>, SpecError>,
) -> Result<Option<Found<'a, T>>, SpecError> {
    let outside = read(top)?;
    let Some(run) = run else { return Ok(outside) };
    match (outside, read(run)?) {
        (Some(outside), Some(inside)) if outside.value != inside.value => {
            Err(inside.wrong(&format!("{outside} outside of [run]; allowed: to say it in one place")))
        }
        (outside, inside) => Ok(inside.or(outside)),
    }
}

/// Checks a limit.
fn limit(found: Option<Found<'_, Option<u64>>>) -> Result<Option<u64>, SpecError> {
    match found {
        Some(max) if max.value.is_some_and(|bytes| bytes < MAX_BYTES_MIN) => {
            Err(max.wrong(&format!("allowed: {MAX_ALLOWED}")))
        }
        found => Ok(found.and_then(|max| max.value)),
    }
}

#[cfg(test)]
mod tests;
