//! Comparison: the same work in several regimes.

use super::table::{Cell, Emphasis, aligned, cell, count, known};
use crate::run::backend::Regime;
use crate::run::base::units;
use crate::run::report::{RegimeReport, TenantReport};

/// Failures of tenants that should have none.
fn failures(failed: u64) -> Cell {
    count(failed).alarm_if(failed > 0)
}

/// One column a regime, one row a figure.
pub(super) fn table(regimes: &[(Regime, &RegimeReport)], emphasis: Emphasis) -> String {
    let own = regimes[0].1;
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    let mut row = |title: String, figure: &dyn Fn(&RegimeReport) -> Cell| {
        let figures = regimes.iter().map(|(_, report)| figure(report));
        rows.push([cell(title)].into_iter().chain(figures).collect());
    };
    row("most memory held".to_owned(), &|report| {
        let of = report.all.max.map(|max| format!(" of {}", units::limit(Some(max))));
        known(report.all.peak, |peak| units::bytes(peak) + &of.unwrap_or_default())
    });
    let well_behaved = TenantReport::is_well_behaved as fn(&TenantReport) -> bool;
    if own.tenants.iter().any(well_behaved) {
        row("well-behaved: done".to_owned(), &|report| count(report.sum(well_behaved, |tenant| tenant.done)));
        row("well-behaved: failed".to_owned(), &|report| {
            failures(report.sum(well_behaved, TenantReport::failed))
        });
        row("well-behaved: retried".to_owned(), &|report| {
            count(report.sum(well_behaved, |tenant| tenant.retried))
        });
    }
    if regimes.iter().any(|(_, report)| report.without_retries.is_some()) {
        let all = own.sum(well_behaved, |_| 1);
        row("tenants that fail if not retried".to_owned(), &|report| {
            let failing = report.without_retries.map(|once| once.failing);
            known(failing, |failing| format!("{failing} of {all}")).alarm_if(failing > Some(0))
        });
    }
    for (index, tenant) in own.tenants.iter().enumerate().filter(|(_, tenant)| tenant.is_greedy()) {
        row(format!("{}: failed", tenant.name), &|report| count(report.tenants[index].failed()));
    }
    for (index, tenant) in own.tenants.iter().enumerate().filter(|(_, tenant)| tenant.protected) {
        row(format!("{}: p50, p99", tenant.name), &|report| {
            let TenantReport { p50_us, p99_us, .. } = report.tenants[index];
            let both = p50_us.zip(p99_us);
            known(both, |(p50, p99)| format!("{}, {}", units::duration_us(p50), units::duration_us(p99)))
        });
    }
    let titles: Vec<&str> =
        [""].into_iter().chain(regimes.iter().map(|(regime, _)| regime.title())).collect();
    aligned(&titles, &rows, rows.len(), emphasis)
}
