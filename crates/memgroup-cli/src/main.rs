//! The program `memgroup`: a demonstration of several tenants in one process.

mod blocks;
mod cli;
mod run;

fn main() -> std::process::ExitCode {
    cli::main()
}
