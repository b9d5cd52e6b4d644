//! Each experiment from its arguments to its report, at the least size that runs every part.

use std::fs;

use memgroup_lab::{Args, Error, Experiment, run_to};
use serde_json::Value;

fn tiny(experiment: Experiment) -> Args {
    Args { tiny: true, ..Args::new(experiment) }
}

/// Runs an experiment; its printed report and its JSON.
fn report_of(mut args: Args) -> (String, Value) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lab.json");
    args.json = Some(path.clone());
    let mut printed = Vec::new();
    run_to(&args, &mut printed).unwrap();
    let json = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    (String::from_utf8(printed).unwrap(), json)
}

/// No line is wider than a terminal, bars included.
fn assert_fits(printed: &str) {
    for line in printed.lines() {
        assert!(line.chars().count() <= 110, "{line}\nin:\n{printed}");
    }
}

fn rows<'j>(json: &'j Value, metric: &str) -> Vec<&'j Value> {
    json["rows"].as_array().unwrap().iter().filter(|row| row["metric"] == metric).collect()
}

fn assert_form<'s>(json: &Value, experiment: &str, seed: impl Into<Option<&'s str>>) {
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let sorted = |names: &[&str]| {
        let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(keys(json), sorted(&["experiment", "options", "seed", "machine", "rows", "checks"]));
    assert_eq!((json["experiment"].as_str(), json["seed"]["name"].as_str()), (Some(experiment), seed.into()));
    let rows = json["rows"].as_array().unwrap();
    assert!(!rows.is_empty());
    for row in rows {
        assert_eq!(
            keys(row),
            sorted(&["variant", "params", "metric", "unit", "median", "min", "p90"]),
            "{row}"
        );
        let [min, median, p90] = ["min", "median", "p90"].map(|name| row[name].as_f64().unwrap());
        assert!(min <= median && median <= p90, "{row}");
    }
    for check in json["checks"].as_array().unwrap() {
        assert_eq!(keys(check), sorted(&["name", "value", "goal", "met"]), "{check}");
        assert!(check["met"].is_boolean() && check["goal"].is_string());
    }
}

#[test]
fn shows_every_mechanism_of_charge_beside_the_seed() {
    let (printed, json) = report_of(tiny(Experiment::Charge));
    assert_form(&json, "charge", "004");
    assert_fits(&printed);
    assert!(printed.starts_with("memgroup-lab charge\n"), "{printed}");
    for text in [
        "machine: ",
        "18,425,800",
        "neither is measured",
        "33,177,858",
        "no stock",
        "flat atomic",
        "mutex tree",
        "root unaccounted",
        "touch, discard",
        "usleep(10)",
        "bystander beside the storm",
    ] {
        assert!(printed.contains(text), "no \"{text}\" in:\n{printed}");
    }
    let check_names: Vec<&str> =
        json["checks"].as_array().unwrap().iter().map(|check| check["name"].as_str().unwrap()).collect();
    assert!(check_names.contains(&"pair, depth 3, 1 thread"), "{check_names:?}");
    assert!(check_names.contains(&"no stock over stock, 2 threads, same group"), "{check_names:?}");
    assert!(check_names.contains(&"1,024 groups in turn over 1, one thread"), "{check_names:?}");
}

#[test]
fn measures_charge_at_one_depth_and_one_thread_only() {
    let (_, json) =
        report_of(Args { threads: Some(1), depth: Some(2), slots: Some(8), ..tiny(Experiment::Charge) });
    assert_eq!(json["machine"]["slots"], 8);
    for row in rows(&json, "pair") {
        let storm_row = row["params"].get("groups").is_none();
        assert!(storm_row || row["params"]["depth"] == 2, "{row}");
        assert_eq!(row["params"]["threads"], 1, "{row}");
    }
}

#[test]
fn has_no_groups_in_turn_for_the_root_alone() {
    let (_, json) = report_of(Args { depth: Some(1), ..tiny(Experiment::Charge) });
    for row in rows(&json, "pair") {
        assert!(row["params"].get("groups").is_none_or(|groups| groups == 1), "{row}");
    }
}

#[test]
fn shows_every_state_of_drain_the_control_and_the_seed() {
    let (printed, json) = report_of(tiny(Experiment::Drain));
    assert_form(&json, "drain", "000");
    assert_fits(&printed);
    for text in [
        "156,275",
        "58,054",
        "98,248,009,999",
        "remote-dirty",
        "cold",
        "bare swaps, prefetched",
        "unpark each owner",
        "wakes a thread on the victim's CPU",
        "drainer never rests",
        "consume a page",
        "system calls of a drain",
    ] {
        assert!(printed.contains(text), "no \"{text}\" in:\n{printed}");
    }
    let called: Vec<f64> =
        rows(&json, "drains with a system call").iter().map(|row| row["median"].as_f64().unwrap()).collect();
    assert!(called.iter().all(|&drains| drains == 0.0), "{called:?}");
}

#[test]
fn measures_drain_with_the_asked_number_of_slots() {
    let (_, json) = report_of(Args { slots: Some(3), depth: Some(1), ..tiny(Experiment::Drain) });
    let drains = rows(&json, "whole drain");
    assert!(!drains.is_empty());
    assert!(drains.iter().all(|row| row["params"]["slots"] == 3), "{drains:?}");
}

#[test]
fn shows_the_controllers_cost_and_how_fast_memory_is_freed() {
    let (printed, json) = report_of(tiny(Experiment::Control));
    assert_form(&json, "control", None);
    assert_fits(&printed);
    for text in [
        "seed: none",
        "goals of the controller",
        "max (control)",
        "everything set",
        "served by the stock",
        "without stock",
        "effective protection of 50 groups",
        "all below the root",
        "two below each",
        "idle SQLite cache of",
        "fitted at once",
        "charges of 4 KiB",
        "a sort in SQLite",
        "half gone",
        "condition variable (control)",
    ] {
        assert!(printed.contains(text), "no \"{text}\" in:\n{printed}");
    }
    let check_names: Vec<&str> =
        json["checks"].as_array().unwrap().iter().map(|check| check["name"].as_str().unwrap()).collect();
    for name in [
        "a pair, everything set over max alone, 1 thread",
        "a pair, everything set over max alone, 2 threads, same group",
        "a pair, everything set over max alone, 2 threads, a group each",
        "protection of 50 groups, ten below each",
        "from pressure to 4 KiB freed by an idle cache, p99",
        "from pressure to 1 MiB freed by an idle cache, p99",
        "a kill of charges of 4 KiB for 64 KiB, all free, p99",
    ] {
        assert!(check_names.contains(&name), "no \"{name}\" in {check_names:?}");
    }
    assert!(check_names.iter().any(|name| name.starts_with("a kill of a sort in SQLite")), "{check_names:?}");
    let until = |what: &str| -> f64 {
        let of = |row: &&Value| row["variant"] == "charges of 4 KiB" && row["params"]["until"] == what;
        rows(&json, "p50").into_iter().find(of).unwrap()["median"].as_f64().unwrap()
    };
    assert!(0.0 < until("half gone") && until("half gone") <= until("all free"), "{printed}");
}

#[test]
fn measures_control_with_the_asked_groups_and_threads() {
    let (printed, json) =
        report_of(Args { groups: Some(7), threads: Some(1), slots: Some(4), ..tiny(Experiment::Control) });
    assert!(printed.contains("effective protection of 7 groups"), "{printed}");
    assert!(!printed.contains("a group each"), "{printed}");
    let of_protection: Vec<&Value> =
        rows(&json, "p50").into_iter().filter(|row| row["params"].get("fan-out").is_some()).collect();
    assert!(!of_protection.is_empty() && of_protection.iter().all(|row| row["params"]["groups"] == 7));
}

#[test]
fn shows_every_case_of_limits_beside_its_controls() {
    let (printed, json) = report_of(tiny(Experiment::Limits));
    assert_form(&json, "limits", None);
    assert_fits(&printed);
    for text in [
        "goals away from the best case",
        "stock off",
        "CAS tree",
        "mutex",
        "against headroom",
        "seven of 4 KiB, one of 1 MiB",
        "the exact path",
        "free the oldest",
        "evict when refused, 64 B to 8 KiB",
        "parent is full",
        "as a memgroup shrinker",
        "256, above high",
        "drawn at random",
        "a parent, 10 groups below",
        "prepaid bytes on every slot",
        "look-up by path",
        "headroom + 1",
        "waiter is parked",
        "create a group",
        "without maintenance",
        "CAS map: copy all names",
        "snapshot",
    ] {
        assert!(printed.contains(text), "no \"{text}\" in:\n{printed}");
    }
    // Measured in processes of the program, which its own tests have.
    assert!(printed.contains("no bytes of a group"), "{printed}");
    let refused = |case: &str| {
        let of = |row: &&Value| row["params"]["case"] == case && row["variant"] == "memgroup";
        let found: Vec<f64> = rows(&json, "refused")
            .into_iter()
            .filter(of)
            .map(|row| row["median"].as_f64().unwrap())
            .collect();
        assert!(!found.is_empty(), "no case {case}");
        found
    };
    assert!(refused("0 B").iter().all(|&share| share == 1.0), "all are refused without headroom");
    assert!(refused("64 MiB").iter().all(|&share| share == 0.0), "none is with a lot of it");
    assert!(refused("evict when refused, 4 KiB").iter().all(|&share| share > 0.0));
}

#[test]
fn measures_limits_with_the_asked_groups_and_threads() {
    let (printed, json) =
        report_of(Args { groups: Some(7), threads: Some(1), slots: Some(4), ..tiny(Experiment::Limits) });
    assert!(printed.contains("removals of 7 groups"), "{printed}");
    for metric in ["pair by headroom", "pair by size", "refusal", "life"] {
        assert!(rows(&json, metric).iter().all(|row| row["params"]["threads"] == 1), "{metric}");
    }
}

#[test]
fn shows_every_setting_of_share_beside_its_control() {
    let (printed, json) = report_of(tiny(Experiment::Share));
    assert_form(&json, "share", None);
    assert_fits(&printed);
    for text in [
        "charges, 1 small tenant and a runaway",
        "no demand (control)",
        "share, waits",
        "min by hand, at once",
        "process-wide, waits",
        "share, first, no hook",
        "none, last, a hook",
        "of all start orders and 1 seed",
        "idle small tenants with prepaid bytes",
        "SQLite, 1 small tenant and a runaway",
        "no share (control)",
        "refused by its share in a loop",
    ] {
        assert!(printed.contains(text), "no \"{text}\" in:\n{printed}");
    }
    let held = |variant: &str| {
        let of = |row: &&Value| row["variant"] == variant && row["params"].get("tenants").is_none();
        rows(&json, "held").into_iter().find(of).unwrap()["median"].as_f64().unwrap()
    };
    assert_eq!(held("none, first, no hook"), 100.0, "without shares it takes all");
    assert!(held("share, first, no hook") < 90.0, "with shares it leaves a ninth");
    let done = |variant: &str| {
        let of = |row: &&Value| row["variant"] == variant && row["params"]["tenants"] == "charges";
        rows(&json, "runaway done").into_iter().find(of).unwrap()["median"].as_f64().unwrap()
    };
    assert_eq!(done("share, at once"), 0.0, "no statement of a runaway is ever done");
}

#[test]
fn runs_more_threads_than_cpus_and_says_so() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let args = Args { threads: Some(cpus + 1), depth: Some(2), ..tiny(Experiment::Charge) };
    let (printed, _) = report_of(args);
    assert!(printed.contains(&format!("note: {} threads on {cpus} CPUs share them", cpus + 1)), "{printed}");
}

