//! Table: a row for each tenant and one for all; in a comparison also those without memgroup.

use comfy_table::{CellAlignment, LineStyle, Table, TableStyle};

use crate::run::base::units;
use crate::run::report::{Held, RegimeReport, Report, Tally};

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

/// The cells of each tenant, and of all tenants together.
fn cells(report: &RegimeReport, columns: &[&Column]) -> Vec<Vec<String>> {
    let sum = report.sum();
    let tenants =
        report.tenants.iter().map(|tenant| (&tenant.tally, [tenant.p50_us, tenant.p99_us], tenant.held));
    let rows = tenants.chain([(&sum, [None; 2], report.all)]);
    rows.map(|row| columns.iter().map(|(_, cell)| cell(&row)).collect()).collect()
}

/// The whole table, with a line end after each line.
pub(super) fn of_report(report: &Report) -> String {
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
