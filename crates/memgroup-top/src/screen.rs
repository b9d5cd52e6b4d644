//! Screen: the terminal while it shows groups, and the view as it is painted there or printed.
//!
//! - I1. `OPEN` is set while the terminal shows the alternate screen in raw mode. `restore` clears
//!   `OPEN` first, so exactly one thread restores the terminal.
//! - I2. The terminal is restored when the screen is dropped, at a panic on any thread, and at
//!   SIGTERM and SIGHUP.

use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use memgroup::GroupSnapshot;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::{cursor, execute, terminal};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier};
use ratatui::text::Line;
use ratatui::widgets::Sparkline;
use ratatui::{DefaultTerminal, Frame as Canvas, Terminal};
use signal_hook::consts::{SIGHUP, SIGTERM};
use signal_hook::iterator::Signals;

use crate::frame::{Frame, events, fit, limit};
use crate::text;
use crate::view::{Point, View};

/// Size of a printed frame, in columns and groups.
const PLAIN_COLUMNS: usize = 100;
const PLAIN_GROUPS: usize = 40;
/// Lines besides the groups: heading, titles and keys.
const OTHER_LINES: usize = 3;
/// The greatest height of a sparkline.
const SPARKLINE: u16 = 4;

/// Whether a screen is open.
static OPEN: AtomicBool = AtomicBool::new(false);

/// Restores the terminal, if a screen is open.
fn restore() {
    // ORDERING: AcqRel; pairs with the store in `open`. The swap decides which thread restores
    // (I1); weaker, it could run before the terminal was changed.
    if OPEN.swap(false, Ordering::AcqRel) {
        // A closed terminal needs no restoring.
        let _ = execute!(io::stdout(), terminal::LeaveAlternateScreen, cursor::Show);
        let _ = terminal::disable_raw_mode();
    }
}

/// Restores the terminal before a panic is reported, and before a signal ends the process.
fn restore_on_every_end() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            report(panic);
        }));
        // Without this handler such a signal leaves the terminal changed, but the program still
        // works.
        if let Ok(mut signals) = Signals::new([SIGTERM, SIGHUP]) {
            thread::spawn(move || {
                for signal in signals.forever() {
                    restore();
                    let _ = signal_hook::low_level::emulate_default_handler(signal);
                }
            });
        }
    });
}

/// An open screen. Dropping it restores the terminal.
pub(crate) struct Screen {
    terminal: DefaultTerminal,
}

impl Screen {
    pub(crate) fn open() -> io::Result<Screen> {
        restore_on_every_end();
        terminal::enable_raw_mode()?;
        // ORDERING: Release; pairs with the swap in `restore`. Weaker, a restore could precede the
        // change of the terminal.
        OPEN.store(true, Ordering::Release);
        let opened = execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        let opened = opened.inspect_err(|_| restore());
        Ok(Screen { terminal: opened? })
    }

