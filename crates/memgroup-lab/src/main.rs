//! The program `memgroup-lab`: `cargo run --release -p memgroup-lab -- charge --quick`.
//!
//! It ends with 0 when an experiment is done, also where a figure misses its goal; with 1 when
//! something failed or a result was wrong; and with 2 when the command line or `MEMGROUP_SLOTS` is
//! wrong.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use clap::Parser;
use memgroup_lab::{Args, Error};

#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn main() -> ExitCode {
    let args = Cli::parse().args;
    if let Err(error) = memgroup_percpu::SlotSource::from_env() {
        return failed(&error.to_string(), 2);
    }
    // The lab starts processes of this program.
    let program = std::env::current_exe().ok();
    match memgroup_lab::run(Args { program, ..args }) {
        Err(Error::Output(error)) if error.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => failed(&error.to_string(), if error.is_usage() { 2 } else { 1 }),
        Ok(()) => ExitCode::SUCCESS,
    }
}

fn failed(error: &str, code: u8) -> ExitCode {
    // Standard error may be closed; the exit code still tells the failure.
    let _ = writeln!(std::io::stderr().lock(), "memgroup-lab: failed to {error}");
    ExitCode::from(code)
}
