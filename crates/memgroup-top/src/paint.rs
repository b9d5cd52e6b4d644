//! Paint: the view on a terminal, or as text.

use memgroup::GroupSnapshot;
use ratatui::Frame as Canvas;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier};
use ratatui::text::Line;
use ratatui::widgets::Sparkline;

use super::view::{Point, Sort, View};
use crate::frame::{Frame, events, fit, limit};
use crate::screen::paint_lines;
use crate::units;

/// Size of a printed frame, in columns and groups.
const PLAIN_COLUMNS: usize = 100;
const PLAIN_GROUPS: usize = 40;
/// Lines besides the groups: heading, titles and keys.
const OTHER_LINES: usize = 3;
/// The greatest height of a sparkline.
const SPARKLINE: u16 = 4;

fn frame<'a>(view: &'a View, time: &str) -> Frame<'a> {
    Frame { groups: &view.groups, order: &view.order, time: time.to_owned() }
}

/// The frame as plain text.
pub(super) fn text(view: &View, time: &str) -> String {
    frame(view, time).text(PLAIN_COLUMNS, PLAIN_GROUPS)
}

/// Paints the list, or the selected group alone.
pub(super) fn paint(canvas: &mut Canvas<'_>, view: &mut View, time: &str) {
    let area = canvas.area();
    let width = usize::from(area.width);
    let mut lines = vec![match &view.gone {
        None => frame(view, time).heading(width),
        Some(why) => {
            let seen = clock(view.taken_us);
            Line::styled(fit(&format!("{time}, as of {seen}: {why}"), width), Color::Red)
        }
    }];
    let [main, last] = Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(area);
    if view.is_detail
        && let Some(group) = view.group()
    {
        lines.extend(detail(group).into_iter().map(|line| Line::raw(fit(&line, width))));
        let [top, rest] =
            Layout::vertical([Constraint::Length(lines.len() as u16), Constraint::Fill(1)]).areas(main);
        paint_lines(canvas, top, lines);
        let [usage, refused, stalled] = Layout::vertical([Constraint::Max(SPARKLINE + 2); 3]).areas(rest);
        history(canvas, usage, view, "usage", |point| point.usage, units::bytes);
        history(canvas, refused, view, "refused", |point| point.refused, units::count);
        let percent = |hundredths| format!("{}.{:02} %", hundredths / 100, hundredths % 100);
        history(canvas, stalled, view, "stalled in the last 10 s", |point| point.stalled, percent);
    } else {
        view.page = usize::from(area.height).saturating_sub(OTHER_LINES);
        let line = view.line();
        let first = view.from.min(line).max((line + 1).saturating_sub(view.page));
        view.from = first.min(view.order.len().saturating_sub(view.page));
        let frame = frame(view, time);
        lines.push(frame.titles(width));
        let rows = frame.rows(width, view.from, view.page);
        lines.extend(
            rows.into_iter()
                .zip(view.from..)
                .map(|(row, at)| if at == line { row.style(Modifier::REVERSED) } else { row }),
        );
        paint_lines(canvas, main, lines);
    }
    paint_lines(canvas, last, vec![Line::styled(fit(&keys(view), width), Modifier::DIM)]);
}

/// Figures of a group, a line each.
fn detail(group: &GroupSnapshot) -> Vec<String> {
    let bytes = |bytes: Option<u64>| units::limit(bytes);
    let limits = &group.limits;
    let (some, full) = (&group.pressure.some, &group.pressure.full);
    vec![
        String::new(),
        format!("group     {}{}", group.path, if group.online { "" } else { " (removed)" }),
        format!(
            "usage     {} of {}, peak {}",
            units::bytes(group.usage_bytes),
            limit(group),
            units::bytes(group.peak_bytes)
        ),
        format!(
            "limits    max {}, high {}, low {}, min {}",
            bytes(limits.max_bytes),
            bytes(limits.high_bytes),
            bytes(limits.low_bytes),
            bytes(limits.min_bytes)
        ),
        format!("refused   {}", units::count(group.refusals)),
        format!("events    {}", events(group)),
        format!(
            "stalled   some {:.2} % of 10 s, {:.2} % of 60 s; full {:.2} % of 10 s, {:.2} % of 60 s",
            some.avg10, some.avg60, full.avg10, full.avg60
        ),
        format!(
            "waits     {} for {}, the longest {:.1?}",
            units::count(group.waiters.now as u64),
            units::bytes(group.waiters.bytes),
            group.waiters.longest
        ),
        String::new(),
    ]
}

/// Paints one figure since the program was attached, the oldest point at the left.
fn history(
    canvas: &mut Canvas<'_>,
    area: ratatui::layout::Rect,
    view: &View,
    name: &str,
    of: fn(&Point) -> u64,
    show: fn(u64) -> String,
) {
    let [title, bars, _space] =
        Layout::vertical([Constraint::Length(1), Constraint::Fill(1), Constraint::Length(1)]).areas(area);
    let mut data: Vec<u64> = view.points().rev().take(usize::from(area.width)).map(of).collect();
    data.reverse();
    let most = data.iter().copied().max().unwrap_or(0);
    let line = format!("{name}, the last {} snapshots, at most {}", data.len(), show(most));
    paint_lines(canvas, title, vec![Line::styled(fit(&line, usize::from(area.width)), Modifier::DIM)]);
    canvas.render_widget(Sparkline::default().data(&data).max(most.max(1)), bars);
}

fn keys(view: &View) -> String {
    if view.is_typing {
        return format!("filter: {}_   Enter keeps it, Esc ends it", view.filter);
    }
    let replay = if view.is_replay { "space pauses  arrows step  +- speed  " } else { "" };
    if view.is_detail {
        return format!("q quits  Esc back  {replay}up and down select");
    }
    let sort = match view.sort {
        Sort::Usage => "usage",
        Sort::Peak => "peak",
        Sort::Refused => "refused",
        Sort::Pressure => "pressure",
        Sort::Name => "name",
    };
    let filter = if view.filter.is_empty() { String::new() } else { format!(", with {:?}", view.filter) };
    format!(
        "q quits  {replay}Enter group  / filter  by {sort}{filter}; u usage p peak r refused s pressure n name"
    )
}

/// Time of day in UTC.
pub(super) fn clock(unix_us: u64) -> String {
    let seconds = unix_us / 1_000_000 % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}
