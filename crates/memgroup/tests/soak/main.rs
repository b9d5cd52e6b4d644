//! Soak: random trees, limits, charges of every form, hostile shrinkers and hooks, and readers of
//! all reports, all at once.
//!
//! A seed decides the steps (`plan`). Actors are threads that carry out the steps in one hierarchy
//! (`actors`, `beside`, `house`, `hostile`). Each step is entered in a ledger (`ledger`). While
//! all actors are at rest, `check` compares the engine with the ledger. It does so after each step
//! of a single actor, and every 1,500 steps of an actor among several. `watchdog` ends a run
//! without progress, and lists every waiter.
//!
//! | variable | is |
//! |---|---|
//! | `MEMGROUP_SOAK_SEED` | the seed; of the clock unless told, and printed |
//! | `MEMGROUP_SOAK_STEPS` | steps over all actors, 100,000 unless told |
//! | `MEMGROUP_SOAK_SECONDS` | how long `agrees_with_the_ledger_until_time_is_over` runs, a minute unless told; 0: without end |
#![cfg(not(memgroup_loom))]

mod actors;
mod beside;
mod check;
mod hostile;
mod house;
mod ledger;
mod plan;
#[path = "../random/mod.rs"]
mod random;
mod rest;
mod sleepers;
mod watchdog;

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use actors::Actor;
use house::House;
use plan::Plan;
use rest::Rest;
use sleepers::{EndsSleep, Sleepers};
use watchdog::Doings;

/// Steps of one actor between two full checks.
const STEPS_BETWEEN: u64 = if cfg!(memgroup_yields) { 300 } else { 1500 };

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}; it has to be a whole number")))
}

fn seed() -> u64 {
    let of_clock =
        || SystemTime::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_nanos() as u64 % 1_000_000_007);
    variable("MEMGROUP_SOAK_SEED").unwrap_or_else(of_clock)
}

fn steps() -> u64 {
    variable("MEMGROUP_SOAK_STEPS").unwrap_or(100_000)
}

/// Prints a line on standard error at once, so that it is seen also if the test fails or hangs.
/// The test harness does not capture it.
fn say(line: std::fmt::Arguments<'_>) {
    _ = writeln!(std::io::stderr(), "{line}");
}

/// Threads that wait beside several actors. A single actor is checked after each step, when
/// nothing else may be under way.
fn sleepers(actors: usize) -> usize {
    if cfg!(target_os = "linux") && actors > 1 { actors } else { 0 }
}

/// Runs `actors` actors with `steps` steps in all, and returns the hierarchy and its figures for
/// further checks.
fn run(slots: usize, actors: usize, steps: u64, seed: u64) -> House {
    say(format_args!("soak: seed {seed}, {actors} actors on {slots} slots, {steps} steps"));
    let house = House::new(slots, seed);
    let doings = Arc::new(Doings::new(actors));
    let sleepers = Arc::new(Sleepers::new(sleepers(actors)));
    let watchdog = watchdog::watch(&house.hierarchy, &doings, &sleepers, seed);
    let rest = Rest::new(actors);
    let each = steps.div_ceil(actors as u64);
    let work = |number: usize| {
        let mut actor = Actor::new(&house, &sleepers);
        for (count, step) in (0..each).zip(Plan::new(seed, number)) {
            doings.begin(number, format!("step {count}: {step:?}"));
            actor.step(step);
            if actors == 1 {
                check::charges(&house);
            }
            if (count + 1).is_multiple_of(STEPS_BETWEEN) {
                doings.begin(number, "rests".to_owned());
                let look = || {
                    sleepers.check(&house);
                    check::nothing_is_owed(&house);
                    check::all(&house);
                };
                if !rest.all(look) {
                    return;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let asleep = sleepers.begin(scope);
        let ends = EndsSleep(&sleepers, &house.hierarchy);
        let threads: Vec<_> = (0..actors)
            .map(|number| {
                let (work, rest) = (&work, &rest);
                scope.spawn(move || {
                    let outcome = catch_unwind(AssertUnwindSafe(|| work(number)));
                    if outcome.is_err() {
                        rest.give_up();
                    }
                    outcome
                })
            })
            .collect();
        let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        for outcome in outcomes {
            outcome.unwrap_or_else(|panic| {
                say(format_args!("soak: failed with seed {seed} on {slots} slots"));
                resume_unwind(panic)
            });
        }
        sleepers.check(&house);
        drop(ends);
        asleep.into_iter().for_each(|sleeper| sleeper.join().unwrap());
    });
    check::nothing_is_owed(&house);
    check::all(&house);
    house.clear();
    check::nothing_is_left(&house);
    drop(watchdog);
    house
}

/// Checks that each kind of event happened in at least one of the runs.
fn assert_lively(houses: &[House]) {
    let sum = |figure: fn(&House) -> &AtomicU64| -> u64 {
        // ORDERING: Relaxed; the actors are joined.
        houses.iter().map(|house| figure(house).load(Ordering::Relaxed)).sum()
    };
    for (name, figure) in [
        ("groups", sum(|house| &house.figures.groups)),
        ("charges", sum(|house| &house.figures.charges)),
        ("refusals", sum(|house| &house.figures.refusals)),
        ("waits", sum(|house| &house.figures.waits)),
        ("bytes reclaimed by hand", sum(|house| &house.figures.reclaimed)),
        ("kills", sum(|house| &house.deaths)),
        (
            "waits in quiet moments",
            if cfg!(target_os = "linux") { sum(|house| &house.figures.slept) } else { 1 },
        ),
        ("caches that had to be asked", sum(|house| &house.figures.owed)),
    ] {
        assert!(figure > 0, "no {name}");
    }
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn a_single_actor_agrees_with_the_ledger_after_every_step() {
    let (seed, steps) = (seed(), steps() / 10);
    for (slots, share) in [(2, 4), (8, 4), (128, 2)] {
        run(slots, 1, steps * share / 10, seed + slots as u64);
    }
}

#[test]
fn several_actors_agree_with_the_ledger_on_2_8_and_128_slots() {
    let (seed, steps) = (seed(), steps() * 3 / 10);
    assert_lively(&[(2, 4), (8, 6), (128, 4)].map(|(slots, actors)| run(slots, actors, steps, seed)));
}

#[test]
fn a_plan_is_the_same_for_the_same_seed() {
    let plan =
        |seed, actor| Plan::new(seed, actor).take(1000).map(|step| format!("{step:?}")).collect::<Vec<_>>();
    assert_eq!(plan(7, 1), plan(7, 1));
    assert_ne!(plan(7, 1), plan(7, 2));
    assert_ne!(plan(7, 1), plan(8, 1));
}

#[test]
fn the_watchdog_names_every_waiter_and_its_group() {
    let house = House::new(2, 1);
    let full = house.hierarchy.create("/full").unwrap();
    full.set_max(4096).unwrap();
    let _held = full.try_charge(4096).unwrap();
    let doings = Doings::new(1);
    doings.begin(0, "waits for room".to_owned());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| full.charge_until(100, Instant::now() + Duration::from_secs(60)));
        while full.waiters().now == 0 {
            std::thread::yield_now();
        }
        let text = watchdog::report(&house.hierarchy, &doings, 42);
        full.wake_waiters();
        waiter.join().unwrap().unwrap_err();
        for part in ["seed 42", "actor 0", "waits for room", "wait: /full", "for room, 100 bytes"] {
            assert!(text.contains(part), "{part:?} in {text}");
        }
    });
}

