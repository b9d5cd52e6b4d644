//! The cost of a registration as the numbers of shrinkers grow, with 10,000 groups alive.
//!
//! The control is the kernel's growing: when a shrinker gets the first number of another 64, every group gets a larger array of pointers and one
//! more unit of 64 marks and counts, all under one lock.

use std::sync::Mutex;

use memgroup::{Config, GroupShrinker, ShrinkerConfig, SlotSource};

use crate::harness::cache::idle;
use crate::harness::prelude::*;

const GROUPS: usize = 10_000;
/// Shrinkers registered, one after the other: up to a power of two and a few more.
const SHRINKERS: usize = 4_096 + 64;
/// Shrinkers of one of the kernel's units.
const UNIT: usize = 64;
const VARIANTS: [&str; 2] = ["shrinkers", "every group grows (control)"];

/// A unit of the kernel: a count for each of 64 shrinkers, and a word of marks.
type Unit = Box<[u64; UNIT + 1]>;

/// The control: the units of each group, and the lock of all.
struct Growing(Mutex<Vec<Vec<Unit>>>);

impl Growing {
    fn of(groups: usize) -> Growing {
        Growing(Mutex::new((0..groups).map(|_| Vec::new()).collect()))
    }

    fn register(&self, number: usize) {
        let mut groups = lock(&self.0);
        for units in groups.iter_mut().filter(|_| number.is_multiple_of(UNIT)) {
            units.reserve_exact(1);
            units.push(Box::new([0; UNIT + 1]));
        }
    }
}

/// Nanoseconds of registrations in the engine and in the control, in order.
type Times = [Vec<f64>; 2];

fn measure(watch: Stopwatch, slots: SlotSource, groups: usize, shrinkers: usize) -> Result<Times> {
    let fixture = Fixture::flat(Config::with_slots(slots), groups)?;
    let (growing, mut times) = (Growing::of(groups), Times::default());
    let mut registered: Vec<GroupShrinker> = Vec::with_capacity(shrinkers);
    for number in 0..shrinkers {
        let (group, config) = (&fixture.leaves[number % groups], ShrinkerConfig::new(String::new()));
        let (ns, shrinker) = watch.time(|| group.add_shrinker(config, idle()));
        times[0].push(ns);
        registered.push(shrinker.set_up("a shrinker")?);
        times[1].push(watch.time(|| growing.register(number)).0);
    }
    Ok(times)
}

/// Numbers from a power of two up to the next.
fn span(power: u32) -> std::ops::Range<usize> {
    1 << power..1 << (power + 1)
}

/// Median of the rounds' medians in a span, and of their largest.
fn of_span(rounds: &[Times], variant: usize, power: u32) -> [Option<f64>; 2] {
    let spans = rounds.iter().filter_map(|times| {
        let (times, span) = (&times[variant], span(power));
        times.get(span.start..span.end.min(times.len())).filter(|times| !times.is_empty())
    });
    let (medians, largest): (Vec<f64>, Vec<f64>) =
        spans.filter_map(|times| Some((median_of(times)?, times.iter().copied().reduce(f64::max)?))).unzip();
    [median_of(&medians), median_of(&largest)]
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let (groups, shrinkers, rounds) = lab.pick((50, 200, 1), (GROUPS, SHRINKERS, 3), (GROUPS, SHRINKERS, 7));
    let (watch, slots, alive) = (lab.clock.stopwatch(), lab.slots, count(groups as u64));
    // On a worker's CPU, which the other workers leave alone meanwhile.
    let measure = |_| lab.workers.run_one(|| measure(watch, slots, groups, shrinkers));
    let rounds = (0..rounds).map(measure).collect::<Result<Vec<_>>>()?;
    let title = format!("registering, {alive} groups alive, by how many shrinkers there are: us");
    let columns = ["shrinkers", "median", "slowest", "every group grows (control): median", "slowest"];
    let mut table = Table::new(title, columns);
    let mut worst: Option<f64> = None;
    for power in 5..shrinkers.ilog2() {
        let (from, mut cells) = (span(power).start, Vec::new());
        for (index, variant) in VARIANTS.into_iter().enumerate() {
            let [median, slowest] = of_span(&rounds, index, power);
            let mut row = lab.record(variant, json!({"from": from, "groups": groups}));
            cells.extend([row.us("register", median), row.us("slowest of a span", slowest)]);
            if index == 0 {
                worst = worst.into_iter().chain(slowest).reduce(f64::max);
            }
        }
        table.row(format!("{} to {}", count(from as u64), count(span(power).end as u64 - 1)), cells);
    }
    table.note("medians of the rounds. The engine's tables grow by doubling and copy nothing, whatever the number of groups; that is in the slowest, with the machine's other work. The kernel registers one by one as the control does");
    let us = worst.map(|ns| ns / 1e3);
    lab.at_most(format!("slowest registration, {alive} groups alive"), us, 1_000.0, "us");
    lab.print(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_a_span_up_to_the_next_power_of_two() {
        let times = |add: u32| [(0..20).map(|number| f64::from(number + add)).collect(), Vec::new()];
        let rounds = [times(0), times(2)];
        assert_eq!(of_span(&rounds, 0, 3), [Some(12.5), Some(16.0)]);
        assert_eq!(of_span(&rounds, 1, 3), [None, None]);
    }

    #[test]
    fn grows_the_controls_groups_with_every_64th_shrinker() {
        let growing = Growing::of(3);
        (0..65).for_each(|number| growing.register(number));
        assert!(growing.0.lock().unwrap().iter().all(|units| units.len() == 2));
    }
}
