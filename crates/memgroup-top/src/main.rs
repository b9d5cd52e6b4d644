//! `memgroup-top`: shows the memory groups of a running program, and records and replays them.
//!
//! ```text
//!   socket ─▶ attach (JSON) ─▶ view (order, history) ─▶ screen │ text │ JSON lines
//!                          └─▶ recording (file) ─▶ show (player) ─▶ view
//! ```
//!
//! - I1. The screen and a recording outlive the program that they show. They say that it's gone,
//!   and ask again each interval.
//!
//! | exit code | means |
//! |---|---|
//! | 0 | done, or ended by q or Ctrl-C |
//! | 1 | the program or the file could not be read or written |
//! | 2 | the command line is wrong |

#![forbid(unsafe_code)]

mod attach;
#[cfg(test)]
mod corpus;
mod find;
mod frame;
mod options;
mod record;
mod recording;
mod screen;
mod show;
mod text;
mod view;

use std::process::ExitCode;

use clap::Parser as _;

use options::{Options, Sub};
use text::{Error, say};

fn main() -> ExitCode {
    let options = Options::parse();
    let ended = match options.command {
        Some(Sub::Record(options)) => record::record(&options),
        Some(Sub::Replay(options)) => show::replay(&options),
        Some(Sub::Man) => options::man(),
        Some(Sub::Completions { shell }) => options::completions(shell),
        None => show::attach(options),
    };
    let Err(error) = ended else { return ExitCode::SUCCESS };
    say(&error.to_string());
    ExitCode::from(if matches!(error, Error::Usage(_)) { 2 } else { 1 })
}
