//! Details: memory by kind, reclaim, time and limits of each tenant, and of all together.

use super::table::{Cell, Emphasis, alarm_if, cell, columns, count, known};
use crate::run::base::units;
use crate::run::measure::control::Events;
use crate::run::measure::shrinkers::Shrinker;
use crate::run::report::{RegimeReport, TenantReport};

/// Events of the table of limits.
const EVENTS: [&str; 5] = ["low", "high", "max", "oom", "oom_kill"];
/// Share of the time for which a protected tenant may be stalled without emphasis.
const STALLED_SHARE_MAX: f64 = 0.01;

/// All tables of `report` that have rows.
pub(super) fn tables(report: &RegimeReport, emphasis: Emphasis) -> String {
    let total = report.total();
    let table = |titles: &[&str], row: fn(&TenantReport) -> Option<Vec<Cell>>| {
        let mut rows: Vec<_> = report.tenants.iter().filter_map(row).collect();
        let tenants = rows.len();
        rows.extend(row(&total));
        if rows.is_empty() {
            String::new()
        } else {
            format!("\n{}", columns(titles, &rows, tenants, emphasis))
        }
    };
    let kinds = ["page cache", "schema", "statements", "other", "prepaid"];
    let mut text = table(&[&["tenant", "usage"], &kinds[..], &["hit rate", "database"]].concat(), memory);
    if report.reclaim == Some(true) {
        let sums = ["tenant", "taken", "gained", "scans"];
        let caches = ["caches", "holding", "asked", "time", "last", "set aside"];
        text += &table(&[&sums[..], &caches].concat(), reclaim);
    }
    text += &table(&["tenant", "time", "throttled", "stalled", "some %", "full %", "read", "written"], time);
    text += &table(&[&["tenant", "protected"][..], &EVENTS].concat(), limits);
    let max = |events: &Option<Events>| events.as_ref().map_or(0, |events| events.get("max"));
    if max(&report.events) > report.tenants.iter().map(|tenant| max(&tenant.events)).sum() {
        text += &emphasis.aside("max and oom of all tenants include those of their common limit");
        text += "\n";
    }
    text
}

fn memory(tenant: &TenantReport) -> Option<Vec<Cell>> {
    let memory = tenant.statistics?.memory;
    let kinds = [memory.file, memory.schema, memory.statements, memory.other, memory.prepaid];
    let mut row = vec![cell(&tenant.name), known(tenant.usage, units::bytes)];
    row.extend(kinds.map(|bytes| cell(units::bytes(bytes))));
    row.extend([known(tenant.hit_rate, units::percent), cell(units::bytes(tenant.database))]);
    Some(row)
}

fn reclaim(tenant: &TenantReport) -> Option<Vec<Cell>> {
    let memory = tenant.statistics?.memory;
    let caches = tenant.shrinkers.as_deref().unwrap_or_default();
    let sum = |of: fn(&Shrinker) -> u64| caches.iter().map(of).sum::<u64>();
    Some(vec![
        cell(&tenant.name),
        cell(units::bytes(memory.reclaimed)),
        cell(units::bytes(memory.gained)),
        count(memory.reclaims, false),
        count(caches.len() as u64, false),
        cell(units::bytes(sum(|cache| cache.holds.unwrap_or(0)))),
        cell(units::bytes(sum(|cache| cache.asked))),
        cell(units::duration_us(sum(|cache| cache.time_ns) as f64 / 1e3)),
        cell(units::bytes(sum(|cache| cache.last_freed))),
        count(sum(|cache| cache.quarantine.is_some().into()), true),
    ])
}

fn time(tenant: &TenantReport) -> Option<Vec<Cell>> {
    let (statistics, pressure) = (tenant.statistics?, tenant.pressure?);
    let time = |us: u64| cell(units::duration_us(us as f64));
    let percent = |share: f64| format!("{:.2}", share * 100.0);
    let is_stalled_long = tenant.protected && pressure.some.share > STALLED_SHARE_MAX;
    Some(vec![
        cell(&tenant.name),
        time(statistics.scope_us),
        time(statistics.memory.throttled_us),
        time(pressure.some.total_us),
        alarm_if(is_stalled_long, percent(pressure.some.share)),
        cell(percent(pressure.full.share)),
        cell(units::bytes(statistics.io.rbytes)),
        cell(units::bytes(statistics.io.wbytes)),
    ])
}

