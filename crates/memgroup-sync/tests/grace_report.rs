//! The environment variable of grace periods, seen from processes that are started with it: the
//! choice is made once in each.

#![cfg(not(any(miri, memgroup_loom, memgroup_emulated)))]

use std::process::Command;

use memgroup_sync::grace::{self, Form, VARIABLE};

/// The report of another process of this test binary with the variable set so.
fn reported(value: Option<&str>) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "prints_the_chosen_form", "--nocapture"]).env_remove(VARIABLE);
    command.envs(value.map(|value| (VARIABLE, value)));
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{value:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text.lines().find_map(|line| line.split_once("REPORT ")).expect("a line with the report").1.to_owned()
}

/// The other tests also run it as a process of its own, and read its output.
#[test]
fn prints_the_chosen_form() {
    grace::synchronize(Form::Quiet);
    grace::synchronize(Form::Expedited);
    let report = grace::report();
    let text = report.to_string();
    assert!(!report.barrier_lost());
    assert_eq!(report.enters_by_store(), text.starts_with("sections by store, "), "{text}");
    assert_eq!(report.by_variable, text.contains(", by MEMGROUP_GRACE"), "{text}");
    assert_eq!(report.rejected.len(), text.matches("; failed to ").count(), "{text}");
    println!("REPORT {text}");
}

#[test]
fn chooses_the_form_of_the_variable() {
    assert_eq!(reported(Some("swap")), "sections by swap, no barrier, by MEMGROUP_GRACE");
    for (value, barrier) in [
        ("quiet", "quiet barrier MEMBARRIER_CMD_GLOBAL"),
        ("expedited", "quiet barrier MEMBARRIER_CMD_PRIVATE_EXPEDITED"),
    ] {
        let report = reported(Some(value));
        let chosen = report.contains(barrier) && report.contains(", by MEMGROUP_GRACE");
        assert!(chosen || report.contains("; failed to use "), "{report}");
    }
}

#[test]
fn leaves_the_choice_to_the_query_without_a_variable() {
    for value in [None, Some("")] {
        let report = reported(value);
        assert!(report.contains(", by query"), "{report}");
    }
}

#[test]
fn reports_a_bad_value_with_the_allowed_ones() {
    let report = reported(Some("loud"));
    assert!(report.contains(", by query"), "{report}");
    let error = "; failed to use MEMGROUP_GRACE=loud: it must be quiet, swap or expedited";
    assert!(report.contains(error), "{report}");
}
