//! Mixes: so many small tenants and a runaway for a while, under each setting in turn.
//!
//! - I1. The control is the setting "none" in the same turns, with a runaway that computes as much and asks for no memory.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use memgroup::Hierarchy;

use super::players::{Runaway, Small};
use super::{MIB, Scene, Setting, Tally, joined};
use crate::harness::prelude::*;

const DONE_LEAST: f64 = 0.95;
const GAIN_LEAST: f64 = 1.05;
const STALLED_MOST: f64 = 2.0;

/// One way to run a mix.
#[derive(Clone, Copy)]
pub(super) struct Case {
    pub(super) setting: Setting,
    pub(super) waits: bool,
    /// Whether the runaway asks for memory.
    pub(super) demand: bool,
}

impl Case {
    /// The control, and each setting with charges at once and with charges that wait.
    fn all() -> Vec<Case> {
        let of = |setting| [false, true].map(|waits| Case { setting, waits, demand: true });
        let control = Case { setting: Setting::None, waits: false, demand: false };
        [control].into_iter().chain(Setting::ALL.into_iter().flat_map(of)).collect()
    }

    fn name(self) -> String {
        if !self.demand {
            return "no demand (control)".to_owned();
        }
        format!("{}, {}", self.setting.name(), if self.waits { "waits" } else { "at once" })
    }
}

/// How long a mix runs in each turn, and in how many.
#[derive(Clone, Copy)]
pub(super) struct Length {
    pub(super) slice: Duration,
    pub(super) rounds: usize,
}

impl Length {
    pub(super) fn of(slice_ms: u64, rounds: usize) -> Length {
        Length { slice: Duration::from_millis(slice_ms), rounds }
    }
}

/// One slice of one case.
pub(super) struct Seen {
    small: Tally,
    large: Tally,
    seconds: f64,
    /// The most that the runaway held; with one group for all, the group. In percent of the limit.
    held: f64,
    given: [u64; 2],
    stalled: f64,
}

impl Seen {
    /// The figures of a slice that has run for so long, while its groups are there.
    pub(super) fn of(scene: &Scene, ns: f64, small: Vec<Tally>, large: Tally) -> Result<Seen> {
        scene.check()?;
        Ok(Seen {
            small: Tally::join(small),
            large,
            seconds: ns / 1e9,
            held: scene.large.peak() as f64 / scene.max() as f64 * 100.0,
            given: scene.given(),
            stalled: scene.stalled(ns / 1e3) * 100.0,
        })
    }
}

/// The meaning of a mix's columns.
pub(super) const COLUMNS: &str = "\nthe tables of mixes: done/s to stalled % are of the small tenants. Uncached: pages that were refused, and read anew; again: attempts that were refused, waited, and were made anew. Stalled: the part of its time in which a tenant made room or waited for it. Runaway: its statements done/refused/stopped. Held: the most that the runaway held, of the limit. Gave: bytes that caches of the small/of the runaway gave back. With one group for all, the last three are the group's";

