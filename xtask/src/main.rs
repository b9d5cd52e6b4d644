//! Runs one of the project's checks: `cargo run -p xtask -- layers`.

use std::path::Path;
use std::process::ExitCode;

use xtask::{Result, figures, heavy, layers, lines};

const USAGE: &str = "\
usage: cargo run -p xtask -- CHECK

lines [MOST]    print the production lines and files of each crate, and fail above MOST lines
layers          print each crate's order or cycles, and fail on an import against an order
layers --list   print each import within a cycle, too
heavy           fail if heavy/ or a public signature that it uses changed since .ci/heavy passed
heavy --checked note that .ci/heavy passed
figures         fail if a page quotes another figure than docs/figures.json has
figures --write write the figures of docs/figures.json into the pages";

fn main() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a folder of the workspace");
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(root, &arguments) {
        Ok(faults) if faults.is_empty() => ExitCode::SUCCESS,
        Ok(faults) => {
            eprintln!("{}", faults.join("\n"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the check that the arguments name, and returns the faults that it found.
fn run(root: &Path, arguments: &[&str]) -> Result<Vec<String>> {
    match arguments {
        ["lines", most @ ..] if most.len() < 2 => {
            let most =
                most.first().map(|most| most.parse().map_err(|_| format!("{most} is no number of lines")));
            lines::report(root, most.transpose()?)
        }
        ["layers", option @ ..] if matches!(option, [] | ["--list"]) => {
            println!("{}", layers::report(root, !option.is_empty())?);
            layers::violations(root)
        }
        ["heavy"] => heavy::changed(root),
        ["heavy", "--checked"] => {
            if heavy::note_checked(root)? {
                println!("heavy/checked is new: commit it");
            }
            Ok(Vec::new())
        }
        ["figures"] => figures::check(root, false),
        ["figures", "--write"] => figures::check(root, true),
        _ => Err(USAGE.to_owned()),
    }
}
