//! Watch: the tree of groups during a run, drawn on a terminal or printed.
//!
//!   snapshot ─▶ frame (lines) ─▶ screen (terminal) │ text (pipe)        or JSON, one line each
//!
//! - I1. Every figure comes from one snapshot of the engine.
//! - I2. A closed output or a failed terminal ends the watching, not the run.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use super::Counts;
use super::frame::Frame;
use super::screen::{Input, Screen};
use crate::run::backend::Backend;
use crate::run::base::progress::is_dumb_terminal;
use crate::run::base::stop::Stop;

/// Time between two frames on a terminal.
const DRAW_EVERY: Duration = Duration::from_millis(300);
/// Time between two printed frames.
const PRINT_EVERY: Duration = Duration::from_secs(1);
/// Size of a printed frame, in columns and groups.
const PLAIN_COLUMNS: usize = 100;
const PLAIN_GROUPS: usize = 40;

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

/// Groups that are being watched. Dropping it restores the terminal.
pub(crate) struct Watch<'a> {
    backend: &'a Backend,
    stop: &'a Stop,
    seconds: f64,
    output: Output,
    /// Time of the last frame.
    shown: Option<Instant>,
}

enum Output {
    Screen(Screen),
    Text,
    Json,
    /// The output failed.
    Closed,
}

impl<'a> Watch<'a> {
    /// Starts to watch a run of that many seconds.
    pub(crate) fn start(form: Form, backend: &'a Backend, stop: &'a Stop, seconds: f64) -> Watch<'a> {
        let has_screen =
            io::stdout().is_terminal() && std::env::var_os("TERM").is_some() && !is_dumb_terminal();
        let output = match form {
            Form::Json => Output::Json,
            Form::Auto if has_screen => Screen::open().map_or(Output::Text, Output::Screen),
            Form::Auto | Form::Text => Output::Text,
        };
        Watch { backend, stop, seconds, output, shown: None }
    }

    /// Handles the keys, and shows the next frame if it is time.
    pub(crate) fn update(&mut self, elapsed: Duration, tenants: &[Counts<'_>]) {
        let (input, every) = match &mut self.output {
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
        let snapshot = groups.hierarchy.snapshot();
        self.shown = Some(Instant::now());
        let frame = Frame { snapshot: &snapshot, elapsed, seconds: self.seconds, tenants };
        let result = match &mut self.output {
            Output::Screen(screen) => screen.draw(&frame),
            Output::Text => write(&(frame.text(PLAIN_COLUMNS, PLAIN_GROUPS) + "\n")),
            Output::Json => serde_json::to_string(&snapshot)
                .map_err(io::Error::from)
                .and_then(|line| write(&(line + "\n"))),
            Output::Closed => Ok(()),
        };
        if result.is_err() {
            self.output = Output::Closed;
        }
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}
