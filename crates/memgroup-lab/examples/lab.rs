//! Runs an experiment without the program `memgroup`: `cargo run --release -p memgroup-lab --example lab -- charge`.

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: memgroup_lab::Args,
}

fn main() -> ExitCode {
    match memgroup_lab::run(Cli::parse().args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab: failed to {error}");
            ExitCode::from(if error.is_usage() { 2 } else { 1 })
        }
    }
}
