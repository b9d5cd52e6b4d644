//! The tables of the pressure, and its figures for the report.

use super::tenants::Bounds;
use super::turns::Turns;
use super::{ByCase, Found, Size};
use crate::Error;
use crate::harness::Lab;
use crate::harness::quantiles::Quantiles;
use crate::harness::report::params;
use crate::harness::stats::Summary;
use crate::harness::table::{Table, count, figure, figure_or_dash};

pub(super) fn print(lab: &mut Lab<'_>, size: Size, max_bytes: u64, found: &ByCase) -> Result<(), Error> {
    let (tenants, rows) = (size.tenants, count(size.rows as u64));
    let max_mib = figure(max_bytes as f64 / f64::from(1 << 20));
    let mut speeds = Table::new(
        format!(
            "SQLite under pressure: {tenants} tenants with {rows} pages each take turns of so many statements, {max_mib} MiB for all, half of what they would cache"
        ),
        ["threads; turn; caches within", "statements/s", "reads each", "us: p50", "p99", "p99.9"],
    );
    let mut rooms = Table::new(
        "the same: what was reclaimed, and at what price",
        ["threads; turn; caches within", "KiB a statement", "GiB/CPU-s", "in calls"],
    );
    let mut stalls = Table::new(
        "the same: how long it takes where room has to be made, us",
        ["threads; turn; caches within", "statements: p50", "p99", "p99.9", "charges: p50", "p99", "p99.9"],
    );
    for (&(turns, bounds), one) in found {
        let name = format!("{}; {}; {}", turns.threads, count(turns.statements), bounds.name());
        let quantiles = [one.statements.p50(), one.statements.p99(), one.statements.p999()];
        let mut cells =
            vec![name.clone(), figure_or_dash(one.speed()), figure_or_dash(median(&one.reads_a_statement))];
        cells.extend(quantiles.map(|ns| us(ns.map(|ns| ns.median))));
        speeds.row(cells);
        if bounds == Bounds::Shares {
            continue;
        }
        let units = |bytes: Option<f64>, unit: u64| figure_or_dash(bytes.map(|bytes| bytes / unit as f64));
        rooms.row(vec![
            name.clone(),
            units(median(&one.reclaimed_a_statement), 1 << 10),
            units(one.freed_a_cpu_second(), 1 << 30),
            units(one.freed_a_scan_second(), 1 << 30),
        ]);
        let mut cells = vec![name];
        cells.extend(tail(&one.stalled).into_iter().chain(tail(&one.stalls)).map(us));
        stalls.row(cells);
    }
    speeds.note(
        "look-ups, one statement in 16 an update, one in 64 a sum over 16 rows; each answer is checked. Statements a second: of the median turn, times the threads. Reads: of 4 KiB, from files that the system has in its memory. Quantiles: the median of the windows'",
    );
    lab.print(&speeds)?;
    rooms.note(
        "GiB that are freed for a second of CPU time: whole charges, with their walks and drains, by the thread's CPU clock, of eight of 64 KiB after each window, when nobody is busy and all is full; and in the caches' calls alone, during the windows, by the engine's clock, in which a thread that is switched out counts",
    );
    lab.print(&rooms)?;
    let all = |of: fn(&Found) -> &Vec<f64>| count(found.values().map(|one| of(one).len() as u64).sum());
    stalls.note(format!(
        "statements: {} in which room was made, with all else that they did; charges: {} that made room, of a buffer of a page beside each statement, from the call to its return. SQLite's own, from within, are alike and cannot be timed from here. All windows together; a percentile takes as many as its name says: 100, or 1,000",
        all(|one| &one.stalled),
        all(|one| &one.stalls)
    ));
    lab.print(&stalls)
}

fn median(samples: &[f64]) -> Option<f64> {
    Summary::of(samples).map(|summary| summary.median)
}

fn us(ns: Option<f64>) -> String {
    figure_or_dash(ns.map(|ns| ns / 1e3))
}

/// The middle, the ninety-ninth percentile and that of thousandths, of enough times for each.
fn tail(times: &[f64]) -> [Option<f64>; 3] {
    let quantiles = Quantiles::of(times.to_vec());
    let of_at_least = |least, of: fn(Quantiles) -> f64| quantiles.filter(|_| times.len() >= least).map(of);
    [of_at_least(1, |all| all.p50), of_at_least(100, |all| all.p99), of_at_least(1000, |all| all.p999)]
}

/// The same for the report.
pub(super) fn record(lab: &mut Lab<'_>, found: &ByCase) {
    for (&(turns, bounds), one) in found {
        let what = |Turns { threads, statements, .. }| {
            params([("threads", threads.into()), ("turn", statements.into())])
        };
        let mut add = |metric, unit, summary: Option<Summary>| {
            if let Some(summary) = summary {
                lab.report.add(bounds.name(), what(turns), metric, unit, summary);
            }
        };
        add("statements", "1/s", Summary::of(&one.statements_a_second));
        add("reads of a statement", "", Summary::of(&one.reads_a_statement));
        add("reclaimed of a statement", "bytes", Summary::of(&one.reclaimed_a_statement));
        add("statement p50", "ns", one.statements.p50());
        add("statement p99", "ns", one.statements.p99());
        add("statement p999", "ns", one.statements.p999());
        let mut add = |metric, unit, value: Option<f64>| {
            if let Some(value) = value {
                lab.report.add_count(bounds.name(), what(turns), metric, unit, value);
            }
        };
        add("freed for a CPU second of charges", "bytes/s", one.freed_a_cpu_second());
        add("freed for a second in calls", "bytes/s", one.freed_a_scan_second());
        let metrics = [
            ["statements that made room", "their p50", "their p99", "their p999"],
            ["charges that made room", "charges' p50", "charges' p99", "charges' p999"],
        ];
        for ([number, p50, p99, p999], times) in metrics.into_iter().zip([&one.stalled, &one.stalls]) {
            add(number, "", Some(times.len() as f64));
            for (metric, ns) in [p50, p99, p999].into_iter().zip(tail(times)) {
                add(metric, "ns", ns);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_takes_as_many_times_as_its_name_says() {
        let times = |count: u32| (1..=count).map(f64::from).collect::<Vec<_>>();
        assert_eq!(tail(&times(0)), [None; 3]);
        assert_eq!(tail(&times(99)), [Some(50.0), None, None]);
        assert_eq!(tail(&times(100)), [Some(50.0), Some(99.0), None]);
        assert_eq!(tail(&times(1000)), [Some(500.0), Some(990.0), Some(999.0)]);
    }
}
