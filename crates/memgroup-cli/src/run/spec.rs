//! What a run does: tenants, their work, their limits. Read from a SPEC, a TOML file; the built-in scenario is
//! such a file too.
//!
//! - I1. A `Spec` that exists is sound: every bound below was checked when it was read, and nothing checks again.
//! - I2. Every error names the file, the line, the key and what is allowed there.

mod contradictions;
mod source;
mod tenant;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use memgroup::UNLIMITED;

pub(crate) use source::SpecError;
use source::{Found, Source, Table};
use tenant::tenant;

use super::workload::Kind;

/// The built-in scenario, a SPEC like any other.
const BUILT_IN: &str = include_str!("../../specs/tenants.toml");

/// What the built-in scenario is called in messages.
const BUILT_IN_NAME: &str = "the built-in scenario";

/// Least a tenant may be limited to: opening one connection takes about 200 KiB.
const MAX_BYTES_LEAST: u64 = 1 << 20;
/// The upper end is what a group can count.
const MAX_ALLOWED: &str = "1M to less than 256T, or \"max\" for no limit; bytes are an integer, or a text of digits with \
                           K, M, G or T, such as \"64M\"";
const TENANTS_MOST: usize = 64;
/// Bounds of the seconds that statements run.
pub(crate) const SECONDS_LEAST: f64 = 0.1;
const SECONDS_MOST: f64 = 86_400.0;

/// How much TPC-H data: a scale factor in thousandths (1,000 is a gigabyte of text).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Scale {
    milli: u32,
}

impl Scale {
    const MILLI_MOST: u32 = 10_000;

    /// `milli` thousandths, if that is from 0.001 to 10.
    pub(crate) fn from_milli(milli: u32) -> Option<Scale> {
        (1..=Scale::MILLI_MOST).contains(&milli).then_some(Scale { milli })
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

/// Where SQLite keeps what a statement materialises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Temp {
    /// In memory up to the size of the cache, the rest in temporary files: the statement spills.
    File,
    /// All of it in memory.
    Memory,
}

/// What a tenant's group is set to besides `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Never taken for others; `UNLIMITED` for all that it holds.
    pub(crate) min_bytes: u64,
    /// Taken for others only where nothing else is left.
    pub(crate) low_bytes: u64,
    /// Above it the tenant is slowed down; `UNLIMITED` for none.
    pub(crate) high_bytes: u64,
    /// Who has the highest is stopped first where nothing is left.
    pub(crate) oom_score: i32,
    /// All of its statements are stopped, where one is.
    pub(crate) oom_group: bool,
    /// Who has more of it is served first of those who wait.
    pub(crate) weight: u32,
    /// Whether `max` refuses, or only counts what it would have refused.
    pub(crate) enforced: bool,
}

impl Default for Settings {
    /// As a group is created.
    fn default() -> Settings {
        Settings {
            min_bytes: 0,
            low_bytes: 0,
            high_bytes: UNLIMITED,
            oom_score: 0,
            oom_group: false,
            weight: 100,
            enforced: true,
        }
    }
}

/// One tenant.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TenantSpec {
    /// Its group is `/tenants/<name>`.
    pub(crate) name: String,
    pub(crate) workload: Kind,
    /// Each has its own connection.
    pub(crate) threads: u32,
    pub(crate) scale: Scale,
    /// `UNLIMITED` for none.
    pub(crate) max_bytes: u64,
    pub(crate) settings: Settings,
    /// Page cache of each connection.
    pub(crate) cache_bytes: u64,
    pub(crate) temp: Temp,
    /// Rest after each statement.
    pub(crate) pause: Duration,
    /// For how long a statement that finds no memory waits for some, and is tried again.
    pub(crate) patience: Duration,
    /// Its first statement begins once the tenant with this index is idle: one that stands earlier and has an end to its
    /// work. None: at once.
    pub(crate) after: Option<usize>,
    /// From then on it begins statements for so long; then it is idle, its connections open. None: to the end.
    pub(crate) work: Option<Duration>,
}

impl TenantSpec {
    /// Whether some of its memory is kept for it.
    pub(crate) fn is_protected(&self) -> bool {
        self.settings.min_bytes > 0 || self.settings.low_bytes > 0
    }
}

/// A whole run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Spec {
    /// How long statements run.
    pub(crate) seconds: f64,
    /// Decides every key.
    pub(crate) seed: u64,
    /// The limit of `/tenants`, the parent of all; `UNLIMITED` for none.
    pub(crate) max_bytes: u64,
    /// Whether caches give way before a tenant is refused.
    pub(crate) reclaim: bool,
    /// Whether a statement of one tenant is stopped when another is left without memory; never without `reclaim`.
    pub(crate) oom: bool,
    /// At least one; names differ.
    pub(crate) tenants: Vec<TenantSpec>,
}

impl Spec {
    /// The scenario that runs when no SPEC is named.
    #[cfg(test)]
    pub(crate) fn built_in() -> Result<Spec, SpecError> {
        Spec::parse(BUILT_IN_NAME, BUILT_IN)
    }

