//! One `[[tenant]]` of a SPEC.

use std::ops::RangeInclusive;
use std::time::Duration;

use memgroup::UNLIMITED;

use super::source::{Found, Table};
use super::{MAX_ALLOWED, Scale, Settings, SpecError, Temp, TenantSpec, limit};
use crate::run::workload::Kind;

/// What may be protected; the upper end is what a group can count.
const PROTECTION_ALLOWED: &str = "0 to less than 256T, or \"max\" for all that it holds; bytes are an integer, or a text of \
                                  digits with K, M, G or T, such as \"16M\"";
const CACHE_ALLOWED: &str =
    "64K to 1T; bytes are an integer, or a text of digits with K, M, G or T, such as \"1M\"";
const CACHE_BYTES_LEAST: u64 = 64 << 10;
/// A cache is always bounded; this is SQLite's own bound in KiB, rounded down.
const CACHE_BYTES_MOST: u64 = 1 << 40;
const AFTER_ALLOWED: &str = "allowed: the name of a tenant that stands earlier and has `work_seconds`";
const THREADS_MOST: i128 = 64;
const NAME_BYTES_MOST: usize = 32;
const PAUSE_US_MOST: i128 = 60_000_000;
const PATIENCE_MS_MOST: i128 = 3_600_000;
/// As the kernel's oom_score_adj.
const OOM_SCORES: RangeInclusive<i128> = -1_000..=1_000;
/// As the kernel's cpu.weight.
const WEIGHTS: RangeInclusive<i128> = 1..=10_000;

/// Reads the tenant in `table`; those `earlier` in the SPEC are known, and that the run takes `seconds`.
pub(super) fn tenant(
    table: &mut Table<'_>,
    earlier: &[TenantSpec],
    seconds: f64,
) -> Result<TenantSpec, SpecError> {
    let name = table.required_text("name", "a name, such as \"etl\"")?;
    if let Err(what) = check_name(&name.value, earlier) {
        return Err(name.wrong(what));
    }
    table.call(&name.value);
    let kind = table.required_text("workload", &Kind::allowed())?;
    let workload =
        Kind::of_name(&kind.value).ok_or_else(|| kind.wrong(format!("allowed: {}", Kind::allowed())))?;
    let threads = within(table.integer("threads")?, 1, 1..=THREADS_MOST)? as u32;
    let scale = scale(table)?;
    let max_bytes = limit(table.bytes("max", MAX_ALLOWED)?)?;
    let settings = settings(table)?;
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
    let patience = match table.integer("patience_ms")? {
        None => Duration::ZERO,
        Some(patience) if (0..=PATIENCE_MS_MOST).contains(&patience.value) => {
            Duration::from_millis(patience.value as u64)
        }
        Some(patience) => {
            return Err(patience.wrong(format!("allowed: 0 to {PATIENCE_MS_MOST} milliseconds")));
        }
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
        "enforced",
        "high",
        "low",
        "max",
        "min",
        "name",
        "oom_group",
        "oom_score",
        "patience_ms",
        "pause_us",
        "scale",
        "temp",
        "threads",
        "weight",
        "work_seconds",
        "workload",
    ])?;
    Ok(TenantSpec {
        name: name.value,
        workload,
        threads,
        scale,
        max_bytes,
        settings,
        cache_bytes,
        temp,
        pause,
        patience,
        after,
        work,
    })
}

/// What the tenant's group is set to besides `max`.
fn settings(table: &mut Table<'_>) -> Result<Settings, SpecError> {
    let unset = Settings::default();
    let mut protection = |key: &str| {
        let found = table.bytes(key, PROTECTION_ALLOWED)?;
        match found {
            None => Ok(0),
            // Between what a group can count and "max" there is nothing.
            Some(bytes) if bytes.value == UNLIMITED || bytes.value < 1 << 48 => Ok(bytes.value),
            Some(bytes) => Err(bytes.wrong(format!("allowed: {PROTECTION_ALLOWED}"))),
        }
    };
    let (min_bytes, low_bytes) = (protection("min")?, protection("low")?);
    Ok(Settings {
        min_bytes,
        low_bytes,
        high_bytes: limit(table.bytes("high", MAX_ALLOWED)?)?,
        oom_score: within(table.integer("oom_score")?, unset.oom_score.into(), OOM_SCORES)? as i32,
        oom_group: table.truth("oom_group")?.map_or(unset.oom_group, |found| found.value),
        weight: within(table.integer("weight")?, unset.weight.into(), WEIGHTS)? as u32,
        enforced: table.truth("enforced")?.map_or(unset.enforced, |found| found.value),
    })
}

/// The integer that was found, if it lies within `allowed`; `unset` if none was.
fn within(
    found: Option<Found<'_, i128>>,
    unset: i128,
    allowed: RangeInclusive<i128>,
) -> Result<i128, SpecError> {
    match found {
        None => Ok(unset),
        Some(found) if allowed.contains(&found.value) => Ok(found.value),
        Some(found) => Err(found.wrong(format!("allowed: {} to {}", allowed.start(), allowed.end()))),
    }
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
