//! One `[[tenant]]` of a SPEC.

use std::ops::RangeInclusive;
use std::time::Duration;

use memgroup::UNLIMITED;
use serde::de::value::{Error, StrDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer};
use toml::de::DeValue;

use super::source::{Table, bytes, integer, number};
use super::{LIMIT_ALLOWED, Scale, Settings, TRUTH_ALLOWED, Temp, TenantSpec, limit};
use crate::run::base::error::RunError;

const NAME_ALLOWED: &str = "a name of 1 to 32 letters, digits, `-` and `_`, such as \"etl\"";
const NAME_BYTES_MAX: usize = 32;
const WORKLOAD_ALLOWED: &str = "\"lookups\", \"dashboards\", \"etl\" or \"runaway\"";
/// The upper end is the most that a group can count.
const PROTECTION_ALLOWED: &str = "0 to less than 256T, or \"max\" for all that it holds; bytes are an integer, or a text of \
                                  digits with K, M, G or T, such as \"16M\"";
const CACHE_ALLOWED: &str =
    "64K to 1T; bytes are an integer, or a text of digits with K, M, G or T, such as \"1M\"";
/// The upper end is SQLite's own bound in KiB, rounded down.
const CACHE_BYTES: RangeInclusive<u64> = 64 << 10..=1 << 40;
const AFTER_ALLOWED: &str = "the name of a tenant that stands earlier and has `work_seconds`";

/// Reads the tenant in `table`. `earlier` are the tenants before it; the run takes `seconds`.
pub(super) fn read(
    mut table: Table<'_>,
    earlier: &[TenantSpec],
    seconds: f64,
) -> Result<TenantSpec, RunError> {
    let name = table
        .need("name", NAME_ALLOWED, |value| value.as_str().filter(|name| is_name(name)).map(str::to_owned))?;
    if name.value == "unattributed" {
        return Err(name.wrong("that name means memory without a tenant; allowed: any other"));
    }
    if earlier.iter().any(|tenant| tenant.name == name.value) {
        return Err(name.wrong("another tenant has that name; allowed: a name of its own"));
    }
    table.set_name(&name.value);
    let work_allowed = format!("a number above 0 and up to {seconds}, the seconds of the whole run");
    let is_work = |&work: &f64| work > 0.0 && work <= seconds;
    let tenant = TenantSpec {
        name: name.value,
        workload: table.need("workload", WORKLOAD_ALLOWED, variant)?.value,
        threads: within(&mut table, "threads", 1, 1..=64, "")?,
        scale: table.need("scale", Scale::ALLOWED, |value| Scale::of_factor(number(value)?))?.value,
        max_bytes: table.get("max", UNLIMITED, LIMIT_ALLOWED, limit)?,
        settings: settings(&mut table)?,
        cache_bytes: table.get("cache", 1 << 20, CACHE_ALLOWED, |value| {
            bytes(value).filter(|bytes| CACHE_BYTES.contains(bytes))
        })?,
        temp: table.get("temp", Temp::File, "\"file\" or \"memory\"", variant)?,
        pause: Duration::from_micros(within(&mut table, "pause_us", 0, 0..=60_000_000, ", in microseconds")?),
        patience: Duration::from_millis(within(
            &mut table,
            "patience_ms",
            0,
            0..=3_600_000,
            ", in milliseconds",
        )?),
        after: table.get("after", None, AFTER_ALLOWED, |value| {
            let is_meant =
                |tenant: &TenantSpec| Some(&*tenant.name) == value.as_str() && tenant.work.is_some();
            earlier.iter().position(is_meant).map(Some)
        })?,
        work: table.get("work_seconds", None, &work_allowed, |value| {
            number(value).filter(is_work).map(|work| Some(Duration::from_secs_f64(work)))
        })?,
    };
    table.finish()?;
    Ok(tenant)
}

/// Reads the settings of the tenant's group besides `max`.
fn settings(table: &mut Table<'_>) -> Result<Settings, RunError> {
    let unset = Settings::default();
    Ok(Settings {
        min_bytes: table.get("min", unset.min_bytes, PROTECTION_ALLOWED, bytes)?,
        low_bytes: table.get("low", unset.low_bytes, PROTECTION_ALLOWED, bytes)?,
        high_bytes: table.get("high", unset.high_bytes, LIMIT_ALLOWED, limit)?,
        // The kernel's bounds of oom_score_adj and cpu.weight.
        oom_score: within(table, "oom_score", unset.oom_score, -1_000..=1_000, "")?,
        oom_group: table.get("oom_group", unset.oom_group, TRUTH_ALLOWED, DeValue::as_bool)?,
        weight: within(table, "weight", unset.weight, 1..=10_000, "")?,
        enforced: table.get("enforced", unset.enforced, TRUTH_ALLOWED, DeValue::as_bool)?,
    })
}

fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_plain)
}

/// The integer under `key` within `allowed`; `unset` without the key. `unit` completes the error.
fn within<T: TryFrom<i128>>(
    table: &mut Table<'_>,
    key: &'static str,
    unset: T,
    allowed: RangeInclusive<i128>,
    unit: &str,
) -> Result<T, RunError> {
    let text = format!("an integer from {} to {}{unit}", allowed.start(), allowed.end());
    table.get(key, unset, &text, |value| {
        integer(value).filter(|found| allowed.contains(found))?.try_into().ok()
    })
}

/// The variant with the name that `value` is.
fn variant<T: DeserializeOwned>(value: &DeValue<'_>) -> Option<T> {
    let name: StrDeserializer<'_, Error> = value.as_str()?.into_deserializer();
    T::deserialize(name).ok()
}
