//! One `[[tenant]]` of a SPEC.

use std::ops::RangeInclusive;
use std::time::Duration;

use toml::de::DeValue;

use super::source::{Table, Values, bytes, integer, number, variant};
use super::{Engine, Kind, LIMIT, Scale, Settings, Spec, TRUTH, Temp, TenantSpec};
use crate::run::base::RunError;

const NAME: Values<'_, String> =
    Values("a name of 1 to 32 letters, digits, `-` and `_`, such as \"etl\"", &|value| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let is_name = |name: &&str| (1..=32).contains(&name.len()) && name.chars().all(is_plain);
        value.as_str().filter(is_name).map(str::to_owned)
    });
const WORKLOAD: Values<'_, Kind> =
    Values("\"lookups\", \"dashboards\", \"etl\", \"runaway\" or \"hoarder\"", &|value| {
        variant(value).filter(|&kind| kind != Kind::Requests)
    });
const REQUESTS: Values<'_, Kind> = Values("\"requests\" or \"runaway\"", &|value| {
    variant(value).filter(|kind| matches!(kind, Kind::Requests | Kind::Runaway))
});
const SCALE: Values<'_, Scale> = Values("a TPC-H scale factor of 0.001 to 10, in steps of 0.001", &|value| {
    Scale::of_factor(number(value)?)
});
/// The upper end is the most that a group can count.
const PROTECTION: Values<'_, Option<u64>> = Values(
    "0 to less than 256T, or \"max\" for all that it holds; bytes are an integer, or a text of digits with K, M, G or T, such as \
     \"16M\"",
    &|value| bytes(value),
);
/// The upper end is SQLite's own bound in KiB, rounded down.
const CACHE: Values<'_, u64> = Values(
    "64K to 1T; bytes are an integer, or a text of digits with K, M, G or T, such as \"1M\"",
    &|value| bytes(value)?.filter(|bytes| (64 << 10..=1 << 40).contains(bytes)),
);
const TEMP: Values<'_, Temp> = Values("\"file\" or \"memory\"", &|value| variant(value));

/// Reads the tenant in `table`. `spec` has the settings of the run, and the tenants before it.
pub(super) fn read(mut table: Table<'_>, spec: &Spec) -> Result<TenantSpec, RunError> {
    let &Spec { engine, seconds, tenants: ref earlier, .. } = spec;
    let name = table.need("name", &NAME)?;
    if name.value == "unattributed" {
        return Err(name.wrong("that name means memory without a tenant; allowed: any other"));
    }
    if earlier.iter().any(|tenant| tenant.name == name.value) {
        return Err(name.wrong("another tenant has that name; allowed: a name of its own"));
    }
    table.set_name(&name.value);
    let after = Values("the name of a tenant that stands earlier and has `work_seconds`", &|value| {
        let mut names = earlier.iter().map(|tenant| tenant.work.and(Some(tenant.name.as_str())));
        names.position(|name| name.is_some() && name == value.as_str()).map(Some)
    });
    let work = format!("a number above 0 and up to {seconds}, the seconds of the whole run");
    let work = Values(&work, &|value| {
        let work = number(value).filter(|&work| work > 0.0 && work <= seconds)?;
        Some(Some(Duration::from_secs_f64(work)))
    });
    let is_sql = engine == Engine::Sqlite;
    let workloads = match engine {
        Engine::Sqlite => &WORKLOAD,
        Engine::Http => &REQUESTS,
    };
    let workload = table.need("workload", workloads)?.value;
    let temp = if workload == Kind::Hoarder { Temp::Memory } else { Temp::File };
    let tenant = TenantSpec {
        name: name.value,
        workload,
        threads: within(&mut table, "threads", 1, 1..=64, "")?,
        scale: if is_sql { table.need("scale", &SCALE)?.value } else { Scale::LEAST },
        max_bytes: table.get("max", None, &LIMIT)?,
        settings: settings(&mut table, engine)?,
        cache_bytes: if is_sql { table.get("cache", 1 << 20, &CACHE)? } else { 0 },
        temp: if is_sql { table.get("temp", temp, &TEMP)? } else { temp },
        pause: within(&mut table, "pause_us", 0, 0..=60_000_000, ", in microseconds")
            .map(Duration::from_micros)?,
        patience: within(&mut table, "patience_ms", 0, 0..=3_600_000, ", in milliseconds")
            .map(Duration::from_millis)?,
        after: table.get("after", None, &after)?,
        work: table.get("work_seconds", None, &work)?,
    };
    table.finish()?;
    Ok(tenant)
}

/// Reads the settings of the tenant's group besides `max`. `oom_group` has no meaning for HTTP,
/// because a request is stopped alone.
fn settings(table: &mut Table<'_>, engine: Engine) -> Result<Settings, RunError> {
    let unset = Settings::default();
    Ok(Settings {
        min_bytes: table.get("min", unset.min_bytes, &PROTECTION)?,
        low_bytes: table.get("low", unset.low_bytes, &PROTECTION)?,
        high_bytes: table.get("high", None, &LIMIT)?,
        // The kernel's bounds of oom_score_adj and cpu.weight.
        oom_score: within(table, "oom_score", unset.oom_score, -1_000..=1_000, "")?,
        oom_group: engine == Engine::Sqlite && table.get("oom_group", unset.oom_group, &TRUTH)?,
        weight: within(table, "weight", unset.weight, 1..=10_000, "")?,
        enforced: table.get("enforced", unset.enforced, &TRUTH)?,
    })
}

/// Reads the integer under `key`, which must be within `allowed`. Without the key it's `unset`.
/// `unit` completes the error.
fn within<T: PartialEq + TryFrom<i128>>(
    table: &mut Table<'_>,
    key: &'static str,
    unset: T,
    allowed: RangeInclusive<i128>,
    unit: &str,
) -> Result<T, RunError> {
    let text = format!("an integer from {} to {}{unit}", allowed.start(), allowed.end());
    let read = |value: &DeValue<'_>| integer(value).filter(|found| allowed.contains(found))?.try_into().ok();
    table.get(key, unset, &Values(&text, &read))
}
