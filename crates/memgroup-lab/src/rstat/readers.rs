//! The letter's reader: it opens a parent's cpu statistics once and reads them a million times, while the parent's children churn.
//!
//! What is measured is the reader's own CPU time, so that it does not matter whose turn it was. Houses and churns take turns, in slices.

use std::sync::Arc;
use std::time::Duration;

use memgroup::stats::{cpu, io, memory};
use memgroup::{Freshness, Reach, Statistics};

use super::house::{Churn, House, Trees};
use super::seed;
use crate::Error;
use crate::harness::Lab;
use crate::harness::os::thread_cpu_ns;
use crate::harness::report::{Check, params, ratio};
use crate::harness::stats::Summary;
use crate::harness::table::{Table, count, figure, figure_or_dash, spread};

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
    let ns = slices(lab, &houses, &cases)?;
    show(lab, &cases, &ns, children)?;
    check(lab, &cases, &ns);
    Ok(())
}

/// Nanoseconds of the reader's CPU time for one read, of each case, slice by slice.
fn slices(lab: &mut Lab<'_>, houses: &[Arc<House>], cases: &[Case]) -> Result<Vec<Option<Summary>>, Error> {
    let (rounds, reads) = match (lab.args.tiny, lab.args.quick) {
        (true, _) => (1, 200),
        (_, true) => (5, 20_000),
        (_, false) => (20, seed::READS / 20),
    };
    let mut samples = vec![Vec::new(); cases.len()];
    let mut order: Vec<usize> = (0..cases.len()).collect();
    for _ in 0..rounds {
        lab.random.shuffle(&mut order);
        for &index in &order {
            let case = cases[index];
            let house = &houses[case.trees as usize];
            let ns =
                House::during(house, &lab.crew, case.churn, move |house| read(house, case.reading, reads))?;
            samples[index].push(ns / reads as f64);
        }
    }
    Ok(samples.iter().map(|samples| Summary::of(samples)).collect())
}

/// Reads so many times; the CPU time of this thread.
fn read(house: &House, reading: Reading, reads: u64) -> f64 {
    let mut values = [0; memory::RECLAIMED + 1];
    let mut one = |statistics: &Statistics, stats: usize| {
        statistics.read(&house.parent, Reach::Subtree, Freshness::Fresh, &mut values[..stats]);
        std::hint::black_box(&values);
    };
    let before = thread_cpu_ns();
    for _ in 0..reads {
        one(&house.cpu, cpu::NR_SCOPES + 1);
        if reading == Reading::All {
            one(&house.memory, memory::RECLAIMED + 1);
            one(&house.io, io::SYNCS + 1);
            one(&house.own, house.own.stats().len());
        }
    }
    (thread_cpu_ns() - before) as f64
}

/// What is the same for both kinds of trees.
fn name(churn: Churn, reading: Reading) -> String {
    let reads = match reading {
        Reading::Cpu => "cpu",
        Reading::All => "all four in turn",
    };
    let time = if churn.tick.is_some() { "at ticks" } else { "at every step" };
    let storm = if churn.storm { "storming" } else { "idle" };
    format!("{reads}; time {time}; {storm}")
}

fn show(lab: &mut Lab<'_>, cases: &[Case], ns: &[Option<Summary>], children: usize) -> Result<(), Error> {
    let mut table = Table::new(
        format!(
            "one reader of a parent's statistics, {children} children with a thread each: ns of the reader's own CPU time for a read, median (min..p90)"
        ),
        ["what is read; cpu changes; memory and io", Trees::Unified.name(), Trees::Separate.name(), ""],
    );
    // Cases come in pairs, the control first.
    for (pair, ns) in cases.chunks_exact(2).zip(ns.chunks_exact(2)) {
        let medians = [0, 1].map(|index| ns[index].map(|ns| ns.median));
        let gain =
            ratio(medians[0], medians[1]).map_or_else(String::new, |gain| format!("x{}", figure(gain)));
        table.row(vec![name(pair[0].churn, pair[0].reading), spread(ns[0]), spread(ns[1]), gain]);
        for (case, ns) in pair.iter().zip(ns) {
            let what = params([
                ("storm", case.churn.storm.into()),
                ("ticks", case.churn.tick.is_some().into()),
                ("reads", if case.reading == Reading::All { "all four" } else { "cpu" }.into()),
            ]);
            if let Some(ns) = ns {
                lab.report.add(case.trees.name(), what, "read", "ns", *ns);
            }
        }
    }
    table.note(format!(
        "a nanosecond a read is a millisecond for the seed's million, which took {} s of the kernel before and {} s after. Time at ticks is a scope every {} ms, as a scheduler counts it; at every step, one with each page. Threads that are idle compute, as long as a step of the storm takes",
        figure_or_dash(seed::SEED.figures[1].before),
        figure_or_dash(seed::SEED.figures[1].after),
        count(TICK.as_millis() as u64)
    ));
    lab.print(&table)
}

fn check(lab: &mut Lab<'_>, cases: &[Case], ns: &[Option<Summary>]) {
    let median = |trees, storm, tick, reading| {
        let is =
            |case: &Case| (case.trees, case.churn, case.reading) == (trees, Churn { storm, tick }, reading);
        let index = cases.iter().position(is)?;
        ns[index].map(|ns| ns.median)
    };
    let separate = |storm, tick| median(Trees::Separate, storm, tick, Reading::Cpu);
    let unified = |storm, tick| median(Trees::Unified, storm, tick, Reading::Cpu);
    let checks = &mut lab.report.checks;
    for (tick, when) in TICKING.into_iter().zip(["ticks", "every step"]) {
        checks.push(Check::at_most(
            format!("reading cpu, time at {when}: memory and io storming over idle"),
            ratio(separate(true, tick), separate(false, tick)),
            1.1,
            "x",
        ));
    }
    checks.push(Check::at_least(
        "reading cpu, time at ticks, under the storm: one tree over separate trees",
        ratio(unified(true, TICKING[0]), separate(true, TICKING[0])),
        10.0,
        "x",
    ));
    let all = |trees| median(trees, true, TICKING[0], Reading::All);
    checks.push(Check::at_most(
        "reading all four in turn: separate trees over one tree",
        ratio(all(Trees::Separate), all(Trees::Unified)),
        1.0,
        "x",
    ));
}
