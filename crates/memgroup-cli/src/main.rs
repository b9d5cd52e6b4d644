#![doc = include_str!("../README.md")]

mod cli;
mod run;

fn main() -> std::process::ExitCode {
    cli::main()
}
