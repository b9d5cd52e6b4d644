//! Each experiment from its arguments to its report, at the least size that runs every part.

mod support;

use memgroup_lab::{Args, Error, Experiment, run_to};

use support::{assert_fits, assert_form, report_of, rows, tiny};

#[test]
fn shows_every_mechanism_of_charge_beside_the_seed() {
    let (printed, json) = report_of(tiny(Experiment::Charge));
    assert_form(&json, "charge", "004");
    assert_fits(&printed);
    assert!(printed.starts_with("memgroup-lab charge\n"), "{printed}");
    for text in [
        "machine: ",
        "18,425,800",
        "33,177,858",
        "neither is measured",
        "no stock",
        "one flat",
        "CAS tree",
        "pair at depth 8, 2 threads, a group each",
        "map, touch, unmap, 1 thread",
    ] {
        assert!(printed.contains(text), "no \"{text}\" in:\n{printed}");
    }
    let machine = json["machine"]["text"].as_str().unwrap();
    assert!(machine.contains(", sections entered by a "), "{machine}");
    let check_names: Vec<&str> =
        json["checks"].as_array().unwrap().iter().map(|check| check["name"].as_str().unwrap()).collect();
    assert!(check_names.contains(&"a pair over two additions to one counter, 1 thread"), "{check_names:?}");
    assert!(
        check_names.contains(&"a pair without stock over one with it, 2 threads, same group"),
        "{check_names:?}"
    );
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
        "memgroup, empty stocks",
        "a spin lock a slot (control)",
        "waking each owner, done (control)",
        "consume and refill a page",
        "mmap + write + munmap",
        "/proc/interrupts",
    ] {
        assert!(printed.contains(text), "no \"{text}\" in:\n{printed}");
    }
    // Not as printed: a wide table breaks these cells.
    for variant in ["neighbour drained every 5 us", "drained without a rest"] {
        assert!(json.to_string().contains(variant), "no \"{variant}\"");
    }
    let traced = json["checks"].as_array().unwrap().iter().find(|check| check["goal"] == "<= 0").unwrap();
    // Where nothing can be traced there is no figure.
    assert!(traced["met"] == true || traced["value"].is_null(), "{traced}");
}

#[test]
fn measures_drain_with_the_asked_number_of_slots() {
    let (_, json) = report_of(Args { slots: Some(3), ..tiny(Experiment::Drain) });
    let drains = rows(&json, "whole drain");
    assert!(!drains.is_empty());
    assert!(drains.iter().all(|row| row["params"]["slots"] == 3), "{drains:?}");
}

#[test]
fn shows_every_cost_of_limits_beside_its_control() {
    let (printed, json) = report_of(Args { slots: Some(3), ..tiny(Experiment::Limits) });
    assert_form(&json, "limits", None);
    assert_fits(&printed);
    for text in [
        "a pair on the exact path, 1 thread",
        "a refusal by the own limit, 2 threads",
        "a forced pair above max",
        "CAS tree",
        "a pair in 65,536 groups at random",
        "an insert that evicts when refused",
        "a refusal by a share",
        "a full parent above groups with prepaid bytes",
        "a thread that waits for a byte more",
        "CAS map (control)",
        "remove()",
    ] {
        assert!(printed.contains(text), "no \"{text}\" in:\n{printed}");
    }
    // Measured in a process of the program, which its own tests have.
    assert!(printed.contains("note: no bytes of a group"), "{printed}");
    assert_eq!(json["machine"]["slots"], 3);
}

#[test]
fn runs_more_threads_than_cpus_and_says_so() {
    let cpus = std::thread::available_parallelism().unwrap().get();
    let args = Args { threads: Some(cpus + 1), ..tiny(Experiment::Charge) };
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
    for text in ["what a group adds", "ended_over_limit", "waiting charges", "a task frees: Notify (control)"]
    {
        assert!(printed.contains(text), "no \"{text}\" in:\n{printed}");
    }
    // Built beside the program, which its own tests do not do.
    assert!(printed.contains("no programs with other allocators"), "{printed}");
    for metric in ["join", "cancel", "serve", "take", "bare poll", "in_group adds", "wake p50"] {
        assert!(!rows(&json, metric).is_empty(), "{metric}");
    }
}
