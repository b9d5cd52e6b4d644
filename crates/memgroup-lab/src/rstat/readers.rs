//! The cover letter's first experiment: a reader reads a parent's cpu statistics a million times,
//! while 26 children change theirs.
//!
//! The kernel took 18.2 s for it before the seed's patches and 5.9 s after them. The figure here is
//! the reader's own CPU time, which leaves out the time in which it waits for others. Cases
//! alternate, in slices of reads. All children share one CPU.
//!
//! - I1. After each slice the statistics of the parent are the sums that its threads have counted
//!   themselves.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memgroup::stats::{cpu, io, memory};
use memgroup::{Config, Freshness, Group, Reach, SlotSource, Stat, StatKey, Statistics, Subsystem, scope};
use memgroup_percpu::pin_virtual;

use super::{
    ALL_FOUR, CHILDREN, READER, READS, SEED, SEED_FLUSH_PERCENT, Shift, Slices, read_beside, seed_gain,
    timed_reads,
};
use crate::Trees;
use crate::harness::prelude::*;

/// The interval of a scheduler's ticks, by default of most distributions.
const TICK: Duration = Duration::from_millis(4);
/// The steps of a thread before it yields the CPU and reads the clock. They are many, so that
/// yields take a small part of the time: the cover letter's processes ran side by side.
const STEPS: u64 = 1024;
const PAGE: i64 = 4096;
/// How often a slice is tried at most, if the children did not get the CPU.
const TRIES: usize = 3;

const OWN: Subsystem = Subsystem {
    name: "own",
    stats: &[Stat::count("hits"), Stat::count("misses"), Stat::gauge("held"), Stat::time("build_usec")],
};
const HITS: StatKey = OWN.key("hits");

/// One row of the table, for both kinds of trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    /// Its name in the table and in the JSON.
    name: &'static str,
    /// The children's threads change memory, io and a user's statistics; otherwise they compute.
    storm: bool,
    /// Each thread has its time counted at a scheduler's ticks; otherwise at every step.
    ticks: bool,
    /// The reader reads memory, cpu, io and a user's own statistics in turn; otherwise cpu.
    reads_all: bool,
}

const CASES: [Case; 5] = [
    Case { name: "cpu at ticks, others idle", storm: false, ticks: true, reads_all: false },
    Case { name: "cpu at ticks (the kindest)", storm: true, ticks: true, reads_all: false },
    Case { name: "cpu at every step", storm: true, ticks: false, reads_all: false },
    Case { name: "all four, cpu at ticks", storm: true, ticks: true, reads_all: true },
    Case { name: "all four, cpu at every step (least kind)", storm: true, ticks: false, reads_all: true },
];

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
    /// Ticks of the clock that a step of a storm takes by itself; a step that computes takes as
    /// long.
    step_ticks: u64,
    /// Steps of the children's threads so far, in whole turns.
    steps: AtomicU64,
}

/// What the children's threads have counted.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    charges: i64,
    /// How often a child's time was counted.
    scopes: i64,
}

