//! The program `memgroup`: a demonstration of several tenants in one process.
//!
//! | code | means |
//! |---|---|
//! | 0 | done |
//! | 1 | something failed, or a result was wrong |
//! | 2 | the command line, the SPEC or `MEMGROUP_SLOTS` is wrong |
//! | 130 | ended early by Ctrl-C, with the report so far |

mod blocks;
mod run;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{Parser, Subcommand};

use run::{EXIT_FAILURE, RunError};

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
    /// Run several tenants' SQL or HTTP requests in one process, each tenant in its own memory
    /// group
    ///
    /// Each tenant runs queries on a TPC-H database of its own. For each tenant, the report shows
    /// how many statements were done, refused for lack of memory, or stopped to free memory,
    /// their latencies, and the tenant's memory. Ctrl-C ends the run with the report so far and
    /// exit code 130.
    Run(run::Options),
}

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| with_hint(error).exit());
    if let Err(error) = memgroup::SlotSource::from_env() {
        return failed(&format!("failed to {error}"), EXIT_USAGE);
    }
    let Command::Run(options) = cli.command.unwrap_or_else(|| Command::Run(run::Options::default()));
    match run::run(&options) {
        Ok(code) => ExitCode::from(code),
        Err(error @ RunError::Usage(_)) => failed(&error.to_string(), EXIT_USAGE),
        Err(error) => failed(&error.to_string(), EXIT_FAILURE),
    }
}

/// Adds the missing command to the error about a SPEC that was given without one.
fn with_hint(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    if word.ends_with(".toml") || Path::new(word).is_file() {
        let hint = format!("to run a SPEC: memgroup run {word}");
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
    error
}

fn failed(error: &str, code: u8) -> ExitCode {
    // Standard error may be closed; the exit code still tells the failure.
    let _ = writeln!(std::io::stderr().lock(), "memgroup: {error}");
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::{Cli, Command, with_hint};

    #[test]
    fn defines_a_consistent_command_line() {
        Cli::command().debug_assert();
    }

    #[test]
    fn parses_runs_with_and_without_a_command() {
        assert!(Cli::try_parse_from(["memgroup"]).expect("valid arguments").command.is_none());
        let run =
            Cli::try_parse_from(["memgroup", "run", "a.toml", "--seconds", "2"]).expect("valid arguments");
        assert!(matches!(run.command, Some(Command::Run(_))));
    }

    #[test]
    fn suggests_run_for_a_spec_without_a_command() {
        let error = |word| with_hint(Cli::try_parse_from(["memgroup", word]).expect_err(word)).to_string();
        assert!(error("typo.toml").contains("memgroup run typo.toml"), "{}", error("typo.toml"));
        assert!(!error("bake").contains("memgroup run"), "{}", error("bake"));
    }

    #[test]
    fn refuses_wrong_arguments() {
        for words in [&["--seed", "-1"][..], &["--seconds", "x"], &["a.toml", "b.toml"], &["--bogus"]] {
            let line = ["memgroup", "run"].iter().chain(words);
            assert!(Cli::try_parse_from(line).is_err(), "{words:?}");
        }
    }
}