fn limits(tenant: &TenantReport) -> Option<Vec<Cell>> {
    let events = tenant.events.as_ref()?;
    let mut row = vec![cell(&tenant.name), cell(if tenant.protected { "yes" } else { "-" })];
    row.extend(EVENTS.map(|key| count(events.get(key), false)));
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::super::table::Emphasis;
    use super::tables;
    use crate::run::report::RegimeReport;
    use crate::run::report::tests::report;

    #[test]
    fn aligns_memory_reclaim_time_and_limits() {
        let expected = "
tenant       usage  page cache  schema  statements   other  prepaid  hit rate  database
---------------------------------------------------------------------------------------
lookups      15.0M       14.0M   60.0K        4.0K  960.0K   128.0K    99.7 %     45.0M
runaway      15.0M       14.0M   60.0K        4.0K  960.0K   128.0K    99.7 %     45.0M
---------------------------------------------------------------------------------------
all tenants  30.0M       14.0M   60.0K        4.0K  960.0K   128.0K         -     90.0M

tenant       taken  gained  scans  caches  holding  asked    time  last  set aside
----------------------------------------------------------------------------------
lookups       2.0M    1.0M      5       1    13.0M   3.0M  1.2 ms  4.0K          0
runaway       2.0M    1.0M      5       1    13.0M   3.0M  1.2 ms  4.0K          0
----------------------------------------------------------------------------------
all tenants   2.0M    1.0M      5       2    26.0M   6.0M  2.5 ms  8.0K          0

tenant          time  throttled  stalled  some %  full %  read  written
-----------------------------------------------------------------------
lookups      19.50 s     1.50 s  40.0 ms    0.20    0.05  3.0G        0
runaway      19.50 s     1.50 s  40.0 ms    0.20    0.05  3.0G        0
-----------------------------------------------------------------------
all tenants  19.50 s     1.50 s  60.0 ms    0.30    0.03  3.0G        0

tenant       protected  low  high  max  oom  oom_kill
-----------------------------------------------------
lookups            yes    0     0    2    1         0
runaway              -    0     0  120   60         0
-----------------------------------------------------
all tenants          -    0     0  130   65         0
max and oom of all tenants include those of their common limit
";
        assert_eq!(tables(&report(2), Emphasis(false)), expected);
    }

    #[test]
    fn omits_the_reclaim_table_without_reclaim() {
        let off = RegimeReport { reclaim: Some(false), ..report(0) };
        assert!(!tables(&off, Emphasis(false)).contains("taken"));
    }

    #[test]
    fn has_no_tables_without_groups() {
        let mut report = RegimeReport { events: None, statistics: None, reclaim: None, ..report(0) };
        for tenant in &mut report.tenants {
            (tenant.events, tenant.statistics) = (None, None);
        }
        assert_eq!(tables(&report, Emphasis(false)), "");
    }

    #[test]
    fn emphasises_protected_tenants_that_are_stalled_long() {
        let alarms = |tenant: usize| {
            let mut report = report(0);
            report.tenants[tenant].pressure.as_mut().expect("known").some.share = 0.011;
            tables(&report, Emphasis(true)).matches("\x1b[31m").count()
        };
        assert_eq!([alarms(0), alarms(1)], [1, 0]);
    }

    #[test]
    fn emphasises_a_cache_that_is_set_aside() {
        let mut report = report(0);
        let caches = report.tenants[0].shrinkers.as_mut().expect("caches");
        caches[0].quarantine = Some("panicked".to_owned());
        let text = tables(&report, Emphasis(true));
        assert_eq!(text.matches("\x1b[31m1\x1b[0m").count(), 2, "the tenant and all tenants: {text}");
    }
}
