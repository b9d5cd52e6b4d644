//! The cover letter's reader: it opens a parent's cpu statistics once and reads them a million times, while the parent's children change theirs.
//!
//! The figure is the reader's own CPU time, in which it does not wait for others. Cases take turns, in slices.
//!
//! - I1. When a slice is over, the statistics of the parent are the sums that its threads have counted themselves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memgroup::stats::{cpu, io, memory};
use memgroup::{Config, Freshness, Group, Reach, SlotSource, Stat, StatKey, Statistics, Subsystem, scope};
use memgroup_percpu::pin_virtual;

use super::{READS, SEED, Slices, Turn, read_beside, timed_reads};
use crate::Trees;
use crate::harness::prelude::*;

/// The interval of a scheduler's ticks, by default of most distributions.
const TICK: Duration = Duration::from_millis(4);
/// Steps before a thread yields the CPU and reads the clock. So many that the threads change little in the time of the yields: the
/// cover letter's processes ran side by side.
const STEPS: u64 = 1024;
const PAGE: i64 = 4096;

const OWN: Subsystem = Subsystem {
    name: "own",
    stats: &[Stat::count("hits"), Stat::count("misses"), Stat::gauge("held"), Stat::time("build_usec")],
};
const HITS: StatKey = OWN.key("hits");

/// One row of the table, for both kinds of trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    /// The children's threads change memory, io and a user's statistics; else they compute.
    storm: bool,
    /// Each thread has its time counted at a scheduler's ticks; else at every step.
    ticks: bool,
    /// The reader reads memory, cpu, io and a user's own statistics in turn; else cpu.
    reads_all: bool,
}

const CASES: [Case; 6] = [
    Case { storm: false, ticks: true, reads_all: false },
    Case { storm: true, ticks: true, reads_all: false },
    Case { storm: false, ticks: false, reads_all: false },
    Case { storm: true, ticks: false, reads_all: false },
    Case { storm: true, ticks: true, reads_all: true },
    Case { storm: true, ticks: false, reads_all: true },
];
/// The places of the rows among them.
const IDLE_TICKS: usize = 0;
const STORM_TICKS: usize = 1;
const IDLE_STEPS: usize = 2;
const STORM_STEPS: usize = 3;
const ALL: usize = 4;
/// The seed's row of the same reader.
const ALL_FOUR: &str = "all four files in turn, 26 children";

/// A parent of many children, and their statistics.
struct Family {
    fixture: Fixture,
    memory: Statistics,
    cpu: Statistics,
    io: Statistics,
    /// A user's subsystem.
    own: Statistics,
    source: SlotSource,
    counted: Counted,
    /// Ticks of the clock that a step of a storm takes by itself; a step that computes takes as long.
    step_ticks: u64,
    /// Steps of the children's threads so far, in whole turns.
    steps: AtomicU64,
}

/// Counts of the children's threads.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    charges: i64,
    /// Times that a child's time was counted.
    scopes: i64,
}

impl Family {
    fn build(lab: &Lab<'_>, trees: Trees, source: SlotSource, children: usize) -> Result<Family> {
        let config = Config::with_slots(source).separate_trees(trees == Trees::Separate).depth_max(4);
        let fixture = Fixture::flat(config, children)?;
        let all = &fixture.hierarchy;
        let (memory, cpu, io) = (all.memory(), all.cpu(), all.io());
        let own = all.register(OWN).set_up("the user's subsystem")?;
        let (counted, steps) = (Counted::default(), AtomicU64::new(0));
        let mut family = Family { fixture, memory, cpu, io, own, source, counted, step_ticks: 0, steps };
        family.set_pace(lab)?;
        Ok(family)
    }

    /// Times the storm's steps with no other thread, so that threads that compute can take as long.
    fn set_pace(&mut self, lab: &Lab<'_>) -> Result<()> {
        const TIMED: u64 = 20_000;
        let begin = clock::now();
        lab.workers.run_one(|| (0..TIMED).try_for_each(|_| self.storm(&self.fixture.leaves[0])))?;
        self.step_ticks = (clock::now() - begin) / TIMED;
        self.check(&[Counted { charges: TIMED as i64, ..Counted::default() }])
    }

