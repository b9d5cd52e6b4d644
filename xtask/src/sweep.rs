//! Sweep: repeats a scenario while its first charge is refused, then its second, and so on to its
//! end.
//!
//! An error path that no test runs will be wrong sooner or later. A sweep runs all of them. The
//! scenario arranges that the charges in the [`Run`] are refused, checks that it ended correctly,
//! and returns how many charges it made. Charges stand for anything that can be counted and
//! refused, such as the mappings or the threads that a scenario requests.
//!
//! ```text
//! cargo test sweep                        32 numbers of each scenario, spread over it
//! MEMGROUP_SWEEP=all cargo test sweep     every number
//! MEMGROUP_SWEEP=17 cargo test NAME       one number, to look into a failure; in one form: 17:once, 17:on
//! ```
//!
//! - I1. A number is tried in both forms: refused once, and from then on.
//! - I2. With `all`, a form ends with the first run that has fewer charges than its number, so
//!   that it also finds the end of a scenario whose number of charges varies.
//! - I3. The name of a sweep's test has the word `sweep` in it, so that one command finds all of
//!   them.

use std::cell::Cell;
use std::fmt;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Watchdog;

/// Selects the numbers: `all`, or one of them.
const NUMBERS: &str = "MEMGROUP_SWEEP";
/// Set in a child process: its one run.
const CHILD: &str = "MEMGROUP_SWEEP_CHILD";
/// How many numbers a sweep tries by default.
const SPREAD: u64 = 32;
/// Precedes the number of charges in the output of a child process.
const DREW: &str = "sweep: a run ended, its charges: ";

/// How long charges are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// One charge is refused.
    Once,
    /// A charge is refused, and all that follow it.
    FromThenOn,
}

/// One run of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The number of the first charge that is refused, from 1. With 0 none is refused.
    pub number: u64,
    /// How long charges are refused.
    pub form: Form,
}

impl Run {
    /// The first run, which counts the charges.
    const COUNTING: Run = Run { number: 0, form: Form::Once };

    /// The numbers of the charges that the scenario must refuse, for `Group::inject_failures_at`.
    /// Charges have numbers from 1.
    pub fn refused(&self) -> RangeInclusive<u64> {
        match (self.number, self.form) {
            (number, Form::Once) => number..=number,
            (0, Form::FromThenOn) => 0..=0,
            (number, Form::FromThenOn) => number..=u64::MAX,
        }
    }

    /// Returns whether any charge is refused in a run with `charges` charges.
    pub fn refuses_any_of(&self, charges: u64) -> bool {
        (1..=charges).contains(&self.number)
    }

    /// Parses a text such as `17:on`.
    fn parse(text: &str) -> Option<Run> {
        let (number, form) = text.split_once(':')?;
        let form = match form {
            "once" => Form::Once,
            "on" => Form::FromThenOn,
            _ => return None,
        };
        Some(Run { number: number.parse().ok()?, form })
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = if self.form == Form::Once { "once" } else { "on" };
        write!(f, "{}:{form}", self.number)
    }
}

/// Runs `scenario` once without a refusal, and then with each number that is tried, in this
/// process.
///
/// The scenario must create what it needs in each run, panic if it did not end correctly, and
/// return the number of its charges. It must end each time; a watchdog ends a run that hangs.
///
/// # Panics
/// In the end, with all numbers for which the scenario panicked.
pub fn sweep(name: &str, mut scenario: impl FnMut(Run) -> u64) {
    sweep_by(name, &selection(), |run| {
        let outcome = catch_unwind(AssertUnwindSafe(|| scenario(run)));
        outcome.map_err(|payload| message(&*payload))
    });
}

