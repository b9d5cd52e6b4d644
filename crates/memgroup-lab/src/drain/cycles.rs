//! Consume and refill by themselves, in cycles, beside the seed's table 2.2.
//!
//! Many charges are made and kept, then all are dropped; each half is timed as a whole. A round counts only if the
//! stock served every charge of it.

use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::{Config, Freshness, Group, Reach, stats::memory};
use memgroup_percpu::PerCpu;

use super::spin::SpinStocks;
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
    let spin = SpinStocks::new(slots);
    for ((bytes, count), names) in [
        (PAGES, [("consume a page", "consume_stock"), ("refill a page", "refill_stock")]),
        (OBJECTS, [("consume an object", "consume_obj_stock"), ("refill an object", "refill_obj_stock")]),
    ] {
        let leaf = &fixture.leaves[0];
        let (consume, refill) = lab.workers.run_one(|| of_group(leaf, watch, bytes, count, rounds))?;
        let of_spin = || {
            let consume = || {
                spin.consume(bytes);
                Ok(bytes)
            };
            halves(consume, |bytes| spin.refill(bytes), || spin.misses(), watch, count, rounds)
        };
        let (spin_consume, spin_refill) = lab.workers.run_one(of_spin)?;
        let with_lock = |(name, seed): (&str, _)| (format!("{name}, a spin lock a slot (control)"), seed);
        let [consumed, refilled] = names;
        for ((name, seed), ns, spin_ns) in
            [(consumed, consume, spin_consume), (refilled, refill, spin_refill)]
        {
            measured.push(((name.to_owned(), seed), ns));
            measured.push((with_lock((name, NO_SEED)), spin_ns));
        }
    }
    expect("bytes left by the spin locks", spin.usage() - spin.drain(), 0)?;
    let leaf = &fixture.leaves[0];
    let statistics = fixture.hierarchy.memory();
    let added = lab
        .workers
        .run_one(|| updates(|bytes| statistics.add(leaf, memory::FILE, bytes as i64), watch, rounds));
    measured.push((("Statistics::add".to_owned(), "mod_objcg_state"), added));
    let counts = PerCpu::<AtomicU64>::new(slots.slots());
    let bare = |bytes| {
        // ORDERING: Relaxed; a statistic orders nothing.
        counts.get(slots.current()).fetch_add(bytes, Ordering::Relaxed);
    };
    let bare = lab.workers.run_one(|| updates(bare, watch, rounds));
    measured.push((("a bare addition to a slot's word (control)".to_owned(), NO_SEED), bare));
    check_added(&fixture, rounds)?;

    let title = "consume and refill of a stock hit, by themselves (the seed's table 2.2)";
    let columns = ["TSC cycles a call", "median (min..p90)", "ns", "seed: before", "after", "rounds"];
    let mut table = Table::new(title, columns);
    for ((name, seed), ns) in measured {
        let ns = Summary::of(&ns);
        lab.record(&name, json!({"slots": slots.slots()})).time("call", ns);
        let cycles = ns.and_then(|ns| Some(ns.scaled(lab.clock.cycles(1.0)?)));
        let ([before, after], rounds) = (SEED.cells(seed), ns.map_or(0, |ns| ns.count).to_string());
        table.row(name, [spread(cycles), figure_or_dash(median(ns)), before, after, rounds]);
    }
    table.note("each call alone. The seed's figures include two ordered readings of the counter (tens of cycles), ours leave them out; ours include storing a Charge of 16 bytes and reading it back. A spin lock a slot: the seed's design, a lock taken and given back in each call");
    lab.print(&table)?;
    fixture.check_empty()
}

/// A row that the seed's table does not have.
const NO_SEED: &str = "";

/// Nanoseconds of a consume and of a refill, of each round that counts.
type Halves = (Vec<f64>, Vec<f64>);

/// Both halves of a group's charges.
fn of_group(group: &Group, watch: Stopwatch, bytes: u64, count: usize, rounds: usize) -> Result<Halves> {
    let charge = || group.try_charge(bytes).or_wrong(REFUSED);
    halves(charge, drop, || group.stock().misses, watch, count, rounds)
}

#[inline(always)]
fn halves<H>(
    charge: impl Fn() -> Result<H>,
    free: impl Fn(H),
    misses: impl Fn() -> u64,
    watch: Stopwatch,
    count: usize,
    rounds: usize,
) -> Result<Halves> {
    let mut kept: Vec<H> = Vec::with_capacity(count);
    let (mut consumes, mut refills) = (Vec::new(), Vec::new());
    for round in 0..GROWING_ROUNDS + rounds {
        let (before, missed) = (ThreadUsage::now(), misses());
        let (consume, charged) = watch.time(|| {
            for _ in 0..count {
                kept.push(charge()?);
            }
            Ok::<(), Error>(())
        });
        charged?;
        let (refill, ()) = watch.time(|| kept.drain(..).for_each(&free));
        if round >= GROWING_ROUNDS && before.is_undisturbed() && misses() == missed {
            consumes.push(consume / count as f64);
            refills.push(refill / count as f64);
        }
    }
    Ok((consumes, refills))
}

const UPDATES: u64 = 1024;

/// Nanoseconds of an update, of each round.
fn updates(update: impl Fn(u64), watch: Stopwatch, rounds: usize) -> Vec<f64> {
    (0..rounds).map(|_| watch.time(|| (0..UPDATES).for_each(&update)).0 / UPDATES as f64).collect()
}

/// The statistic is the sum of all additions.
fn check_added(fixture: &Fixture, rounds: usize) -> Result<()> {
    let sum =
        fixture.hierarchy.memory().get(&fixture.leaves[0], memory::FILE, Reach::Local, Freshness::Fresh);
    expect("the statistic after the updates", sum, rounds as i64 * (0..UPDATES as i64).sum::<i64>())
}

#[cfg(test)]
mod tests {
    use memgroup_percpu::SlotSource;

    use super::*;
    use crate::harness::prelude::Clock;

    #[test]
    fn serves_whole_rounds_from_a_grown_stock() {
        let config = Config::new().slots(SlotSource::virtual_slots(1).unwrap());
        let fixture = Fixture::chain(config, 3, 1).unwrap();
        let watch = Clock::calibrate(std::time::Duration::from_millis(1)).stopwatch();
        for (bytes, count) in [OBJECTS, PAGES] {
            let (consumes, _) = of_group(&fixture.leaves[0], watch, bytes, count, 20).unwrap();
            assert!(
                !consumes.is_empty(),
                "no round of {count} charges of {bytes} bytes was served by the stock"
            );
        }
        fixture.check_empty().unwrap();
    }
}
