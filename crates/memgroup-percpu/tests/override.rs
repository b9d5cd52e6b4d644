//! The environment variable, seen from processes that are started with it: the choice is made once
//! in each.

#![cfg(not(any(miri, memgroup_loom, memgroup_emulated)))]

use std::process::Command;

use memgroup_percpu::{SlotSource, VARIABLE};

/// The report of another process of this test binary with these variables set.
fn reported(variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "the_report_agrees_with_the_choice", "--nocapture"]).env_remove(VARIABLE);
    command.envs(variables.iter().copied());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{variables:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    let line = text.lines().find_map(|line| line.split_once("REPORT ")).expect("a line with the report");
    line.1.to_owned()
}

/// The other tests also run it as a process of its own, and read its output.
#[test]
fn the_report_agrees_with_the_choice() {
    let report = SlotSource::report();
    assert_eq!(report.chosen, SlotSource::detect());
    assert_eq!(report.by_variable, matches!(SlotSource::from_env(), Ok(Some(_))));
    assert!(SlotSource::detect().current() < SlotSource::detect().slots());
    println!("REPORT {report}");
}

#[test]
fn detects_the_source_of_the_variable() {
    assert_eq!(reported(&[(VARIABLE, "virtual:7")]), "virtual, 7 slots, by MEMGROUP_SLOTS");
    assert_eq!(reported(&[(VARIABLE, "hash:1")]), "hash, 1 slot, by MEMGROUP_SLOTS");
    if cfg!(target_os = "linux") {
        assert!(reported(&[(VARIABLE, "getcpu")]).starts_with("getcpu, "));
    }
}

#[test]
fn without_a_variable_the_self_test_chooses() {
    for variables in [&[][..], &[(VARIABLE, "")][..]] {
        let report = reported(variables);
        assert!(report.contains(", by self-test"), "{report}");
        assert!(!report.contains(VARIABLE), "{report}");
    }
}

#[test]
fn reports_a_bad_value_and_chooses_by_the_self_test() {
    let report = reported(&[(VARIABLE, "cpus")]);
    assert!(
        report.contains(", by self-test; failed to apply environment variable MEMGROUP_SLOTS: "),
        "{report}"
    );
    assert!(
        report.contains("\"cpus\": expected mm_cid, cpu_id, getcpu, hash, hash:N or virtual:N"),
        "{report}"
    );
    let report = reported(&[(VARIABLE, "virtual:0")]);
    assert!(report.contains("virtual with \"0\" slots: expected a number from 1 to 4096"), "{report}");
}

#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn without_rseq_getcpu_is_chosen_and_the_report_says_why() {
    let report = reported(&[("GLIBC_TUNABLES", "glibc.pthread.rseq=0")]);
    assert!(report.starts_with("getcpu, "), "{report}");
    assert!(report.contains("failed to use slot source mm_cid: "), "{report}");
    assert!(report.contains("failed to use slot source cpu_id: "), "{report}");
}
