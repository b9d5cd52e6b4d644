//! The letter's reader: it opens a parent's cpu statistics once and reads them a million times, while the parent's children churn.
//!
//! What is measured is the reader's own CPU time, so that it does not matter whose turn it was. Houses and churns take turns, in slices.

use std::sync::Arc;
use std::time::Duration;

use memgroup::stats::{cpu, io, memory};
use memgroup::{Freshness, Reach, Statistics};

use super::house::{Churn, House};
use super::seed;
use crate::harness::Lab;
use crate::harness::os::thread_cpu_ns;
use crate::harness::report::{Check, params, ratio};
use crate::harness::stats::Summary;
use crate::harness::table::{Table, count, figure, figure_or_dash, spread};
use crate::{Error, Trees};

/// How often a scheduler ticks, by default of most distributions.
const TICK: Duration = Duration::from_millis(4);

/// A reader, and what it reads in one turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Cpu,
    /// Memory, cpu, io and a user's own, one after the other.
    All,
}

/// One line of the table.
#[derive(Debug, Clone, Copy)]
struct Case {
    trees: Trees,
    churn: Churn,
    reading: Reading,
}

/// What the slices of one case found.
#[derive(Debug, Default)]
struct Found {
    /// Nanoseconds of the reader's CPU time for one read.
    ns: Vec<f64>,
    /// Flushes of cpu's tree for each read of cpu.
    flushes: Vec<f64>,
    /// Slices in which the children's threads did not run.
    quiet: usize,
}

/// What one slice found.
struct Slice {
    /// Nanoseconds of the reader's CPU time.
    ns: f64,
    flushes: f64,
    /// Steps of the children's threads meanwhile.
    steps: u64,
}

const TICKING: [Option<Duration>; 2] = [Some(TICK), None];

/// Measures experiment 1, and the question whether reading everything got slower.
pub(super) fn run(lab: &mut Lab<'_>, source: memgroup::SlotSource, children: usize) -> Result<(), Error> {
    let mut cases = Vec::new();
    for tick in TICKING {
        for storm in [false, true] {
            for trees in Trees::BOTH {
                cases.push(Case { trees, churn: Churn { storm, tick }, reading: Reading::Cpu });
            }
        }
    }
    for trees in Trees::BOTH {
        cases.push(Case { trees, churn: Churn { storm: true, tick: Some(TICK) }, reading: Reading::All });
    }
    let houses = Trees::BOTH
        .map(|trees| House::build(trees, source, children).map(Arc::new))
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    houses.iter().try_for_each(|house| House::pace(house, &lab.crew))?;
    let found = slices(lab, &houses, &cases)?;
    show(lab, &cases, &found, children)?;
    check(lab, &cases, &found);
    Ok(())
}

/// Has each case read, slice by slice.
fn slices(lab: &mut Lab<'_>, houses: &[Arc<House>], cases: &[Case]) -> Result<Vec<Found>, Error> {
    let (rounds, reads) = match (lab.args.tiny, lab.args.quick) {
        (true, _) => (1, 200),
        (_, true) => (5, seed::READS / 5),
        (_, false) => (10, seed::READS),
    };
    let mut found: Vec<Found> = cases.iter().map(|_| Found::default()).collect();
    let mut order: Vec<usize> = (0..cases.len()).collect();
    for _ in 0..rounds {
        lab.random.shuffle(&mut order);
        for &index in &order {
            let case = cases[index];
            let house = &houses[case.trees as usize];
            let slice =
                House::during(house, &lab.crew, case.churn, move |house| read(house, case.reading, reads))?;
            let found = &mut found[index];
            if slice.steps == 0 && !lab.args.tiny {
                found.quiet += 1;
                continue;
            }
            found.ns.push(slice.ns / reads as f64);
            found.flushes.push(slice.flushes / reads as f64);
        }
    }
    Ok(found)
}

/// Reads so many times.
fn read(house: &House, reading: Reading, reads: u64) -> Slice {
    let mut values = [0; memory::RECLAIMED + 1];
    let mut one = |statistics: &Statistics, stats: usize| {
        statistics.read(&house.parent, Reach::Subtree, Freshness::Fresh, &mut values[..stats]);
        std::hint::black_box(&values);
    };
    let (flushed, steps) = (house.cpu.flushes(), house.steps());
    let before = thread_cpu_ns();
    for _ in 0..reads {
        one(&house.cpu, cpu::NR_SCOPES + 1);
        if reading == Reading::All {
            one(&house.memory, memory::RECLAIMED + 1);
            one(&house.io, io::SYNCS + 1);
            one(&house.own, house.own.stats().len());
        }
    }
    let ns = thread_cpu_ns() - before;
    let flushes = (house.cpu.flushes() - flushed) as f64;
    Slice { ns: ns as f64, flushes, steps: house.steps() - steps }
}

