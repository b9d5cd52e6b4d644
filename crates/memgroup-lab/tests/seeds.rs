//! `percpu`, `rstat` and `shrink`, each from its arguments to its report, at the least size that
//! runs every part.

mod support;

use std::process::Command;

use memgroup_lab::{Args, Experiment};
use serde_json::Value;

use support::{assert_fits, assert_form, report_of, rows, tiny};

#[test]
fn shows_every_mode_of_percpu_beside_the_seed() {
    let (printed, json) = report_of(tiny(Experiment::Percpu));
    assert_form(&json, "percpu", "001");
    for text in [
        "481,408",
        "135,552",
        "POWER9",
        "no depopulation",
        "with cold demotion",
        "2,704 bytes",
        "pages of 64k, with relocation",
        "pages of 2m, no depopulation",
        "all sizes in one arena",
        "an arena for each size (control)",
        "making a group and removing another one",
        "the same, maintain after each cycle",
        "https://lwn.net/Articles/850508/",
    ] {
        assert!(printed.contains(text), "no \"{text}\" in:\n{printed}");
    }
    assert_fits(&printed);
    assert_eq!(rows(&json, "with base words").len(), 16);
    let populated = |stage: &str, variant: &str| -> f64 {
        let of = |row: &&Value| row["params"]["page"] == "4k" && row["variant"] == variant;
        rows(&json, stage).into_iter().find(of).unwrap()["median"].as_f64().unwrap()
    };
    assert_eq!(populated("maintained", "no depopulation"), populated("created", "no depopulation"));
    for variant in ["depopulation", "with relocation", "with cold demotion"] {
        assert!(populated("maintained", variant) < populated("created", variant), "{variant}");
    }
}

#[test]
fn measures_percpu_with_the_asked_slots() {
    let (printed, json) = report_of(Args { slots: Some(3), ..tiny(Experiment::Percpu) });
    assert!(printed.contains("on 3 slots") && printed.contains("1 of 11 left"), "{printed}");
    assert_eq!(json["options"], serde_json::json!(["--slots 3"]));
}

/// The letter's script on the running kernel, which is a program by itself.
#[test]
fn plays_the_script_against_this_kernel_or_says_why_not() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/kernel.sh");
    let output = Command::new("sh").args([script, "3", "2", "0"]).output().unwrap();
    let (lines, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        assert_eq!(lines.lines().filter(|line| line.parse::<f64>().is_ok()).count(), 4, "{lines}");
    } else {
        assert!(!said.trim().is_empty(), "a script that failed says why");
    }
}

#[test]
fn shows_both_kinds_of_trees_beside_the_seed() {
    let (printed, json) = report_of(tiny(Experiment::Rstat));
    assert_form(&json, "rstat", "002");
    assert_fits(&printed);
    for text in [
        "26 children read files: in the kernel",
        "one tree (control)",
        "separate trees",
        "cpu at ticks (the kindest)",
        "all four, cpu at every step (least kind)",
        "three shared words",
        "read of 48 values",
        "the kernel's links",
        "a reader of cpu during another thread's flush of memory",
    ] {
        assert!(printed.contains(text), "no \"{text}\" in:\n{printed}");
    }
    let reads = rows(&json, "read");
    let with = |trees: &str| reads.iter().filter(|row| row["variant"] == trees).count();
    assert_eq!((with("one tree (control)"), with("separate trees")), (5, 5));
    // Measured in processes of the program, which its own tests have.
    assert!(printed.contains("no SQLite statements"), "{printed}");
    assert!(rows(&json, "statements").is_empty());
    assert_eq!(rows(&json, "flush").len(), 2);
}

#[test]
fn shows_every_question_of_the_thread_of_shrink_beside_the_seed() {
    let (printed, json) = report_of(tiny(Experiment::Shrink));
    assert_form(&json, "shrink", "003");
    assert_fits(&printed);
    for text in [
        "2,000 groups, 200 MiB: trying the lock",
        "instructions a cycle",
        "neither is measured",
        "read-write lock (control)",
        "SRCU-like (control)",
        "reference counts (control)",
        "hazard records, plain walk",
        "the engine's whole walk",
        "the cover letter's script: 10 runnable threads",
        "a call that never returns",
        "SRCU-like: a call of 20 ms",
        "a start storm",
        "caches that give nothing",
        "as the kernel visits (control)",
        "tenants under pressure, SQLite",
        "tenants under pressure, computed values",
        "fixed shares (control)",
        "a common limit",
    ] {
        assert!(printed.contains(text), "no \"{text}\" in:\n{printed}");
    }
    let of = |metric: &str, variant: &str| -> f64 {
        let all = rows(&json, metric).into_iter().filter(|row| row["variant"] == variant);
        all.map(|row| row["median"].as_f64().unwrap()).sum()
    };
    assert_eq!(of("refusals", "shrinkers"), 0.0, "there were caches to take from");
    assert_eq!(of("passed by", "shrinkers"), 0.0, "no group has a lock");
    assert!(of("misses a use", "fixed shares (control)") > 0.0);
}

#[test]
fn measures_shrink_with_the_asked_threads_and_slots() {
    let (_, json) = report_of(Args { threads: Some(1), slots: Some(4), ..tiny(Experiment::Shrink) });
    for row in rows(&json, "visit") {
        assert_eq!(row["params"]["threads"], 1, "{row}");
    }
    assert_eq!(json["machine"]["slots"], 4);
}
