//! Details: memory by kind, reclaim, time and limits of each tenant, and of all together.

use super::table::{Cell, Column, Emphasis, bytes, cell, count, known, of_tenants};
use crate::run::base::units;
use crate::run::measure::Share;
use crate::run::measure::pressure::Pressure;
use crate::run::measure::shrinkers::Shrinker;
use crate::run::report::{RegimeReport, TenantReport};

/// Share of the time for which a protected tenant may be stalled without emphasis.
const STALLED_SHARE_MAX: f64 = 0.01;

const MEMORY: &[Column] = &[
    ("usage", |tenant| known(tenant.held.usage, units::bytes)),
    ("page cache", |tenant| bytes(tenant.figures.memory("file"))),
    ("schema", |tenant| bytes(tenant.figures.memory("schema"))),
    ("statements", |tenant| bytes(tenant.figures.memory("statements"))),
    ("other", |tenant| bytes(tenant.figures.memory("other"))),
    ("prepaid", |tenant| bytes(tenant.figures.memory("prepaid"))),
    ("hit rate", |tenant| known(tenant.held.hit_rate, units::percent)),
    ("database", |tenant| bytes(tenant.database)),
];

const RECLAIM: &[Column] = &[
    ("freed", |tenant| bytes(tenant.figures.memory("reclaimed"))),
    ("gained", |tenant| bytes(tenant.figures.memory("gained"))),
    ("scans", |tenant| count(tenant.figures.memory("reclaims"))),
    ("caches", |tenant| count(sum(tenant, |_| 1))),
    ("holding", |tenant| bytes(sum(tenant, |cache| cache.holds.unwrap_or(0)))),
    ("asked", |tenant| bytes(sum(tenant, |cache| cache.counts.get("asked")))),
    ("time", |tenant| {
        cell(units::duration_us(sum(tenant, |cache| cache.counts.get("time_ns")) as f64 / 1e3))
    }),
    ("last", |tenant| bytes(sum(tenant, |cache| cache.counts.get("last_freed")))),
    ("set aside", |tenant| {
        let set_aside = sum(tenant, |cache| cache.quarantine.is_some().into());
        count(set_aside).alarm_if(set_aside > 0)
    }),
];

const TIME: &[Column] = &[
    ("time", |tenant| time(tenant.figures.statistics.as_ref().map_or(0, |all| all.scope_us))),
    ("throttled", |tenant| time(tenant.figures.memory("throttled_us"))),
    ("stalled", |tenant| time(pressure(tenant).some.total_us)),
    ("some %", |tenant| {
        let share = pressure(tenant).some.share;
        percent(share).alarm_if(tenant.protected && share > STALLED_SHARE_MAX)
    }),
    ("full %", |tenant| percent(pressure(tenant).full.share)),
    ("read", |tenant| bytes(tenant.figures.io("rbytes"))),
    ("written", |tenant| bytes(tenant.figures.io("wbytes"))),
];

const LIMITS: &[Column] = &[
    ("protected", |tenant| cell(if tenant.protected { "yes" } else { "-" })),
    ("low", |tenant| count(tenant.figures.event("low"))),
    ("high", |tenant| count(tenant.figures.event("high"))),
    ("max", |tenant| count(tenant.figures.event("max"))),
    ("oom", |tenant| count(tenant.figures.event("oom"))),
    ("oom_kill", |tenant| count(tenant.figures.event("oom_kill"))),
];

/// With fair shares.
const SHARES: &[Column] = &[
    ("share", |tenant| shared(tenant, |share| units::bytes(share.bytes))),
    ("even share", |tenant| shared(tenant, |share| units::bytes(share.even))),
    ("given", |tenant| shared(tenant, |share| units::bytes(share.given))),
    ("last given to", |tenant| {
        shared(tenant, |share| share.given_to.clone().unwrap_or_else(|| "-".to_owned()))
    }),
    ("received", |tenant| shared(tenant, |share| units::bytes(share.taken))),
];

fn shared(tenant: &TenantReport, show: impl FnOnce(&Share) -> String) -> Cell {
    known(tenant.share.as_ref(), show)
}

/// The tables of `report`; empty without groups.
pub(super) fn tables(report: &RegimeReport, emphasis: Emphasis) -> String {
    let reclaim: &[_] = if report.reclaim == Some(true) { &[RECLAIM] } else { &[] };
    let shares: &[_] =
        if report.tenants.iter().any(|tenant| tenant.share.is_some()) { &[SHARES] } else { &[] };
    let tables = if report.reclaim.is_some() {
        [&[MEMORY], reclaim, shares, &[TIME, LIMITS]].concat()
    } else {
        Vec::new()
    };
    let mut text: String =
        tables.iter().map(|columns| format!("\n{}", of_tenants(report, columns, emphasis))).collect();
    if report.figures.event("max") > report.tenants.iter().map(|tenant| tenant.figures.event("max")).sum() {
        text += &(emphasis.aside("max and oom of all tenants include those of their common limit") + "\n");
    }
    text
}

/// Sum of `of` over the caches of a tenant.
fn sum(tenant: &TenantReport, of: fn(&Shrinker) -> u64) -> u64 {
    tenant.shrinkers.iter().flatten().map(of).sum()
}

fn pressure(tenant: &TenantReport) -> Pressure {
    tenant.figures.pressure.unwrap_or_default()
}

fn time(us: u64) -> Cell {
    cell(units::duration_us(us as f64))
}

fn percent(share: f64) -> Cell {
    cell(format!("{:.2}", share * 100.0))
}

#[cfg(test)]
mod tests {
    use super::super::table::Emphasis;
    use super::tables;
    use crate::run::measure::{Figures, Share};
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

tenant       freed  gained  scans  caches  holding  asked    time  last  set aside
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
        assert!(!tables(&off, Emphasis(false)).contains("freed"));
    }

    #[test]
    fn shows_the_shares_where_there_are_any() {
        let mut report = report(0);
        assert!(!tables(&report, Emphasis(false)).contains("even share"));
        let given_to = Some("runaway".to_owned());
        report.tenants[0].share =
            Some(Share { bytes: 30 << 20, even: 12 << 20, given: 5 << 20, taken: 1 << 10, given_to });
        let expected = "
tenant       share  even share  given  last given to  received
--------------------------------------------------------------
lookups      30.0M       12.0M   5.0M        runaway      1.0K
runaway          -           -      -              -         -
--------------------------------------------------------------
all tenants      -           -      -              -         -
";
        let text = tables(&report, Emphasis(false));
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn has_no_tables_without_groups() {
        let mut report = RegimeReport { figures: Figures::default(), reclaim: None, ..report(0) };
        for tenant in &mut report.tenants {
            tenant.figures = Figures::default();
        }
        assert_eq!(tables(&report, Emphasis(false)), "");
    }

    #[test]
    fn emphasises_protected_tenants_that_are_stalled_long() {
        let alarms = |tenant: usize| {
            let mut report = report(0);
            report.tenants[tenant].figures.pressure.as_mut().expect("known").some.share = 0.011;
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
