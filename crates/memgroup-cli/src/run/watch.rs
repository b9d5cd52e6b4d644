//! Watch: the tree of groups while the run lasts, drawn on the terminal, or printed where there is none.
//!
//!   snapshot ─▶ frame (lines) ─▶ screen (terminal) │ text (a pipe)        or as JSON, a line each
//!
//! - I1. What is shown is the engine's snapshot; nothing is added up here.
//! - I2. A reader who goes away, or a terminal that fails, ends the watching and not the run.

mod frame;
mod screen;

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use memgroup::Snapshot;

pub(crate) use screen::restore;

use super::house::House;
use super::progress::Shown;
use super::stop::Stop;
use frame::Frame;
use screen::{Screen, Wish};

/// Between two pictures on a terminal.
const DRAW_EVERY: Duration = Duration::from_millis(300);
/// Between two frames where there is no terminal.
const PRINT_EVERY: Duration = Duration::from_secs(1);
/// Of a frame where there is no terminal, in columns and in groups.
const PLAIN_COLUMNS: usize = 100;
const PLAIN_GROUPS: usize = 40;

/// How the groups are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Form {
    /// On the terminal if standard output is one, else as text
    Auto,
    /// As text, a frame a second
    Text,
    /// As JSON, a snapshot a second, one on each line
    Json,
}

/// Groups being watched. The terminal is as it was when this is dropped.
pub(crate) struct Watch<'a> {
    house: &'a House,
    stop: &'a Stop,
    seconds: f64,
    output: Output,
    drawn: Option<Instant>,
}

enum Output {
    Screen(Screen),
    Text,
    Json,
    /// Nobody looks any more.
    Closed,
}

impl<'a> Watch<'a> {
    /// Begins to watch a run of so many seconds.
    pub(crate) fn begin(form: Form, house: &'a House, stop: &'a Stop, seconds: f64) -> Watch<'a> {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        let is_terminal = io::stdout().is_terminal() && !is_dumb;
        let output = match form {
            Form::Json => Output::Json,
            // A terminal that cannot be drawn on can be printed on.
            Form::Auto if is_terminal => Screen::open().map_or(Output::Text, Output::Screen),
            Form::Auto | Form::Text => Output::Text,
        };
        Watch { house, stop, seconds, output, drawn: None }
    }

    /// Shows how the groups and the tenants are now, if it is time to; and hears what is wished at the keyboard.
    pub(crate) fn update(&mut self, elapsed: Duration, tenants: &[Shown<'_>]) {
        let wish = match &mut self.output {
            Output::Screen(screen) => screen.wish(),
            Output::Text | Output::Json => Wish::None,
            Output::Closed => return,
        };
        if let Wish::End(by) = wish {
            self.stop.request_by(by);
        }
        let every = if matches!(self.output, Output::Screen(_)) { DRAW_EVERY } else { PRINT_EVERY };
        if wish == Wish::None && self.drawn.is_some_and(|drawn| drawn.elapsed() < every) {
            return;
        }
        let Some(snapshot) = self.house.snapshot() else { return };
        self.drawn = Some(Instant::now());
        let frame = Frame { snapshot: &snapshot, elapsed, seconds: self.seconds, tenants };
        let shown = match &mut self.output {
            Output::Screen(screen) => screen.draw(&frame),
            Output::Text => write(&(frame.text(PLAIN_COLUMNS, PLAIN_GROUPS) + "\n")),
            Output::Json => json(&snapshot).and_then(|line| write(&line)),
            Output::Closed => Ok(()),
        };
        if shown.is_err() {
            self.output = Output::Closed;
        }
    }
}

fn json(snapshot: &Snapshot) -> io::Result<String> {
    Ok(serde_json::to_string(snapshot)? + "\n")
}

fn write(text: &str) -> io::Result<()> {
    let mut output = io::stdout().lock();
    output.write_all(text.as_bytes())?;
    output.flush()
}