/// Runs `scenario` as [`sweep`] does, with each refusal in a process of its own. This is for
/// scenarios in which a crash, an abort or a state of the whole process would hide what went
/// wrong.
///
/// `test` is the full name of the calling test, such as `sweep::queries`, because the process runs
/// its own program again with only that test.
///
/// # Panics
/// Panics as [`sweep`] does, and if `test` is not the name of the calling test.
pub fn sweep_in_children(test: &str, scenario: impl FnOnce(Run) -> u64) {
    if let Ok(run) = std::env::var(CHILD) {
        let run = Run::parse(&run).unwrap_or_else(|| panic!("{CHILD}={run}: it must be as in 17:once"));
        let operation = Box::leak(format!("{test}, run {run}").into_boxed_str());
        let _watchdog = Watchdog::over(operation);
        println!("\n{DREW}{}", scenario(run));
        return;
    }
    sweep_by(test, &selection(), |run| {
        let program = std::env::current_exe().map_err(|error| format!("the test's own program: {error}"))?;
        let arguments = [test, "--exact", "--nocapture", "--include-ignored", "--test-threads=1"];
        let output = Command::new(program)
            .args(arguments)
            .env(CHILD, run.to_string())
            .output()
            .map_err(|error| format!("failed to run the test's own program: {error}"))?;
        let [printed, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        let charges = printed.lines().find_map(|line| line.strip_prefix(DREW)?.trim().parse().ok());
        match charges {
            Some(charges) if output.status.success() => Ok(charges),
            None if output.status.success() => Err(format!("no test has the name {test}, or it made no run")),
            _ => Err(format!("{}\n{}\n{}", output.status, tail(&printed), tail(&errors))),
        }
    });
}

/// The numbers to try.
#[derive(Debug, PartialEq, Eq)]
enum Selection {
    Spread,
    All,
    One(u64),
    Run(Run),
}

fn selection() -> Selection {
    match std::env::var(NUMBERS) {
        Err(_) => Selection::Spread,
        Ok(text) => parse_selection(&text)
            .unwrap_or_else(|| panic!("{NUMBERS}={text}: it must be all, or a number as in 17 or 17:once")),
    }
}

fn parse_selection(text: &str) -> Option<Selection> {
    match text {
        "all" => Some(Selection::All),
        _ => text.parse().map(Selection::One).ok().or_else(|| Run::parse(text).map(Selection::Run)),
    }
}

/// Returns about `SPREAD` numbers from 1 to `charges`, including the first and the last.
fn spread(charges: u64) -> Vec<u64> {
    let tried = SPREAD.min(charges);
    (0..tried).map(|at| 1 + at * (charges - 1) / (tried - 1).max(1)).collect()
}

fn sweep_by(name: &str, selection: &Selection, mut run: impl FnMut(Run) -> Result<u64, String>) {
    let (runs, failed, most) = (Arc::new(AtomicU64::new(0)), Cell::new(0), Cell::new(0));
    let now = Arc::new(Mutex::new(Run::COUNTING));
    let watchdog = {
        let (runs, now, name) = (Arc::clone(&runs), Arc::clone(&now), name.to_owned());
        // ORDERING: Relaxed, here and below, because the watchdog compares the count only with
        // itself.
        let progress = move || runs.load(Ordering::Relaxed);
        Watchdog::new(progress, move || {
            format!("sweep {name}, run {}\n", now.lock().unwrap_or_else(PoisonError::into_inner))
        })
    };
    let mut faults = Vec::new();
    // Returns the number of charges, or `None` if the run failed.
    let mut attempt = |next: Run| {
        *now.lock().unwrap_or_else(PoisonError::into_inner) = next;
        let outcome = run(next);
        runs.fetch_add(1, Ordering::Relaxed);
        match outcome {
            Ok(charges) => {
                most.set(charges.max(most.get()));
                Some(charges)
            }
            Err(fault) => {
                failed.set(failed.get() + 1);
                faults.push(format!("{next}: {fault}"));
                None
            }
        }
    };
    let forms = [Form::Once, Form::FromThenOn];
    match *selection {
        Selection::Run(run) => _ = attempt(run),
        Selection::One(number) => forms.iter().for_each(|&form| _ = attempt(Run { number, form })),
        Selection::Spread => {
            let charges = attempt(Run::COUNTING).unwrap_or(0);
            for (number, form) in spread(charges).into_iter().flat_map(|at| forms.map(|form| (at, form))) {
                attempt(Run { number, form });
            }
        }
        Selection::All => {
            let charges = attempt(Run::COUNTING).unwrap_or(0);
            for form in forms {
                // A run that failed returns no count, but the charges of the first run are tried in
                // any case.
                let tried = |number| Run { number, form };
                (1..)
                    .map(tried)
                    .find(|&run| attempt(run).is_none_or(|drawn| drawn < run.number) && run.number > charges);
            }
        }
    }
    drop(watchdog);
    let (runs, charges) = (runs.load(Ordering::Relaxed), most.get());
    println!("sweep {name}: {runs} runs, up to {charges} charges each, {} failed", failed.get());
    assert!(
        faults.is_empty(),
        "sweep {name}: {} of {runs} runs failed; repeat one with {NUMBERS}=NUMBER:FORM\n{}",
        failed.get(),
        faults.join("\n")
    );
    assert!(charges > 0, "sweep {name}: the scenario has no charge that could be refused");
}

/// The text of a panic.
fn message(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| payload.downcast_ref().copied()).unwrap_or("a panic without a text").to_owned()
}

