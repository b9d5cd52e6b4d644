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

use std::sync::atomic::{AtomicBool, Ordering};

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

/// The figures of one kind of trees.
#[derive(Default)]
struct Found {
    reads: Blocks,
    /// Reads in one flush.
    counts: Vec<f64>,
    flush_ns: Vec<f64>,
    alone: Blocks,
}

impl Groups {
    fn build(trees: Trees, groups: usize) -> Result<Groups> {
        let config = Config::with_slots(virtual_slots(SLOTS)?).separate_trees(trees == Trees::Separate);
        Ok(Groups { fixture: Fixture::flat(config, groups)?, changed: [0; 2] })
    }

    /// Changes memory in all groups on all slots.
    fn change_all(&mut self) {
        let memory = self.fixture.hierarchy.memory();
        for slot in 0..SLOTS {
            let _pin = pin_virtual(slot);
            self.fixture.leaves.iter().for_each(|group| memory.add(group, memory::FILE, 1));
        }
        self.changed[0] += (self.fixture.leaves.len() * SLOTS) as i64;
    }

    /// One flush of `memory` after changes, with a reader of `cpu` beside it: the flush's
    /// nanoseconds and those of each read.
    fn flush(&mut self, lab: &Lab<'_>) -> Result<(f64, Vec<f64>)> {
        lab.workers.run_one(|| self.change_all());
        let (watch, lead, done) =
            (lab.clock.stopwatch(), lab.clock.ticks_per_us() * 20, AtomicBool::new(false));
        let (root, flushed) = (self.fixture.hierarchy.root(), self.fixture.hierarchy.memory());
        let parts = lab.workers.run_together(2, lead, |thread, _| {
            if thread == 1 {
                let (ns, ()) = watch.time(|| flushed.flush(&root));
                // ORDERING: Relaxed; the flag alone is handed over.
                done.store(true, Ordering::Relaxed);
                return Ok(vec![ns]);
            }
            // ORDERING: Relaxed; as above.
            self.read(watch, || done.load(Ordering::Relaxed))
        })?;
        let [reads, flush] = parts.try_into().unwrap_or_default();
        self.changed[1] += reads.len() as i64;
        let sum = flushed.get(&root, memory::FILE, Reach::Subtree, Freshness::Flushed);
        expect("changes of memory in the root after a flush", sum, self.changed[0])?;
        Ok((flush.iter().sum(), reads))
    }

    /// Changes `cpu` and reads it from the root until `is_over`, at least once; the nanoseconds of
    /// each read.
    fn read(&self, watch: Stopwatch, is_over: impl Fn() -> bool) -> Result<Vec<f64>> {
        let (root, cpu, mut times) =
            (self.fixture.hierarchy.root(), self.fixture.hierarchy.cpu(), Vec::new());
        let _pin = pin_virtual(0);
        loop {
            cpu.add(&self.fixture.leaves[0], cpu::NR_SCOPES, 1);
            let (ns, scopes) =
                watch.time(|| cpu.get(&root, cpu::NR_SCOPES, Reach::Subtree, Freshness::Fresh));
            times.push(ns);
            expect("changes of cpu that a read returns", scopes, self.changed[1] + times.len() as i64)?;
            if is_over() {
                return Ok(times);
            }
        }
    }

    /// So many reads with no flush beside them.
    fn read_alone(&mut self, lab: &Lab<'_>, reads: usize) -> Result<Vec<f64>> {
        let (watch, left) = (lab.clock.stopwatch(), std::cell::Cell::new(reads));
        let is_over = || left.replace(left.get() - 1) == 1;
        let times = self.read(watch, is_over)?;
        self.changed[1] += times.len() as i64;
        Ok(times)
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let (groups, rounds, reads) = lab.pick((50, 2, 20), (GROUPS, 20, 1_000), (GROUPS, 100, 1_000));
    let mut sides =
        Trees::BOTH.into_iter().map(|trees| Groups::build(trees, groups)).collect::<Result<Vec<_>>>()?;
    let mut found = <[Found; 2]>::default();
    for round in 0..=rounds {
        lab.in_turns(1, 2, |lab, index| {
            let alone = sides[index].read_alone(lab, reads)?;
            let (flush_ns, reads) = sides[index].flush(lab)?;
            // The first round makes the records and counts for nothing.
            if round > 0 {
                let found = &mut found[index];
                found.alone.push(alone);
                found.counts.push(reads.len() as f64);
                found.flush_ns.push(flush_ns);
                found.reads.push(reads);
            }
            Ok(())
        })?;
    }
    let title = format!(
        "a reader of cpu during another thread's flush of memory, {} groups on {SLOTS} slots",
        count(groups as u64)
    );
    let columns =
        ["", "us a read: p50", "p99", "max", "alone: p50", "p99", "reads in a flush", "a flush, ms"];
    let mut table = Table::new(title, columns);
    for (trees, found) in Trees::BOTH.into_iter().zip(&found) {
        let params = |beside: &str| json!({"reads": "cpu", "beside": beside});
        let mut cells = lab.record(trees.name(), params("a memory flush")).blocks(&found.reads).to_vec();
        let [alone_p50, alone_p99, _] = lab.record(trees.name(), params("nothing")).blocks(&found.alone);
        let mut row = lab.record(trees.name(), json!({"groups": groups, "slots": SLOTS}));
        row.summary("flush", "ns", Summary::of(&found.flush_ns));
        let flush_ms = figure_or_dash(median_of(&found.flush_ns).map(|ns| ns / 1e6));
        cells.extend([alone_p50, alone_p99, figure_or_dash(median_of(&found.counts)), flush_ms]);
        table.row(trees.name(), cells);
    }
    let each = median_of(&found[1].flush_ns).map(|ns| ns / (groups * SLOTS) as f64);
    table.note(format!(
        "medians of the flushes' p50 and p99, and the largest of all. Every read finds a change of cpu and flushes it. A flush of memory takes {} ns for each group and slot that changed",
        figure_or_dash(each)
    ));
    lab.print(&table)?;
    let p99 = |found: &Found| median(found.reads.p99());
    let gain = ratio(p99(&found[0]), p99(&found[1]));
    lab.at_least("p99 of reading cpu during a flush of memory: one tree over separate", gain, 10.0, "x");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_and_flushes_with_both_kinds_of_trees() {
        for trees in Trees::BOTH {
            let mut groups = Groups::build(trees, 3).unwrap();
            groups.change_all();
            let (root, memory) = (groups.fixture.hierarchy.root(), groups.fixture.hierarchy.memory());
            let sum = memory.get(&root, memory::FILE, Reach::Subtree, Freshness::Fresh);
            assert_eq!((sum, groups.changed), ((3 * SLOTS) as i64, [(3 * SLOTS) as i64, 0]));
            let watch = Clock::calibrate(std::time::Duration::from_millis(2)).stopwatch();
            assert_eq!(groups.read(watch, || true).unwrap().len(), 1);
        }
    }
}
