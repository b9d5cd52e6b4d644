#![doc = include_str!("../README.md")]

mod blocks;
mod cli;
mod run;

fn main() -> std::process::ExitCode {
    cli::main()
}
