//! Progress on standard error: bars on a terminal, otherwise a line now and then.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressFinish, ProgressStyle};

/// Time until the first line about a subject, if there is no terminal. It doubles with each line,
/// up to `LINE_EVERY`.
const FIRST_LINE_AFTER: Duration = Duration::from_millis(500);
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Where progress is shown.
pub(crate) struct Progress {
    /// Plain lines are printed if none.
    bars: Option<MultiProgress>,
}

impl Progress {
    /// Shows bars if standard error is a terminal that can, or else lines.
    pub(crate) fn on_stderr() -> Progress {
        let bars = (std::io::stderr().is_terminal() && !is_dumb_terminal())
            .then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr()));
        Progress { bars }
    }

    /// Prints a line that stays.
    pub(crate) fn line(&self, text: &str) {
        // The run goes on even if standard error is closed.
        match &self.bars {
            Some(bars) => drop(bars.println(text)),
            None => drop(writeln!(std::io::stderr().lock(), "{text}")),
        }
    }

    /// Starts a bar of `length` steps; without a terminal it prints `first` instead.
    pub(crate) fn bar(&self, length: u64, template: &str, first: &str) -> Bar<'_> {
        let bar = self.bars.as_ref().map(|bars| {
            let style =
                ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            let bar = ProgressBar::new(length).with_finish(ProgressFinish::AndClear);
            bars.add(bar).with_style(style.progress_chars("=> "))
        });
        if bar.is_none() {
            self.line(first);
        }
        Bar { progress: self, bar, lines: (Instant::now(), FIRST_LINE_AFTER) }
    }
}

/// Returns whether the terminal cannot move its cursor.
pub(crate) fn is_dumb_terminal() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// One bar, or its lines. Dropping it removes the bar from the terminal.
pub(crate) struct Bar<'a> {
    progress: &'a Progress,
    bar: Option<ProgressBar>,
    /// When the last line was printed, and the time until the next.
    lines: (Instant, Duration),
}

impl Bar<'_> {
    /// Moves the bar to `position`. Without a terminal it prints `line` if the last one is old
    /// enough.
    pub(crate) fn update(&mut self, position: u64, message: impl Fn() -> String, line: impl Fn() -> String) {
        if let Some(bar) = &self.bar {
            bar.set_position(position);
            bar.set_message(message());
            return;
        }
        let (last, wait) = self.lines;
        if last.elapsed() >= wait {
            self.lines = (Instant::now(), LINE_EVERY.min(wait * 2));
            self.progress.line(&line());
        }
    }
}
