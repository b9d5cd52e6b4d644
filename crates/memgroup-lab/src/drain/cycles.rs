//! Consume and refill by themselves, in cycles, beside the seed's table 2.2.
//!
//! Many charges are made and kept, then all are dropped; each half is timed as a whole. A round counts only if the
//! stock served every charge of it.

use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::{Charge, Config, Group};
use memgroup_percpu::{PerCpu, SlotSource};

use super::seed;
use crate::Error;
use crate::harness::Lab;
use crate::harness::clock;
use crate::harness::os::ThreadUsage;
use crate::harness::report::params;
use crate::harness::stats::Summary;
use crate::harness::table::{Table, figure_or_dash};
use crate::harness::tree::Tree;

/// Charges of a round: together they fit the stock of one group and slot, 256 KiB.
const OBJECTS: (u64, usize) = (64, 1024);
const PAGES: (u64, usize) = (4096, 32);
/// Rounds that let the stock grow to its cap, and do not count.
const GROWING_ROUNDS: usize = 32;

/// Ticks of each half of one round, an operation.
#[derive(Debug, Clone, Copy)]
struct Round {
    consume: f64,
    refill: f64,
}

/// Measures both halves for objects and pages, and a statistics update.
pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let tree = Tree::grow(Config::new().slots(lab.slots), 3, 1)?;
    let (clock, rounds, slots) = (lab.clock, lab.effort.calls, lab.slots);
    let columns = ["TSC cycles a call", "median", "min", "p90", "ns", "seed: before", "after", "rounds"];
    let mut table =
        Table::new("consume and refill of a stock hit, by themselves (the seed's table 2.2)", columns);
    let mut line = |lab: &mut Lab<'_>, name: &'static str, seed: &str, ticks: Vec<f64>| {
        let ns = Summary::of(&ticks.into_iter().map(|ticks| clock.ns(ticks)).collect::<Vec<_>>());
        let cycles = ns.and_then(|ns| Some(ns.scaled(clock.cycles(1.0)?)));
        let of = |part: fn(Summary) -> f64| figure_or_dash(cycles.map(part));
        let seed = seed::of(seed);
        table.row(vec![
            name.to_owned(),
            of(|cycles| cycles.median),
            of(|cycles| cycles.min),
            of(|cycles| cycles.p90),
            figure_or_dash(ns.map(|ns| ns.median)),
            figure_or_dash(seed.map(|seed| seed.0)),
            figure_or_dash(seed.map(|seed| seed.1)),
            ns.map_or(0, |ns| ns.count).to_string(),
        ]);
        lab.report.add_time(&clock, name, params([("slots", slots.slots().into())]), "call", ns);
    };
    for ((bytes, count), consume, refill) in [
        (PAGES, ("consume a page", "consume_stock"), ("refill a page", "refill_stock")),
        (OBJECTS, ("consume an object", "consume_obj_stock"), ("refill an object", "refill_obj_stock")),
    ] {
        let group = tree.leaves[0].clone();
        let seen = lab.crew.run(1, move |_| halves(&group, bytes, count, rounds)).remove(0)?;
        line(lab, consume.0, consume.1, seen.iter().map(|round| round.consume).collect());
        line(lab, refill.0, refill.1, seen.iter().map(|round| round.refill).collect());
    }
    let updates = lab.crew.run(1, move |_| updates(slots, rounds)).remove(0);
    line(lab, "statistics update", "mod_objcg_state", updates);
    table.note("each call alone: the seed's figures include two ordered readings of the counter (tens of cycles), ours leave them out; ours include storing a Charge of 16 bytes and reading it back");
    lab.print(&table)?;
    tree.check_empty()
}

fn halves(group: &Group, bytes: u64, count: usize, rounds: usize) -> Result<Vec<Round>, Error> {
    let reading = clock::reading_ticks();
    let mut kept: Vec<Charge> = Vec::with_capacity(count);
    let mut counted = Vec::new();
    for round in 0..GROWING_ROUNDS + rounds {
        let (before, misses) = (ThreadUsage::now(), group.stock().misses);
        let begin = clock::now_ordered();
        for _ in 0..count {
            kept.push(group.try_charge(bytes).map_err(|error| Error::Wrong(error.to_string()))?);
        }
        let middle = clock::now_ordered();
        kept.clear();
        let end = clock::now_ordered();
        let undisturbed = ThreadUsage::now().since(before).switches_involuntary == 0;
        if round >= GROWING_ROUNDS && undisturbed && group.stock().misses == misses {
            let each = |ticks: u64| ticks.saturating_sub(reading) as f64 / count as f64;
            counted.push(Round { consume: each(middle - begin), refill: each(end - middle) });
        }
    }
    Ok(counted)
}

fn updates(slots: SlotSource, rounds: usize) -> Vec<f64> {
    const UPDATES: u64 = 1024;
    let (counts, reading) = (PerCpu::<AtomicU64>::new(slots.slots()), clock::reading_ticks());
    (0..rounds)
        .map(|_| {
            let begin = clock::now_ordered();
            for bytes in 0..UPDATES {
                // ORDERING: Relaxed; a statistic orders nothing.
                counts.get(slots.current()).fetch_add(bytes, Ordering::Relaxed);
            }
            (clock::now_ordered() - begin).saturating_sub(reading) as f64 / UPDATES as f64
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grown_stock_serves_whole_rounds() {
        let tree = Tree::grow(Config::new().slots(SlotSource::virtual_slots(1).unwrap()), 3, 1).unwrap();
        for (bytes, count) in [OBJECTS, PAGES] {
            let rounds = halves(&tree.leaves[0], bytes, count, 20).unwrap();
            assert!(
                !rounds.is_empty(),
                "no round of {count} charges of {bytes} bytes was served by the stock"
            );
        }
        tree.check_empty().unwrap();
    }
}
