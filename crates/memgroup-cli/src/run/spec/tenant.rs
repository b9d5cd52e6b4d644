//! One `[[tenant]]` of a SPEC.

use std::time::Duration;

use super::source::Table;
use super::{Kind, MAX_ALLOWED, Scale, Settings, SpecError, Temp, TenantSpec, limit};

/// The upper end is the most that a group can count.
const PROTECTION_ALLOWED: &str = "0 to less than 256T, or \"max\" for all that it holds; bytes are an integer, or a text of \
                                  digits with K, M, G or T, such as \"16M\"";
const CACHE_ALLOWED: &str =
    "64K to 1T; bytes are an integer, or a text of digits with K, M, G or T, such as \"1M\"";
const CACHE_BYTES_MIN: u64 = 64 << 10;
/// SQLite's own bound in KiB, rounded down.
const CACHE_BYTES_MAX: u64 = 1 << 40;
const AFTER_ALLOWED: &str = "allowed: the name of a tenant that stands earlier and has `work_seconds`";
const NAME_BYTES_MAX: usize = 32;

/// Reads the tenant in `table`. `earlier` are the tenants before it; the run takes `seconds`.
pub(super) fn read(
    mut table: Table<'_>,
    earlier: &[TenantSpec],
    seconds: f64,
) -> Result<TenantSpec, SpecError> {
    let name = table.text("name")?.ok_or_else(|| table.lacks("name", "a name, such as \"etl\""))?;
    check_name(&name.value, earlier).map_err(|text| name.wrong(&text))?;
    table.set_name(&name.value);
    let [first, second, third, last] = Kind::ALL.map(Kind::name);
    let kinds = format!("{first:?}, {second:?}, {third:?} or {last:?}");
    let kind = table.text("workload")?.ok_or_else(|| table.lacks("workload", &kinds))?;
    let workload = Kind::of_name(&kind.value).ok_or_else(|| kind.wrong(&format!("allowed: {kinds}")))?;
    let threads = table.within("threads", 1, 1..=64, "")? as u32;
    let scale = scale(&mut table)?;
    let max_bytes = limit(table.bytes("max", MAX_ALLOWED)?)?;
    let settings = settings(&mut table)?;
    let cache_bytes = match table.bytes("cache", CACHE_ALLOWED)? {
        None => 1 << 20,
        Some(cache) => {
            let allowed = cache.value.filter(|bytes| (CACHE_BYTES_MIN..=CACHE_BYTES_MAX).contains(bytes));
            allowed.ok_or_else(|| cache.wrong(&format!("allowed: {CACHE_ALLOWED}")))?
        }
    };
    let temp = match table.text("temp")? {
        None => Temp::File,
        Some(temp) => match temp.value.as_str() {
            "file" => Temp::File,
            "memory" => Temp::Memory,
            _ => return Err(temp.wrong("allowed: \"file\" or \"memory\"")),
        },
    };
    let pause = Duration::from_micros(table.within("pause_us", 0, 0..=60_000_000, " microseconds")? as u64);
    let patience_ms = table.within("patience_ms", 0, 0..=3_600_000, " milliseconds")? as u64;
    let after = match table.text("after")? {
        None => None,
        Some(after) => {
            let matches = |tenant: &TenantSpec| tenant.name == after.value && tenant.work.is_some();
            Some(earlier.iter().position(matches).ok_or_else(|| after.wrong(AFTER_ALLOWED))?)
        }
    };
    let work = match table.number("work_seconds")? {
        None => None,
        // NaN fails this comparison.
        Some(work) if work.value > 0.0 && work.value <= seconds => Some(Duration::from_secs_f64(work.value)),
        Some(work) => {
            return Err(work.wrong(&format!("allowed: more than 0 to {seconds} seconds, the whole run")));
        }
    };
    table.finish()?;
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
        patience: Duration::from_millis(patience_ms),
        after,
        work,
    })
}

/// Reads the settings of the tenant's group besides `max`.
fn settings(table: &mut Table<'_>) -> Result<Settings, SpecError> {
    let unset = Settings::default();
    let mut protection = |key| {
        let found = table.bytes(key, PROTECTION_ALLOWED)?;
        Ok::<_, SpecError>(found.map_or(Some(0), |bytes| bytes.value))
    };
    let (min_bytes, low_bytes) = (protection("min")?, protection("low")?);
    Ok(Settings {
        min_bytes,
        low_bytes,
        high_bytes: limit(table.bytes("high", MAX_ALLOWED)?)?,
        // The kernel's bounds of oom_score_adj and cpu.weight.
        oom_score: table.within("oom_score", unset.oom_score.into(), -1_000..=1_000, "")? as i32,
        oom_group: table.truth("oom_group")?.map_or(unset.oom_group, |found| found.value),
        weight: table.within("weight", unset.weight.into(), 1..=10_000, "")? as u32,
        enforced: table.truth("enforced")?.map_or(unset.enforced, |found| found.value),
    })
}

fn check_name(name: &str, earlier: &[TenantSpec]) -> Result<(), String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.chars().all(is_plain) {
        return Err(format!("allowed: 1 to {NAME_BYTES_MAX} letters, digits, `-` and `_`"));
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
    let scale = table.number("scale")?;
    let scale = scale.ok_or_else(|| table.lacks("scale", "a TPC-H scale factor, such as 0.05"))?;
    let milli = scale.value * 1_000.0;
    let whole = milli.round();
    let is_whole = (milli - whole).abs() < 1e-6 && (1.0..=f64::from(Scale::MILLI_MAX)).contains(&whole);
    let found = if is_whole { Scale::from_milli(whole as u32) } else { None };
    found.ok_or_else(|| scale.wrong("allowed: 0.001 to 10, in steps of 0.001"))
}
