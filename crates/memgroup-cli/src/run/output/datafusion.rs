//! Summary of a run with the engine `datafusion`: a table of tenants, or a comparison of the pools, and sentences.
//!
//! - I1. No line is wider than 100 columns with names of up to 14 letters.

use super::sentences;
use super::summary::{head, wrapped};
use super::table::{
    Cell, Column, DONE, Emphasis, MAX, P50, P99, PEAK, REFUSED, STOPPED, aligned, bytes, cell, count, known,
    of_tenants,
};
use crate::run::base::stop::CTRL_C;
use crate::run::base::units;
use crate::run::report::{RegimeReport, Report, TenantReport};

/// Results of the queries of each tenant, their latencies, and its memory.
const TENANTS: &[Column] = &[
    DONE,
    REFUSED,
    STOPPED,
    ("begun anew", |tenant| known(tenant.begun_anew, units::count)),
    ("spilled", |tenant| known(tenant.spilled, units::bytes)),
    P50,
    P99,
    PEAK,
    MAX,
];

/// Title of the regime without the greedy tenants.
const ALONE: &str = "alone";

/// Place of the errors of refused queries.
const REFUSALS: &str = "With --json FILE: the error of each tenant's first refused query (`first_refusal`)";

/// The whole report as text. `ended_by` is the cause of an early end.
pub(super) fn of_report(report: &Report, ended_by: Option<&str>, emphasis: Emphasis) -> String {
    let own = &report.memgroup;
    let regimes = regimes(report);
    let is_comparison = regimes.len() > 1;
    let mut head = head("queries", own);
    if is_comparison {
        head += &format!(", limit {}", units::limit(own.all.max));
    }
    if regimes.iter().any(|(_, report)| report.interrupted) {
        head += &format!(", ended by {}", ended_by.unwrap_or(CTRL_C));
    }
    let table =
        if is_comparison { comparison(&regimes, emphasis) } else { of_tenants(own, TENANTS, emphasis) };
    let mut text = format!("{}\n\n{table}\n", emphasis.heading(&head));
    for &(title, report) in &regimes {
        let outcome = sentences::outcome_of(("query", "queries"), is_comparison, report);
        let sentence = match title {
            ALONE => format!("Without the runaways, {outcome}."),
            title => format!("With {title}, {outcome}."),
        };
        text += &wrapped(&sentence);
    }
    if !is_comparison {
        text += &wrapped(&memory(own));
    }
    if own.tenants.iter().any(|tenant| tenant.first_refusal.is_some()) {
        text += &(emphasis.aside(REFUSALS) + "\n");
    }
    text
}

/// The reports that there are, with the titles of their columns.
fn regimes(report: &Report) -> Vec<(&'static str, &RegimeReport)> {
    let all = [
        ("memgroup", Some(&report.memgroup)),
        (ALONE, report.alone.as_ref()),
        ("Greedy", report.greedy.as_ref()),
        ("FairSpill", report.fair_spill.as_ref()),
        ("TrackConsumers", report.track_consumers.as_ref()),
    ];
    all.into_iter().filter_map(|(title, report)| Some((title, report?))).collect()
}

/// The sentence about the most memory.
fn memory(report: &RegimeReport) -> String {
    let resident = units::bytes(report.resident_peak.unwrap_or(0));
    let of = report.all.max.map(|max| format!(" of {}", units::limit(Some(max)))).unwrap_or_default();
    let charged = units::bytes(report.all.peak.unwrap_or(0));
    format!("Most memory: {resident} resident, {charged}{of} charged.")
}

/// One column a regime, one row a figure.
fn comparison(regimes: &[(&str, &RegimeReport)], emphasis: Emphasis) -> String {
    let own = regimes[0].1;
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    let mut row = |title: String, figure: &dyn Fn(&RegimeReport) -> Cell| {
        let figures = regimes.iter().map(|(_, report)| figure(report));
        rows.push([cell(title)].into_iter().chain(figures).collect());
    };
    let well_behaved = TenantReport::is_well_behaved as fn(&TenantReport) -> bool;
    row("finished".to_owned(), &|report| count(report.sum(well_behaved, |tenant| tenant.done)));
    row("finished a minute".to_owned(), &|report| {
        let done = report.sum(well_behaved, |tenant| tenant.done) as f64;
        cell(format!("{:.1}", done * 60.0 / report.seconds))
    });
    row("failed".to_owned(), &|report| {
        let failed = report.sum(well_behaved, TenantReport::failed);
        count(failed).alarm_if(failed > 0)
    });
    let begun_anew = |tenant: &TenantReport| tenant.begun_anew.unwrap_or(0);
    row("begun anew".to_owned(), &|report| count(report.sum(well_behaved, begun_anew)));
    let spilled = |tenant: &TenantReport| tenant.spilled.unwrap_or(0);
    row("spilled".to_owned(), &|report| bytes(report.sum(well_behaved, spilled)));
    for (index, tenant) in own.tenants.iter().enumerate().filter(|(_, tenant)| tenant.is_greedy()) {
        let name = &tenant.name;
        row(format!("{name}: finished, failed"), &|report| {
            let tenant = &report.tenants[index];
            cell(format!("{}, {}", units::count(tenant.done), units::count(tenant.failed())))
        });
        row(format!("{name}: begun anew"), &|report| count(begun_anew(&report.tenants[index])));
        row(format!("{name}: spilled"), &|report| bytes(spilled(&report.tenants[index])));
    }
    row("most resident".to_owned(), &|report| known(report.resident_peak, units::bytes));
    row("most charged".to_owned(), &|report| known(report.all.peak, units::bytes));
    let alone = regimes.iter().find(|(title, _)| *title == ALONE).map(|(_, report)| report);
    for (index, tenant) in own.tenants.iter().enumerate().filter(|(_, tenant)| well_behaved(tenant)) {
        let name = &tenant.name;
        row(format!("{name}: p50"), &|report| known(report.tenants[index].p50_us, units::duration_us));
        row(format!("{name}: p99"), &|report| known(report.tenants[index].p99_us, units::duration_us));
        let Some(alone) = alone else { continue };
        row(format!("{name}: p99 over alone"), &|report| {
            let both = report.tenants[index].p99_us.zip(alone.tenants[index].p99_us);
            known(both, |(p99, alone)| format!("{:.2}", p99 / alone))
        });
    }
    let titles: Vec<&str> = [""].into_iter().chain(regimes.iter().map(|(title, _)| *title)).collect();
    aligned(&titles, &rows, rows.len(), emphasis)
}
