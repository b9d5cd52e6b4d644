//! Consume and refill by themselves, in cycles, beside the seed's table 2.2.
//!
//! Many charges are made and kept, then all are dropped; each half is timed as a whole. A round counts only if the
//! stock served every charge of it.

use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::{Charge, Config, Group};
use memgroup_percpu::{PerCpu, SlotSource};

use super::{REFUSED, SEED};
use crate::harness::prelude::*;

/// Charges of a round: together they fit the stock of one group and slot, 256 KiB.
const OBJECTS: (u64, usize) = (64, 1024);
const PAGES: (u64, usize) = (4096, 32);
/// Rounds that let the stock grow to its cap, and do not count.
const GROWING_ROUNDS: usize = 32;

/// Measures both halves for objects and pages, and a statistics update.
pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let fixture = Fixture::chain(Config::new().slots(lab.slots), 3, 1)?;
    let (watch, rounds, slots) = (lab.clock.stopwatch(), lab.effort.calls, lab.slots);
    let mut measured = Vec::new();
    for ((bytes, count), names) in [
        (PAGES, [("consume a page", "consume_stock"), ("refill a page", "refill_stock")]),
        (OBJECTS, [("consume an object", "consume_obj_stock"), ("refill an object", "refill_obj_stock")]),
    ] {
        let leaf = &fixture.leaves[0];
        let (consume, refill) = lab.workers.run_one(|| halves(leaf, watch, bytes, count, rounds))?;
        measured.extend(names.into_iter().zip([consume, refill]));
    }
    let updates = lab.workers.run_one(|| updates(slots, watch, rounds));
    measured.push((("statistics update", "mod_objcg_state"), updates));

    let title = "consume and refill of a stock hit, by themselves (the seed's table 2.2)";
    let columns = ["TSC cycles a call", "median (min..p90)", "ns", "seed: before", "after", "rounds"];
    let mut table = Table::new(title, columns);
    for ((name, seed), ns) in measured {
        let ns = Summary::of(&ns);
        lab.record(name, json!({"slots": slots.slots()})).time("call", ns);
        let cycles = ns.and_then(|ns| Some(ns.scaled(lab.clock.cycles(1.0)?)));
        let ([before, after], rounds) = (SEED.cells(seed), ns.map_or(0, |ns| ns.count).to_string());
        table.row(name, [spread(cycles), figure_or_dash(median(ns)), before, after, rounds]);
    }
    table.note("each call alone. The seed's figures include two ordered readings of the counter (tens of cycles), ours leave them out; ours include storing a Charge of 16 bytes and reading it back");
    lab.print(&table)?;
    fixture.check_empty()
}

/// Nanoseconds of a consume and of a refill, of each round that counts.
type Halves = (Vec<f64>, Vec<f64>);

fn halves(group: &Group, watch: Stopwatch, bytes: u64, count: usize, rounds: usize) -> Result<Halves> {
    let mut kept: Vec<Charge> = Vec::with_capacity(count);
    let (mut consumes, mut refills) = (Vec::new(), Vec::new());
    for round in 0..GROWING_ROUNDS + rounds {
        let (before, misses) = (ThreadUsage::now(), group.stock().misses);
        let (consume, charged) = watch.time(|| {
            for _ in 0..count {
                kept.push(group.try_charge(bytes).or_wrong(REFUSED)?);
            }
            Ok::<(), Error>(())
        });
        charged?;
        let (refill, ()) = watch.time(|| kept.clear());
        if round >= GROWING_ROUNDS && before.is_undisturbed() && group.stock().misses == misses {
            consumes.push(consume / count as f64);
            refills.push(refill / count as f64);
        }
    }
    Ok((consumes, refills))
}

/// Nanoseconds of an update, of each round.
fn updates(slots: SlotSource, watch: Stopwatch, rounds: usize) -> Vec<f64> {
    const UPDATES: u64 = 1024;
    let counts = PerCpu::<AtomicU64>::new(slots.slots());
    let update = |bytes| {
        // ORDERING: Relaxed; a statistic orders nothing.
        counts.get(slots.current()).fetch_add(bytes, Ordering::Relaxed);
    };
    (0..rounds).map(|_| watch.time(|| (0..UPDATES).for_each(update)).0 / UPDATES as f64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::prelude::Clock;

    #[test]
    fn serves_whole_rounds_from_a_grown_stock() {
        let config = Config::new().slots(SlotSource::virtual_slots(1).unwrap());
        let fixture = Fixture::chain(config, 3, 1).unwrap();
        let watch = Clock::calibrate(std::time::Duration::from_millis(1)).stopwatch();
        for (bytes, count) in [OBJECTS, PAGES] {
            let (consumes, _) = halves(&fixture.leaves[0], watch, bytes, count, 20).unwrap();
            assert!(
                !consumes.is_empty(),
                "no round of {count} charges of {bytes} bytes was served by the stock"
            );
        }
        fixture.check_empty().unwrap();
    }
}