    /// A child's thread: storms or computes, yields the CPU, and has its time counted now and then.
    fn churn(&self, index: usize, case: Case, turn: &Turn) -> Result<Counted> {
        let (group, children) = (&self.fixture.leaves[index], self.fixture.leaves.len() as u32);
        // A slot of its own, as the cover letter's processes had CPUs of their own.
        let _pin = (self.source.name() == "virtual").then(|| pin_virtual(index % self.source.slots()));
        let mut counted = Counted::default();
        // One child's tick after the other's, as the ticks of CPUs are.
        let mut next_tick = Instant::now() + TICK * index as u32 / children;
        turn.begin(1);
        while turn.lasts() {
            for _ in 0..STEPS {
                if case.storm {
                    self.storm(group)?;
                    counted.charges += 1;
                } else {
                    compute(self.step_ticks);
                }
                if !case.ticks {
                    drop(scope::enter(group));
                    counted.scopes += 1;
                }
            }
            // ORDERING: Relaxed; a number by itself.
            self.steps.fetch_add(STEPS, Ordering::Relaxed);
            if case.ticks && Instant::now() >= next_tick {
                drop(scope::enter(group));
                counted.scopes += 1;
                next_tick = Instant::now() + TICK;
            }
            std::thread::yield_now();
        }
        Ok(counted)
    }

    /// A page is charged, cached and read, then dropped.
    fn storm(&self, group: &Group) -> Result<()> {
        let charge = group.try_charge(PAGE as u64).or_wrong("a charge without a limit was refused")?;
        self.memory.add(group, memory::FILE, PAGE);
        self.memory.add(group, memory::STATEMENTS, 64);
        self.io.add(group, io::RBYTES, PAGE);
        self.io.add(group, io::RIOS, 1);
        self.io.add(group, io::WBYTES, 512);
        self.io.add(group, io::WIOS, 1);
        self.own.add(group, HITS, 1);
        self.memory.add(group, memory::STATEMENTS, -64);
        self.memory.add(group, memory::FILE, -PAGE);
        drop(charge);
        Ok(())
    }

    /// The parent's statistics are the counted sums (I1).
    fn check(&mut self, more: &[Counted]) -> Result<()> {
        self.counted.charges += more.iter().map(|more| more.charges).sum::<i64>();
        self.counted.scopes += more.iter().map(|more| more.scopes).sum::<i64>();
        let parent = &self.fixture.parent;
        let get = |of: &Statistics, stat| of.get(parent, stat, Reach::Subtree, Freshness::Fresh);
        let found = [
            get(&self.memory, memory::CHARGES),
            get(&self.memory, memory::FILE),
            get(&self.io, io::RBYTES),
            get(&self.own, HITS),
            get(&self.cpu, cpu::NR_SCOPES),
        ];
        let Counted { charges, scopes } = self.counted;
        let right = [charges, 0, charges * PAGE, charges, scopes];
        expect("charges, cached bytes, bytes read, the user's hits and scopes of the parent", found, right)
    }

    /// Reads so many times: figures of [`timed_reads`], and steps of the children meanwhile.
    fn read(&self, reads_all: bool, reads: u64) -> ([f64; 2], u64) {
        let mut values = [0; memory::RECLAIMED.index() + 1];
        let mut one = |statistics: &Statistics, stats: usize| {
            statistics.read(&self.fixture.parent, Reach::Subtree, Freshness::Fresh, &mut values[..stats]);
            std::hint::black_box(&values);
        };
        // ORDERING: Relaxed; a number by itself.
        let steps = || self.steps.load(Ordering::Relaxed);
        let steps_before = steps();
        let slice = timed_reads(&self.cpu, reads, || {
            one(&self.cpu, cpu::NR_SCOPES.index() + 1);
            if reads_all {
                one(&self.memory, memory::RECLAIMED.index() + 1);
                one(&self.io, io::SYNCS.index() + 1);
                one(&self.own, self.own.stats().len());
            }
        });
        (slice, steps() - steps_before)
    }
}

/// Computes for so many ticks.
fn compute(ticks: u64) {
    let begin = clock::now();
    while clock::now() - begin < ticks {
        std::hint::spin_loop();
    }
}

