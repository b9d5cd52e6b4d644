//! Tables of a report, printed for a terminal, and the text of figures in them.

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, TableStyle, Width};
use serde::{Deserialize, Serialize};

use super::stats::Summary;

/// Columns of a terminal for titles and notes.
pub(crate) const WIDTH: usize = 100;

/// The most columns of a table.
const WIDTH_MOST: u16 = 108;

/// A titled table under construction. The first row has the names of its columns.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) rows: Vec<Vec<String>>,
    pub(crate) notes: Vec<String>,
}

impl Table {
    pub(crate) fn new<'c>(title: impl Into<String>, columns: impl IntoIterator<Item = &'c str>) -> Table {
        let columns = columns.into_iter().map(str::to_owned).collect();
        Table { title: title.into(), rows: vec![columns], notes: Vec::new() }
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
        let mut table = comfy_table::Table::new();
        let below_header = LineStyle::none().fill('-').junction('-');
        table.load_style(TableStyle::new().header_separator(below_header));
        table.set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(WIDTH_MOST).set_header(&self.rows[0]).add_rows(&self.rows[1..]);
        for (index, column) in table.column_iter_mut().enumerate() {
            if index == 0 {
                column.set_constraint(ColumnConstraint::ContentWidth);
                continue;
            }
            // No word is broken; the padding takes two columns.
            let words = self.rows.iter().flat_map(|row| row[index].split(' '));
            let longest = words.map(|word| word.chars().count()).max().unwrap_or(0) as u16 + 2;
            column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(longest)));
            column.set_cell_alignment(CellAlignment::Right);
        }
        let title = wrapped(&self.title, WIDTH);
        let rows = table.lines().map(|line| format!(" {}", line.trim_end()));
        let notes =
            self.notes.iter().flat_map(|note| wrapped(note, WIDTH - 2)).map(|line| format!("  {line}"));
        title.into_iter().chain(rows).chain(notes).map(|line| line + "\n").collect()
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

/// "x3.0", or nothing where a side is missing.
pub(crate) fn times(ratio: Option<f64>) -> String {
    ratio.map_or_else(String::new, |ratio| format!("x{}", figure(ratio)))
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
            "pairs\n  variant      ns\n -----------------\n  stock      5.10\n  no stock    350\n  two threads\n"
        );
    }

    #[test]
    fn breaks_cells_that_have_no_room_but_no_names() {
        let mut table = Table::new("wide", ["variant", "first", "second"]);
        let name = "a name that is as long as it must be and stays in one line";
        table.row(name, ["figure ".repeat(20), "figure ".repeat(20)]);
        let text = table.render();
        assert!(text.contains(name) && text.lines().all(|line| line.chars().count() <= 110), "{text}");
        assert_eq!(text.matches("figure").count(), 40, "{text}");
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
