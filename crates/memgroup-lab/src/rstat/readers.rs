//! The cover letter's first experiment: a reader reads a parent's cpu statistics a million times,
//! while 26 children change theirs.
//!
//! The kernel took 18.2 s for it before the seed's patches and 5.9 s after them. The figure here is
//! the reader's own CPU time, which leaves out the time in which it waits for others. Cases
//! alternate, in slices of reads. All children share one CPU.
//!
//! The second one ([`builds`]): two children build, and a reader reads their parent's cpu
//! statistics. SQLite statements stand in for the kernel builds (17.2 s for a million reads before
//! the patches, 6.5 s after). The speed of the builds themselves, which the letter's last
//! experiment is about, is measured beside the reader and without one.
//!
//! SQLite has one allocator in a process, which serves one hierarchy, so each kind of trees has
//! processes of its own, and the two alternate. Such a process prints its [`METRICS`].
//!
//! - I1. After each slice the statistics of the parent are the sums that its threads have counted
//!   themselves.
//! - I2. Every statement was a scope of its group, and the statistics say so.

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use memgroup::stats::{cpu, io, memory};
use memgroup::tuning::Tuning;
use memgroup::{Config, Freshness, Group, Reach, SlotSource, Stat, StatKey, Statistics, Subsystem, scope};
use memgroup_percpu::pin_virtual;

use super::{
    ALL_FOUR, BUILDS, CHILDREN, READER, READS, SEED, SEED_FLUSH_PERCENT, read_beside, seed_gain, timed_reads,
};
use crate::Args;
use crate::args::{Trees, word};
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

/// What the children's threads have counted: charges, and how often their time was counted.
type Counted = [i64; 2];

/// A parent of many children, and their statistics.
struct Family {
    fixture: Fixture,
    /// Of memory, cpu, io, and a user's subsystem.
    statistics: [Statistics; 4],
    source: SlotSource,
    counted: Counted,
    /// Nanoseconds of CPU time that the children's threads have had so far.
    busy_ns: AtomicU64,
}

impl Family {
    fn build(trees: Trees, source: SlotSource) -> Result<Family> {
        let config = Config::with_slots(source).separate_trees(trees == Trees::Separate).depth_max(4);
        let fixture = Fixture::flat(config, CHILDREN)?;
        let all = &fixture.hierarchy;
        let own = all.register(OWN).set_up("the user's subsystem")?;
        let statistics = [all.memory(), all.cpu(), all.io(), own];
        Ok(Family { fixture, statistics, source, counted: [0; 2], busy_ns: AtomicU64::new(0) })
    }

    /// A child's thread: storms or computes, yields the CPU, and has its time counted now and then.
    fn churn(&self, index: usize, case: Case, shift: &Shift) -> Result<Counted> {
        let (group, children) = (&self.fixture.leaves[index], self.fixture.leaves.len() as u32);
        // A slot of its own, as the cover letter's processes had CPUs of their own.
        let _pin = (self.source.name() == "virtual").then(|| pin_virtual(index % self.source.slots()));
        let (mut charges, mut scopes, mut cpu_ns) = (0, 0, thread_cpu_ns());
        // One child's tick after the other's, as the ticks of CPUs are.
        let mut next_tick = Instant::now() + TICK * index as u32 / children;
        shift.begin(1);
        while shift.lasts() {
            for _ in 0..STEPS {
                if case.storm {
                    self.storm(group)?;
                    charges += 1;
                } else {
                    (0..8).for_each(|_| std::hint::spin_loop());
                }
                if !case.ticks {
                    drop(scope::enter(group));
                    scopes += 1;
                }
            }
            if case.ticks && Instant::now() >= next_tick {
                drop(scope::enter(group));
                scopes += 1;
                next_tick = Instant::now() + TICK;
            }
            let before = std::mem::replace(&mut cpu_ns, thread_cpu_ns());
            // ORDERING: Relaxed; a number by itself.
            self.busy_ns.fetch_add(cpu_ns - before, Ordering::Relaxed);
            std::thread::yield_now();
        }
        Ok([charges, scopes])
    }

