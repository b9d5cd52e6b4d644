//! Screen: the terminal that shows the watched groups.
//!
//! - I1. `OPEN` is set while the terminal shows the alternate screen in raw mode. `restore` clears `OPEN` first, so exactly one thread
//!   restores the terminal.
//! - I2. The terminal is restored when the screen is dropped, at a panic on any thread, at a second Ctrl-C, and at SIGTERM and SIGHUP.

use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::{cursor, execute, terminal};
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::Line;
use ratatui::{DefaultTerminal, Frame as Canvas, Terminal};
use signal_hook::consts::{SIGHUP, SIGTERM};
use signal_hook::iterator::Signals;

use super::frame::Frame;
use crate::run::base::progress::has_colours;
use crate::run::base::stop::{CTRL_C, KEY_Q};
use crate::run::base::units;

/// Lines besides the groups: heading, titles and keys.
const OTHER_LINES: u16 = 3;

/// Whether a screen is open.
static OPEN: AtomicBool = AtomicBool::new(false);

/// Restores the terminal, if a screen is open.
pub(crate) fn restore() {
    // ORDERING: AcqRel; pairs with the store in `open`. The swap decides which thread restores (I1); weaker, it could run
    // before the terminal was changed.
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
        // Without this handler such a signal leaves the terminal changed; the run can still go on.
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

/// Input from the keyboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    None,
    /// Another part of the list or another size is to be shown.
    Redraw,
    /// The run is to end, because of that key.
    End(&'static str),
}

/// An open screen. Dropping it restores the terminal.
pub(crate) struct Screen {
    terminal: DefaultTerminal,
    view: View,
}

/// The visible part of the list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct View {
    /// Index of the first visible group.
    from: usize,
    /// Number of visible groups.
    page: usize,
}

impl Screen {
    pub(crate) fn open() -> io::Result<Screen> {
        restore_on_every_end();
        terminal::enable_raw_mode()?;
        // ORDERING: Release; pairs with the swap in `restore`. Weaker, a restore could precede the change of the terminal.
        OPEN.store(true, Ordering::Release);
        let opened = execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        let opened = opened.inspect_err(|_| restore());
        Ok(Screen { terminal: opened?, view: View::default() })
    }

    /// Input since the last call.
    pub(super) fn input(&mut self) -> Input {
        let mut input = Input::None;
        while let Ok(true) = event::poll(Duration::ZERO)
            && let Ok(event) = event::read()
        {
            match event {
                Event::Key(key) if key.kind != KeyEventKind::Release => match self.view.key(key) {
                    end @ Input::End(_) => return end,
                    Input::Redraw => input = Input::Redraw,
                    Input::None => {}
                },
                Event::Resize(..) => input = Input::Redraw,
                _ => {}
            }
        }
        input
    }

    pub(super) fn draw(&mut self, frame: &Frame<'_>) -> io::Result<()> {
        let mut view = self.view;
        self.paint(|canvas| paint(canvas, frame, &mut view))?;
        self.view = view;
        Ok(())
    }

    /// Draws the terminal by `paint`, if the screen is still open.
    pub(crate) fn paint(&mut self, paint: impl FnOnce(&mut Canvas<'_>)) -> io::Result<()> {
        // ORDERING: Acquire; pairs with the swap in `restore`. After a panic on another thread the screen must not cover its
        // message.
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

impl View {
    fn key(&mut self, key: KeyEvent) -> Input {
        let page = self.page.max(1);
        self.from = match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Input::End(CTRL_C);
            }
            KeyCode::Char('q' | 'Q') => return Input::End(KEY_Q),
            KeyCode::Up | KeyCode::Char('k') => self.from.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.from.saturating_add(1),
            KeyCode::PageUp => self.from.saturating_sub(page),
            KeyCode::PageDown => self.from.saturating_add(page),
            KeyCode::Home => 0,
            KeyCode::End => usize::MAX,
            _ => return Input::None,
        };
        Input::Redraw
    }
}

fn paint(canvas: &mut Canvas<'_>, frame: &Frame<'_>, view: &mut View) {
    let area = canvas.area();
    let width = usize::from(area.width);
    view.page = usize::from(area.height.saturating_sub(OTHER_LINES));
    view.from = view.from.min(frame.groups().saturating_sub(view.page));
    let mut lines = vec![frame.heading(width), frame.titles(width)];
    lines.extend(frame.rows(width, view.from, view.page));
    lines.push(footer(frame, view));
    paint_lines(canvas, area, lines);
}

/// Paints lines from the top of `area`, as many as fit, without colours where the user wants none.
pub(crate) fn paint_lines(canvas: &mut Canvas<'_>, area: Rect, lines: Vec<Line<'_>>) {
    let has_colours = has_colours();
    for (mut line, y) in lines.into_iter().zip(area.top()..area.bottom()) {
        if !has_colours {
            line.spans.iter_mut().for_each(|span| span.style.fg = None);
        }
        canvas.render_widget(line, Rect { y, height: 1, ..area });
    }
}

fn footer(frame: &Frame<'_>, view: &View) -> Line<'static> {
    let below = units::count(frame.groups().saturating_sub(view.from + view.page) as u64);
    let text = match (view.from, &*below) {
        (0, "0") => "q ends the run".to_owned(),
        (0, below) => format!("... {below} more   q ends the run   up and down scroll"),
        (above, below) => {
            let above = units::count(above as u64);
            format!("... {above} above, {below} more   q ends the run   up and down scroll")
        }
    };
    Line::styled(text, Modifier::DIM)
}

#[cfg(test)]
mod tests;
