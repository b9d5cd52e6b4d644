//! The report for a reader: a table with a row for each tenant and one for all, and a sentence for
//! each tenant. In a comparison each row has a second one, without memgroup.

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

use crate::run::base::units;
use crate::run::report::{Held, RegimeReport, Report, Server, Tally, TenantReport};

/// Columns of a line.
const WIDTH: usize = 100;

/// The figures of a row: results, p50 and p99, memory.
type Figures<'a> = (&'a Tally, [Option<f64>; 2], Held);

/// The title of a column, and its cells.
type Column = (&'static str, fn(&Figures<'_>) -> String);

const COLUMNS: [Column; 9] = [
    ("done", |(tally, ..)| units::count(tally.done)),
    ("refused", |(tally, ..)| units::count(tally.refused)),
    ("stopped", |(tally, ..)| units::count(tally.killed)),
    ("lost", |(tally, ..)| units::count(tally.lost)),
    ("retried", |(tally, ..)| units::count(tally.retried)),
    ("p50", |(_, [p50, _], _)| known(*p50, units::duration_us)),
    ("p99", |(_, [_, p99], _)| known(*p99, units::duration_us)),
    ("peak", |(.., held)| known(held.peak, units::bytes)),
    ("max", |(.., held)| known(held.max, |max| units::limit(Some(max)))),
];

fn known<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

/// Returns the cells of each tenant, and of all tenants together.
fn cells(report: &RegimeReport, columns: &[&Column]) -> Vec<Vec<String>> {
    let sum = report.sum();
    let tenants =
        report.tenants.iter().map(|tenant| (&tenant.tally, [tenant.p50_us, tenant.p99_us], tenant.held));
    let rows = tenants.chain([(&sum, [None; 2], report.all)]);
    rows.map(|row| columns.iter().map(|(_, cell)| cell(&row)).collect()).collect()
}

/// Returns the table, with a line end after each line.
pub(super) fn table(report: &Report) -> String {
    let own = &report.memgroup;
    // Only requests are lost, and only statements are retried.
    let unused = if own.server.is_some() { "retried" } else { "lost" };
    let columns: Vec<&Column> = COLUMNS.iter().filter(|(title, _)| *title != unused).collect();
    let names = own.tenants.iter().map(|tenant| tenant.name.as_str()).chain(["all tenants"]);
    let mut without = report.baseline.as_ref().map(|other| cells(other, &columns).into_iter());
    let mut table = Table::new();
    table.load_style(TableStyle::new().header_separator(LineStyle::none().fill('-').junction('-')));
    table.set_header(["tenant"].into_iter().chain(columns.iter().map(|(title, _)| *title)));
    for (name, cells) in names.zip(cells(own, &columns)) {
        table.add_row([name.to_owned()].into_iter().chain(cells));
        let other = without.as_mut().and_then(Iterator::next);
        other.map(|cells| table.add_row(["  without memgroup".to_owned()].into_iter().chain(cells)));
    }
    table.column_iter_mut().skip(1).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Returns a sentence for each tenant, after those about servers.
pub(super) fn sentences(report: &Report) -> String {
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
    let end = server.died_seconds.map(|seconds| {
        let of = server.died_of.as_deref().unwrap_or("unknown");
        format!("died after {} ({of})", units::duration_us(seconds * 1e6))
    });
    let end = end.unwrap_or_else(|| "lived".to_owned());
    format!("{title} the server {end}; at most {resident} of it were in memory.")
}

/// Describes the outcome of a tenant's work, and what the engine did for it or to it.
fn of_tenant(tenant: &TenantReport, report: &RegimeReport, without: Option<&TenantReport>) -> String {
    let units = if report.server.is_some() { ["request", "requests"] } else { ["statement", "statements"] };
    let mut parts = vec![outcome(tenant, units)];
    let mut add = |part: Option<String>| parts.extend(part);
    if let Some(group) = report.group(&tenant.name) {
        let share = group.fair_share;
        let given = share.map_or(0, |share| share.given);
        add((given > 0).then(|| format!("its caches gave {} to other tenants", units::bytes(given))));
        let taken = share.map_or(0, |share| share.taken);
        add((taken > 0).then(|| format!("it was given {} by caches of others", units::bytes(taken))));
        let would = group.events_local.would_refuse;
        let (count, plural) = (units::count(would), if would == 1 { "" } else { "s" });
        add((would > 0)
            .then(|| format!("its limit is not enforced, and would have refused {count} charge{plural}")));
    }
    // The HTTP server has no page caches.
    add(tenant.idle.filter(|_| report.server.is_none()).map(|idle| {
        let ([then, now], since) =
            ([idle.page_cache, tenant.page_cache].map(units::bytes), idle.since_seconds);
        format!("it was idle from second {since:.1}, and kept {now} of {then} in its page cache")
    }));
    add(without.map(|other| format!("without memgroup {}", outcome(other, units))));
    format!("`{}`: {}.", tenant.name, parts.join("; "))
}

/// Describes the statements or requests that failed.
fn outcome(tenant: &TenantReport, [one, many]: [&str; 2]) -> String {
    let tally = &tenant.tally;
    let counts = [(tally.refused, "refused"), (tally.killed, "stopped"), (tally.lost, "lost")];
    let counts: Vec<_> = counts
        .into_iter()
        .filter(|&(count, _)| count > 0)
        .map(|(count, verb)| format!("{} {verb}", units::count(count)))
        .collect();
    let tries = units::count(tally.retried);
    match (tally.failed(), tally.done) {
        (0, 0) if tally.retried > 0 => format!("no {one} ended: all {tries} tries lacked memory"),
        (0, 0) if tally.interrupted == 0 => format!("no {one} began before the run ended"),
        (0, _) if tally.retried > 0 => format!("no {one} failed, after {tries} tries that lacked memory"),
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

/// Breaks `text` into lines of at most `WIDTH` columns. All but the first are indented.
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
