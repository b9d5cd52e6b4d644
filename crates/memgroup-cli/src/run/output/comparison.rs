//! Comparison: the same work in several regimes.

use super::table::{Cell, Emphasis, aligned, cell, count, known};
use crate::run::backend::Regime;
use crate::run::base::units;
use crate::run::report::{RegimeReport, TenantReport};

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
    let kinds = [
        ("well-behaved", TenantReport::is_well_behaved as fn(&TenantReport) -> bool),
        ("runaway", TenantReport::is_runaway),
    ];
    for (kind, select) in kinds.into_iter().filter(|(_, select)| own.tenants.iter().any(select)) {
        row(format!("{kind}: done"), &|report| count(report.sum(select, |tenant| tenant.done)));
        row(format!("{kind}: failed"), &|report| {
            let failed = report.sum(select, TenantReport::failed);
            count(failed).alarm_if(failed > 0 && kind == "well-behaved")
        });
        row(format!("{kind}: retried"), &|report| count(report.sum(select, |tenant| tenant.retried)));
    }
    for (index, tenant) in own.tenants.iter().enumerate().filter(|(_, tenant)| tenant.protected) {
        let name = &tenant.name;
        row(format!("{name}: p50"), &|report| known(report.tenants[index].p50_us, units::duration_us));
        row(format!("{name}: p99"), &|report| known(report.tenants[index].p99_us, units::duration_us));
    }
    let titles: Vec<&str> =
        [""].into_iter().chain(regimes.iter().map(|(regime, _)| regime.title())).collect();
    aligned(&titles, &rows, rows.len(), emphasis)
}
