//! What is happening, on standard error: bars on a terminal, else a line now and then.

use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::house::House;
use super::stop::Stop;
use super::units;
use super::watch::{Form, Watch};

/// Between two lines about the same thing when there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Where progress goes.
pub(crate) struct Progress {
    /// None: plain lines.
    bars: Option<MultiProgress>,
    /// How the groups are shown while statements run; none: they are not.
    watch: Option<Form>,
}

impl Progress {
    /// Bars if standard error is a terminal that can draw them.
    pub(crate) fn on_stderr() -> Progress {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let bars = (std::io::stderr().is_terminal() && !dumb)
            .then(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr()));
        Progress { bars, watch: None }
    }

    /// While statements run the groups are shown instead, on standard output.
    pub(crate) fn watching(self, watch: Option<Form>) -> Progress {
        Progress { watch, ..self }
    }

    /// One line that stays.
    pub(crate) fn line(&self, text: &str) {
        match &self.bars {
            // Standard error may be gone; then there is nobody to tell.
            Some(bars) => drop(bars.println(text)),
            None => print_line(text),
        }
    }

    /// Starts showing how `what` fills with about `total` rows.
    pub(crate) fn filling(&self, what: &str, total: u64) -> Filling<'_> {
        let bar = self.bars.as_ref().map(|bars| {
            let bar = bars.add(ProgressBar::new(total));
            bar.set_style(style("  loading {prefix:<14} {bar:30} {percent:>3} %  {human_pos} rows"));
            bar.set_prefix(what.to_owned());
            bar
        });
        if bar.is_none() {
            print_line(&format!("loading {what}"));
        }
        let lines = Mutex::new(Lines { done: 0, printed: Instant::now() });
        Filling { progress: self, what: what.to_owned(), total, bar, lines }
    }

    /// Starts showing how `seconds` pass in `house`; `stop` is asked for where a key is pressed that ends the run.
    pub(crate) fn running<'a>(&self, seconds: f64, house: &'a House, stop: &'a Stop) -> Running<'a> {
        let watch = self.watch.map(|form| Watch::begin(form, house, stop, seconds));
        if watch.is_some() {
            return Running { watch, bar: None, seconds, printed: Instant::now() };
        }
        let bar = self.bars.as_ref().map(|bars| {
            let bar = bars.add(ProgressBar::new((seconds * 1_000.0) as u64));
            bar.set_style(style("{bar:8} {prefix}  {wide_msg}"));
            bar
        });
        if bar.is_none() {
            print_line(&format!("running for {seconds} s"));
        }
        Running { watch, bar, seconds, printed: Instant::now() }
    }
}

/// How the rows of one database come in. Removed from the terminal when dropped.
pub(crate) struct Filling<'a> {
    progress: &'a Progress,
    what: String,
    total: u64,
    bar: Option<ProgressBar>,
    lines: Mutex<Lines>,
}

struct Lines {
    done: u64,
    printed: Instant,
}

impl Filling<'_> {
    /// `rows` more are in.
    pub(crate) fn advance(&self, rows: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(rows);
            return;
        }
        let mut lines = self.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        lines.done += rows;
        if lines.printed.elapsed() >= LINE_EVERY {
            lines.printed = Instant::now();
            let percent = (lines.done * 100 / self.total.max(1)).min(100);
            print_line(&format!("loading {}: {percent} %", self.what));
        }
    }

    /// The rows are in; indexes and the like follow.
    pub(crate) fn finishing(&self) {
        if let Some(bar) = &self.bar {
            bar.set_position(self.total);
        }
    }

    /// All is in; `text` says what.
    pub(crate) fn finish(self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.progress.line(text);
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// How a tenant is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown<'a> {
    pub(crate) name: &'a str,
    /// Statements done.
    pub(crate) done: u64,
    /// Statements refused.
    pub(crate) refused: u64,
    /// Statements stopped, because others needed the memory.
    pub(crate) stopped: u64,
    /// Its work is over.
    pub(crate) is_idle: bool,
}

/// How the time of a run passes. Removed from the terminal when dropped.
pub(crate) struct Running<'a> {
    watch: Option<Watch<'a>>,
    bar: Option<ProgressBar>,
    seconds: f64,
    printed: Instant,
}

impl Running<'_> {
    /// `elapsed` has passed, and that is how the tenants are.
    pub(crate) fn update(&mut self, elapsed: Duration, tenants: &[Shown<'_>]) {
        if let Some(watch) = &mut self.watch {
            return watch.update(elapsed, tenants);
        }
        let time = format!("{:.0} of {} s", elapsed.as_secs_f64().min(self.seconds), self.seconds);
        if let Some(bar) = &self.bar {
            bar.set_position(elapsed.as_millis() as u64);
            bar.set_prefix(time);
            bar.set_message(counts(tenants));
        } else if self.printed.elapsed() >= LINE_EVERY {
            self.printed = Instant::now();
            print_line(&format!("running {time}: {}", counts(tenants)));
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn counts(tenants: &[Shown<'_>]) -> String {
    let each = tenants.iter().map(|&Shown { name, done, refused, stopped, is_idle }| {
        let lost =
            [(refused, " refused"), (stopped, " stopped")].map(|(count, what)| (count > 0, count, what));
        let is_done_shown = done > 0 || refused + stopped == 0;
        let parts: Vec<String> = [(is_done_shown, done, "")]
            .into_iter()
            .chain(lost)
            .filter(|&(is_shown, ..)| is_shown)
            .map(|(_, count, what)| format!("{}{what}", units::count(count)))
            .collect();
        format!("{name} {}{}", parts.join(" + "), if is_idle { ", idle" } else { "" })
    });
    each.collect::<Vec<_>>().join("  ")
}

fn print_line(text: &str) {
    use std::io::Write;
    // Standard error may be gone; then there is nobody to tell.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

#[cfg(test)]
mod tests {
    use super::{Shown, counts};

    #[test]
    fn refusals_and_idleness_are_named_only_where_there_are_any() {
        let shown = |name, done, refused, stopped, is_idle| Shown { name, done, refused, stopped, is_idle };
        let text = counts(&[
            shown("a", 12_345, 0, 0, false),
            shown("b", 3, 1_000, 0, true),
            shown("c", 0, 7, 2, false),
            shown("d", 0, 0, 0, false),
            shown("e", 0, 0, 4, false),
        ]);
        assert_eq!(text, "a 12,345  b 3 + 1,000 refused, idle  c 7 refused + 2 stopped  d 0  e 4 stopped");
    }

    #[test]
    fn templates_are_well_formed() {
        for template in [
            "  loading {prefix:<14} {bar:30} {percent:>3} %  {human_pos} rows",
            "{bar:8} {prefix}  {wide_msg}",
        ] {
            assert!(indicatif::ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
