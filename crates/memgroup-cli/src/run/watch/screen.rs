//! Screen: the terminal while groups are watched on it.
//!
//! - I1. While a screen is open the terminal has another screen in front, and keys arrive as they are pressed; `OPEN` says so. Whoever takes
//!   that back takes `OPEN` first, so it happens once.
//! - I2. It is taken back when the screen is dropped, at a panic on any thread, at a second Ctrl-C, and at SIGTERM and SIGHUP.

use std::io::{self, Stdout};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute};
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::{Frame as Canvas, Terminal};
use signal_hook::consts::{SIGHUP, SIGTERM};
use signal_hook::iterator::Signals;

use super::frame::Frame;
use crate::run::stop::By;
use crate::run::units;

/// Lines that are no group's: heading, titles, and what the keys do.
const OTHER_LINES: u16 = 3;

/// Whether the terminal is a screen's.
static OPEN: AtomicBool = AtomicBool::new(false);

/// Gives the terminal back as it was; does nothing if it is.
pub(crate) fn restore() {
    // ORDERING: AcqRel; the swap decides who gives it back, after what was done to it (I1).
    if OPEN.swap(false, Ordering::AcqRel) {
        // A terminal that is gone needs nothing.
        let _ = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
        let _ = disable_raw_mode();
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
        // Without, such a signal leaves the terminal as it is: no reason not to run.
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

/// What is wished at the keyboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    None,
    /// Another part of the list, or another size.
    Redraw,
    /// The end of the run.
    End(By),
}

/// The terminal, given back when dropped.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    view: View,
}

/// Which part of the list is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct View {
    /// The first group that is shown.
    from: usize,
    /// How many were, the last time.
    page: usize,
}

impl Screen {
    pub(super) fn open() -> io::Result<Screen> {
        restore_on_every_end();
        enable_raw_mode()?;
        // ORDERING: Release; as in `restore`.
        OPEN.store(true, Ordering::Release);
        let opened = execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        match opened {
            Ok(terminal) => Ok(Screen { terminal, view: View::default() }),
            Err(error) => {
                restore();
                Err(error)
            }
        }
    }

    /// What was wished since the last time.
    pub(super) fn wish(&mut self) -> Wish {
        let mut wish = Wish::None;
        while let Ok(true) = event::poll(Duration::ZERO)
            && let Ok(event) = event::read()
        {
            match event {
                Event::Key(key) if key.kind != KeyEventKind::Release => match self.view.key(key) {
                    end @ Wish::End(_) => return end,
                    Wish::Redraw => wish = Wish::Redraw,
                    Wish::None => {}
                },
                Event::Resize(..) => wish = Wish::Redraw,
                _ => {}
            }
        }
        wish
    }

    pub(super) fn draw(&mut self, frame: &Frame<'_>) -> io::Result<()> {
        // ORDERING: Acquire; as in `restore`: after a panic elsewhere its report is what is to be seen.
        if !OPEN.load(Ordering::Acquire) {
            return Ok(());
        }
        draw(&mut self.terminal, frame, &mut self.view)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

impl View {
    fn key(&mut self, key: KeyEvent) -> Wish {
        let page = self.page.max(1);
        self.from = match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Wish::End(By::CtrlC);
            }
            KeyCode::Char('q' | 'Q') => return Wish::End(By::Q),
            KeyCode::Up | KeyCode::Char('k') => self.from.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.from.saturating_add(1),
            KeyCode::PageUp => self.from.saturating_sub(page),
            KeyCode::PageDown => self.from.saturating_add(page),
            KeyCode::Home => 0,
            KeyCode::End => usize::MAX,
            _ => return Wish::None,
        };
        Wish::Redraw
    }

    /// There are so many groups, and room for so many.
    fn settle(&mut self, groups: usize, room: usize) {
        self.page = room;
        self.from = self.from.min(groups.saturating_sub(room));
    }
}

fn draw<B: Backend>(terminal: &mut Terminal<B>, frame: &Frame<'_>, view: &mut View) -> Result<(), B::Error> {
    terminal.draw(|canvas| paint(canvas, frame, view)).map(drop)
}

fn paint(canvas: &mut Canvas<'_>, frame: &Frame<'_>, view: &mut View) {
    let area = canvas.area();
    let width = usize::from(area.width);
    view.settle(frame.groups(), usize::from(area.height.saturating_sub(OTHER_LINES)));
    let mut lines = vec![frame.heading(width), frame.titles(width)];
    lines.extend(frame.rows(width, view.from, view.page));
    lines.push(footer(frame, view));
    let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    for (line, y) in lines.into_iter().zip(area.top()..area.bottom()) {
        let line = if colours { line } else { without_colours(line) };
        canvas.render_widget(line, Rect { y, height: 1, ..area });
    }
}

fn without_colours(line: Line<'_>) -> Line<'_> {
    let plain = |span: ratatui::text::Span<'_>| Style { fg: None, ..span.style };
    let spans = line.spans.into_iter().map(|span| {
        let style = plain(span.clone());
        span.style(style)
    });
    Line { spans: spans.collect(), ..line }
}

fn footer(frame: &Frame<'_>, view: &View) -> Line<'static> {
    let below = frame.groups().saturating_sub(view.from + view.page);
    let more = match (view.from, below) {
        (0, 0) => String::new(),
        (0, below) => format!("... {} more   ", units::count(below as u64)),
        (above, below) => {
            format!("... {} above, {} more   ", units::count(above as u64), units::count(below as u64))
        }
    };
    let scrolls = if more.is_empty() { "" } else { "   up and down scroll" };
    Line::styled(format!("{more}q ends the run{scrolls}"), Modifier::DIM)
}

#[cfg(test)]
mod tests;