    /// Draws the terminal by `paint`, if the screen is still open.
    pub(crate) fn paint(&mut self, paint: impl FnOnce(&mut Canvas<'_>)) -> io::Result<()> {
        // ORDERING: Acquire; pairs with the swap in `restore`. After a panic on another thread the
        // screen must not cover its message.
        if !OPEN.load(Ordering::Acquire) {
            return Ok(());
        }
        self.terminal.draw(paint).map(drop)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Paints as many lines as fit, from the top of `area`, and without colours if the user wants none.
fn paint_lines(canvas: &mut Canvas<'_>, area: Rect, lines: Vec<Line<'_>>) {
    let has_colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    for (mut line, y) in lines.into_iter().zip(area.top()..area.bottom()) {
        if !has_colours {
            line.spans.iter_mut().for_each(|span| span.style.fg = None);
        }
        canvas.render_widget(line, Rect { y, height: 1, ..area });
    }
}

fn frame<'a>(view: &'a View, time: &str) -> Frame<'a> {
    Frame { groups: &view.groups, order: &view.order, time: time.to_owned() }
}

/// Returns the frame as plain text.
pub(crate) fn printed(view: &View, time: &str) -> String {
    frame(view, time).text(PLAIN_COLUMNS, PLAIN_GROUPS)
}

/// Paints the list, or the selected group alone.
pub(crate) fn paint(canvas: &mut Canvas<'_>, view: &mut View, time: &str) {
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
        history(canvas, usage, view, "usage", |point| point.usage, text::bytes);
        history(canvas, refused, view, "refused", |point| point.refused, text::count);
        let percent = |hundredths| format!("{}.{:02} %", hundredths / 100, hundredths % 100);
        history(canvas, stalled, view, "stalled in the last 10 s", |point| point.stalled, percent);
    } else {
        view.page = usize::from(area.height).saturating_sub(OTHER_LINES);
        let line = view.line();
        let first = view.from.min(line).max((line + 1).saturating_sub(view.page));
        view.from = first.min(view.order.len().saturating_sub(view.page));
        let frame = frame(view, time);
        lines.push(frame.titles(width));
        let mut rows = frame.rows(width, view.from, view.page);
        // A terminal of few lines shows none.
        if let Some(row) = line.checked_sub(view.from).and_then(|at| rows.get_mut(at)) {
            row.style = row.style.patch(Modifier::REVERSED);
        }
        lines.extend(rows);
        paint_lines(canvas, main, lines);
    }
    paint_lines(canvas, last, vec![Line::styled(fit(&keys(view), width), Modifier::DIM)]);
}

/// Returns the figures of a group, a line each.
fn detail(group: &GroupSnapshot) -> Vec<String> {
    let (limits, waiters) = (&group.limits, &group.waiters);
    let [max, high, low, min] =
        [limits.max_bytes, limits.high_bytes, limits.low_bytes, limits.min_bytes].map(text::limit);
    let [usage, peak, waiting] = [group.usage_bytes, group.peak_bytes, waiters.bytes].map(text::bytes);
    let [refused, waits] = [group.refusals, waiters.now as u64].map(text::count);
    let (some, full) = (&group.pressure.some, &group.pressure.full);
    vec![
        String::new(),
        format!("group     {}{}", group.path, if group.online { "" } else { " (removed)" }),
        format!("usage     {usage} of {}, peak {peak}", limit(group)),
        format!("limits    max {max}, high {high}, low {low}, min {min}"),
        format!("refused   {refused}"),
        format!("events    {}", events(group)),
        format!(
            "stalled   some {:.2} % of 10 s, {:.2} % of 60 s; full {:.2} % of 10 s, {:.2} % of 60 s",
            some.avg10, some.avg60, full.avg10, full.avg60
        ),
        format!("waits     {waits} for {waiting}, the longest {:.1?}", waiters.longest),
        String::new(),
    ]
}

/// Paints one figure since the program was attached, the oldest point at the left.
fn history(
    canvas: &mut Canvas<'_>,
    area: Rect,
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
    let sort = format!("{:?}", view.sort).to_lowercase();
    let filter = if view.filter.is_empty() { String::new() } else { format!(", with {:?}", view.filter) };
    format!(
        "q quits  {replay}Enter group  / filter  by {sort}{filter}; u usage p peak r refused s pressure n name"
    )
}

/// Returns the time of day in UTC.
pub(crate) fn clock(unix_us: u64) -> String {
    let seconds = unix_us / 1_000_000 % 86_400;
    format!("{:02}:{:02}:{:02} UTC", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::{OPEN, restore_on_every_end};

    #[test]
    fn restores_the_terminal_after_a_panic_on_any_thread() {
        restore_on_every_end();
        // ORDERING: Release, and Acquire below, as in `Screen`.
        OPEN.store(true, Ordering::Release);
        std::thread::spawn(|| panic!("on purpose")).join().expect_err("it panics");
        assert!(!OPEN.load(Ordering::Acquire));
    }
}
