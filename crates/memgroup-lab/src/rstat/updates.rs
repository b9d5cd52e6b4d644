//! The cost of an update with one tree and with separate trees, the cover letter's last experiment; and of reading where nothing changed.

use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::{Config, Freshness, Reach, SlotSource, StatKey, Statistics, Subsystem};

use crate::Trees;
use crate::harness::prelude::*;

/// Statistics of the measured subsystem, as the goals have it.
const STATS: usize = 48;
const STAT: usize = 17;

/// A leaf three levels deep, and its statistics.
struct Leaf {
    fixture: Fixture,
    statistics: Statistics,
    key: StatKey,
}

impl Leaf {
    fn build(trees: Trees, slots: SlotSource, subsystem: Subsystem) -> Result<Leaf> {
        let config = Config::with_slots(slots).separate_trees(trees == Trees::Separate);
        let fixture = Fixture::flat(config, 1)?;
        let statistics = fixture.hierarchy.register(subsystem).set_up("the subsystem")?;
        let key = subsystem.key(subsystem.stats[STAT].name());
        Ok(Leaf { fixture, statistics, key })
    }

    fn updates(&self) -> impl Fn() -> Result<()> {
        // Looked up here: a load in the measured loop waits for the addition before it.
        let (statistics, group, key) = (&self.statistics, &self.fixture.leaves[0], self.key);
        move || {
            statistics.add(group, key, 1);
            Ok(())
        }
    }

    /// Reads all values, of which none has changed.
    fn read(&self, freshness: Freshness) -> Result<()> {
        let mut values = [0; STATS];
        self.statistics.read(&self.fixture.leaves[0], Reach::Subtree, freshness, &mut values);
        std::hint::black_box(&values);
        Ok(())
    }

    /// The root's sum is the number of additions.
    fn check(&self, added: u64) -> Result<()> {
        let root = self.fixture.hierarchy.root();
        let sum = self.statistics.get(&root, self.key, Reach::Subtree, Freshness::Fresh);
        expect("additions in the root's statistics", sum, added as i64)
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let (subsystem, slots) = (super::gauges(STATS), lab.slots);
    let build = |trees| Leaf::build(trees, slots, subsystem);
    let (unified, separate, read) =
        (build(Trees::Unified)?, build(Trees::Separate)?, build(Trees::Separate)?);
    // The additions to three shared words, one a level, that statistics without slots would make.
    let shared = [const { AtomicU64::new(0) }; 3];
    let shared = each(|| {
        for level in &shared {
            // ORDERING: Relaxed; a statistic orders nothing.
            level.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    });
    let rows: [(&str, &Work<'_>); 5] = [
        ("update, one tree (control)", &each(unified.updates())),
        ("update, separate trees", &each(separate.updates())),
        ("update of three shared words, no groups", &shared),
        ("read of 48 values, fresh, none changed", &each(|| read.read(Freshness::Fresh))),
        ("read of 48 values as they were flushed", &each(|| read.read(Freshness::Flushed))),
    ];
    let columns = ["ns: median (min..p90)", "1 thread", "2 threads, same group", ""];
    let mut table = Table::new("an update, and a read where nothing changed", columns);
    let plan = lab.effort.windows;
    let measured = lab.compare(&mut table, "call", json!({}), 2, plan, &rows)?;
    unified.check(measured[0].iter().map(|one| one.ops).sum())?;
    separate.check(measured[1].iter().map(|one| one.ops).sum())?;
    table.note("a group of depth 3; an update is one addition on the thread's slot and a read of the group's mark. The seed: \"similar in cycles\", with and without");
    let [update, both] = measured[1].map(|one| median(one.ns));
    lab.at_most("an update, 1 thread", update, 3.0, "ns");
    lab.at_most("an update, 2 threads in one group", both, 3.0, "ns");
    lab.at_most("a fresh read of 48 values, none changed", median(measured[3][0].ns), 30.0, "ns");
    lab.print(&table)
}
