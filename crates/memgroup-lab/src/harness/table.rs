//! Plain text tables: the first column left, the rest right, as wide as they must be. Columns for which a line has no room stand
//! below, beside the names again.

use std::fmt::Write;

use super::stats::Summary;

/// Columns of a terminal. Titles and notes stay within, and tables of ordinary figures too.
pub(crate) const WIDTH: usize = 100;

/// The most columns of a line, with the largest figures of a slow machine.
const WIDTH_MOST: usize = 110;

/// A titled table under construction.
pub(crate) struct Table {
    title: String,
    rows: Vec<Vec<String>>,
    notes: Vec<String>,
}

impl Table {
    pub(crate) fn new<const N: usize>(title: impl Into<String>, columns: [&str; N]) -> Table {
        Table { title: title.into(), rows: vec![columns.map(str::to_owned).to_vec()], notes: Vec::new() }
    }

    /// Adds a row: its name, and a cell for each further column.
    ///
    /// # Panics
    /// When the row has another number of cells than the table has columns.
    pub(crate) fn row(&mut self, name: impl Into<String>, cells: impl IntoIterator<Item = String>) {
        let row: Vec<String> = std::iter::once(name.into()).chain(cells).collect();
        assert_eq!(row.len(), self.rows[0].len(), "cells of a row of \"{}\"", self.title);
        self.rows.push(row);
    }

    /// A line under the table.
    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    pub(crate) fn render(&self) -> String {
        let widths: Vec<usize> = (0..self.rows[0].len())
            .map(|column| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        let mut text = String::new();
        for line in wrapped(&self.title, WIDTH) {
            let _ = writeln!(text, "{line}");
        }
        let mut begin = 1;
        loop {
            let mut columns = widths[0];
            let mut end = begin;
            while end < widths.len() && (end == begin || columns + 2 + widths[end] <= WIDTH_MOST - 2) {
                columns += 2 + widths[end];
                end += 1;
            }
            for (index, row) in self.rows.iter().enumerate() {
                let mut line = format!("{:<1$}", row[0], widths[0]);
                for (cell, width) in row.iter().zip(&widths).take(end).skip(begin) {
                    let _ = write!(line, "  {cell:>width$}");
                }
                let _ = writeln!(text, "  {}", line.trim_end());
                if index == 0 {
                    let _ = writeln!(text, "  {}", "-".repeat(columns));
                }
            }
            begin = end;
            if begin == widths.len() {
                break;
            }
            text.push('\n');
        }
        for line in self.notes.iter().flat_map(|note| wrapped(note, WIDTH - 2)) {
            let _ = writeln!(text, "  {line}");
        }
        text
    }
}

/// A text in lines of at most `width` columns, broken between words.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is a first line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// A count, in groups of three digits.
pub(crate) fn count(value: u64) -> String {
    grouped(value as f64)
}

/// "1 group", "8 groups".
pub(crate) fn counted(value: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(value), if value == 1 { "" } else { "s" })
}

/// A figure with three digits, or in groups of three where it is larger.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => grouped(value),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The cell of a missing figure.
pub(crate) fn dash() -> String {
    "-".to_owned()
}

/// A figure, or a dash where there is none.
pub(crate) fn figure_or_dash(value: Option<f64>) -> String {
    value.map_or_else(dash, figure)
}

/// Nanoseconds as microseconds, or a dash.
pub(crate) fn us_or_dash(ns: Option<f64>) -> String {
    figure_or_dash(ns.map(|ns| ns / 1e3))
}

/// "x3.0", or nothing where a side is missing.
pub(crate) fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(String::new, |ratio| format!("x{}", figure(ratio)))
}

/// In whole KiB, rounded up.
pub(crate) fn kib(bytes: u64) -> String {
    count(bytes.div_ceil(1024))
}

/// "5.10 (5.02..5.31)": median, smallest and ninetieth percentile; a dash where nothing counted.
pub(crate) fn spread(of: Option<Summary>) -> String {
    let text = |of: Summary| format!("{} ({}..{})", figure(of.median), figure(of.min), figure(of.p90));
    of.map_or_else(dash, text)
}

fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligns_columns() {
        let mut table = Table::new("pairs", ["variant", "ns"]);
        table.row("stock", ["5.10".into()]);
        table.row("no stock", ["350".into()]);
        table.note("two threads");
        assert_eq!(
            table.render(),
            "pairs\n  variant     ns\n  --------------\n  stock     5.10\n  no stock   350\n  two threads\n"
        );
    }

    #[test]
    fn puts_columns_without_room_below_beside_the_names() {
        let mut table = Table::new("wide", ["variant", "first", "second", "third"]);
        table.row("stock", ["a".repeat(40), "b".repeat(57), "c".repeat(120)]);
        let text = table.render();
        let lines: Vec<&str> = text.lines().collect();
        let of = |part: &str| lines.iter().position(|line| line.contains(part)).unwrap();
        assert_eq!(
            (of("first"), of(&"a".repeat(40))),
            (of("second"), of(&"b".repeat(57))),
            "110 columns:\n{text}"
        );
        assert_eq!(lines[of("first")].chars().count(), WIDTH_MOST);
        assert!(of("third") > of(&"b".repeat(57)), "{text}");
        assert_eq!(text.matches("  stock  ").count(), 2, "{text}");
    }

    #[test]
    fn breaks_long_notes_and_titles_between_words() {
        let mut table = Table::new("word ".repeat(30).trim_end(), ["a", "b"]);
        table.note("word ".repeat(30).trim_end());
        let text = table.render();
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert_eq!(text.matches("word").count(), 60);
    }

    #[test]
    fn prints_counts_without_decimals_and_nouns_in_number() {
        assert_eq!([0, 5, 1234].map(count), ["0", "5", "1,234"]);
        assert_eq!([1, 8].map(|groups| counted(groups, "group")), ["1 group", "8 groups"]);
    }

    #[test]
    fn prints_figures_with_three_digits_or_in_groups() {
        let texts: Vec<String> = [0.272, 5.104, 35.04, 350.4, 18_425_800.0, -1234.4].map(figure).to_vec();
        assert_eq!(texts, ["0.27", "5.10", "35.0", "350", "18,425,800", "-1,234"]);
        assert_eq!(figure_or_dash(None), "-");
    }
}
