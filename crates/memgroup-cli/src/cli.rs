//! The command line: what is asked for, and what the exit code says.
//!
//! | code | means |
//! |---|---|
//! | 0 | done |
//! | 1 | something failed, or a result was wrong |
//! | 2 | the command line, the SPEC or `MEMGROUP_SLOTS` is wrong |
//! | 130 | ended by Ctrl-C, or by q while groups are watched, with the report so far |

use std::fmt;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{Parser, Subcommand};

use crate::run::{self, EXIT_INTERRUPTED, End};

const EXIT_FAILURE: u8 = 1;
const EXIT_USAGE: u8 = 2;

/// Memory control groups inside one process
#[derive(Debug, Parser)]
#[command(version, about, after_help = "Without a command: memgroup run, the built-in scenario.")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run several tenants' SQL in one process, each held in its own group
    ///
    /// Each tenant's queries run on a TPC-H database of its own. The report says, for each, how many statements were
    /// done and how many were refused for want of memory, how long they took, and how much memory was held.
    /// Ctrl-C, and q where --watch draws on a terminal, ends the run with the report so far and exit code 130.
    Run(run::Options),
    /// Measure a mechanism and its control, beside the kernel's own figures
    Lab(memgroup_lab::Args),
}

/// Does what the command line asks for.
pub(crate) fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| with_hint(error).exit());
    if let Err(error) = memgroup::SlotSource::from_env() {
        return failed(&format!("failed to {error}"), EXIT_USAGE);
    }
    match cli.command.unwrap_or_else(|| Command::Run(run::Options::default())) {
        Command::Run(options) => match run::run(&options) {
            Ok(End::Done) => ExitCode::SUCCESS,
            Ok(End::Interrupted) => ExitCode::from(EXIT_INTERRUPTED),
            Err(error) => failed(&error, if error.is_usage() { EXIT_USAGE } else { EXIT_FAILURE }),
        },
        Command::Lab(args) => match memgroup_lab::run(with_program(args)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(memgroup_lab::Error::Output(error)) if error.kind() == ErrorKind::BrokenPipe => {
                ExitCode::SUCCESS
            }
            Err(error) => failed(
                &format!("failed to {error}"),
                if error.is_usage() { EXIT_USAGE } else { EXIT_FAILURE },
            ),
        },
    }
}

/// The lab starts processes of this program.
fn with_program(args: memgroup_lab::Args) -> memgroup_lab::Args {
    memgroup_lab::Args { program: std::env::current_exe().ok(), ..args }
}

/// Says what is missing when a SPEC stands where a command should.
fn with_hint(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    if word.ends_with(".toml") || Path::new(word).is_file() {
        let hint = format!("to run a SPEC: memgroup run {word}");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
    error
}

fn failed(error: &dyn fmt::Display, code: u8) -> ExitCode {
    // Standard error may be gone; the code still says it.
    let _ = writeln!(std::io::stderr().lock(), "memgroup: {error}");
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::{Cli, Command, with_hint};

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn without_a_command_there_is_none_to_choose() {
        assert!(Cli::try_parse_from(["memgroup"]).expect("it parses").command.is_none());
        let run = Cli::try_parse_from(["memgroup", "run", "a.toml", "--seconds", "2"]).expect("it parses");
        assert!(matches!(run.command, Some(Command::Run(_))));
    }

    #[test]
    fn a_spec_without_its_command_gets_a_hint() {
        let said = |word| with_hint(Cli::try_parse_from(["memgroup", word]).expect_err(word)).to_string();
        assert!(said("typo.toml").contains("memgroup run typo.toml"), "{}", said("typo.toml"));
        assert!(!said("bake").contains("memgroup run"), "{}", said("bake"));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for words in [&["--seed", "-1"][..], &["--seconds", "x"], &["a.toml", "b.toml"], &["--bogus"]] {
            let line = ["memgroup", "run"].iter().chain(words);
            assert!(Cli::try_parse_from(line).is_err(), "{words:?}");
        }
    }
}
