//! What separate trees cost: an update on the writers' side, and memory for each group and CPU.
//!
//! The cover letter's last experiment found updates "similar in cycles" with and without its
//! patches. It states the memory as `groups x (sizeof(rstat_base_cpu) + sizeof(rstat_cpu) x
//! controllers)` for each CPU. A `rstat_cpu` is the two links of a tree, 16 bytes; the base's
//! statistics are there with one tree as well. So the links are what a tree costs, and they are
//! compared with what a tree costs here: the marks of changes.
//!
//! Then what they gain besides ([`locks`]), in the cover letter's words: "separate locks exist for
//! the three categories", so that a reader of one does not wait for a flush of another. The letter
//! measures none of it. One thread changes `memory` in 10,000 groups on 8 slots and flushes the
//! root, again and again. During each flush a reader on another CPU changes `cpu` in one group and
//! reads it from the root, so that each read flushes `cpu`. Its calls are timed one by one, by the
//! clock: waiting counts. The control is one tree for both.
//!
//! - I1. After each flush the root's sums are the additions, and each read returns the reader's own
//!   additions.

use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::stats::{cpu, memory};
use memgroup::tuning::Tuning;
use memgroup::{Config, Freshness, Reach, SlotSource, Stat, StatKey, Statistics, Subsystem};
use memgroup_percpu::pin_virtual;

use super::{CHILDREN, CPUS};
use crate::Trees;
use crate::harness::prelude::*;

const STATS: usize = 48;
const SUBSYSTEM: Subsystem = Subsystem { name: "measured", stats: &gauges() };
const READ: &str = "read of 48 values, none changed";
/// A constant, as programs have it.
const KEY: StatKey = SUBSYSTEM.key("17");

/// Gauges with the names `00` to `47`.
const fn gauges() -> [Stat; STATS] {
    let names =
        "000102030405060708091011121314151617181920212223242526272829303132333435363738394041424344454647";
    let mut stats = [Stat::gauge(""); STATS];
    let mut at = 0;
    while at < STATS {
        stats[at] = Stat::gauge(names.split_at(2 * at).1.split_at(2).0);
        at += 1;
    }
    stats
}

/// A leaf three levels deep, and its statistics.
struct Leaf {
    fixture: Fixture,
    statistics: Statistics,
}

impl Leaf {
    fn build(trees: Trees, slots: SlotSource) -> Result<Leaf> {
        let config = Config::with_slots(slots).separate_trees(trees == Trees::Separate);
        let fixture = Fixture::flat(config, 1)?;
        let statistics = fixture.hierarchy.register(SUBSYSTEM).set_up("the subsystem")?;
        Ok(Leaf { fixture, statistics })
    }

    fn add(&self, count: u64) -> Result<u64> {
        // Both addresses stay in registers: a load in the loop would wait for the addition before
        // it.
        let (statistics, group) = (&self.statistics, &self.fixture.leaves[0]);
        (0..count).for_each(|_| statistics.add(group, KEY, 1));
        Ok(count)
    }

    /// The root's sum is the number of additions.
    fn check(&self, added: u64) -> Result<()> {
        let root = self.fixture.hierarchy.root();
        let sum = self.statistics.get(&root, KEY, Reach::Subtree, Freshness::Fresh);
        expect("additions in the root's statistics", sum, added as i64)
    }
}

pub(super) fn updates(lab: &mut Lab<'_>) -> Result<()> {
    let (names, params, slots) = (Trees::BOTH.map(Trees::name), json!({}), lab.slots);
    let leaves =
        Trees::BOTH.into_iter().map(|trees| Leaf::build(trees, slots)).collect::<Result<Vec<_>>>()?;
    // The additions to three shared words, one a level, that statistics without slots would make.
    let shared = [const { AtomicU64::new(0) }; 3];
    let shared = each(|| {
        // ORDERING: Relaxed; a statistic orders nothing.
        shared.iter().for_each(|level| _ = level.fetch_add(1, Ordering::Relaxed));
        Ok(())
    });
    let unchanged = Leaf::build(Trees::Separate, slots)?;
    let read = each(|| {
        let mut values = [0; STATS];
        let group = &unchanged.fixture.leaves[0];
        unchanged.statistics.read(group, Reach::Subtree, Freshness::Fresh, &mut values);
        std::hint::black_box(&values);
        Ok(())
    });
    let updates = names.into_iter().zip(&leaves).flat_map(|(by, leaf)| {
        Case::scaled(2, "update", by, &params, move |_: usize, _: &mut usize, count| leaf.add(count))
    });
    let shared = Case::scaled(2, "update", "three shared words", &params, &shared);
    let cases = updates.chain(shared).chain(Case::scaled(2, READ, names[1], &params, &read));
    let text = [
        "an update, and a fresh read that finds no change",
        "a group of depth 3. The seed: updates are \"similar in cycles\" with and without the patches",
    ];
    let found = lab.measure(text, lab.effort.windows, cases.collect(), [], |_, _, _| [])?;
    for (by, leaf) in names.into_iter().zip(&leaves) {
        let of = found.iter().filter(|([name, side, _], _)| name == "update" && side == by);
        leaf.check(of.map(|(_, measured)| measured.ops).sum())?;
    }
    let ([unified, _], [one, both]) =
        (found.scale(2, "update", names[0]), found.scale(2, "update", names[1]));
    lab.at_most("an update: separate trees over one", ratio(one, unified), 1.03, "x");
    lab.at_most("an update, 1 thread", one, 3.0, "ns");
    lab.at_most("an update, 2 threads in one group", both, 3.0, "ns");
    let [read, _] = found.scale(2, READ, names[1]);
    lab.at_most("a fresh read of 48 values, none changed", read, 30.0, "ns");
    Ok(())
}

