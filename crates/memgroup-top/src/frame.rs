//! Frame: a snapshot as lines of a given width, one for each group.
//!
//! ```text
//!   group          usage of max          usage     peak     max   refused
//!   /                                    51.9M    80.2M     max         0
//!     tenants      [########....|...]    51.9M    80.2M    100M         0
//!       lookups    [###########|....]     8.4M     8.6M     12M         0
//! ```
//!
//! - I1. No line is wider than the given width. A cut text ends with an ellipsis.
//! - I2. A narrow line first loses the columns that need a wide one, then its bar, then other
//!   columns from the right. Names and usage are the last to go, and a name is cut last.
//! - I3. The severest events come first and are cut last. No count is cut in two.

use memgroup::{FairShare, GroupSnapshot};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};

use crate::text;

/// The widest bar, its brackets included.
const BAR_MAX: usize = 60;
/// The narrowest bar.
const BAR_MIN: usize = 8;
/// Width of a name before any column is shown.
const NAME_MIN: usize = 8;
/// Width of a long name before a bar or a column besides usage is shown.
const NAME_WANTED: usize = 16;
/// Width of the events.
const EVENTS_WIDTH: usize = 36;
/// Space between columns.
const GAP: usize = 2;
/// Indentation of a group below its parent, unless names are cut: then it's 1.
const INDENT: usize = 2;
/// Shares of the limit from which a bar is yellow, and red. The page of memgroup-serve has the
/// same.
const WARNING: f64 = 0.75;
const ALARM: f64 = 0.90;

/// A tree of groups at one moment.
pub(crate) struct Frame<'a> {
    pub(crate) groups: &'a [GroupSnapshot],
    /// Positions of the groups that are shown, in their order.
    pub(crate) order: &'a [usize],
    /// The beginning of the first line.
    pub(crate) time: String,
}