    /// A page is charged, cached and read, then dropped.
    fn storm(&self, group: &Group) -> Result<()> {
        let [memory, _, io, own] = &self.statistics;
        let charge = group.try_charge(PAGE as u64).or_wrong("a charge without a limit was refused")?;
        memory.add(group, memory::FILE, PAGE);
        memory.add(group, memory::STATEMENTS, 64);
        io.add(group, io::RBYTES, PAGE);
        io.add(group, io::RIOS, 1);
        io.add(group, io::WBYTES, 512);
        io.add(group, io::WIOS, 1);
        own.add(group, HITS, 1);
        memory.add(group, memory::STATEMENTS, -64);
        memory.add(group, memory::FILE, -PAGE);
        drop(charge);
        Ok(())
    }

    /// The parent's statistics are the counted sums (I1).
    fn check(&mut self, more: &[Counted]) -> Result<()> {
        self.counted = [0, 1].map(|of| self.counted[of] + more.iter().map(|more| more[of]).sum::<i64>());
        let [charges, scopes] = self.counted;
        let [memory, cpu, io, own] = &self.statistics;
        let right = [
            (memory, memory::CHARGES, charges),
            (memory, memory::FILE, 0),
            (io, io::RBYTES, charges * PAGE),
            (own, HITS, charges),
            (cpu, cpu::NR_SCOPES, scopes),
        ];
        right.into_iter().try_for_each(|(of, stat, right)| {
            let found = of.get(&self.fixture.parent, stat, Reach::Subtree, Freshness::Fresh);
            expect(stat.stat().name(), found, right)
        })
    }

    /// Reads so many times: the figures of [`timed_reads`], and whether the children had half of a
    /// CPU meanwhile.
    fn read(&self, reads_all: bool, reads: u64) -> ([f64; 2], bool) {
        let mut values = [0; memory::RECLAIMED.index() + 1];
        let mut one = |statistics: &Statistics, stats: usize| {
            statistics.read(&self.fixture.parent, Reach::Subtree, Freshness::Fresh, &mut values[..stats]);
            std::hint::black_box(&values);
        };
        let [memory, cpu, io, own] = &self.statistics;
        // ORDERING: Relaxed; a number by itself.
        let busy_ns = || self.busy_ns.load(Ordering::Relaxed);
        let (busy_before, begin) = (busy_ns(), Instant::now());
        let figures = timed_reads(cpu, reads, || {
            one(cpu, cpu::NR_SCOPES.index() + 1);
            if reads_all {
                one(memory, memory::RECLAIMED.index() + 1);
                one(io, io::SYNCS.index() + 1);
                one(own, own.stats().len());
            }
        });
        (figures, 2 * u128::from(busy_ns() - busy_before) >= begin.elapsed().as_nanos())
    }
}