/// Groups and slots: the cover letter's machine with the children of its first experiment, and a
/// server with many groups.
const SHAPES: [(usize, usize); 2] = [(CHILDREN, CPUS), (4_000, 8)];
/// The bytes of the links of one group and CPU in one tree of the kernel's.
const LINK_BYTES: f64 = 16.0;

pub(super) fn footprint(lab: &mut Lab<'_>) -> Result<()> {
    let mut found = Vec::new();
    for (groups, slots) in SHAPES {
        let (trees, marks) = marks_bytes(Trees::Separate, groups, slots)?;
        let (links, shape) = (LINK_BYTES * trees as f64, format!("{} x {slots}", count(groups as u64)));
        let figures = [("marks here", marks), ("the kernel's links", links), ("over", marks / links)];
        lab.at_most(format!("marks over the kernel's links, {shape}"), Some(marks / links), 1.0, "x");
        found.push((shape, json!({"slots": slots, "groups": groups}), Samples::from(figures)));
    }
    let rows = found.iter().map(|(shape, params, figures)| {
        (format!("{shape} slots"), Trees::Separate.name(), params.clone(), figures)
    });
    let columns = [("marks here", "B"), ("the kernel's links", "B"), ("over", "x")];
    lab.show("bytes that the trees of memory, cpu, io and 48 more take for each group and slot", &columns, rows, "like for like: both tell which groups have changed on which CPU. The kernel links each group and CPU into each tree (two pointers); here it is a bit in a set, for each tree and slot, of which 576 bytes are the least. Statistics are left out on both sides, because they take the same with one tree")
}

/// The number of trees and their bytes for each group and slot, after every group changed in every
/// subsystem on every slot.
fn marks_bytes(trees: Trees, groups: usize, slots: usize) -> Result<(usize, f64)> {
    let config = Config::with_slots(virtual_slots(slots)?)
        .separate_trees(trees == Trees::Separate)
        .groups_max(groups as u32 + 1)
        .maintain_on_removal(false);
    let hierarchy = hierarchy(config)?;
    let groups = children(&hierarchy.root(), "g", groups)?;
    let own = hierarchy.register(SUBSYSTEM).set_up("the subsystem")?;
    let all = [hierarchy.memory(), hierarchy.cpu(), hierarchy.io(), own];
    for slot in 0..slots {
        let _pin = pin_virtual(slot);
        for (group, of) in groups.iter().flat_map(|group| all.iter().map(move |of| (group, of))) {
            of.keys().take(1).for_each(|key| of.add(group, key, 1));
        }
    }
    // Subsystems that share a tree report the bytes of the same one.
    let trees = if trees == Trees::Separate { all.len() } else { 1 };
    let bytes: usize = all.iter().take(trees).map(|of| of.footprint().marks_bytes).sum();
    Ok((trees, bytes as f64 / (groups.len() * slots) as f64))
}

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

pub(super) fn locks(lab: &mut Lab<'_>) -> Result<()> {
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
    fn takes_the_marks_of_each_tree_into_account() {
        let [one, separate] = Trees::BOTH.map(|trees| marks_bytes(trees, 20, 2).unwrap());
        assert_eq!((one.0, separate.0), (1, 4));
        assert!(one.1 > 0.0 && separate.1 >= 3.0 * one.1, "{one:?} {separate:?}");
    }

    #[test]
    fn counts_an_addition_that_is_missing_as_wrong() {
        let leaf = Leaf::build(Trees::Separate, SlotSource::virtual_slots(2).unwrap()).unwrap();
        leaf.add(10).unwrap();
        leaf.check(10).unwrap();
        assert!(matches!(leaf.check(11), Err(Error::Wrong(_))));
    }

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