/// The last lines of an output.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A scenario of ten charges that ends at the first refusal, or continues if it `retries`.
    fn scenario(run: Run, retries: bool) -> u64 {
        let (mut drawn, mut made) = (0, 0);
        while made < 10 {
            drawn += 1;
            let is_refused = run.refused().contains(&drawn);
            if is_refused && (!retries || run.form == Form::FromThenOn) {
                break;
            }
            made += u64::from(!is_refused);
        }
        drawn
    }

    fn runs_of(selection: &Selection, retries: bool) -> Vec<String> {
        let mut runs = Vec::new();
        sweep_by("a test", selection, |run| {
            runs.push(run.to_string());
            Ok(scenario(run, retries))
        });
        runs
    }

    #[test]
    fn tries_every_number_in_both_forms() {
        let all = |most: u64, form: &str| (1..=most).map(|at| format!("{at}:{form}")).collect::<Vec<_>>();
        let counting = vec!["0:once".to_owned()];
        assert_eq!(
            runs_of(&Selection::All, false),
            [counting.clone(), all(11, "once"), all(11, "on")].concat()
        );
        assert_eq!(runs_of(&Selection::All, true), [counting, all(11, "once"), all(11, "on")].concat());
        assert_eq!(runs_of(&Selection::Spread, false).len(), 21);
        assert_eq!(runs_of(&Selection::One(3), false), ["3:once", "3:on"]);
        assert_eq!(runs_of(&Selection::Run(Run { number: 4, form: Form::FromThenOn }), false), ["4:on"]);
    }

    #[test]
    fn spreads_numbers_from_the_first_to_the_last() {
        assert!(spread(0).is_empty());
        assert_eq!(spread(1), [1]);
        assert_eq!(spread(3), [1, 2, 3]);
        assert_eq!(spread(32), (1..=32).collect::<Vec<_>>());
        let many = spread(1000);
        assert_eq!((many.len(), many[0], many[31]), (32, 1, 1000));
        assert!(many.is_sorted_by(|left, right| left < right));
    }

    #[test]
    fn names_each_number_that_failed_and_tries_all_others() {
        let mut runs = 0;
        let failed = catch_unwind(AssertUnwindSafe(|| {
            sweep_by("faulty", &Selection::All, |run| {
                runs += 1;
                if run.number % 4 == 3 { Err("a leak".to_owned()) } else { Ok(scenario(run, false)) }
            });
        }));
        let text = message(&*failed.unwrap_err());
        assert!(text.contains("6 of 23 runs failed") && runs == 23, "{text}");
        for fault in ["3:once: a leak", "7:on: a leak", "11:on: a leak"] {
            assert!(text.contains(fault), "{text}");
        }
    }

    #[test]
    fn fails_for_a_scenario_without_a_charge() {
        let failed = catch_unwind(|| sweep_by("empty", &Selection::Spread, |_| Ok(0)));
        assert!(message(&*failed.unwrap_err()).contains("no charge that could be refused"));
    }

    #[test]
    fn reads_a_selection() {
        assert_eq!(parse_selection("all"), Some(Selection::All));
        assert_eq!(parse_selection("17"), Some(Selection::One(17)));
        let run = Run { number: 17, form: Form::Once };
        assert_eq!(parse_selection("17:once"), Some(Selection::Run(run)));
        assert_eq!(run.refused(), 17..=17);
        assert_eq!(Run::parse("5:on").unwrap().refused(), 5..=u64::MAX);
        assert_eq!(Run::COUNTING.refused(), 0..=0);
        for wrong in ["", "some", "17:", "17:twice", "-1"] {
            assert_eq!(parse_selection(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_sweep_in_children_runs_each_number_in_a_process_of_its_own() {
        let before = std::env::var(CHILD).is_ok();
        sweep_in_children(
            "sweep::tests::a_sweep_in_children_runs_each_number_in_a_process_of_its_own",
            |run| {
                assert!(before, "the scenario ran in the test's own process");
                scenario(run, false)
            },
        );
    }

    #[test]
    fn a_sweep_in_children_finds_an_abort() {
        let test = "sweep::tests::a_sweep_in_children_finds_an_abort";
        let swept = catch_unwind(|| {
            sweep_in_children(test, |run| {
                if run.number == 4 {
                    eprintln!("the fourth charge was refused");
                    std::process::abort();
                }
                scenario(run, false)
            });
        });
        if std::env::var(CHILD).is_err() {
            let text = message(&*swept.unwrap_err());
            assert!(text.contains("4:once") && text.contains("4:on") && !text.contains("5:on"), "{text}");
            assert!(text.contains("the fourth charge was refused") && text.contains(": 2 of 2"), "{text}");
        }
    }

    #[test]
    fn a_sweep_in_children_needs_the_name_of_its_test() {
        let swept = catch_unwind(|| sweep_in_children("no::such::test", |run| scenario(run, false)));
        assert!(message(&*swept.unwrap_err()).contains("no test has the name no::such::test"));
    }
}
