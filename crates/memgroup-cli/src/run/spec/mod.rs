//! SPEC: the tenants of a run, their work and their limits, read from a TOML file.
//!
//! - I1. A `Spec` is valid: every bound is checked when it's read, so no later code checks again.
//! - I2. Every error names the file, the line, the key and the allowed values.

mod notes;
mod source;
mod tenant;

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::run::base::RunError;
use source::{Source, Values, bytes, integer, number, variant};

/// The engine of a run: what does the tenants' work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Engine {
    /// SQL in this process
    Sqlite,
    /// Requests to an HTTP server, a child of this process
    Http,
}

impl Engine {
    /// Returns the engine's built-in scenario, which is a SPEC like any other.
    pub(crate) fn built_in(self) -> &'static str {
        match self {
            Engine::Sqlite => include_str!("../../../specs/tenants.toml"),
            Engine::Http => include_str!("../../../specs/http.toml"),
        }
    }

    /// Returns the name of the engine in a SPEC.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Engine::Sqlite => "sqlite",
            Engine::Http => "http",
        }
    }
}

/// The lower end is 1M because a connection takes about 200 KiB when it's opened. The upper end is
/// the most that a group can count.
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
/// The shortest time for which statements run.
pub(crate) const SECONDS_MIN: f64 = 0.1;
const TENANTS_MAX: usize = 64;

/// What kind of statements a tenant runs, or of requests it posts.
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
    /// A sorted join without its join condition, or requests whose handlers allocate without bound.
    Runaway,
    /// A temporary table that is filled until no more memory is available, and then kept.
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

    /// Returns the scale with this factor, if it's allowed.
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

/// Where SQLite keeps the intermediate results of a statement. The names are values of its pragma
/// `temp_store`.
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
    /// Bytes that are never reclaimed for other tenants. `None` stands for all.
    pub(crate) min_bytes: Option<u64>,
    /// Bytes that are reclaimed for other tenants only if nothing else is left. `None` stands
    /// for all.
    pub(crate) low_bytes: Option<u64>,
    /// Usage above which the tenant is slowed down. `None` is no such bound.
    pub(crate) high_bytes: Option<u64>,
    /// When nothing is left to reclaim, the tenant with the highest score is stopped first.
    pub(crate) oom_score: i32,
    /// Stopping one statement stops all statements of the tenant.
    pub(crate) oom_group: bool,
    /// Waiting tenants with more weight get memory first.
    pub(crate) weight: u32,
    /// Whether `max` refuses charges. If not, it only counts what it would have refused.
    pub(crate) enforced: bool,
}

impl Default for Settings {
    /// Returns the settings of a new group.
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
    /// `None` is no limit.
    pub(crate) max_bytes: Option<u64>,
    pub(crate) settings: Settings,
    /// Page cache of each connection.
    pub(crate) cache_bytes: u64,
    pub(crate) temp: Temp,
    /// Pause after each statement.
    pub(crate) pause: Duration,
    /// How long a statement that finds no memory waits and is retried.
    pub(crate) patience: Duration,
    /// Index of an earlier tenant with `work`. This tenant begins when that one is idle, or at once
    /// without it.
    pub(crate) after: Option<usize>,
    /// How long it begins statements. Then it's idle, with open connections. Without it,
    /// it works to the end of the run.
    pub(crate) work: Option<Duration>,
}

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub(crate) engine: Engine,
    /// Bound of the HTTP server's process.
    pub(crate) process_max_bytes: Option<u64>,
    /// Run time of the statements.
    pub(crate) seconds: f64,
    /// Seed of all keys.
    pub(crate) seed: u64,
    /// Limit of `/tenants`, the parent of all tenants. `None` is no limit.
    pub(crate) max_bytes: Option<u64>,
    /// Factor of the tenants' fair shares of that limit, if they have shares.
    pub(crate) share: Option<u32>,
    /// Whether the `min` of each tenant is reserved for it.
    pub(crate) reserve_min: bool,
    /// Whether caches are reclaimed before a tenant is refused.
    pub(crate) reclaim: bool,
    /// Whether a statement of one tenant is stopped when another finds no memory. Never without
    /// `reclaim`.
    pub(crate) oom: bool,
    /// At least one. Their names differ.
    pub(crate) tenants: Vec<TenantSpec>,
}

impl Spec {
    /// Reads `file`, or else the built-in scenario of the engine. `asked` is the engine of the
    /// command line. The file is read only once, because it may be a pipe, or change during a
    /// run.
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

    /// Reads the SPEC `text`, which errors call `file`. If an engine was `asked` for, the text must
    /// not name another.
    pub(crate) fn parse(file: &str, text: &str, asked: Option<Engine>) -> Result<Spec, RunError> {
        let mut top = Source { file, text }.parse()?;
        top.take_in("run")?;
        let allowed = asked.map_or_else(
            || "\"sqlite\" or \"http\"".to_owned(),
            |asked| format!("\"{}\", as --engine says", asked.name()),
        );
        let engine =
            Values(&allowed, &|value| variant(value).filter(|&named| named == asked.unwrap_or(named)));
        let engine = top.get("engine", asked.unwrap_or(Engine::Sqlite), &engine)?;
        let is_sql = engine == Engine::Sqlite;
        let mut spec = Spec {
            engine,
            process_max_bytes: if is_sql { None } else { top.get("process_max", None, &LIMIT)? },
            seconds: top.get("seconds", 20.0, &SECONDS)?,
            seed: top.get("seed", 1, &SEED)?,
            max_bytes: top.get("max", None, &LIMIT)?,
            share: top.get("share", None, &SHARE)?,
            reserve_min: top.get("reserve_min", false, &TRUTH)?,
            reclaim: !is_sql || top.get("reclaim", true, &TRUTH)?,
            oom: top.get("oom", true, &TRUTH)?,
            tenants: Vec::new(),
        };
        let tables = top.tables("tenant")?;
        top.finish()?;
        if let Some(first_too_many) = tables.get(TENANTS_MAX) {
            let count = tables.len();
            let text = format!("key `tenant` stands {count} times; allowed: 1 to {TENANTS_MAX}");
            return Err(first_too_many.wrong(text));
        }
        for table in tables {
            let tenant = tenant::read(table, &spec)?;
            spec.tenants.push(tenant);
        }
        if spec.tenants.is_empty() {
            let text = "key `tenant` is missing; allowed: at least one [[tenant]]";
            return Err(RunError::Usage(format!("{file}: {text}")));
        }
        Ok(spec)
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

/// Returns whether statements may run for `seconds`. NaN is outside of every range.
fn is_run_time(seconds: &f64) -> bool {
    (SECONDS_MIN..=86_400.0).contains(seconds)
}

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod tests;
