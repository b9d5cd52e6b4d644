//! SPEC: the tenants of a run, their work and their limits, read from a TOML file.
//!
//! - I1. A `Spec` is valid: every bound was checked when it was read, and no later code checks
//!   again.
//! - I2. Every error names the file, the line, the key and the allowed values.

mod notes;
mod source;
mod tenant;

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::run::base::RunError;
use source::{Source, Table, Values, bytes, integer, number, variant};

/// Engine of a run: the program that tenants ask for work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Engine {
    /// SQL in this process
    Sqlite,
    /// Requests to an HTTP server, a child of this process
    Http,
}

impl Engine {
    /// The engine's built-in scenario, a SPEC like any other.
    pub(crate) fn built_in(self) -> &'static str {
        match self {
            Engine::Sqlite => include_str!("../../../specs/tenants.toml"),
            Engine::Http => include_str!("../../../specs/http.toml"),
        }
    }

    /// Its name in a SPEC.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Engine::Sqlite => "sqlite",
            Engine::Http => "http",
        }
    }
}

/// At least 1M, because opening one connection takes about 200 KiB. The upper end is the most that
/// a group can count.
const LIMIT: Values<'_, Option<u64>> = Values(
    "1M to less than 256T, or \"max\" for no limit; bytes are an integer, or a text of digits with K, M, G or T, such as \"64M\"",
    &|value| bytes(value).filter(|limit| limit.is_none_or(|bytes| bytes >= 1 << 20)),
);
const SHARE: Values<'_, Option<u32>> = Values("an integer from 0 to 1024; 0 turns shares off", &|value| {
    let factor = integer(value)?.try_into().ok().filter(|&factor: &u32| factor <= memgroup::SHARE_MAX)?;
    Some(Some(factor).filter(|&factor| factor > 0))
});
const TRUTH: Values<'_, bool> = Values("true or false", &|value| value.as_bool());
const SEED: Values<'_, u64> = Values("an integer from 0 up", &|value| integer(value)?.try_into().ok());
const SECONDS: Values<'_, f64> =
    Values("a number from 0.1 to 86400, in seconds", &|value| number(value).filter(is_run_time));
/// Smallest run time of the statements.
pub(crate) const SECONDS_MIN: f64 = 0.1;
const TENANTS_MAX: usize = 64;

/// Kind of the statements that a tenant runs, or of the requests that it posts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Single rows by primary key.
    #[default]
    Lookups,
    /// Aggregates over `lineitem` and `orders`, similar to TPC-H queries 1 and 6.
    Dashboards,
    /// Sorts and joins over all of `lineitem`.
    Etl,
    /// A sorted join without its join condition; requests for which a handler allocates without
    /// bound.
    Runaway,
    /// A temporary table that is filled until no more memory is to be had, and kept.
    Hoarder,
    /// Small requests to the HTTP server.
    Requests,
}

/// TPC-H scale factor in thousandths. 1,000 is about a gigabyte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Scale {
    milli: u32,
}

impl Scale {
    /// The smallest scale.
    pub(crate) const LEAST: Scale = Scale { milli: 1 };

    /// The scale with that factor, if it is allowed.
    pub(crate) fn of_factor(factor: f64) -> Option<Scale> {
        let milli = (factor * 1_000.0).round();
        let is_step = (factor * 1_000.0 - milli).abs() < 1e-6;
        (is_step && (1.0..=10_000.0).contains(&milli)).then_some(Scale { milli: milli as u32 })
    }

    pub(crate) fn milli(self) -> u32 {
        self.milli
    }

    pub(crate) fn factor(self) -> f64 {
        f64::from(self.milli) / 1_000.0
    }
}

impl std::fmt::Display for Scale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.factor())
    }
}

/// Place where SQLite keeps the intermediate results of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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
    /// Index of an earlier tenant with `work`: this tenant begins when that one is idle. None: at
    /// once.
    pub(crate) after: Option<usize>,
    /// Time for which it begins statements; then it is idle with open connections. None: to the
    /// end.
    pub(crate) work: Option<Duration>,
}

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) engine: Engine,
    /// Bound of the HTTP server's process. None: it has none.
    pub(crate) process_max_bytes: Option<u64>,
    /// Run time of the statements.
    pub(crate) seconds: f64,
    /// Seed of all keys.
    pub(crate) seed: u64,
    /// Limit of `/tenants`, the parent of all tenants. None: no limit.
    pub(crate) max_bytes: Option<u64>,
    /// Factor of the tenants' fair shares of that limit. None: they have none.
    pub(crate) share: Option<u32>,
    /// The `min` of each tenant is kept free for it.
    pub(crate) reserve_min: bool,
    /// Caches are reclaimed before a tenant is refused.
    pub(crate) reclaim: bool,
    /// A statement of one tenant is stopped when another finds no memory; never without `reclaim`.
    pub(crate) oom: bool,
    /// At least one; the names differ.
    pub(crate) tenants: Vec<TenantSpec>,
}

