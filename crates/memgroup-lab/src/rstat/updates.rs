//! What an update costs with one tree and with separate trees, the letter's last experiment; and what reading costs where nothing changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::{Config, Freshness, Group, Hierarchy, Reach, SlotSource, Stat, Statistics, Subsystem};

use crate::harness::Lab;
use crate::harness::report::{Check, params};
use crate::harness::table::{Table, spread};
use crate::harness::tree::child;
use crate::harness::window::{Variant, Work};
use crate::{Error, Trees};

/// Statistics of the subsystem that is measured, as the goals have it.
pub(super) const STATS: usize = 48;

/// A subsystem of so many gauges.
pub(super) fn subsystem(stats: usize) -> Subsystem {
    let stat = |number| Stat::gauge(Box::leak(format!("stat{number}").into_boxed_str()));
    Subsystem { name: "measured", stats: (0..stats).map(stat).collect::<Vec<_>>().leak() }
}

/// A leaf three levels deep, and one statistic of it.
struct Leaf {
    hierarchy: Hierarchy,
    group: Group,
    statistics: Statistics,
}

impl Leaf {
    fn build(trees: Trees, slots: SlotSource, subsystem: Subsystem) -> Result<Leaf, Error> {
        let config = Config::with_slots(slots).separate_trees(trees == Trees::Separate).groups_max(8);
        let hierarchy = Hierarchy::new(config).map_err(|why| Error::setup("the hierarchy", why))?;
        let statistics = hierarchy.register(subsystem).map_err(|why| Error::setup("the subsystem", why))?;
        let group = child(&child(&hierarchy.root(), "parent")?, "leaf")?;
        Ok(Leaf { hierarchy, group, statistics })
    }

    /// All that was added is in the root.
    fn check(&self, added: u64) -> Result<(), Error> {
        let sum = self.statistics.get(&self.hierarchy.root(), STAT, Reach::Subtree, Freshness::Fresh);
        if u64::try_from(sum) == Ok(added) {
            Ok(())
        } else {
            Err(Error::Wrong(format!("{added} additions of one are {sum} in the root's statistics")))
        }
    }
}

const STAT: usize = 17;

struct Updates(Leaf);

impl Work for Updates {
    fn batch(&self, _: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
        for _ in 0..count {
            self.0.statistics.add(&self.0.group, STAT, 1);
        }
        Ok(count)
    }
}

/// Reads of all values, of which none has changed.
struct Reads {
    leaf: Leaf,
    freshness: Freshness,
}

impl Work for Reads {
    fn batch(&self, _: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
        let mut values = [0; STATS];
        for _ in 0..count {
            self.leaf.statistics.read(&self.leaf.group, Reach::Subtree, self.freshness, &mut values);
            std::hint::black_box(&values);
        }
        Ok(count)
    }
}

/// The additions to three shared words, one a level, that statistics without slots would make.
struct Shared {
    levels: [AtomicU64; 3],
}

impl Work for Shared {
    fn batch(&self, _: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
        for _ in 0..count {
            for level in &self.levels {
                // ORDERING: Relaxed; a statistic orders nothing.
                level.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(count)
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let subsystem = subsystem(STATS);
    let slots = lab.slots;
    let updates = Trees::BOTH
        .map(|trees| Leaf::build(trees, slots, subsystem).map(|leaf| Arc::new(Updates(leaf))))
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    let reads = |freshness| {
        Leaf::build(Trees::Separate, slots, subsystem).map(|leaf| Arc::new(Reads { leaf, freshness }))
    };
    let (fresh, flushed) = (reads(Freshness::Fresh)?, reads(Freshness::Flushed)?);
    let shared = Arc::new(Shared { levels: Default::default() });
    let lines: [(&str, Arc<dyn Work>); 5] = [
        ("update, one tree (control)", updates[0].clone()),
        ("update, separate trees", updates[1].clone()),
        ("update of three shared words, no groups", shared),
        ("read of 48 values, fresh, none changed", fresh),
        ("read of 48 values as they were flushed", flushed),
    ];
    let variants: Vec<Variant> = lines
        .iter()
        .flat_map(|(_, work)| [1, 2].map(|threads| Variant::of(Arc::clone(work), threads)))
        .collect();
    let measured = lab.interleave(&variants)?;

    let columns = ["ns: median (min..p90)", "1 thread", "2 threads, same group"];
    let mut table = Table::new("an update, and a read where nothing changed", columns);
    let clock = lab.clock;
    for ((name, _), both) in lines.iter().zip(measured.chunks_exact(2)) {
        table.row(vec![(*name).to_owned(), spread(both[0].ns), spread(both[1].ns)]);
        for (threads, one) in [1, 2].into_iter().zip(both) {
            lab.report.add_time(&clock, name, params([("threads", threads.into())]), "call", one.ns);
        }
    }
    for (leaf, both) in updates.iter().zip(measured.chunks_exact(2)) {
        leaf.0.check(both.iter().map(|one| one.ops).sum())?;
    }
    table.note("a group of depth 3; an update is one addition on the thread's slot and a look at the group's mark. The seed: \"similar in cycles\", with and without");
    let median = |index: usize| measured[index].ns.map(|ns| ns.median);
    let checks = &mut lab.report.checks;
    checks.push(Check::at_most("an update, 1 thread", median(2), 3.0, "ns"));
    checks.push(Check::at_most("an update, 2 threads in one group", median(3), 3.0, "ns"));
    checks.push(Check::at_most("a fresh read of 48 values, none changed", median(6), 30.0, "ns"));
    lab.print(&table)
}