/// At the next quiet moment after an uncharge, a wait that fits is over. Where it is not,
/// `Sleepers::check` says so, without a clock.
#[test]
#[cfg(target_os = "linux")]
fn a_waiter_that_fits_is_served_before_the_next_quiet_moment() {
    for as_task in [false, true] {
        let house = House::new(2, 1);
        house.create(&house.member(0), "full");
        let member = house.member(1);
        member.group.set_max(4096).unwrap();
        let held = member.group.try_charge(4096).unwrap();
        let sleepers = Sleepers::new(1);
        let _watchdog = xtask::Watchdog::over("a wait of one sleeper");
        std::thread::scope(|scope| {
            sleepers.begin(scope);
            let _ends = EndsSleep(&sleepers, &house.hierarchy);
            sleepers.ask(&house.hierarchy, sleepers::Wish { member, bytes: 100, as_task });
            while house.hierarchy.waits().is_empty() {
                std::thread::yield_now();
            }
            drop(held);
            sleepers.check(&house);
        });
        house.clear();
    }
}

/// Repeats the run until the time is over, each time with another seed. It prints a line of
/// figures every ten seconds.
#[test]
#[ignore = "goes on for as long as MEMGROUP_SOAK_SECONDS says"]
fn agrees_with_the_ledger_until_time_is_over() {
    let seconds = variable("MEMGROUP_SOAK_SECONDS").unwrap_or(60);
    let (began, mut said) = (Instant::now(), Instant::now());
    let (mut done, mut figures) = (0, [0; 6]);
    for seed in seed().. {
        // The seed decides them, so that the seed alone repeats a run.
        let (slots, actors) = ([8, 128, 2][(seed % 3) as usize], [1, 3, 4, 6][(seed % 4) as usize]);
        // The check after each step of a single actor takes time.
        let steps = if actors == 1 { 4_000 } else { 20_000 };
        let house = run(slots, actors, steps, seed);
        done += steps;
        let House { figures: all, .. } = &house;
        let counts = [&all.refusals, &all.waits, &house.deaths, &all.groups, &all.slept, &all.owed];
        figures.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count.load(Ordering::Relaxed));
        if said.elapsed() >= Duration::from_secs(10) {
            said = Instant::now();
            let [refusals, waits, kills, groups, slept, owed] = figures;
            let time = began.elapsed().as_secs();
            say(format_args!(
                "soak: {time} s, {done} steps, {refusals} refusals, {waits} waits, {kills} kills, {groups} groups made, \
                 {slept} waits and {owed} caches checked"
            ));
        }
        if seconds > 0 && began.elapsed() >= Duration::from_secs(seconds) {
            return;
        }
    }
}