impl Family {
    fn build(lab: &Lab<'_>, trees: Trees, source: SlotSource) -> Result<Family> {
        let config = Config::with_slots(source).separate_trees(trees == Trees::Separate).depth_max(4);
        let fixture = Fixture::flat(config, CHILDREN)?;
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
    fn churn(&self, index: usize, case: Case, shift: &Shift) -> Result<Counted> {
        let (group, children) = (&self.fixture.leaves[index], self.fixture.leaves.len() as u32);
        // A slot of its own, as the cover letter's processes had CPUs of their own.
        let _pin = (self.source.name() == "virtual").then(|| pin_virtual(index % self.source.slots()));
        let mut counted = Counted::default();
        // One child's tick after the other's, as the ticks of CPUs are.
        let mut next_tick = Instant::now() + TICK * index as u32 / children;
        shift.begin(1);
        while shift.lasts() {
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

    /// Reads so many times: the figures of [`timed_reads`], and whether the children had half of a
    /// CPU meanwhile.
    fn read(&self, reads_all: bool, reads: u64) -> ([f64; 2], bool) {
        let mut values = [0; memory::RECLAIMED.index() + 1];
        let mut one = |statistics: &Statistics, stats: usize| {
            statistics.read(&self.fixture.parent, Reach::Subtree, Freshness::Fresh, &mut values[..stats]);
            std::hint::black_box(&values);
        };
        // ORDERING: Relaxed; a number by itself.
        let steps = || self.steps.load(Ordering::Relaxed);
        let (steps_before, begin) = (steps(), clock::now());
        let slice = timed_reads(&self.cpu, reads, || {
            one(&self.cpu, cpu::NR_SCOPES.index() + 1);
            if reads_all {
                one(&self.memory, memory::RECLAIMED.index() + 1);
                one(&self.io, io::SYNCS.index() + 1);
                one(&self.own, self.own.stats().len());
            }
        });
        let busy_ticks = (steps() - steps_before) * self.step_ticks;
        (slice, busy_ticks >= (clock::now() - begin) / 2)
    }
}

/// Computes for so many ticks.
fn compute(ticks: u64) {
    let begin = clock::now();
    while clock::now() - begin < ticks {
        std::hint::spin_loop();
    }
}

pub(super) fn run(lab: &mut Lab<'_>, source: SlotSource) -> Result<()> {
    let families = Trees::BOTH.into_iter().map(|trees| Family::build(lab, trees, source));
    let mut families = families.collect::<Result<Vec<_>>>()?;
    let (rounds, reads) = lab.pick((1, 200), (3, READS / 5), (10, READS));
    let mut found = <[[Slices; 2]; CASES.len()]>::default();
    let mut quiet = 0;
    lab.in_turns(rounds * TRIES, 2 * CASES.len(), |lab, index| {
        let (case, family) = (CASES[index / 2], &families[index % 2]);
        if found[index / 2][index % 2].ns.len() == rounds {
            return Ok(());
        }
        let ((slice, was_busy), counted) = read_beside(
            &lab.workers,
            CHILDREN,
            |child, shift| family.churn(child, case, shift),
            || family.read(case.reads_all, reads),
        )?;
        families[index % 2].check(&counted)?;
        if !was_busy && !lab.args.tiny {
            quiet += 1;
        } else {
            found[index / 2][index % 2].push(slice);
        }
        Ok(())
    })?;
    show(lab, &found, quiet)
}

fn show(lab: &mut Lab<'_>, found: &[[Slices; 2]], quiet: usize) -> Result<()> {
    let [one, separate] = Trees::BOTH.map(Trees::name);
    let title = format!(
        "one reader of a parent's statistics, {CHILDREN} children with a thread each: ns of the reader's own CPU time for a read, median (min..p90)"
    );
    let mut table = Table::new(title, ["reads", one, "flushes", separate, "flushes", ""]);
    let mut gains = [None; CASES.len()];
    for ((case, both), gain) in CASES.iter().zip(found).zip(&mut gains) {
        let mut cells = Vec::new();
        for (trees, found) in Trees::BOTH.into_iter().zip(both) {
            cells.extend(found.record(&mut lab.record(trees.name(), json!({"reads": case.name}))));
        }
        *gain = ratio(median_of(&both[0].ns), median_of(&both[1].ns));
        table.row(case.name, cells.into_iter().chain([times(*gain)]));
    }
    let [_, ticks, steps, all_ticks, all_steps] = gains;
    let others = ticks.map(|gain| 100.0 * (1.0 - 1.0 / gain));
    let [before, after] = SEED.cells(READER);
    table.note(format!(
        "the others' statistics (memory, io and a user's) change all the time, unless they are idle: then the threads compute, and a step takes as long. Flushes: of cpu's tree, for each read; a read that finds no change is a copy. At ticks: cpu changes every {} ms, as a scheduler counts it. At every step: with each page. Others' flushes are {} % of the reader's time with one tree, in the kindest case; perf saw {} % in that of memory. A nanosecond a read is a millisecond of the seed's million, which took {before} s of the kernel before and {after} s after",
        TICK.as_millis(),
        figure_or_dash(others),
        figure(SEED_FLUSH_PERCENT)
    ));
    lab.print(&table)?;
    lab.at_most("slices left out: the children had less than half of a CPU", Some(quiet as f64), 0.0, "");
    let separate = |case: usize| median_of(&found[case][1].ns);
    lab.at_most("reading cpu at ticks: others busy over idle", ratio(separate(1), separate(0)), 1.1, "x");
    lab.at_least("reading cpu at ticks: one tree over separate", ticks, 10.0, "x");
    lab.at_least("reading cpu at every step: one tree over separate", steps, seed_gain(READER), "x");
    lab.at_least(
        "reading all four, cpu at ticks: one tree over separate",
        all_ticks,
        seed_gain(ALL_FOUR),
        "x",
    );
    lab.at_least(
        "reading all four, cpu at every step: one tree over separate",
        all_steps,
        seed_gain(ALL_FOUR),
        "x",
    );
    Ok(())
}
