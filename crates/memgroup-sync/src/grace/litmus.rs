//! The store-buffering test: can a scan miss a section that misses the unlink?
//!
//! ```text
//!   reader                            writer
//!   enter()      (its word)           link = new
//!   seen = link                       tag(), barrier(form)
//!   .. until the writer has scanned   found = scan(word)
//! ```
//!
//! Forbidden: `seen` is the old link and the scan found nothing. Sections and scans are the code
//! under test; the test only arranges the calls. The control leaves the barrier out, and must meet
//! the forbidden outcome; it takes an optimised build to do so:
//!
//! ```text
//! cargo test --release -p memgroup-sync --lib litmus
//! ```

#![allow(unsafe_code)]

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::evidence::Evidence;
use super::scan::Found;
use super::{Form, barrier, enter, enter_briefly, registry, report, tag};
use crate::Mutex;

/// Two processors for one test at a time.
pub(crate) static PROCESSORS: Mutex<()> = Mutex::new(());

pub(crate) const TIME: Duration = Duration::from_secs(2);

#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Line(pub(crate) AtomicU64);

#[derive(Default)]
struct Shared {
    /// The round that is under way; odd and even rounds have the links 0 and 1 reversed.
    round: Line,
    link: Line,
    looked: Line,
    /// The value that the reader saw, plus twice the round.
    seen: Line,
    over: AtomicBool,
}

/// The result.
#[derive(Debug)]
struct Outcome {
    rounds: u64,
    forbidden: u64,
}

/// The processors that this process may use.
pub(crate) fn allowed() -> Vec<usize> {
    // SAFETY: all zeros is an empty set.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: the set is as large as said.
    let answer = unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) };
    assert_eq!(answer, 0);
    // SAFETY: the numbers are within the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

pub(crate) fn pin(cpu: usize) {
    // SAFETY: all zeros is an empty set.
    let mut set: libc::cpu_set_t = unsafe { core::mem::zeroed() };
    // SAFETY: the number is one that `allowed` found in a set.
    unsafe { libc::CPU_SET(cpu, &mut set) };
    // SAFETY: the set is as large as said.
    assert_eq!(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) }, 0);
}