#[test]
fn names_a_json_file_that_cannot_be_written_before_it_runs() {
    let args = Args { json: Some("/nowhere/at/all.json".into()), ..Args::new(Experiment::Drain) };
    let mut printed = Vec::new();
    let error = run_to(&args, &mut printed).unwrap_err();
    assert!(matches!(error, Error::Json { .. }));
    assert!(error.to_string().starts_with("write the JSON file /nowhere/at/all.json: "), "{error}");
    assert!(printed.is_empty());
}

#[test]
fn ends_the_run_when_the_output_takes_nothing() {
    struct Closed;
    impl std::io::Write for Closed {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let error = run_to(&tiny(Experiment::Drain), &mut Closed).unwrap_err();
    assert!(matches!(error, Error::Output(_)), "{error}");
}

#[test]
fn shows_the_costs_of_servers_beside_their_controls() {
    let (printed, json) = report_of(tiny(Experiment::Alloc));
    assert_form(&json, "alloc", None);
    assert_fits(&printed);
    for text in
        ["bare (control)", "ended_over_limit", "waiting charges", "Notify (control), p50", "a task frees"]
    {
        assert!(printed.contains(text), "no \"{text}\" in:\n{printed}");
    }
    // Built beside the program, which its own tests do not do.
    assert!(printed.contains("no programs with other allocators"), "{printed}");
    for metric in ["join", "cancel", "serve", "take", "in_group adds", "p50"] {
        assert!(!rows(&json, metric).is_empty(), "{metric}");
    }
}