pub(super) fn run(lab: &mut Lab<'_>, source: SlotSource) -> Result<()> {
    let families = Trees::BOTH.into_iter().map(|trees| Family::build(trees, source));
    let mut families = families.collect::<Result<Vec<_>>>()?;
    let (rounds, reads) = lab.pick((1, 200), (3, READS / 5), (10, READS));
    let mut quiet = 0;
    let found = lab.sample(rounds * TRIES, 2 * CASES.len(), |lab, index, found| {
        let (case, family) = (CASES[index / 2], &families[index % 2]);
        if found.of("read").len() == rounds {
            return Ok(());
        }
        let read = || Ok(family.read(case.reads_all, reads));
        let work = |child: usize, shift: &Shift| family.churn(child, case, shift);
        let (([ns, flushes], was_busy), counted) = read_beside(&lab.workers, CHILDREN, read, work)?;
        families[index % 2].check(&counted)?;
        if !was_busy && !lab.args.tiny {
            quiet += 1;
            return Ok(());
        }
        found.push("read", ns);
        found.push("flushes a read", flushes);
        Ok(())
    })?;
    let title = format!(
        "one reader of a parent's statistics, {CHILDREN} children with a thread each: the reader's own CPU time"
    );
    let columns = [("read", "ns"), ("flushes a read", "")];
    let rows = found.iter().enumerate().map(|(index, found)| {
        let (case, trees) = (CASES[index / 2].name, Trees::BOTH[index % 2].name());
        (format!("{case}, {trees}"), trees, json!({"reads": case}), found)
    });
    let gain = |case: usize| found[2 * case].over(&found[2 * case + 1], "read");
    let [before, after] = SEED.cells(READER);
    let note = format!(
        "the others' statistics (memory, io and a user's) change all the time, unless they are idle: then the threads compute. Flushes: of cpu's tree, for each read; a read that finds no change is a copy. At ticks: cpu changes every {} ms, as a scheduler counts it. At every step: with each page. Others' flushes are {} % of the reader's time with one tree, in the kindest case; perf saw {} % in that of memory. A nanosecond a read is a millisecond of the seed's million, which took {before} s of the kernel before and {after} s after",
        TICK.as_millis(),
        figure_or_dash(gain(1).map(|gain| 100.0 * (1.0 - 1.0 / gain))),
        figure(SEED_FLUSH_PERCENT)
    );
    lab.show(title, &columns, rows, note)?;
    lab.at_most("slices left out: the children had less than half of a CPU", Some(f64::from(quiet)), 0.0, "");
    lab.at_most("reading cpu at ticks: others busy over idle", found[3].over(&found[1], "read"), 1.1, "x");
    for (case, name, least) in [
        (1, "reading cpu at ticks", 10.0),
        (2, "reading cpu at every step", seed_gain(READER)),
        (3, "reading all four, cpu at ticks", seed_gain(ALL_FOUR)),
        (4, "reading all four, cpu at every step", seed_gain(ALL_FOUR)),
    ] {
        lab.at_least(format!("{name}: one tree over separate"), gain(case), least, "x");
    }
    Ok(())
}

/// Children that build.
const BUILDERS: usize = 2;
const ROWS: i64 = 2_000;
/// Few, so that pages are read again and again.
const CACHED_PAGES: i64 = 50;
/// How long the children work without a reader.
const ALONE: Duration = Duration::from_millis(200);
/// What a process measures: ns of the reader's CPU time for a read, and flushes of cpu's tree for a
/// read; statements for a second of the children's CPU time, beside the reader and without one.
const METRICS: [&str; 4] = ["read", "flushes a read", "statements beside a reader", "statements"];

pub(super) fn builds(lab: &mut Lab<'_>) -> Result<()> {
    if !lab.has_program("SQLite statements")? {
        return Ok(());
    }
    let found = lab.sample(lab.pick(1, 5, 20), 2, |lab, index, found| {
        let figures = lab.process::<{ METRICS.len() }>(&["rstat", "--serve", &word(Trees::BOTH[index])])?;
        METRICS.into_iter().zip(figures).for_each(|(metric, figure)| found.push(metric, figure));
        Ok(())
    })?;
    let columns = METRICS.into_iter().zip(["ns", "", "1/s", "1/s"]).collect::<Vec<_>>();
    let rows = Trees::BOTH.map(Trees::name).into_iter().zip(&found);
    let rows = rows.map(|(name, found)| (name, name, json!({"reads": "cpu beside SQLite"}), found));
    let [before, after] = SEED.cells(BUILDS);
    let note = format!(
        "each statement is a scope, so cpu changes as often as memory and io do. Flushes: the share of reads that found a change; the others are copies, and with one tree every charge is a change. Statements: for a second of the children's CPU time. The seed, two kernel builds: {before} s before, {after} s after, and the builds spent the same cycles on updates"
    );
    let title = "one reader of a parent's cpu statistics while two children run SQLite statements; both by their own CPU time";
    lab.show(title, &columns, rows, note)?;
    let gain = found[0].over(&found[1], "read");
    lab.at_least("reading cpu beside SQLite: one tree over separate", gain, seed_gain(BUILDS), "x");
    let speed = found[1].over(&found[0], "statements");
    lab.at_least("SQLite without a reader: separate trees over one", speed, 0.97, "x");
    Ok(())
}

