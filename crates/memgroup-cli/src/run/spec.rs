//! What a run does: tenants, their work, their limits. Read from a SPEC, a TOML file; the built-in scenario is
//! such a file too.
//!
//! - I1. A `Spec` that exists is sound: every bound below was checked when it was read, and nothing checks again.
//! - I2. Every error names the file, the line, the key and what is allowed there.

mod source;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use memgroup::UNLIMITED;

pub(crate) use source::SpecError;
use source::{Found, Source, Table};

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
const CACHE_ALLOWED: &str =
    "64K to 1T; bytes are an integer, or a text of digits with K, M, G or T, such as \"1M\"";
const CACHE_BYTES_LEAST: u64 = 64 << 10;
/// A cache is always bounded; this is SQLite's own bound in KiB, rounded down.
const CACHE_BYTES_MOST: u64 = 1 << 40;
const AFTER_ALLOWED: &str = "allowed: the name of a tenant that stands earlier and has `work_seconds`";
const THREADS_MOST: i128 = 64;
const TENANTS_MOST: usize = 64;
const NAME_BYTES_MOST: usize = 32;
const PAUSE_US_MOST: i128 = 60_000_000;
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
    /// Page cache of each connection.
    pub(crate) cache_bytes: u64,
    pub(crate) temp: Temp,
    /// Rest after each statement.
    pub(crate) pause: Duration,
    /// Its first statement begins once the tenant with this index is idle: one that stands earlier and has an end to its
    /// work. None: at once.
    pub(crate) after: Option<usize>,
    /// From then on it begins statements for so long; then it is idle, its connections open. None: to the end.
    pub(crate) work: Option<Duration>,
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
    /// At least one; names differ.
    pub(crate) tenants: Vec<TenantSpec>,
}

impl Spec {
    /// The scenario that runs when no SPEC is named.
    pub(crate) fn built_in() -> Result<Spec, SpecError> {
        Spec::parse(BUILT_IN_NAME, BUILT_IN)
    }

    /// The same work with no limit of any kind.
    pub(crate) fn without_limits(&self) -> Spec {
        let tenants = self.tenants.iter().map(|tenant| TenantSpec { max_bytes: UNLIMITED, ..tenant.clone() });
        Spec { max_bytes: UNLIMITED, tenants: tenants.collect(), ..self.clone() }
    }

    /// Reads the SPEC in `file`.
    pub(crate) fn read(file: &Path) -> Result<Spec, SpecError> {
        let name = file.display().to_string();
        match std::fs::read_to_string(file) {
            Ok(text) => Spec::parse(&name, &text),
            Err(error) => Err(SpecError::whole_file(&name, format!("cannot be read: {error}"))),
        }
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
        if let Some(run) = run {
            run.finish(&["max", "reclaim", "seconds", "seed"])?;
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
        top.finish(&["max", "reclaim", "run", "seconds", "seed", "tenant"])?;
        if tenants.is_empty() {
            return Err(source.missing("tenant", "at least one [[tenant]]"));
        }
        Ok(Spec { seconds, seed, max_bytes, reclaim, tenants })
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

fn tenant(table: &mut Table<'_>, earlier: &[TenantSpec], seconds: f64) -> Result<TenantSpec, SpecError> {
    let name = table.required_text("name", "a name, such as \"etl\"")?;
    if let Err(what) = check_name(&name.value, earlier) {
        return Err(name.wrong(what));
    }
    table.call(&name.value);
    let kind = table.required_text("workload", &Kind::allowed())?;
    let workload =
        Kind::of_name(&kind.value).ok_or_else(|| kind.wrong(format!("allowed: {}", Kind::allowed())))?;
    let threads = match table.integer("threads")? {
        None => 1,
        Some(threads) if (1..=THREADS_MOST).contains(&threads.value) => threads.value as u32,
        Some(threads) => return Err(threads.wrong(format!("allowed: 1 to {THREADS_MOST}"))),
    };
    let scale = scale(table)?;
    let max_bytes = limit(table.bytes("max", MAX_ALLOWED)?)?;
    let cache_bytes = match table.bytes("cache", CACHE_ALLOWED)? {
        None => 1 << 20,
        Some(cache) if (CACHE_BYTES_LEAST..=CACHE_BYTES_MOST).contains(&cache.value) => cache.value,
        Some(cache) => return Err(cache.wrong(format!("allowed: {CACHE_ALLOWED}"))),
    };
    let temp = match table.text("temp")? {
        None => Temp::File,
        Some(temp) => match temp.value.as_str() {
            "file" => Temp::File,
            "memory" => Temp::Memory,
            _ => return Err(temp.wrong("allowed: \"file\" or \"memory\"".to_owned())),
        },
    };
    let pause = match table.integer("pause_us")? {
        None => Duration::ZERO,
        Some(pause) if (0..=PAUSE_US_MOST).contains(&pause.value) => {
            Duration::from_micros(pause.value as u64)
        }
        Some(pause) => return Err(pause.wrong(format!("allowed: 0 to {PAUSE_US_MOST} microseconds"))),
    };
    let after = match table.text("after")? {
        None => None,
        Some(after) => {
            let allowed = || after.wrong(AFTER_ALLOWED.to_owned());
            let is_meant = |tenant: &TenantSpec| tenant.name == after.value && tenant.work.is_some();
            Some(earlier.iter().position(is_meant).ok_or_else(allowed)?)
        }
    };
    let work = match table.number("work_seconds")? {
        None => None,
        // A comparison that NaN fails.
        Some(work) if work.value > 0.0 && work.value <= seconds => Some(Duration::from_secs_f64(work.value)),
        Some(work) => {
            return Err(work.wrong(format!("allowed: more than 0 to {seconds} seconds, the whole run")));
        }
    };
    table.finish(&[
        "after",
        "cache",
        "max",
        "name",
        "pause_us",
        "scale",
        "temp",
        "threads",
        "work_seconds",
        "workload",
    ])?;
    Ok(TenantSpec {
        name: name.value,
        workload,
        threads,
        scale,
        max_bytes,
        cache_bytes,
        temp,
        pause,
        after,
        work,
    })
}

fn check_name(name: &str, earlier: &[TenantSpec]) -> Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > NAME_BYTES_MOST || !name.chars().all(plain) {
        return Err(format!("allowed: 1 to {NAME_BYTES_MOST} letters, digits, `-` and `_`"));
    }
    if name == "unattributed" {
        return Err("that name means memory without a tenant; allowed: any other".to_owned());
    }
    if earlier.iter().any(|tenant| tenant.name == name) {
        return Err("another tenant has that name; allowed: a name of its own".to_owned());
    }
    Ok(())
}

fn scale(table: &mut Table<'_>) -> Result<Scale, SpecError> {
    let scale = table.required_number("scale", "a TPC-H scale factor, such as 0.05")?;
    let milli = scale.value * 1_000.0;
    let whole = milli.round();
    let sound = (milli - whole).abs() < 1e-6 && (1.0..=f64::from(Scale::MILLI_MOST)).contains(&whole);
    if sound && let Some(scale) = Scale::from_milli(whole as u32) {
        return Ok(scale);
    }
    Err(scale.wrong("allowed: 0.001 to 10, in steps of 0.001".to_owned()))
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
