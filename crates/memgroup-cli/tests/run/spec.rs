//! The SPEC on the command line: the built-in one, and notes on contradictions.

use std::process::{Command, Output};

use super::{Place, TINY, stderr, stdout};

const BUILT_IN: &str = include_str!("../../specs/tenants.toml");

fn memgroup(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_memgroup")).args(words).output().expect("the program starts")
}

#[test]
fn prints_the_built_in_spec_as_a_first_example() {
    let output = memgroup(&["run", "--print-spec"]);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
    assert_eq!(stdout(&output), BUILT_IN);
    let place = Place::new();
    let smaller = ["0.04", "0.1", "0.03"]
        .iter()
        .fold(stdout(&output), |text, scale| text.replace(&format!("scale = {scale}\n"), "scale = 0.001\n"));
    assert_eq!(smaller.matches("scale = 0.001\n").count(), 6, "{smaller}");
    let spec = place.write("mine.toml", &smaller);
    let output = place.output(&spec, &["--seconds", "2"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("6 tenants, "), "{}", stdout(&output));
    assert!(!stderr(&output).contains("note: "), "{}", stderr(&output));
}

#[test]
fn refuses_other_options_with_print_spec() {
    for more in [&["a.toml"][..], &["--seconds", "1"], &["--json", "a.json"], &["--baseline"]] {
        let output = memgroup(&[&["run", "--print-spec"], more].concat());
        assert_eq!(output.status.code(), Some(2), "{more:?}");
        assert!(stderr(&output).contains("'--print-spec' cannot be used with"), "{}", stderr(&output));
        assert!(output.stdout.is_empty(), "{more:?}");
    }
}

#[test]
fn explains_the_spec_in_the_help() {
    let help = stdout(&memgroup(&["run", "--help"]));
    for part in ["TOML file with the tenants", "--print-spec", "crates/memgroup-cli/README.md"] {
        assert!(help.contains(part), "{part}: {help}");
    }
}

#[test]
fn notes_contradictions_before_the_run() {
    let place = Place::new();
    let contradictory = TINY.replacen("max = \"3M\"", "max = \"3M\"\nlow = \"5M\"", 1).replacen(
        "\"4M\"",
        "\"4M\"\nhigh = \"6M\"",
        1,
    );
    let spec = place.write("contradictory.toml", &contradictory);
    let output = place.output(&spec, &["--seconds", "0.2"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let said = stderr(&output);
    let lines: Vec<&str> = said.lines().take(3).collect();
    assert_eq!(
        lines[..2],
        [
            "note: `low` of tenant `shop` (5M) is above its `max` (3M): it protects no more than that",
            "note: `high` of tenant `board` (6M) is above its `max` (4M): it never slows the tenant down",
        ]
    );
    assert!(lines[2].starts_with("data: ") && said.matches("note: ").count() == 2, "{said}");
}