/// Measures with one kind of trees, in a process that does nothing else.
pub(super) fn serve(args: &Args, trees: Trees, out: &mut dyn Write) -> Result<()> {
    let sqlite = Sqlite::take(Config::new().separate_trees(trees == Trees::Separate))?;
    let (hierarchy, directory, workers) = (&sqlite.hierarchy, directory()?, Workers::start(2)?);
    let parent = child(&hierarchy.root(), "builds")?;
    let open = |at| {
        let group = child(&parent, &format!("child{at}"))?;
        Tenant::open(&group, &directory.path().join(group.name()), ROWS, CACHED_PAGES).map(Mutex::new)
    };
    let tenants = (0..BUILDERS).map(open).collect::<Result<Vec<_>>>()?;
    let work = |child: usize, shift: &Shift| {
        let (mut tenant, mut random) = (lock(&tenants[child]), Random::new(child as u64));
        let (mut statements, before) = (0, thread_cpu_ns());
        shift.begin(1);
        while shift.lasts() {
            tenant.use_one(random.next())?;
            statements += 1;
        }
        Ok([statements, thread_cpu_ns() - before])
    };
    let (statistics, mut all) = (hierarchy.cpu(), 0);
    let mut side = |read: &(dyn Fn() -> [f64; 2] + Sync)| -> Result<([f64; 2], f64)> {
        let (read, made) = read_beside(&workers, BUILDERS, || Ok(read()), work)?;
        let [statements, ns] = [0, 1].map(|of: usize| made.iter().map(|one| one[of]).sum::<u64>());
        all += statements;
        Ok((read, statements as f64 * 1e9 / ns as f64))
    };
    let ([ns, flushes], beside) = side(&|| {
        let mut values = [0; cpu::NR_SCOPES.index() + 1];
        timed_reads(&statistics, args.pick(500, READS / 5, READS), || {
            statistics.read(&parent, Reach::Subtree, Freshness::Fresh, &mut values);
            std::hint::black_box(&values);
        })
    })?;
    let (_, alone) = side(&|| {
        std::thread::sleep(ALONE);
        [0.0; 2]
    })?;
    // I2, and pages of files were read.
    let get = |of: memgroup::Statistics, stat| of.get(&parent, stat, Reach::Subtree, Freshness::Fresh) as u64;
    let (scopes, reads) = (get(statistics.clone(), cpu::NR_SCOPES), get(hierarchy.io(), io::RIOS));
    ensure(scopes >= all && reads > 0, || {
        format!("{all} statements were {scopes} scopes and {reads} reads of the parent")
    })?;
    writeln!(out, "{ns} {flushes} {beside} {alone}").map_err(Error::Output)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because SQLite serves one hierarchy in a process.
    #[test]
    fn prints_what_it_measured() {
        let (mut answer, args) = (Vec::new(), Args { tiny: true, ..Args::default() });
        serve(&args, Trees::Unified, &mut answer).unwrap();
        let answer = String::from_utf8(answer).unwrap();
        let figures: Vec<f64> = answer.split_whitespace().map(|word| word.parse().unwrap()).collect();
        let [ns, flushes, beside, alone] = figures[..] else { panic!("{answer}") };
        assert!(ns > 0.0 && flushes <= 1.0 && beside > 0.0 && alone > 0.0, "{answer}");
    }
}