/// Measures experiment 1 of the cover letter, and the question whether reading everything got slower.
pub(super) fn run(lab: &mut Lab<'_>, source: SlotSource, children: usize) -> Result<()> {
    let families = Trees::BOTH.into_iter().map(|trees| Family::build(lab, trees, source, children));
    let mut families = families.collect::<Result<Vec<_>>>()?;
    let (rounds, reads) = lab.pick((1, 200), (5, READS / 5), (10, READS));
    let mut found = <[[Slices; 2]; CASES.len()]>::default();
    let mut quiet = 0;
    lab.in_turns(rounds, 2 * CASES.len(), |lab, index| {
        let (case, family) = (CASES[index / 2], &families[index % 2]);
        let ((slice, steps), counted) = read_beside(
            &lab.workers,
            children,
            |child, turn| family.churn(child, case, turn),
            || family.read(case.reads_all, reads),
        )?;
        families[index % 2].check(&counted)?;
        if steps == 0 && !lab.args.tiny {
            quiet += 1;
            return Ok(());
        }
        found[index / 2][index % 2].push(slice);
        Ok(())
    })?;
    show(lab, &found, children)?;
    add_goals(lab, &found, quiet);
    Ok(())
}

fn show(lab: &mut Lab<'_>, found: &[[Slices; 2]], children: usize) -> Result<()> {
    let [one, separate] = Trees::BOTH.map(Trees::name);
    let mut table = Table::new(
        format!(
            "one reader of a parent's statistics, {children} children with a thread each: ns of the reader's own CPU time for a read, median (min..p90)"
        ),
        ["read; cpu changes; memory, io", one, "flushes", separate, "flushes", ""],
    );
    for (case, both) in CASES.iter().zip(found) {
        let Case { storm, ticks, reads_all } = *case;
        let reads = if reads_all { "all four" } else { "cpu" };
        let params = json!({"storm": storm, "ticks": ticks, "reads": reads});
        let mut cells = Vec::new();
        for (trees, found) in Trees::BOTH.into_iter().zip(both) {
            let mut row = lab.record(trees.name(), params.clone());
            cells.extend(found.record(&mut row, ["read", "flushes of cpu's tree a read"]));
        }
        cells.push(times(ratio(median_of(&both[0].ns), median_of(&both[1].ns))));
        let time = if ticks { "at ticks" } else { "every step" };
        table.row(format!("{reads}; {time}; {}", if storm { "storming" } else { "idle" }), cells);
    }
    let [before, after] = SEED.cells("26 children read files: in the kernel");
    table.note(format!(
        "flushes: of cpu's tree, for each read; a read that finds nothing changed is a copy. A nanosecond a read is a millisecond for the seed's million, which took {before} s of the kernel before and {after} s after. Time at ticks is a scope every {} ms, as a scheduler counts it; at every step, one with each page. Threads that are idle compute, as long as a step of the storm takes",
        TICK.as_millis()
    ));
    lab.print(&table)
}

fn add_goals(lab: &mut Lab<'_>, found: &[[Slices; 2]], quiet: usize) {
    let one_tree = |case: usize| median_of(&found[case][0].ns);
    let separate = |case: usize| median_of(&found[case][1].ns);
    // A read finds a change more often in one case than in the other, so the cost of a flush is compared.
    let a_flush = |case: usize| {
        let Slices { ns, flushes } = &found[case][1];
        let flushing = ns.iter().zip(flushes).filter(|(_, flushes)| **flushes > 0.0);
        median_of(flushing.map(|(ns, flushes)| ns / flushes))
    };
    lab.at_most("slices left out: no child's thread ran in them", Some(quiet as f64), 0.0, "");
    let over_idle = ratio(separate(STORM_TICKS), separate(IDLE_TICKS));
    lab.at_most("reading cpu, time at ticks: storming over idle", over_idle, 1.1, "x");
    let over_idle = ratio(a_flush(STORM_STEPS), a_flush(IDLE_STEPS));
    lab.at_most("a flush of cpu alone, time at every step: storming over idle", over_idle, 1.1, "x");
    let gain = ratio(one_tree(STORM_TICKS), separate(STORM_TICKS));
    lab.at_least("reading cpu, time at ticks, storming: one tree over separate", gain, 10.0, "x");
    let cost = ratio(separate(ALL), one_tree(ALL));
    lab.at_most("reading all four in turn: separate over one tree", cost, 1.0, "x");
    let [before, after] = SEED.figure(ALL_FOUR);
    let gain = ratio(one_tree(ALL), separate(ALL));
    if let Some(least) = ratio(before, after).map(|least| (least * 100.0).round() / 100.0) {
        lab.at_least("reading all four in turn: one tree over separate, the seed's gain", gain, least, "x");
    }
}