/// What is the same for both kinds of trees.
fn name(churn: Churn, reading: Reading) -> String {
    let reads = match reading {
        Reading::Cpu => "cpu",
        Reading::All => "all four",
    };
    let time = if churn.tick.is_some() { "at ticks" } else { "every step" };
    let storm = if churn.storm { "storming" } else { "idle" };
    format!("{reads}; {time}; {storm}")
}

fn show(lab: &mut Lab<'_>, cases: &[Case], found: &[Found], children: usize) -> Result<(), Error> {
    let mut table = Table::new(
        format!(
            "one reader of a parent's statistics, {children} children with a thread each: ns of the reader's own CPU time for a read, median (min..p90)"
        ),
        [
            "read; cpu changes; memory, io",
            Trees::Unified.name(),
            "flushes",
            Trees::Separate.name(),
            "flushes",
            "",
        ],
    );
    // Cases come in pairs, the control first.
    for (pair, found) in cases.chunks_exact(2).zip(found.chunks_exact(2)) {
        let ns = [0, 1].map(|index| Summary::of(&found[index].ns));
        let flushes = [0, 1].map(|index| Summary::of(&found[index].flushes));
        let medians = [0, 1].map(|index| ns[index].map(|ns| ns.median));
        let gain =
            ratio(medians[0], medians[1]).map_or_else(String::new, |gain| format!("x{}", figure(gain)));
        let a_read = |index: usize| figure_or_dash(flushes[index].map(|flushes| flushes.median));
        table.row(vec![
            name(pair[0].churn, pair[0].reading),
            spread(ns[0]),
            a_read(0),
            spread(ns[1]),
            a_read(1),
            gain,
        ]);
        for (case, (ns, flushes)) in pair.iter().zip(ns.iter().zip(flushes)) {
            let what = params([
                ("storm", case.churn.storm.into()),
                ("ticks", case.churn.tick.is_some().into()),
                ("reads", if case.reading == Reading::All { "all four" } else { "cpu" }.into()),
            ]);
            if let Some(ns) = ns {
                lab.report.add(case.trees.name(), what.clone(), "read", "ns", *ns);
            }
            if let Some(flushes) = flushes {
                lab.report.add(case.trees.name(), what, "flushes of cpu's tree a read", "", flushes);
            }
        }
    }
    table.note(format!(
        "flushes: of cpu's tree, for each read; a read that finds nothing changed is a copy. A nanosecond a read is a millisecond for the seed's million, which took {} s of the kernel before and {} s after. Time at ticks is a scope every {} ms, as a scheduler counts it; at every step, one with each page. Threads that are idle compute, as long as a step of the storm takes",
        figure_or_dash(seed::SEED.figures[1].before),
        figure_or_dash(seed::SEED.figures[1].after),
        count(TICK.as_millis() as u64)
    ));
    lab.print(&table)
}

fn check(lab: &mut Lab<'_>, cases: &[Case], found: &[Found]) {
    let ns: Vec<_> = found.iter().map(|found| Summary::of(&found.ns)).collect();
    let median = |trees, storm, tick, reading| {
        let is =
            |case: &Case| (case.trees, case.churn, case.reading) == (trees, Churn { storm, tick }, reading);
        let index = cases.iter().position(is)?;
        ns[index].map(|ns| ns.median)
    };
    // Where a read finds a change more often than another, what a flush takes is compared.
    let a_flush = |storm| {
        let is = |case: &Case| (case.trees, case.churn) == (Trees::Separate, Churn { storm, tick: None });
        let found = &found[cases.iter().position(is)?];
        let each = found.ns.iter().zip(&found.flushes).filter(|(_, flushes)| **flushes > 0.0);
        Summary::of(&each.map(|(ns, flushes)| ns / flushes).collect::<Vec<_>>()).map(|ns| ns.median)
    };
    let separate = |storm, tick| median(Trees::Separate, storm, tick, Reading::Cpu);
    let unified = |storm, tick| median(Trees::Unified, storm, tick, Reading::Cpu);
    let checks = &mut lab.report.checks;
    let quiet: usize = found.iter().map(|found| found.quiet).sum();
    checks.push(Check::at_most(
        "slices left out: no child's thread ran in them",
        Some(quiet as f64),
        0.0,
        "",
    ));
    checks.push(Check::at_most(
        "reading cpu, time at ticks: storming over idle",
        ratio(separate(true, TICKING[0]), separate(false, TICKING[0])),
        1.1,
        "x",
    ));
    checks.push(Check::at_most(
        "a flush of cpu alone, time at every step: storming over idle",
        ratio(a_flush(true), a_flush(false)),
        1.1,
        "x",
    ));
    checks.push(Check::at_least(
        "reading cpu, time at ticks, storming: one tree over separate",
        ratio(unified(true, TICKING[0]), separate(true, TICKING[0])),
        10.0,
        "x",
    ));
    let all = |trees| median(trees, true, TICKING[0], Reading::All);
    checks.push(Check::at_most(
        "reading all four in turn: separate over one tree",
        ratio(all(Trees::Separate), all(Trees::Unified)),
        1.0,
        "x",
    ));
}
