//! A drainer that never rests against threads that never rest, with every call counted.
//!
//! The seed counted how often a lock was found taken: 0 times in 98 billion calls, beside 592 drains. Here there is no
//! lock on this path; what a caller could notice is a call that took long. So every pair is timed, and the slow ones
//! are counted, with the drainer and without it, in slices that take turns.
//!
//! - I1. Every charge is in the statistics as a hit or a miss, and every drained byte was returned by a drain of
//!   the soak; else the run ends with an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use memgroup::{Config, Group};

use super::seed;
use crate::Error;
use crate::harness::Lab;
use crate::harness::clock;
use crate::harness::crew::{Crew, Start};
use crate::harness::report::{Params, params};
use crate::harness::table::{Table, count, counted, figure};
use crate::harness::tree::Tree;

const PAGE_BYTES: u64 = 4096;
const SLICES: u32 = 10;
const PAIRS_A_BATCH: u64 = 1024;
/// A pair is slow beyond this: some hundred times its usual length, more than a miss and a few line transfers.
const SLOW_NS: f64 = 1_000.0;
/// And very slow beyond this: something took the CPU away.
const VERY_SLOW_NS: f64 = 10_000.0;

/// Counts of one thread, or of all together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Tally {
    pairs: u64,
    slow: u64,
    very_slow: u64,
    drains: u64,
    drains_with_bytes: u64,
    drained_bytes: u64,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.pairs += other.pairs;
        self.slow += other.slow;
        self.very_slow += other.very_slow;
        self.drains += other.drains;
        self.drains_with_bytes += other.drains_with_bytes;
        self.drained_bytes += other.drained_bytes;
    }
}

/// Runs the soak, half of it with the drainer at rest, and prints both halves beside each other.
pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let depth = lab.args.depth.unwrap_or(3);
    let tree = Tree::grow(Config::new().slots(lab.slots).depth_max(depth as u32), depth, 1)?;
    let leaf = &tree.leaves[0];
    let (slice, ticks_per_us) = (lab.effort.soak / SLICES, lab.clock.ticks_per_us());
    let mut halves = [Tally::default(), Tally::default()];
    let mut misses = [0, 0];
    let before = leaf.stock();
    for turn in 0..SLICES as usize {
        let (half, at_start) = (turn % 2, leaf.stock().misses);
        halves[half].add(run_slice(&lab.crew, ticks_per_us, slice, leaf, half == 1)?);
        misses[half] += leaf.stock().misses - at_start;
    }
    check_counts(leaf, before, halves)?;
    tree.check_empty()?;
    show(lab, depth, halves, misses)
}

/// One slice: thread 0 drains without rest, or spins; all other threads make timed pairs in one group.
fn run_slice(
    crew: &Crew,
    ticks_per_us: u64,
    length: Duration,
    group: &Group,
    drain: bool,
) -> Result<Tally, Error> {
    let threads = crew.threads();
    let (start, chargers, group) =
        (Start::new(threads), Arc::new(AtomicUsize::new(threads - 1)), group.clone());
    let length_ticks = length.as_micros() as u64 * ticks_per_us;
    let tallies = crew.run(threads, move |thread| {
        let deadline = start.wait(ticks_per_us) + length_ticks;
        if thread == 0 {
            return Ok(drain_until_done(&group, &chargers, drain));
        }
        let tally = timed_pairs(&group, deadline, ticks_per_us);
        // ORDERING: Release; pairs with the drainer's Acquire, though only its stopping hangs on it.
        chargers.fetch_sub(1, Ordering::Release);
        tally
    });
    let mut all = Tally::default();
    for tally in tallies {
        all.add(tally?);
    }
    Ok(all)
}

fn drain_until_done(group: &Group, chargers: &AtomicUsize, drain: bool) -> Tally {
    let mut tally = Tally::default();
    // ORDERING: Acquire; pairs with the Release of each charger.
    while chargers.load(Ordering::Acquire) > 0 {
        if !drain {
            std::hint::spin_loop();
            continue;
        }
        let bytes = group.drain();
        tally.drains += 1;
        tally.drains_with_bytes += u64::from(bytes > 0);
        tally.drained_bytes += bytes;
    }
    tally
}

