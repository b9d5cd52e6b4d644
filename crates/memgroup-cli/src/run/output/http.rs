//! Summary of a run with the engine `http`: a table of tenants for each server, and sentences.

use super::sentences;
use super::summary::{head, wrapped};
use super::table::{Column, DONE, Emphasis, MAX, P50, P99, PEAK, REFUSED, STOPPED, count, of_tenants};
use crate::run::base::units;
use crate::run::report::{RegimeReport, Report, Server, TenantReport};

/// Results of the requests of each tenant, their latencies, and its memory.
const TENANTS: &[Column] = &[
    DONE,
    REFUSED,
    STOPPED,
    ("lost", |tenant| count(tenant.lost.unwrap_or(0)).alarm_if(tenant.lost > Some(0))),
    P50,
    P99,
    PEAK,
    MAX,
];

/// The whole report as text.
pub(super) fn of_report(report: &Report, emphasis: Emphasis) -> String {
    let own = &report.memgroup;
    let mut head = head("requests", own);
    if let Some(bound) = own.server.as_ref().and_then(|server| server.bound.as_ref()) {
        head += &format!(", server under {bound}");
    }
    if own.interrupted || report.baseline.as_ref().is_some_and(|report| report.interrupted) {
        head += ", ended by Ctrl-C";
    }
    let mut text = emphasis.heading(&head) + "\n";
    let servers = [("With memgroup", Some(own)), ("Without memgroup", report.baseline.as_ref())];
    let servers = || servers.iter().filter_map(|&(title, report)| Some((title, report?)));
    for (title, report) in servers() {
        let title = if servers().count() > 1 { format!("{title}\n") } else { String::new() };
        text += &format!("\n{}{}", emphasis.heading(&title), of_tenants(report, TENANTS, emphasis));
    }
    text += "\n";
    for (title, report) in servers() {
        text.extend(sentences_of(title, report).iter().map(|sentence| wrapped(sentence)));
    }
    text
}

fn sentences_of(title: &str, report: &RegimeReport) -> Vec<String> {
    let Some(server) = &report.server else { return Vec::new() };
    let well_behaved = TenantReport::is_well_behaved as fn(&TenantReport) -> bool;
    let outcome = match died(server) {
        Some(died) => {
            let failed = report.sum(well_behaved, TenantReport::failed);
            let all = failed + report.sum(well_behaved, |tenant| tenant.done);
            let [failed, all] = [failed, all].map(units::count);
            format!("{title} the server {died}; {failed} of {all} requests of well-behaved tenants failed.")
        }
        None => format!(
            "{title} the server lived; {}.",
            sentences::outcome_of(("request", "requests"), false, report)
        ),
    };
    let resident = units::bytes(server.resident_peak);
    let charged = report.all.peak.map(|peak| {
        let of = report.all.max.map(|max| format!(" of {}", units::limit(Some(max)))).unwrap_or_default();
        format!(", {}{of} charged", units::bytes(peak))
    });
    let memory = format!("{title}, most memory: {resident} resident{}.", charged.unwrap_or_default());
    vec![outcome, memory]
}

/// The end of a server that died.
fn died(server: &Server) -> Option<String> {
    let (seconds, status) = (server.died_seconds?, server.died_of.as_deref().unwrap_or("unknown"));
    Some(format!("died after {} ({status})", units::duration_us(seconds * 1e6)))
}
