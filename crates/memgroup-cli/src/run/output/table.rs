//! Table: cells in aligned columns, with emphasis on a terminal.

use crate::run::base::progress::{has_colours, is_dumb_terminal};
use crate::run::base::units;
use crate::run::report::{RegimeReport, TenantReport};

/// Whether text is emphasised with terminal codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Emphasis(pub(super) bool);

impl Emphasis {
    /// On a terminal with colours.
    pub(super) fn on(is_terminal: bool) -> Emphasis {
        Emphasis(is_terminal && has_colours() && !is_dumb_terminal())
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(super) fn heading(self, text: &str) -> String {
        self.wrap("1", text)
    }

    pub(super) fn alarm(self, text: &str) -> String {
        self.wrap("31", text)
    }

    pub(super) fn aside(self, text: &str) -> String {
        self.wrap("2", text)
    }
}

/// One cell of a table.
#[derive(Debug, Clone)]
pub(super) struct Cell {
    text: String,
    is_alarming: bool,
}

impl Cell {
    /// The cell, emphasised if it `is_alarming`.
    pub(super) fn alarm_if(self, is_alarming: bool) -> Cell {
        Cell { is_alarming, ..self }
    }
}

/// Title of a column, and its cell in the row of a tenant.
pub(super) type Column = (&'static str, fn(&TenantReport) -> Cell);

/// Columns of all engines: results, latencies, and memory.
pub(super) const DONE: Column = ("done", |tenant| count(tenant.done));
pub(super) const REFUSED: Column =
    ("refused", |tenant| count(tenant.refused).alarm_if(tenant.refused > 0 && tenant.is_well_behaved()));
pub(super) const STOPPED: Column =
    ("stopped", |tenant| count(tenant.killed).alarm_if(tenant.killed > 0 && tenant.is_well_behaved()));
pub(super) const P50: Column = ("p50", |tenant| known(tenant.p50_us, units::duration_us));
pub(super) const P99: Column = ("p99", |tenant| known(tenant.p99_us, units::duration_us));
pub(super) const PEAK: Column = ("peak", |tenant| known(tenant.held.peak, units::bytes));
pub(super) const MAX: Column = ("max", |tenant| known(tenant.held.max, |max| units::limit(Some(max))));

/// A cell with `text`.
pub(super) fn cell(text: impl Into<String>) -> Cell {
    Cell { text: text.into(), is_alarming: false }
}

/// A cell with a count.
pub(super) fn count(count: u64) -> Cell {
    cell(units::count(count))
}

/// A cell with bytes.
pub(super) fn bytes(bytes: u64) -> Cell {
    cell(units::bytes(bytes))
}

/// A cell with a known value, or `-`.
pub(super) fn known<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> Cell {
    cell(value.map_or_else(|| "-".to_owned(), show))
}

/// One row a tenant, and one for all tenants together.
pub(super) fn of_tenants(report: &RegimeReport, columns: &[Column], emphasis: Emphasis) -> String {
    let titles: Vec<&str> = ["tenant"].into_iter().chain(columns.iter().map(|(title, _)| *title)).collect();
    let row = |tenant: &TenantReport| {
        let cells = columns.iter().map(|(_, cell_of)| cell_of(tenant));
        [cell(&tenant.name)].into_iter().chain(cells).collect()
    };
    let rows: Vec<_> = report.tenants.iter().chain([&report.total()]).map(row).collect();
    aligned(&titles, &rows, report.tenants.len(), emphasis)
}

/// Aligns the columns: the first to the left, the others to the right. A rule stands below the titles, and above the rows from
/// `ruled` on.
pub(super) fn aligned(titles: &[&str], rows: &[Vec<Cell>], ruled: usize, emphasis: Emphasis) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].text.chars().count());
        cells.chain([titles[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let line = |row: &[Cell]| {
        let mut line = String::new();
        for (column, Cell { text, is_alarming }) in row.iter().enumerate() {
            let padding = " ".repeat(widths[column] - text.chars().count());
            let text = if *is_alarming { emphasis.alarm(text) } else { text.clone() };
            match column {
                0 => line += &format!("{text}{padding}"),
                _ => line += &format!("  {padding}{text}"),
            }
        }
        line.truncate(line.trim_end().len());
        line
    };
    let titles: Vec<Cell> = titles.iter().map(|&title| cell(title)).collect();
    let rule = emphasis.aside(&"-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1)));
    let mut text = format!("{}\n{rule}\n", emphasis.heading(&line(&titles)));
    for (number, row) in rows.iter().enumerate() {
        if number == ruled {
            text += &format!("{rule}\n");
        }
        text += &(line(row) + "\n");
    }
    text
}
