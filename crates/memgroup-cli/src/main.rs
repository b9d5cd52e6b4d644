#![doc = include_str!("../README.md")]

mod blocks;
mod cli;
mod run;
mod top;
mod tree;

fn main() -> std::process::ExitCode {
    cli::main()
}