fn timed_pairs(group: &Group, deadline: u64, ticks_per_us: u64) -> Result<Tally, Error> {
    let (slow, very_slow) =
        ((SLOW_NS / 1e3) as u64 * ticks_per_us, (VERY_SLOW_NS / 1e3) as u64 * ticks_per_us);
    let mut tally = Tally::default();
    let mut last = clock::now();
    while last < deadline {
        for _ in 0..PAIRS_A_BATCH {
            drop(group.try_charge(PAGE_BYTES).map_err(|error| Error::Wrong(error.to_string()))?);
            let now = clock::now();
            tally.slow += u64::from(now - last > slow);
            tally.very_slow += u64::from(now - last > very_slow);
            last = now;
        }
        tally.pairs += PAIRS_A_BATCH;
    }
    Ok(tally)
}

fn check_counts(leaf: &Group, before: memgroup::StockStats, halves: [Tally; 2]) -> Result<(), Error> {
    let after = leaf.stock();
    let charges = after.hits + after.misses - before.hits - before.misses;
    let pairs = halves[0].pairs + halves[1].pairs;
    if charges != pairs {
        return Err(Error::Wrong(format!(
            "{pairs} charges of {} are {charges} hits and misses",
            leaf.path()
        )));
    }
    let (counted, returned) = (after.drained_bytes - before.drained_bytes, halves[1].drained_bytes);
    if counted != returned {
        let path = leaf.path();
        return Err(Error::Wrong(format!(
            "drains of {path} returned {returned} bytes, its statistics say {counted}"
        )));
    }
    Ok(())
}

fn show(lab: &mut Lab<'_>, depth: usize, halves: [Tally; 2], misses: [u64; 2]) -> Result<(), Error> {
    let columns = ["soak", "calls", "drains", "with bytes", "misses", "> 1 us", "per million", "> 10 us"];
    let title = format!(
        "a drainer that never rests, {}, depth {depth}",
        counted(lab.crew.threads() as u64 - 1, "charger")
    );
    let mut table = Table::new(title, columns);
    for ((name, tally), misses) in
        ["drainer at rest", "drainer never rests"].into_iter().zip(halves).zip(misses)
    {
        table.row(vec![
            name.to_owned(),
            count(2 * tally.pairs),
            count(tally.drains),
            count(tally.drains_with_bytes),
            count(misses),
            count(tally.slow),
            figure(per_million(tally.slow, tally.pairs)),
            count(tally.very_slow),
        ]);
        let params: Params = params([("chargers", (lab.crew.threads() - 1).into()), ("depth", depth.into())]);
        for (metric, value) in [
            ("calls", 2 * tally.pairs),
            ("drains", tally.drains),
            ("drains with bytes", tally.drains_with_bytes),
            ("misses", misses),
            ("pairs over 1 us", tally.slow),
            ("pairs over 10 us", tally.very_slow),
        ] {
            lab.report.add_count(name, params.clone(), metric, "count", value as f64);
        }
    }
    table.note(format!(
        "the seed: 0 contentions in {} calls beside 592 drains, in over 8 hours. It counted a lock found taken; here is no lock on this path and a hit is one addition that cannot fail, so slow pairs are counted, beside those of a drainer at rest. A call is a charge or an uncharge; > 1 us and > 10 us count pairs.",
        figure(seed::SOAK_CALLS)
    ));
    lab.print(&table)
}

fn per_million(part: u64, whole: u64) -> f64 {
    part as f64 * 1e6 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_counts_every_pair_and_every_drained_byte() {
        let crew = Crew::start(2).unwrap();
        let tree = Tree::grow(Config::new(), 3, 1).unwrap();
        let before = tree.leaves[0].stock();
        let mut halves = [Tally::default(), Tally::default()];
        for half in [0, 1] {
            halves[half] =
                run_slice(&crew, 2000, Duration::from_millis(5), &tree.leaves[0], half == 1).unwrap();
        }
        check_counts(&tree.leaves[0], before, halves).unwrap();
        assert_eq!((halves[0].drains, halves[0].drained_bytes), (0, 0));
        tree.check_empty().unwrap();

        let mut one_too_many = halves;
        one_too_many[0].pairs += 1;
        assert!(matches!(check_counts(&tree.leaves[0], before, one_too_many), Err(Error::Wrong(_))));
        let mut a_byte_lost = halves;
        a_byte_lost[1].drained_bytes += 1;
        assert!(matches!(check_counts(&tree.leaves[0], before, a_byte_lost), Err(Error::Wrong(_))));
    }

    #[test]
    fn per_million_of_nothing_is_nothing() {
        assert_eq!(per_million(0, 0), 0.0);
        assert_eq!(per_million(3, 1_000_000), 3.0);
    }
}