/// Runs each case in turn, and reports. `again` names the column of [`Tally::again`].
pub(super) fn mixes(
    lab: &mut Lab<'_>,
    what: &str,
    again: &str,
    small: usize,
    length: Length,
    slice: impl Fn(&Lab<'_>, Case, u64) -> Result<Seen>,
) -> Result<()> {
    let cases = Case::all();
    let mut all: Vec<Vec<Seen>> = cases.iter().map(|_| Vec::new()).collect();
    lab.in_turns(length.rounds, cases.len(), |lab, case| {
        let seed = lab.random.next();
        all[case].push(slice(lab, cases[case], seed)?);
        Ok(())
    })?;
    let (tenants, ms) = (counted(small as u64, "small tenant"), length.slice.as_millis());
    let mut table = Table::new(
        format!("{what}, {tenants} and a runaway, {} of {ms} ms", counted(length.rounds as u64, "slice")),
        ["", "done/s", "refused", "stopped", again, "p99 ms", "stalled %", "runaway", "held %", "gave MiB"],
    );
    let done = |seen: &[Seen]| Summary::of(seen.iter().map(|one| one.small.done as f64 / one.seconds));
    let rates: Vec<_> = all.iter().map(|seen| median(done(seen))).collect();
    for ((case, seen), &rate) in cases.iter().zip(&all).zip(&rates) {
        let sum = |of: fn(&Seen) -> u64| seen.iter().map(of).sum::<u64>();
        let refused = [sum(|one| one.small.refused), sum(|one| one.small.stopped)];
        let large = [sum(|one| one.large.done), sum(|one| one.large.refused), sum(|one| one.large.stopped)];
        let given = [sum(|one| one.given[0]), sum(|one| one.given[1])];
        let stalled = Summary::of(seen.iter().map(|one| one.stalled));
        let held = seen.iter().map(|one| one.held).reduce(f64::max);
        let p99 = |one: &Seen| Quantiles::of(one.small.times.clone()).map(|times| times.p99);
        let p99 = Summary::of(seen.iter().filter_map(p99));
        let name = case.name();
        let mut record = lab.record(&name, json!({"tenants": what, "small": small}));
        record.summary("done", "/s", done(seen));
        record.summary("stalled", "%", stalled);
        record.time("p99", p99);
        record.count("runaway done", "statements", large[0]);
        record.count("runaway refused", "statements", large[1]);
        record.count("runaway stopped", "statements", large[2]);
        record.count("small gave", "bytes", given[0]);
        record.count("runaway gave", "bytes", given[1]);
        let cells = [
            figure_or_dash(rate),
            record.count("refused", "statements", refused[0]),
            record.count("stopped", "statements", refused[1]),
            record.count("again", "", sum(|one| one.small.again)),
            figure_or_dash(median(p99).map(|ns| ns / 1e6)),
            figure_or_dash(median(stalled)),
            large.map(|statements| statements.to_string()).join("/"),
            record.value("held", "%", held),
            given.map(|bytes| (bytes / MIB).to_string()).join("/"),
        ];
        table.row(&name, cells);
        if let Some(why) = seen.iter().find_map(|one| one.small.why.as_ref()) {
            table.note(format!("{name}, the first refusal: {why}"));
        }
        if case.setting == Setting::Share {
            let goal = |goal: &str| format!("{what}, {small} small, {name}: {goal}");
            let without = rates[1 + usize::from(case.waits)];
            let refused = (refused[0] + refused[1]) as f64;
            lab.at_most(goal("refused or stopped"), Some(refused), 0.0, "");
            lab.at_most(goal("the runaway held"), held, super::held_most(), "%");
            lab.at_most(goal("time stalled"), median(stalled), STALLED_MOST, "%");
            lab.at_least(goal("done over the control"), ratio(rate, rates[0]), DONE_LEAST, "x");
            lab.at_least(goal("done over none"), ratio(rate, without), GAIN_LEAST, "x");
        }
    }
    lab.print(&table)
}

/// Runs each small tenant and the large one on a thread of its own for a slice, by repeating a statement of theirs. Then `stop` is called until the
/// large one has ended. Returns the nanoseconds from the first start of a small one to the last end.
pub(super) fn together<S: Send, L: Send>(
    clock: Clock,
    slice: Duration,
    small: &mut [S],
    large: &mut L,
    one: impl Fn(&mut S) -> Result<()> + Sync,
    other: impl Fn(&mut L, &AtomicBool) -> Result<()> + Sync,
    stop: impl Fn(),
) -> Result<f64> {
    let (over, start) = (AtomicBool::new(false), Barrier::new(small.len() + 2));
    let (began, ended) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
    // ORDERING: Relaxed, here and below; the flag and the times publish nothing but themselves.
    let is_over = || over.load(Ordering::Relaxed);
    let repeat = |tenant: &mut S| {
        start.wait();
        began.fetch_min(clock::now(), Ordering::Relaxed);
        while !is_over() {
            one(tenant)?;
        }
        // ORDERING: Relaxed; as above.
        ended.fetch_max(clock::now(), Ordering::Relaxed);
        Ok(())
    };
    std::thread::scope(|threads| {
        let repeat = &repeat;
        let small: Vec<_> = small.iter_mut().map(|tenant| threads.spawn(move || repeat(tenant))).collect();
        let large = threads.spawn(|| {
            start.wait();
            while !is_over() {
                other(large, &over)?;
            }
            Ok(())
        });
        start.wait();
        std::thread::sleep(slice);
        // ORDERING: Relaxed; as above.
        over.store(true, Ordering::Relaxed);
        while !large.is_finished() {
            stop();
            std::thread::yield_now();
        }
        small.into_iter().chain([large]).try_for_each(joined)
    })?;
    // ORDERING: Relaxed, both; the threads are joined.
    let (began, ended) = (began.load(Ordering::Relaxed), ended.load(Ordering::Relaxed));
    Ok(clock.ns(ended.saturating_sub(began) as f64))
}

pub(super) fn plain(lab: &mut Lab<'_>, hierarchy: &Hierarchy) -> Result<()> {
    let tiny = [(1, Length::of(5, 1)), (4, Length::of(5, 1))];
    let quick = [(1, 150, 3), (8, 150, 3), (24, 150, 3), (200, 400, 1)];
    let full = [(1, 250, 7), (8, 250, 7), (24, 250, 7), (200, 1_000, 3)];
    let of = |(small, ms, rounds)| (small, Length::of(ms, rounds));
    for (small, length) in lab.pick(tiny.to_vec(), quick.map(of).to_vec(), full.map(of).to_vec()) {
        mixes(lab, "charges", "uncached", small, length, |lab, case, seed| {
            let scene = Scene::set(hierarchy, case.setting, small)?;
            let mut players = Small::all(&scene, case.waits, seed)?;
            let mut runaway = Runaway::new(&scene, case.demand, seed)?;
            let clock = lab.clock;
            let one = |player: &mut Small| {
                player.statement(clock);
                player.rest(small);
                Ok(())
            };
            let other = |runaway: &mut Runaway, over: &AtomicBool| {
                runaway.statement(over, || ());
                Ok(())
            };
            let ns = together(clock, length.slice, &mut players, &mut runaway, one, other, || ())?;
            let seen = Seen::of(&scene, ns, players.into_iter().map(Small::end).collect(), runaway.end())?;
            scene.end()?;
            Ok(seen)
        })?;
    }
    Ok(())
}
