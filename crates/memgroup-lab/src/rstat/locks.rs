//! The cover letter's second half: "separate locks exist for the three categories", so that a
//! reader of one does not wait for a flush of another. The letter measures none of it.
//!
//! One thread changes `memory` in 10,000 groups on 8 slots and flushes the root, again and again.
//! During each flush a reader on another CPU changes `cpu` in one group and reads it from the root,
//! so that each read flushes `cpu`. Its calls are timed one by one, by the clock: waiting counts.
//! The control is one tree for both.
//!
//! - I1. After each flush the root's sums are the additions, and each read returns the reader's own
//!   additions.

use memgroup::stats::{cpu, memory};
use memgroup::{Config, Freshness, Reach};
use memgroup_percpu::pin_virtual;

use crate::Trees;
use crate::harness::prelude::*;

const GROUPS: usize = 10_000;
const SLOTS: usize = 8;

/// The groups with one kind of trees.
struct Groups {
    fixture: Fixture,
    /// Changes of `memory` and `cpu` so far.
    changed: [i64; 2],
}

impl Groups {
    fn build(trees: Trees, groups: usize) -> Result<Groups> {
        let config = Config::with_slots(virtual_slots(SLOTS)?).separate_trees(trees == Trees::Separate);
        Ok(Groups { fixture: Fixture::flat(config, groups)?, changed: [0; 2] })
    }

    /// Changes memory in all groups on all slots, and flushes it with a reader of `cpu` beside the
    /// flush; the flush's nanoseconds, and those of each read.
    fn flush(&mut self, workers: &Workers, watch: Stopwatch) -> Result<(f64, Vec<f64>)> {
        let (leaves, all) = (&self.fixture.leaves, &self.fixture.hierarchy);
        let (root, memory, cpu) = (all.root(), all.memory(), all.cpu());
        workers.run_one(|| {
            for slot in 0..SLOTS {
                let _pin = pin_virtual(slot);
                leaves.iter().for_each(|group| memory.add(group, memory::FILE, 1));
            }
        });
        let flush = || Ok(watch.time(|| memory.flush(&root)).0);
        let (ns, reads) = workers.beside(1, flush, |shift| {
            let (_pin, mut times) = (pin_virtual(0), Vec::new());
            shift.begin(1);
            loop {
                cpu.add(&leaves[0], cpu::NR_SCOPES, 1);
                let read = || cpu.get(&root, cpu::NR_SCOPES, Reach::Subtree, Freshness::Fresh);
                let (ns, scopes) = watch.time(read);
                times.push(ns);
                expect("changes of cpu that a read returns", scopes, self.changed[1] + times.len() as i64)?;
                if !shift.lasts() {
                    return Ok(times);
                }
            }
        })?;
        let more = [leaves.len() * SLOTS, reads.len()];
        self.changed = [0, 1].map(|of| self.changed[of] + more[of] as i64);
        let sum = memory.get(&root, memory::FILE, Reach::Subtree, Freshness::Flushed);
        expect("changes of memory in the root after a flush", sum, self.changed[0])?;
        Ok((ns, reads))
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let (groups, rounds) = lab.pick((50, 2), (GROUPS, 20), (GROUPS, 100));
    let built = Trees::BOTH.into_iter().map(|trees| Groups::build(trees, groups));
    let mut built = built.collect::<Result<Vec<_>>>()?;
    let mut flush = |lab: &mut Lab<'_>, at: usize, found: &mut Samples| {
        let (flush_ns, reads) = built[at].flush(&lab.workers, lab.clock.stopwatch())?;
        found.push("reads in a flush", reads.len() as f64);
        found.push("flush", flush_ns / 1e6);
        found.block("read", reads, 1e3);
        Ok(())
    };
    // The first round makes the records and counts for nothing.
    lab.sample(1, 2, &mut flush)?;
    let found = lab.sample(rounds, 2, flush)?;
    let title = format!(
        "a reader of cpu during another thread's flush of memory, {} groups on {SLOTS} slots",
        count(groups as u64)
    );
    let columns = [
        ("read p50", "us"),
        ("read p99", "us"),
        ("read max", "us"),
        ("reads in a flush", ""),
        ("flush", "ms"),
    ];
    let rows = Trees::BOTH.map(Trees::name).into_iter().zip(&found);
    let rows = rows.map(|(name, found)| (name, name, json!({"beside": "a memory flush"}), found));
    lab.show(title, &columns, rows, "medians of the flushes' p50 and p99, and the largest of all. Every read finds a change of cpu and flushes it")?;
    let gain = found[0].over(&found[1], "read p99");
    lab.at_least("p99 of reading cpu during a flush of memory: one tree over separate", gain, 10.0, "x");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_and_flushes_with_both_kinds_of_trees() {
        let workers = Workers::start(2).unwrap();
        let watch = Clock::calibrate(std::time::Duration::from_millis(2)).stopwatch();
        for trees in Trees::BOTH {
            let mut groups = Groups::build(trees, 3).unwrap();
            let reads = [0, 1].map(|_| groups.flush(&workers, watch).unwrap().1.len());
            assert!(reads[0] > 0 && reads[1] > 0);
            assert_eq!(groups.changed, [(2 * 3 * SLOTS) as i64, (reads[0] + reads[1]) as i64]);
        }
    }
}