impl Spec {
    /// Reads `file` once, because it may be a pipe or change during a run; without one the built-in
    /// scenario of the engine. `asked` is the engine of the command line.
    pub(crate) fn read(file: Option<&Path>, asked: Option<Engine>) -> Result<Spec, RunError> {
        let Some(file) = file else {
            let text = asked.unwrap_or(Engine::Sqlite).built_in();
            return Spec::parse("the built-in scenario", text, asked);
        };
        let name = file.display().to_string();
        let text = fs::read_to_string(file).map_err(|error| {
            let allowed = "allowed: a TOML file, such as `memgroup run --print-spec` prints";
            RunError::Usage(format!("{name}: cannot be read: {error}; {allowed}"))
        })?;
        Spec::parse(&name, &text, asked)
    }

    /// Reads the SPEC `text` for the engine that it names, or that was `asked` for; errors call it
    /// `file`.
    pub(crate) fn parse(file: &str, text: &str, asked: Option<Engine>) -> Result<Spec, RunError> {
        let mut top = Source { file, text }.parse()?;
        let mut run = top.table("run")?;
        let allowed = asked.map_or_else(
            || "\"sqlite\" or \"http\"".to_owned(),
            |asked| format!("\"{}\", as --engine says", asked.name()),
        );
        let engine =
            Values(&allowed, &|value| variant(value).filter(|&named| named == asked.unwrap_or(named)));
        let engine = once(&mut top, &mut run, "engine", asked.unwrap_or(Engine::Sqlite), &engine)?;
        let seconds = once(&mut top, &mut run, "seconds", 20.0, &SECONDS)?;
        let seed = once(&mut top, &mut run, "seed", 1, &SEED)?;
        let max_bytes = once(&mut top, &mut run, "max", None, &LIMIT)?;
        let share = once(&mut top, &mut run, "share", None, &SHARE)?;
        let reserve_min = once(&mut top, &mut run, "reserve_min", false, &TRUTH)?;
        let oom = once(&mut top, &mut run, "oom", true, &TRUTH)?;
        let (mut reclaim, mut process_max_bytes) = (true, None);
        match engine {
            Engine::Sqlite => reclaim = once(&mut top, &mut run, "reclaim", true, &TRUTH)?,
            Engine::Http => process_max_bytes = once(&mut top, &mut run, "process_max", None, &LIMIT)?,
        }
        run.map_or(Ok(()), Table::finish)?;
        let mut tenants: Vec<TenantSpec> = Vec::new();
        let tables = top.tables("tenant")?;
        top.finish()?;
        if let Some(first_too_many) = tables.get(TENANTS_MAX) {
            let count = tables.len();
            let text = format!("key `tenant` stands {count} times; allowed: 1 to {TENANTS_MAX}");
            return Err(first_too_many.wrong(text));
        }
        for table in tables {
            tenants.push(tenant::read(table, &tenants, seconds, engine)?);
        }
        if tenants.is_empty() {
            let text = "key `tenant` is missing; allowed: at least one [[tenant]]";
            return Err(RunError::Usage(format!("{file}: {text}")));
        }
        Ok(Spec {
            engine,
            process_max_bytes,
            seconds,
            seed,
            max_bytes,
            share,
            reserve_min,
            reclaim,
            oom,
            tenants,
        })
    }
}

/// Reads `--seconds`; the error names the allowed values.
pub(crate) fn parse_seconds(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(is_run_time).ok_or_else(|| format!("allowed: {}", SECONDS.0))
}

/// Reads `--seed`; the error names the allowed values.
pub(crate) fn parse_seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("allowed: {}", SEED.0))
}

/// Whether statements may run for `seconds`. NaN is outside of every range.
fn is_run_time(seconds: &f64) -> bool {
    (SECONDS_MIN..=86_400.0).contains(seconds)
}

/// Reads a key of the document or of its table `[run]`. It may stand in both with the same value.
fn once<T: PartialEq>(
    top: &mut Table<'_>,
    run: &mut Option<Table<'_>>,
    key: &'static str,
    unset: T,
    values: &Values<'_, T>,
) -> Result<T, RunError> {
    let outside = top.find(key, values)?;
    let inside = run.as_mut().map_or(Ok(None), |run| run.find(key, values))?;
    match (outside, inside) {
        (Some(outside), Some(inside)) if outside.value != inside.value => {
            let outside = outside.place();
            Err(inside.wrong(format_args!("{outside} outside of [run]; allowed: to say it in one place")))
        }
        (outside, inside) => Ok(inside.or(outside).map_or(unset, |found| found.value)),
    }
}

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod tests;
