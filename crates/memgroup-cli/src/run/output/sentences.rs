//! Sentences: what happened to each tenant, in words.

use crate::run::base::units;
use crate::run::report::{RegimeReport, Report, Server, TenantReport};

/// Columns of a line.
const WIDTH: usize = 100;

/// A sentence for each tenant, after those about servers.
pub(super) fn of_report(report: &Report) -> String {
    let regimes = [("With memgroup", Some(&report.memgroup)), ("Without memgroup", report.baseline.as_ref())];
    let regimes = regimes.into_iter().filter_map(|(title, regime)| Some((title, regime?.server.as_ref()?)));
    let servers = regimes.map(|(title, server)| of_server(title, server));
    let tenants = report.memgroup.tenants.iter().enumerate();
    let tenants = tenants.map(|(at, tenant)| {
        let other = report.baseline.as_ref().map(|other| &other.tenants[at]);
        of_tenant(tenant, &report.memgroup, other)
    });
    servers.chain(tenants).map(|sentence| wrapped(&sentence)).collect()
}

fn of_server(title: &str, server: &Server) -> String {
    let resident = units::bytes(server.resident_peak);
    let end = match (server.died_seconds, &server.died_of) {
        (Some(seconds), of) => format!(
            "died after {} ({})",
            units::duration_us(seconds * 1e6),
            of.as_deref().unwrap_or("unknown")
        ),
        _ => "lived".to_owned(),
    };
    format!("{title} the server {end}; at most {resident} of it were in memory.")
}

/// The outcome of a tenant's work, and what the engine did for it or to it.
fn of_tenant(tenant: &TenantReport, report: &RegimeReport, without: Option<&TenantReport>) -> String {
    let units = if report.server.is_some() { ["request", "requests"] } else { ["statement", "statements"] };
    let mut parts = vec![outcome(tenant, units)];
    let mut add = |part: Option<String>| parts.extend(part);
    if let Some(group) = report.group(&tenant.name) {
        let share = group.fair_share.as_ref();
        let bytes = |bytes: u64| (bytes > 0).then(|| units::bytes(bytes));
        add(share
            .and_then(|share| bytes(share.given))
            .map(|given| format!("its caches gave {given} to other tenants")));
        add(share
            .and_then(|share| bytes(share.taken))
            .map(|taken| format!("it was given {taken} by caches of others")));
        let would = group.events_local.would_refuse;
        add((would > 0).then(|| {
            format!(
                "its limit is not enforced, and would have refused {} charge{}",
                units::count(would),
                if would == 1 { "" } else { "s" }
            )
        }));
    }
    add(tenant.idle.map(|idle| {
        let [then, now] = [idle.page_cache, tenant.page_cache].map(units::bytes);
        format!(
            "it was idle from second {:.1}, and kept {now} of {then} in its page cache",
            idle.since_seconds
        )
    }));
    add(without.map(|other| format!("without memgroup {}", outcome(other, units))));
    format!("`{}`: {}.", tenant.name, parts.join("; "))
}

/// The statements or requests that failed.
fn outcome(tenant: &TenantReport, [one, many]: [&str; 2]) -> String {
    let tally = &tenant.tally;
    let counts = [(tally.refused, "refused"), (tally.killed, "stopped"), (tally.lost, "lost")];
    let counts: Vec<_> = counts
        .into_iter()
        .filter(|&(count, _)| count > 0)
        .map(|(count, verb)| format!("{} {verb}", units::count(count)))
        .collect();
    match (tally.failed(), tally.done) {
        (0, 0) if tally.interrupted == 0 => format!("no {one} began before the run ended"),
        (0, _) => format!("no {one} failed"),
        (_, 0) => format!("all {many} failed for lack of memory ({})", counts.join(", ")),
        (failed, done) => format!(
            "{} of {} {many} failed for lack of memory ({})",
            units::count(failed),
            units::count(failed + done),
            counts.join(", ")
        ),
    }
}

/// Breaks `text` into lines of at most `WIDTH` columns. Later lines are indented.
fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > WIDTH {
            lines += "\n  ";
            column = 2;
        } else if column > 0 {
            lines.push(' ');
            column += 1;
        }
        lines += word;
        column += length;
    }
    lines + "\n"
}
