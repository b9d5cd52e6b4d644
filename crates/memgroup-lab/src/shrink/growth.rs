//! What a registration takes as the numbers of shrinkers grow, with 10,000 groups alive.
//!
//! The control is the kernel's growing: when a shrinker gets the first number of another 64, every group gets a larger array of pointers and one
//! more unit of 64 marks and counts, all under one lock.

use std::sync::{Mutex, PoisonError};

use memgroup::{Config, Group, GroupShrinker, Hierarchy, ShrinkerConfig, SlotSource};

use super::house::Idle;
use crate::Error;
use crate::harness::report::{Check, params};
use crate::harness::stats::Summary;
use crate::harness::table::{Table, count, figure_or_dash};
use crate::harness::tree::child;
use crate::harness::{Lab, clock};

const GROUPS: usize = 10_000;
/// Shrinkers registered, one after the other: up to a power of two and a few more.
const SHRINKERS: usize = 4_096 + 64;
/// Shrinkers of one of the kernel's units.
const UNIT: usize = 64;

const OURS: &str = "shrinkers";
const CONTROL: &str = "every group grows (control)";

/// A unit as the kernel has it: a count for each of 64 shrinkers, and a word of marks.
type Unit = Box<[u64; UNIT + 1]>;

/// The control: what each group has, and the lock of all.
struct Growing(Mutex<Vec<Vec<Unit>>>);

impl Growing {
    fn of(groups: usize) -> Growing {
        Growing(Mutex::new((0..groups).map(|_| Vec::new()).collect()))
    }

    fn register(&self, number: usize) {
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if number.is_multiple_of(UNIT) {
            for units in groups.iter_mut() {
                units.reserve_exact(1);
                units.push(Box::new([0; UNIT + 1]));
            }
        }
    }
}

/// Nanoseconds of registrations, by the number of those before.
struct Times {
    ours: Vec<f64>,
    control: Vec<f64>,
}

fn measure(clock: clock::Clock, slots: SlotSource, groups: usize, shrinkers: usize) -> Result<Times, Error> {
    let config = Config::with_slots(slots).groups_max(groups as u32 + 3);
    let hierarchy = Hierarchy::new(config).map_err(|error| Error::setup("the hierarchy", error))?;
    let parent = child(&hierarchy.root(), "parent")?;
    let groups: Vec<Group> =
        (0..groups).map(|at| child(&parent, &format!("g{at}"))).collect::<Result<_, _>>()?;
    let (growing, reading) = (Growing::of(groups.len()), clock::reading_ticks());
    let ns = |begin: u64| clock.ns((clock::now_ordered() - begin).saturating_sub(reading) as f64);
    let mut times = Times { ours: Vec::new(), control: Vec::new() };
    let mut registered: Vec<GroupShrinker> = Vec::with_capacity(shrinkers);
    for number in 0..shrinkers {
        let (group, config) = (&groups[number % groups.len()], ShrinkerConfig::new(String::new()));
        let begin = clock::now_ordered();
        let shrinker = group.add_shrinker(config, Idle);
        times.ours.push(ns(begin));
        registered.push(shrinker.map_err(|error| Error::setup("a shrinker", error))?);
        let begin = clock::now_ordered();
        growing.register(number);
        times.control.push(ns(begin));
    }
    Ok(times)
}

/// Numbers from a power of two up to the next.
fn span(power: u32) -> std::ops::Range<usize> {
    1 << power..1 << (power + 1)
}

/// Median of the rounds' largest, and of their medians, in a span.
fn of_span(rounds: &[Times], of: fn(&Times) -> &[f64], power: u32) -> [Option<f64>; 2] {
    let spans = rounds.iter().filter_map(|times| {
        let times = of(times);
        times.get(span(power).start..span(power).end.min(times.len())).filter(|times| !times.is_empty())
    });
    let summaries: Vec<(f64, f64)> = spans
        .filter_map(|times| Some((Summary::of(times)?.median, times.iter().copied().reduce(f64::max)?)))
        .collect();
    let median = |values: Vec<f64>| Summary::of(&values).map(|summary| summary.median);
    [
        median(summaries.iter().map(|both| both.0).collect()),
        median(summaries.iter().map(|both| both.1).collect()),
    ]
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let (groups, shrinkers, rounds) = match (lab.args.tiny, lab.args.quick) {
        (true, _) => (50, 200, 1),
        (_, true) => (GROUPS, SHRINKERS, 3),
        (_, false) => (GROUPS, SHRINKERS, 7),
    };
    let (clock, slots) = (lab.clock, lab.slots);
    let mut measured = Vec::new();
    for _ in 0..rounds {
        // On a CPU of the crew's, which the others of it leave alone meanwhile.
        let times = lab.crew.run(1, move |_| measure(clock, slots, groups, shrinkers)).remove(0)?;
        measured.push(times);
    }
    show(lab, groups, shrinkers, &measured)
}

fn show(lab: &mut Lab<'_>, groups: usize, shrinkers: usize, rounds: &[Times]) -> Result<(), Error> {
    let mut table = Table::new(
        format!("registering, {} groups alive, by how many shrinkers there are: us", count(groups as u64)),
        ["shrinkers", "median", "slowest", "every group grows (control): median", "slowest"],
    );
    let us = |ns: Option<f64>| figure_or_dash(ns.map(|ns| ns / 1e3));
    let mut worst: Option<f64> = None;
    for power in 5..shrinkers.ilog2() {
        let ours = of_span(rounds, |times| &times.ours, power);
        let control = of_span(rounds, |times| &times.control, power);
        let name = format!("{} to {}", count(span(power).start as u64), count(span(power).end as u64 - 1));
        table.row(vec![name, us(ours[0]), us(ours[1]), us(control[0]), us(control[1])]);
        worst = worst.into_iter().chain(ours[1]).reduce(f64::max);
        for (variant, both) in [(OURS, ours), (CONTROL, control)] {
            for (metric, ns) in [("register", both[0]), ("slowest of a span", both[1])] {
                if let Some(ns) = ns {
                    let what = params([("from", span(power).start.into()), ("groups", groups.into())]);
                    lab.report.add_count(variant, what, metric, "ns", ns);
                }
            }
        }
    }
    table.note("medians of the rounds. The tables that hold shrinkers grow by doubling and copy nothing, whatever the number of groups; that is in the slowest, with what the machine did meanwhile. The kernel registers one by one as the control does");
    lab.report.checks.push(Check::at_most(
        format!("slowest registration, {} groups alive", count(groups as u64)),
        worst.map(|ns| ns / 1e3),
        1_000.0,
        "us",
    ));
    lab.print(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_the_numbers_up_to_the_next_power_of_two() {
        let times = |ours: Vec<f64>| Times { ours, control: Vec::new() };
        let rounds =
            [times((0..20).map(f64::from).collect()), times((0..20).map(|n| f64::from(n) + 2.0).collect())];
        assert_eq!(of_span(&rounds, |times| &times.ours, 3), [Some(12.5), Some(16.0)]);
        assert_eq!(of_span(&rounds, |times| &times.control, 3), [None, None]);
    }

    #[test]
    fn the_controls_groups_grow_with_every_64th_shrinker() {
        let growing = Growing::of(3);
        (0..65).for_each(|number| growing.register(number));
        assert!(growing.0.lock().unwrap().iter().all(|units| units.len() == 2));
    }
}