    /// The same work with no limit of any kind.
    pub(crate) fn without_limits(&self) -> Spec {
        let (max_bytes, settings) = (UNLIMITED, Settings::default());
        let tenants = self.tenants.iter().map(|tenant| TenantSpec { max_bytes, settings, ..tenant.clone() });
        Spec { max_bytes, oom: false, tenants: tenants.collect(), ..self.clone() }
    }

    /// Reads the SPEC in `file`.
    #[cfg(test)]
    pub(crate) fn read(file: &Path) -> Result<Spec, SpecError> {
        let Text { name, text } = Text::read(file)?;
        Spec::parse(&name, &text)
    }

    /// Reads the SPEC `text`; `file` is its name in errors.
    pub(crate) fn parse(file: &str, text: &str) -> Result<Spec, SpecError> {
        let source = Source::new(file, text);
        let mut top = source.parse()?;
        let mut run = top.table("run")?;
        let seconds = match once(&mut top, &mut run, |table| table.number("seconds"))? {
            None => 20.0,
            Some(seconds) => check_seconds(seconds.value).map_err(|what| seconds.wrong(what))?,
        };
        let seed = match once(&mut top, &mut run, |table| table.integer("seed"))? {
            None => 1,
            Some(seed) => u64::try_from(seed.value)
                .map_err(|_| seed.wrong("allowed: an integer from 0 up".to_owned()))?,
        };
        let max_bytes = limit(once(&mut top, &mut run, |table| table.bytes("max", MAX_ALLOWED))?)?;
        let reclaim = once(&mut top, &mut run, |table| table.truth("reclaim"))?;
        let reclaim = reclaim.is_none_or(|reclaim| reclaim.value);
        let oom = once(&mut top, &mut run, |table| table.truth("oom"))?.is_none_or(|oom| oom.value);
        if let Some(run) = run {
            run.finish(&["max", "oom", "reclaim", "seconds", "seed"])?;
        }
        let mut tenants: Vec<TenantSpec> = Vec::new();
        let tables = top.tables("tenant")?;
        if let Some(first_too_many) = tables.get(TENANTS_MOST) {
            let what = format!("key `tenant` stands {} times; allowed: 1 to {TENANTS_MOST}", tables.len());
            return Err(first_too_many.wrong(what));
        }
        for mut table in tables {
            let tenant = tenant(&mut table, &tenants, seconds)?;
            tenants.push(tenant);
        }
        top.finish(&["max", "oom", "reclaim", "run", "seconds", "seed", "tenant"])?;
        if tenants.is_empty() {
            return Err(source.missing("tenant", "at least one [[tenant]]"));
        }
        Ok(Spec { seconds, seed, max_bytes, reclaim, oom, tenants })
    }
}

/// The text of a SPEC, read once: its file may be a pipe, or be changed while turns of it run.
pub(crate) struct Text {
    /// Its file, in errors.
    pub(crate) name: String,
    pub(crate) text: String,
}

impl Text {
    /// What `file` holds now.
    pub(crate) fn read(file: &Path) -> Result<Text, SpecError> {
        let name = file.display().to_string();
        match std::fs::read_to_string(file) {
            Ok(text) => Ok(Text { name, text }),
            Err(error) => Err(SpecError::whole_file(&name, format!("cannot be read: {error}"))),
        }
    }

    /// That of the built-in scenario.
    pub(crate) fn built_in() -> Text {
        Text { name: BUILT_IN_NAME.to_owned(), text: BUILT_IN.to_owned() }
    }
}

/// Whether a run may last `seconds`; the error says what is allowed.
pub(crate) fn check_seconds(seconds: f64) -> Result<f64, String> {
    // A comparison that NaN fails.
    if (SECONDS_LEAST..=SECONDS_MOST).contains(&seconds) {
        Ok(seconds)
    } else {
        Err(format!("allowed: {SECONDS_LEAST} to {SECONDS_MOST} seconds"))
    }
}

/// What the document or its table `[run]` says; saying it twice is allowed where both say the same.
fn once<'a, T: PartialEq>(
    top: &mut Table<'a>,
    run: &mut Option<Table<'a>>,
    read: impl Fn(&mut Table<'a>) -> Result<Option<Found<'a, T>>, SpecError>,
) -> Result<Option<Found<'a, T>>, SpecError> {
    let outside = read(top)?;
    let Some(run) = run else { return Ok(outside) };
    match (outside, read(run)?) {
        (Some(outside), Some(inside)) if outside.value != inside.value => {
            Err(inside.wrong(format!("{outside} outside of [run]; allowed: to say it in one place")))
        }
        (outside, inside) => Ok(inside.or(outside)),
    }
}

/// A limit as it was found: bytes, or `max`, which is also what stands when none was found.
fn limit(found: Option<Found<'_, u64>>) -> Result<u64, SpecError> {
    match found {
        None => Ok(UNLIMITED),
        Some(max) if max.value >= MAX_BYTES_LEAST => Ok(max.value),
        Some(max) => Err(max.wrong(format!("allowed: {MAX_ALLOWED}"))),
    }
}

#[cfg(test)]
mod tests;
