//! Screen: the terminal while it shows groups.
//!
//! - I1. `OPEN` is set while the terminal shows the alternate screen in raw mode. `restore` clears
//!   `OPEN` first, so exactly one thread restores the terminal.
//! - I2. The terminal is restored when the screen is dropped, at a panic on any thread, and at
//!   SIGTERM and SIGHUP.

use std::io;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::{cursor, execute, terminal};
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::{DefaultTerminal, Frame as Canvas, Terminal};
use signal_hook::consts::{SIGHUP, SIGTERM};
use signal_hook::iterator::Signals;

/// Whether a screen is open.
static OPEN: AtomicBool = AtomicBool::new(false);

/// Restores the terminal, if a screen is open.
fn restore() {
    // ORDERING: AcqRel; pairs with the store in `open`. The swap decides which thread restores (I1);
    // weaker, it could run before the terminal was changed.
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
        // Without this handler such a signal leaves the terminal changed, but the program still works.
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
        // ORDERING: Release; pairs with the swap in `restore`. Weaker, a restore could precede the change
        // of the terminal.
        OPEN.store(true, Ordering::Release);
        let opened = execute!(io::stdout(), terminal::EnterAlternateScreen, cursor::Hide)
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        let opened = opened.inspect_err(|_| restore());
        Ok(Screen { terminal: opened? })
    }

    /// Draws the terminal by `paint`, if the screen is still open.
    pub(crate) fn paint(&mut self, paint: impl FnOnce(&mut Canvas<'_>)) -> io::Result<()> {
        // ORDERING: Acquire; pairs with the swap in `restore`. After a panic on another thread the screen
        // must not cover its message.
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

/// Returns whether the user allows colours.
fn has_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
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
