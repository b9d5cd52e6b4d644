//! Live view of a run: progress on standard error, or the watched groups on standard output.
//!
//!   snapshot ─▶ JSON ─▶ tree ─▶ frame (lines) ─▶ screen (terminal) │ text (pipe)   │ the JSON, one line each
//!
//! - I1. Every figure of a group comes from one snapshot of the engine.
//! - I2. A closed output or a failed terminal ends the watching, not the run.

pub(crate) mod frame;
pub(crate) mod screen;
mod serve;

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::run::backend::Backend;
use crate::run::base::progress::{Bar, is_dumb_terminal};
use crate::run::base::stop::Stop;
use crate::run::base::units;
use crate::run::data::Job;
use crate::tree::Tree;
use frame::Frame;
pub(crate) use screen::restore;
use screen::{Input, Screen};
pub(crate) use serve::serve;

/// Time between two frames on a terminal.
const DRAW_EVERY: Duration = Duration::from_millis(300);
/// Time between two printed frames.
const PRINT_EVERY: Duration = Duration::from_secs(1);
/// Size of a printed frame, in columns and groups.
pub(crate) const PLAIN_COLUMNS: usize = 100;
pub(crate) const PLAIN_GROUPS: usize = 40;

/// Form in which groups are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    /// Drawn on the terminal; printed as text if standard output is no terminal
    Auto,
    /// Printed as text, a frame a second
    Text,
    /// Printed as JSON, a snapshot a second, one a line
    Json,
}

/// Counts of a tenant while the run lasts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counts<'a> {
    pub(crate) name: &'a str,
    /// Statements done.
    pub(crate) done: u64,
    /// Statements refused.
    pub(crate) refused: u64,
    /// Statements stopped to free memory.
    pub(crate) stopped: u64,
    /// Its work is over.
    pub(crate) is_idle: bool,
}

/// View of the running statements. Dropping it restores the terminal.
pub(crate) struct Live<'a> {
    backend: &'a Backend,
    stop: &'a Stop,
    seconds: f64,
    output: Output<'a>,
    /// Time of the last frame.
    shown: Option<Instant>,
}

enum Output<'a> {
    Progress(Bar<'a>),
    Screen(Screen),
    Text,
    Json,
    /// The output failed.
    Closed,
}

impl<'a> Live<'a> {
    /// Starts the view of a run: the groups of `backend` in `form`, otherwise progress. A key can request the stop.
    pub(crate) fn start(form: Option<Form>, backend: &'a Backend, job: &Job<'a>) -> Live<'a> {
        let seconds = job.spec.seconds;
        let output = match form {
            None => {
                let first = format!("running for {seconds} s");
                Output::Progress(job.progress.bar((seconds * 1_000.0) as u64, "{bar:8} {wide_msg}", &first))
            }
            Some(Form::Json) => Output::Json,
            Some(Form::Auto) if has_screen() => Screen::open().map_or(Output::Text, Output::Screen),
            Some(Form::Auto | Form::Text) => Output::Text,
        };
        Live { backend, stop: job.stop, seconds, output, shown: None }
    }

    /// Handles the keys, and shows the tenants after `elapsed` if it is time.
    pub(crate) fn update(&mut self, elapsed: Duration, tenants: &[Counts<'_>]) {
        let (input, every) = match &mut self.output {
            Output::Progress(bar) => {
                let time = elapsed.as_secs_f64().min(self.seconds);
                let time = format!("{time:.0} of {} s", self.seconds);
                let message = || format!("{time}  {}", line(tenants));
                return bar.update(elapsed.as_millis() as u64, message, || {
                    format!("running {time}: {}", line(tenants))
                });
            }
            Output::Screen(screen) => (screen.input(), DRAW_EVERY),
            Output::Text | Output::Json => (Input::None, PRINT_EVERY),
            Output::Closed => return,
        };
        if let Input::End(key) = input {
            self.stop.request(key);
        }
        if input == Input::None && self.shown.is_some_and(|shown| shown.elapsed() < every) {
            return;
        }
        let Some(groups) = self.backend.groups() else { return };
        let json = serde_json::to_string(&groups.hierarchy.snapshot()).map_err(io::Error::from);
        self.shown = Some(Instant::now());
        let time = format!("{:.1} of {} s", elapsed.as_secs_f64().min(self.seconds), self.seconds);
        let draw = |json: String| {
            let tree = &Tree::from_json(json.as_bytes()).map_err(io::Error::other)?;
            let frame = Frame { tree, order: None, time, tenants };
            match &mut self.output {
                Output::Screen(screen) => screen.draw(&frame),
                Output::Json => print(json),
                _ => print(frame.text(PLAIN_COLUMNS, PLAIN_GROUPS)),
            }
        };
        if json.and_then(draw).is_err() {
            self.output = Output::Closed;
        }
    }
}

/// Whether standard output is a terminal that can be drawn on.
pub(crate) fn has_screen() -> bool {
    io::stdout().is_terminal() && std::env::var_os("TERM").is_some() && !is_dumb_terminal()
}

/// Prints a text and a line end, and flushes.
pub(crate) fn print(text: String) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all((text + "\n").as_bytes())?;
    output.flush()
}

/// All tenants on one line; counts of 0 are left out.
fn line(tenants: &[Counts<'_>]) -> String {
    let each = tenants.iter().map(|&Counts { name, done, refused, stopped, is_idle }| {
        let counts = [(done, ""), (refused, " refused"), (stopped, " stopped")];
        let counts = counts.into_iter().filter(|&(count, _)| count > 0);
        let parts: Vec<_> = counts.map(|(count, kind)| units::count(count) + kind).collect();
        let text = if parts.is_empty() { "0".to_owned() } else { parts.join(" + ") };
        format!("{name} {text}{}", if is_idle { ", idle" } else { "" })
    });
    each.collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use super::{Counts, line};

    #[test]
    fn leaves_out_counts_of_zero() {
        let counts = |name, done, refused, stopped, is_idle| Counts { name, done, refused, stopped, is_idle };
        let text = line(&[
            counts("a", 12_345, 0, 0, false),
            counts("b", 3, 1_000, 0, true),
            counts("c", 0, 7, 2, false),
            counts("d", 0, 0, 0, false),
            counts("e", 0, 0, 4, false),
        ]);
        assert_eq!(text, "a 12,345  b 3 + 1,000 refused, idle  c 7 refused + 2 stopped  d 0  e 4 stopped");
    }

    #[test]
    fn uses_valid_templates() {
        for template in
            ["  loading {msg:<14} {bar:30} {percent:>3} %  {human_pos} rows", "{bar:8} {wide_msg}"]
        {
            assert!(indicatif::ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