/// A column of figures.
struct Column {
    title: &'static str,
    width: usize,
    /// The smallest width of a line that shows the column: without fair shares, and with them.
    from: [usize; 2],
    /// Texts are aligned to the left, figures to the right.
    is_text: bool,
    cell: fn(&Frame<'_>, &GroupSnapshot) -> String,
}

/// The width of a line that has no such column.
const NEVER: usize = usize::MAX;

const COLUMNS: &[Column] = &[
    figure("usage", 7, [0, 0], |_, group| text::bytes(group.usage_bytes)),
    figure("peak", 7, [80, 80], |_, group| text::bytes(group.peak_bytes)),
    figure("max", 6, [0, 0], |_, group| limit(group)),
    figure("refused", 8, [0, 0], |_, group| text::count(group.refusals)),
    figure("excess", 7, [NEVER, 100], |_, group| shared(group, |share| text::bytes(share.excess))),
    figure("given", 7, [NEVER, 100], |_, group| shared(group, |share| text::bytes(share.given))),
    figure("received", 8, [NEVER, 120], |_, group| shared(group, |share| text::bytes(share.taken))),
    Column { is_text: true, ..figure("last to", 10, [NEVER, 120], |frame, group| frame.given_to(group)) },
    figure("hit rate", 8, [100, 140], |_, group| group.stock.hit_rate().map_or_else(none, percent)),
    figure("stalled", 7, [120, 140], |_, group| format!("{:.1} %", group.pressure.some.avg10)),
    figure("waits", 5, [140, 160], |_, group| text::count(group.waiters.now as u64)),
    Column { is_text: true, ..figure("events", EVENTS_WIDTH, [140, 180], |_, group| events(group)) },
];

const fn figure(
    title: &'static str,
    width: usize,
    from: [usize; 2],
    cell: fn(&Frame<'_>, &GroupSnapshot) -> String,
) -> Column {
    Column { title, width, from, is_text: false, cell }
}

/// Returns the group's own limit; without one, its fair share after a tilde.
pub(crate) fn limit(group: &GroupSnapshot) -> String {
    match (group.limits.max_bytes, group.fair_share) {
        (None, Some(share)) => format!("~{}", text::rough_bytes(share.bytes)),
        (max, _) => text::limit(max),
    }
}

fn shared(group: &GroupSnapshot, show: impl FnOnce(FairShare) -> String) -> String {
    group.fair_share.map_or_else(none, show)
}

/// Returns `99.7 %`. Only a share of 1 gives `100 %`.
fn percent(share: f64) -> String {
    if share >= 1.0 { "100 %".to_owned() } else { format!("{:.1} %", (share * 1_000.0).floor() / 10.0) }
}

fn none() -> String {
    "-".to_owned()
}

/// Returns the counts of `memory.events` above 0, for the group and the groups below it, in at most
/// `EVENTS_WIDTH` columns.
pub(crate) fn events(group: &GroupSnapshot) -> String {
    let happened: Vec<_> = group.events.pairs().into_iter().rev().filter(|&(_, count)| count > 0).collect();
    let mut text = String::new();
    for (at, &(key, count)) in happened.iter().enumerate() {
        let comma = if at > 0 { ", " } else { "" };
        let event = format!("{comma}{key} {}", text::count(count));
        // Width of the ellipsis if more events follow.
        let rest = usize::from(at + 1 < happened.len());
        if text.len() + event.len() + rest > EVENTS_WIDTH {
            return text + "…";
        }
        text += &event;
    }
    if text.is_empty() { none() } else { text }
}

/// Widths of the parts of a line.
struct Widths {
    name: usize,
    /// Indentation of a group below its parent.
    indent: usize,
    /// 0: no bar.
    bar: usize,
    columns: Vec<&'static Column>,
}

impl Widths {
    fn of(frame: &Frame<'_>, width: usize) -> Widths {
        let label_width = |group| columns(&label(group, INDENT, usize::MAX));
        let longest = frame.shown().map(label_width).max().unwrap_or(0);
        let shares = usize::from(frame.shown().any(|group| group.fair_share.is_some()));
        let mut columns: Vec<_> = COLUMNS.iter().filter(|column| column.from[shares] <= width).collect();
        let left = |columns: &[&Column]| {
            let figures: usize = columns.iter().map(|column| GAP + column.width).sum();
            width.saturating_sub(figures)
        };
        while let [.., _, _] = columns[..]
            && left(&columns) < longest.min(NAME_WANTED)
        {
            columns.pop();
        }
        if left(&columns) < NAME_MIN {
            columns.clear();
        }
        let left = left(&columns);
        let wanted = longest.max(NAME_MIN);
        let name = wanted.min((left * 55 / 100).max(NAME_WANTED)).min(left);
        let bar = left.saturating_sub(name + GAP).min(BAR_MAX);
        let (name, bar) = if bar < BAR_MIN { (wanted.min(left), 0) } else { (name, bar) };
        let indent = if name < wanted.min(NAME_WANTED) { 1 } else { INDENT };
        Widths { name, indent, bar, columns }
    }
}

/// Returns the group's name, indented by its depth up to half of the width.
fn label(group: &GroupSnapshot, indent: usize, width: usize) -> String {
    let name = if group.depth == 0 { "/" } else { group.name.as_str() };
    let indent = (indent * group.depth as usize).min(width / 2);
    let gone = if group.online { "" } else { " (removed)" };
    format!("{:indent$}{name}{gone}", "")
}

impl<'a> Frame<'a> {
    /// First line: time, number of groups, total usage.
    pub(crate) fn heading(&self, width: usize) -> Line<'static> {
        let mut text = self.time.clone();
        let Some(top) = self.groups.first() else { return Line::raw(fit(&text, width)) };
        let (usage, peak) = (text::bytes(top.usage_bytes), text::bytes(top.peak_bytes));
        text += &format!(
            ", {} groups, usage {usage}, peak {peak}",
            text::count((top.descendants as u64).saturating_add(1))
        );
        if top.dying_descendants > 0 {
            text += &format!(", {} removed and still held", text::count(top.dying_descendants as u64));
        }
        Line::styled(fit(&text, width), Modifier::BOLD)
    }

    /// Second line: titles of the columns.
    pub(crate) fn titles(&self, width: usize) -> Line<'static> {
        let widths = Widths::of(self, width);
        let bar = if widths.bar > 0 { "usage of max" } else { "" };
        let mut text = cell("group", widths.name, true) + &gap(widths.bar) + &cell(bar, widths.bar, true);
        for column in &widths.columns {
            text += &(gap(column.width) + &cell(column.title, column.width, column.is_text));
        }
        Line::styled(fit(&text, width), Modifier::DIM)
    }

