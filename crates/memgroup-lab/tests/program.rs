//! The program: its command line, and experiments in child processes.

use std::process::Command;

use memgroup_lab::{Args, Experiment, Trees, run_to};

const PROGRAM: &str = env!("CARGO_BIN_EXE_memgroup-lab");

#[test]
fn measures_sqlite_tenants_in_child_processes() {
    let args =
        Args { tiny: true, program: Some(PROGRAM.into()), slots: Some(4), ..Args::new(Experiment::Rstat) };
    let mut printed = Vec::new();
    run_to(&args, &mut printed).unwrap();
    let printed = String::from_utf8(printed).unwrap();
    let (_, tenants) = printed.split_once("two children run").expect(&printed);
    for trees in Trees::BOTH {
        let line =
            tenants.lines().map(str::trim_start).find(|line| line.starts_with(trees.name())).expect(tenants);
        let ns = line[trees.name().len()..].split_whitespace().next().expect(line).replace(',', "");
        let ns: f64 = ns.parse().expect(line);
        assert!(ns > 0.0, "{line}");
    }
}

#[test]
fn measures_the_memory_of_groups_in_a_child_process() {
    let args = Args { tiny: true, program: Some(PROGRAM.into()), ..Args::new(Experiment::Limits) };
    let mut printed = Vec::new();
    run_to(&args, &mut printed).unwrap();
    let printed = String::from_utf8(printed).unwrap();
    let (_, table) = printed.split_once("resident bytes for each of 500 groups").expect(&printed);
    let line = table.lines().map(str::trim_start).find(|line| line.starts_with("memgroup")).expect(table);
    let live = line["memgroup".len()..].split_whitespace().next().expect(line).replace(',', "");
    assert!(live.parse::<f64>().expect(line) > 0.0, "{line}");
}

#[test]
fn names_a_program_that_cannot_be_started() {
    let args = Args { tiny: true, program: Some("/nowhere/at/all".into()), ..Args::new(Experiment::Rstat) };
    let error = run_to(&args, &mut std::io::sink()).unwrap_err();
    assert!(error.to_string().starts_with("start /nowhere/at/all: "), "{error}");
    let args = Args { program: Some("/bin/true".into()), ..args };
    let error = run_to(&args, &mut std::io::sink()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("answered") && text.contains("\"\""), "{text}");
    let error = run_to(&Args { experiment: Experiment::Limits, ..args }, &mut std::io::sink()).unwrap_err();
    assert!(error.to_string().contains("answered"), "{error}");
}

#[test]
fn lists_the_experiments_and_refuses_wrong_arguments() {
    let run = |words: &[&str]| Command::new(PROGRAM).args(words).output().expect("the program starts");
    let help = run(&["--help"]);
    let text = String::from_utf8_lossy(&help.stdout);
    assert!(help.status.success() && text.contains("charge") && text.contains("drain"), "{text}");
    for words in [&["charge", "--threads", "0"][..], &["drain", "--slots", "0"], &["bake"]] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout.is_empty() && !output.stderr.is_empty(), "{words:?}");
    }
}

#[test]
fn writes_figures_page_and_charts_under_target_in_a_short_run() {
    let output = Command::new(PROGRAM).args(["figures", "--tiny"]).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("[7/7] alloc") && said.contains("noisy: it was a short run"), "{said}");
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let read = |name: &str| std::fs::read_to_string(root.join("target/figures").join(name)).unwrap();
    let (json, page) = (read("figures.json"), read("figures.md"));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let figures = json["figures"].as_array().unwrap();
    assert!(figures.len() > 300, "{}", figures.len());
    let missed: Vec<_> = figures.iter().filter(|figure| figure["met"] == false).collect();
    let (_, slow) = page.split_once("## Where it is slow").unwrap();
    let (slow, _) = slow.split_once("\n## ").unwrap();
    assert_eq!(slow.matches("\n| ").count(), missed.len() + 1, "each missed goal is on the page:\n{slow}");
    for chart in ["charge.svg", "drain.svg"] {
        assert!(read(&format!("figures/{chart}")).starts_with("<svg"), "{chart}");
        assert!(page.contains(&format!("](figures/{chart})")), "{chart}");
    }
    for seed in ["seed 000", "seed 001", "seed 002", "seed 003", "seed 004"] {
        assert!(page.contains(&format!("**{seed}")), "no table of {seed}");
    }
}