pub(crate) fn wait_for(condition: impl Fn() -> bool) {
    let mut spins = 0_u32;
    while !condition() {
        spins += 1;
        if spins.is_multiple_of(1 << 14) {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

/// A few instructions, another number of them each round, so that the two threads meet in every
/// way.
pub(crate) fn jitter(state: &mut u64) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    for step in 0..*state % 48 {
        black_box(step);
    }
}

fn read(shared: &Shared, cpu: usize) {
    pin(cpu);
    let mut state = 0x9E37_79B9_7F4A_7C15;
    for round in 1.. {
        // ORDERING: Acquire, all rounds are handed over by Release and Acquire; the test is about
        // the Relaxed accesses.
        wait_for(|| shared.round.0.load(Ordering::Acquire) >= round || shared.over.load(Ordering::Acquire));
        // ORDERING: Acquire, as above.
        if shared.over.load(Ordering::Acquire) {
            return;
        }
        // ORDERING: Relaxed; brings the line here, with the old link.
        black_box(shared.link.0.load(Ordering::Relaxed));
        jitter(&mut state);
        // Brief sections and others by turns, each of them with both values of the link.
        let brief = if round & 2 == 0 { enter_briefly() } else { None };
        let section = if brief.is_none() { Some(enter()) } else { None };
        // ORDERING: Relaxed; the load under test.
        let seen = shared.link.0.load(Ordering::Relaxed);
        // ORDERING: Acquire, as above.
        wait_for(|| shared.looked.0.load(Ordering::Acquire) >= round);
        drop((brief, section));
        // ORDERING: Release, as above.
        shared.seen.0.store(round << 1 | seen, Ordering::Release);
    }
}

/// Runs rounds for `TIME`, or until `enough` forbidden outcomes. Without a form, without a
/// barrier.
fn run(form: Option<Form>, enough: u64) -> Outcome {
    let cpus = allowed();
    let shared = Arc::new(Shared::default());
    let reading = std::thread::spawn({
        let (shared, cpu) = (Arc::clone(&shared), cpus[1]);
        move || read(&shared, cpu)
    });
    let writing = std::thread::spawn(move || write(&shared, cpus[0], form, enough));
    let outcome = writing.join().unwrap();
    reading.join().unwrap();
    outcome
}

fn write(shared: &Shared, cpu: usize, form: Option<Form>, enough: u64) -> Outcome {
    pin(cpu);
    let begun = Instant::now();
    let mut outcome = Outcome { rounds: 0, forbidden: 0 };
    let mut state = 0xD1B5_4A32_D192_ED03;
    while begun.elapsed() < TIME && outcome.forbidden < enough {
        outcome.rounds += 1;
        let (round, old, new) = (outcome.rounds, (outcome.rounds - 1) & 1, outcome.rounds & 1);
        // ORDERING: Release, the start of the round.
        shared.round.0.store(round, Ordering::Release);
        jitter(&mut state);
        // ORDERING: Relaxed; the unlink under test.
        shared.link.0.store(new, Ordering::Relaxed);
        let target = tag();
        let evidence = form.map_or(Evidence::Loads, barrier::barrier);
        let found = registry::readers().any(|reader| reader.scan(target, evidence) != Found::Nothing);
        // ORDERING: Release, the section may end.
        shared.looked.0.store(round, Ordering::Release);
        // ORDERING: Acquire, the end of the round.
        wait_for(|| shared.seen.0.load(Ordering::Acquire) >> 1 == round);
        // ORDERING: Relaxed; read after the wait above.
        let seen = shared.seen.0.load(Ordering::Relaxed) & 1;
        outcome.forbidden += u64::from(seen == old && !found);
    }
    // ORDERING: Release, the end.
    shared.over.store(true, Ordering::Release);
    outcome
}

/// Returns whether the test can say anything here; else prints why not.
pub(crate) fn can_run() -> bool {
    let can = allowed().len() >= 2;
    if !can {
        println!("skipped: one processor is allowed, and two threads on it see each other's stores in order");
    }
    can
}

/// Also run in processes of their own, in which the environment variable chooses another barrier.
#[test]
#[cfg_attr(debug_assertions, ignore = "an unoptimised build hides the race; run it with --release")]
fn no_section_that_misses_the_unlink_is_missed_by_the_scan() {
    let _processors = PROCESSORS.lock();
    println!("REPORT {}", report());
    for form in [Form::Quiet, Form::Expedited].into_iter().filter(|_| can_run()) {
        let outcome = run(Some(form), 1);
        println!("LITMUS {form:?}: {} rounds", outcome.rounds);
        assert!(outcome.rounds > 3, "{outcome:?}");
        assert_eq!(outcome.forbidden, 0, "{form:?}: a section was missed in {} rounds", outcome.rounds);
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "an unoptimised build hides the race; run it with --release")]
fn without_a_barrier_the_scan_misses_sections_that_are_entered_by_a_store() {
    let _processors = PROCESSORS.lock();
    if !report().enters_by_store() {
        println!("skipped: sections are entered by a swap here: {}", report());
    } else if cfg!(debug_assertions) {
        println!(
            "skipped: so many instructions lie between the store and the load that the store is done by then"
        );
    } else if can_run() {
        let outcome = (0..100).map(|_| run(None, 1)).find(|outcome| outcome.forbidden > 0);
        let outcome = outcome.expect("the control meets the forbidden outcome within 100 s");
        println!("CONTROL {} rounds", outcome.rounds);
    }
}

#[test]
#[cfg_attr(debug_assertions, ignore = "an unoptimised build hides the race; run it with --release")]
fn the_other_barriers_miss_none_either() {
    for (value, expected) in [("swap", "sections by swap"), ("expedited", "sections by store")] {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let test = "grace::litmus::no_section_that_misses_the_unlink_is_missed_by_the_scan";
        command.args(["--include-ignored", "--exact", test, "--nocapture"]).env(super::VARIABLE, value);
        let processors = PROCESSORS.lock();
        let output = command.output().unwrap();
        drop(processors);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{value}: {text}{}", String::from_utf8_lossy(&output.stderr));
        let report =
            text.lines().find_map(|line| line.split_once("REPORT ")).expect("a line with the report").1;
        if report.contains("failed to") {
            println!("skipped: {report}");
        } else {
            assert!(report.starts_with(expected), "{report}");
        }
        text.lines().filter(|line| line.contains("LITMUS")).for_each(|line| println!("{value}: {line}"));
    }
}
