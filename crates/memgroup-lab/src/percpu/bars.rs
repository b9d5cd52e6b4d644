//! A bar chart in text: bars in groups, all to one scale, with a mark at one figure.
//!
//!   removed      depopulation     ██│█████                        27.4 %
//!   maintained   no depopulation  ██│███████████████████████████  100 %
//!                depopulation     ██│███▋                         22.2 %

use std::fmt::Write;

use crate::harness::table::figure;

/// Columns of the longest bar.
const BAR_COLUMNS: usize = 50;
/// A column in eighths, from none on.
const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// Stands in place of a bar's cell, or of the space behind it.
pub(super) const MARK: char = '│';

/// One bar: its name and its length in percent of the longest there can be.
pub(super) struct Bar {
    pub(super) name: String,
    pub(super) percent: f64,
}

/// Draws groups of bars under a title, with a mark at `mark_percent` in each.
pub(super) fn chart(title: &str, mark_percent: f64, groups: &[(&str, Vec<Bar>)]) -> String {
    let width =
        |names: &mut dyn Iterator<Item = &str>| names.map(|name| name.chars().count()).max().unwrap_or(0);
    let label_columns = width(&mut groups.iter().map(|(label, _)| *label));
    let name_columns =
        width(&mut groups.iter().flat_map(|(_, bars)| bars.iter().map(|bar| bar.name.as_str())));
    let mut text = format!("{title}\n");
    for (label, bars) in groups {
        for (index, bar) in bars.iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            let (drawn, name) = (marked(&drawn(bar.percent), mark_percent), &bar.name);
            let percent = figure(bar.percent);
            let _ = writeln!(
                text,
                "  {label:<label_columns$}  {name:<name_columns$}  {drawn:<BAR_COLUMNS$} {percent:>6} %"
            );
        }
    }
    text
}

/// A bar as wide as the longest, with the mark in the column in which the mark's own bar would end.
fn marked(bar: &str, percent: f64) -> String {
    let at = ((percent / 100.0 * BAR_COLUMNS as f64) as usize).min(BAR_COLUMNS - 1);
    let cells = bar.chars().chain(std::iter::repeat(' ')).take(BAR_COLUMNS);
    cells.enumerate().map(|(column, cell)| if column == at { MARK } else { cell }).collect()
}

fn drawn(percent: f64) -> String {
    let eighths = (percent.clamp(0.0, 100.0) / 100.0 * (BAR_COLUMNS * 8) as f64).round() as usize;
    // Something is not nothing.
    let eighths = if percent > 0.0 { eighths.max(1) } else { 0 };
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_figures_and_fit_a_terminal() {
        let bars = |percents: [f64; 2]| {
            ["no depopulation", "with cold demotion"]
                .into_iter()
                .zip(percents)
                .map(|(name, percent)| Bar { name: name.to_owned(), percent })
                .collect()
        };
        let text =
            chart("populated", 30.0, &[("created", bars([100.0, 50.0])), ("maintained", bars([9.1, 0.0]))]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines.iter().all(|line| line.chars().count() <= 100), "{text}");
        let full = |line: &str| line.matches('█').count();
        assert_eq!([1, 2, 3, 4].map(|line| full(lines[line])), [49, 24, 4, 0]);
        assert!(lines[3].contains("████▌") && lines[3].starts_with("  maintained"), "{text}");
        let mark = |line: &str| line.chars().position(|cell| cell == MARK);
        assert!(
            mark(lines[1]).is_some() && lines[1..].iter().all(|line| mark(line) == mark(lines[1])),
            "{text}"
        );
        let end = |line: &str| line.chars().count();
        assert!(lines[1..].iter().all(|line| end(line) == end(lines[1])), "{text}");
    }

    #[test]
    fn the_mark_stands_where_its_own_bar_ends() {
        let at = |percent| marked("", percent).chars().position(|cell| cell == MARK);
        assert_eq!([0.0, 9.09, 50.0, 100.0].map(at), [0, 4, 25, 49].map(Some));
        assert_eq!(marked("██████", 9.09).trim_end(), "████│█");
    }

    #[test]
    fn the_least_figure_is_seen() {
        assert_eq!(drawn(0.01), "▏");
        assert_eq!(drawn(0.0), "");
        assert_eq!(drawn(130.0).chars().count(), BAR_COLUMNS);
    }
}
