//! The soak: a drainer that never rests.
//!
//! The seed counted how often a lock was found taken: 0 times in 98 billion calls, beside 592 drains. Here there is no lock on this path. A
//! caller could notice only a call that took long, so every pair of the soak is timed and the slow ones are counted, with the drainer and
//! without it, in slices that take turns.
//!
//! - I1. Every charge of the soak is in the statistics as a hit or a miss, and every drained byte was returned by a drain of the soak.

use memgroup::{Group, StockStats};

use super::SOAK_CALLS;
use super::victim::{Beside, Seen, Window, Worker, check_drained};
use crate::harness::prelude::*;

/// Slices of the soak.
const SLICES: u32 = 10;
/// The two halves, which take turns.
const KINDS: [Beside; 2] = [Beside::Nothing, Beside::Drains(0)];

/// Runs the soak, half of it with the drainer at rest, and prints both halves beside each other.
pub(super) fn run(lab: &mut Lab<'_>, depth: usize, group: &Group, worker: &Worker) -> Result<()> {
    let chargers = lab.workers.threads() - 1;
    let (ticks_per_us, length_us) = (lab.clock.ticks_per_us(), (lab.effort.soak / SLICES).as_micros() as u64);
    let window = Window { chargers, ticks_per_us, length_us, group, worker, timed: true };
    let (mut halves, mut misses, before) = ([Seen::default(); 2], [0, 0], group.stock());
    for half in [0, 1].repeat(SLICES as usize / 2) {
        let at_start = group.stock().misses;
        halves[half].add(window.run(&lab.workers, KINDS[half])?);
        misses[half] += group.stock().misses - at_start;
    }
    check(group, before, halves)?;
    let mut table = Table::new(
        format!("a drainer that never rests, {}, depth {depth}", counted(chargers as u64, "charger")),
        ["soak", "calls", "drains", "with bytes", "misses", "> 1 us", "> 10 us", "> 1 us per million"],
    );
    for (half, name) in ["drainer at rest", "drainer never rests"].into_iter().enumerate() {
        let seen = halves[half];
        let mut row = lab.record(name, json!({"chargers": chargers, "depth": depth}));
        let counts = [
            ("calls", 2 * seen.pairs),
            ("drains", seen.drains),
            ("drains with bytes", seen.drains_with_bytes),
            ("misses", misses[half]),
            ("pairs over 1 us", seen.slow),
            ("pairs over 10 us", seen.very_slow),
        ];
        let cells = counts.map(|(metric, value)| row.count(metric, "count", value));
        let per_million = figure(seen.slow as f64 * 1e6 / seen.pairs.max(1) as f64);
        table.row(name, cells.into_iter().chain([per_million]));
    }
    table.note(format!(
        "the seed: 0 contentions in {} calls beside 592 drains, in over 8 hours. It counted a lock found taken. Here is no lock on this path, and a hit is one addition that cannot fail, so slow pairs are counted, beside those of a drainer at rest. A call is a charge or an uncharge; > 1 us and > 10 us count pairs.",
        figure(SOAK_CALLS)
    ));
    lab.print(&table)
}

/// Every charge is a hit or a miss, and every drained byte is in the statistics (I1).
fn check(group: &Group, before: StockStats, halves: [Seen; 2]) -> Result<()> {
    let (after, pairs) = (group.stock(), halves[0].pairs + halves[1].pairs);
    let charges = after.hits + after.misses - before.hits - before.misses;
    expect(format_args!("hits and misses of {}", group.path()), charges, pairs)?;
    check_drained(group, before, &KINDS, &halves.map(|half| vec![half]))
}

#[cfg(test)]
mod tests {
    use memgroup::Config;

    use super::*;

    #[test]
    fn counts_every_pair_and_every_drained_byte_of_the_soak() {
        let workers = Workers::start(2).unwrap();
        let fixture = Fixture::chain(Config::new(), 3, 1).unwrap();
        let leaf = &fixture.leaves[0];
        let (worker, before) = (Worker::start(leaf.clone()).unwrap(), leaf.stock());
        let window = Window {
            chargers: 1,
            ticks_per_us: 2000,
            length_us: 5_000,
            group: leaf,
            worker: &worker,
            timed: true,
        };
        let halves = KINDS.map(|beside| window.run(&workers, beside).unwrap());
        let check = |halves| check(leaf, before, halves);
        check(halves).unwrap();
        assert_eq!((halves[0].drains, halves[0].drained_bytes), (0, 0));
        fixture.check_empty().unwrap();

        let mut one_too_many = halves;
        one_too_many[0].pairs += 1;
        assert!(matches!(check(one_too_many), Err(Error::Wrong(_))));
        let mut a_byte_lost = halves;
        a_byte_lost[1].drained_bytes += 1;
        assert!(matches!(check(a_byte_lost), Err(Error::Wrong(_))));
    }
}