    /// The lines of `max` groups, beginning with group `from`.
    pub(crate) fn rows(&self, width: usize, from: usize, max: usize) -> Vec<Line<'static>> {
        let widths = Widths::of(self, width);
        self.shown().skip(from).take(max).map(|group| self.row(group, &widths, width)).collect()
    }

    fn row(&self, group: &GroupSnapshot, widths: &Widths, width: usize) -> Line<'static> {
        let name = cell(&label(group, widths.indent, widths.name), widths.name, true);
        let name_style = if group.online { Style::new() } else { Modifier::DIM.into() };
        let mut rest = String::new();
        for column in &widths.columns {
            rest += &(gap(column.width) + &cell(&(column.cell)(self, group), column.width, column.is_text));
        }
        let (bar, bar_style) = self.bar(group, widths.bar);
        let used = widths.name + widths.bar + GAP * usize::from(widths.bar > 0);
        let rest = fit(&rest, width.saturating_sub(used));
        Line::from(vec![
            Span::styled(name, name_style),
            Span::styled(gap(widths.bar) + &bar, bar_style),
            Span::raw(rest),
        ])
    }

    /// Usage, peak, `high`, `low`, `min` and the even share against the limit. Brackets mark the
    /// group's own limit; without one the bar shows the nearest limit above, and is empty if
    /// there is none.
    fn bar(&self, group: &GroupSnapshot, width: usize) -> (String, Style) {
        let above = |group: &&GroupSnapshot| group.parent.map(|parent| &self.groups[parent]);
        let limited = std::iter::successors(Some(group), above).find_map(|group| group.limits.max_bytes);
        let (Some(max), true) = (limited, width >= BAR_MIN) else {
            return (" ".repeat(width), Style::new());
        };
        let inner = width - 2;
        let at = |bytes: u64| ((bytes as f64 / max.max(1) as f64 * inner as f64).round() as usize).min(inner);
        let (filled, peak) = (at(group.usage_bytes), at(group.peak_bytes));
        let mut cells = vec!['.'; inner];
        cells[..filled].fill('#');
        if peak > filled {
            cells[peak - 1] = '|';
        }
        let limits = &group.limits;
        let even = group.fair_share.map(|share| share.even);
        for (mark, bytes) in
            [('e', even), ('h', limits.high_bytes), ('l', limits.low_bytes), ('m', limits.min_bytes)]
        {
            if let Some(bytes) = bytes.filter(|bytes| (1..=max).contains(bytes)) {
                cells[at(bytes).max(1) - 1] = mark;
            }
        }
        let [open, close] = if group.limits.max_bytes.is_some() { ['[', ']'] } else { [' ', ' '] };
        let text: String = [open].into_iter().chain(cells).chain([close]).collect();
        let color = match group.usage_bytes as f64 / max.max(1) as f64 {
            share if share >= ALARM => Color::Red,
            share if share >= WARNING => Color::Yellow,
            _ => Color::Green,
        };
        (text, Style::new().fg(color))
    }

    /// Returns the name of the group that this one's caches gave bytes to last.
    fn given_to(&self, group: &GroupSnapshot) -> String {
        let id = group.fair_share.and_then(|share| share.given_to);
        let found = self.groups.iter().find(|other| Some(other.id) == id);
        found.map_or_else(none, |other| other.name.clone())
    }

    /// The groups that are shown, in their order.
    fn shown(&self) -> impl Iterator<Item = &'a GroupSnapshot> {
        self.order.iter().map(|&at| &self.groups[at])
    }

    /// Returns the frame as plain text, with at most `groups_max` groups.
    pub(crate) fn text(&self, width: usize, groups_max: usize) -> String {
        let mut lines = vec![self.heading(width), self.titles(width)];
        lines.extend(self.rows(width, 0, groups_max));
        let more = self.order.len().saturating_sub(groups_max);
        if more > 0 {
            lines.push(Line::raw(format!("... {} more", text::count(more as u64))));
        }
        let plain = |line: &Line<'_>| {
            let text: String = line.spans.iter().map(|span| span.content.as_ref()).collect();
            text.trim_end().to_owned() + "\n"
        };
        lines.iter().map(plain).collect()
    }
}

/// Space before a column; none before a column without width.
fn gap(width: usize) -> String {
    " ".repeat(if width > 0 { GAP } else { 0 })
}

/// `text` padded or cut to `width` columns of the terminal.
fn cell(text: &str, width: usize, is_text: bool) -> String {
    let text = fit(text, width);
    let padding = " ".repeat(width - columns(&text));
    if is_text { text + &padding } else { padding + &text }
}

/// `text` cut to `width` columns of the terminal, with an ellipsis if it was cut.
pub(crate) fn fit(text: &str, width: usize) -> String {
    // The loop measures the text at each step, so a long one is shortened first.
    let mut cut: String = text.chars().take(8 * width + 8).collect();
    if cut.len() < text.len() || columns(&cut) > width {
        while columns(&cut) + 1 > width && cut.pop().is_some() {}
        cut += if width > 0 { "…" } else { "" };
    }
    cut
}

/// Columns of the terminal that `text` takes.
fn columns(text: &str) -> usize {
    Span::raw(text).width()
}

#[cfg(test)]
mod tests;
