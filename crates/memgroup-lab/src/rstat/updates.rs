//! The cost of an update with one tree and with separate trees, the cover letter's last experiment; and of reading where nothing changed.

use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::{Config, Freshness, Group, Reach, SlotSource, Stat, StatKey, Statistics, Subsystem};

use crate::Trees;
use crate::harness::prelude::*;

/// Statistics of the measured subsystem, as the goals have it.
const STATS: usize = 48;

const SUBSYSTEM: Subsystem = Subsystem { name: "measured", stats: &gauges() };

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

    fn updates(&self) -> impl Fn(usize, &mut usize, u64) -> Result<u64> {
        |_, _, count| {
            update(&self.statistics, &self.fixture.leaves[0], count);
            Ok(count)
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
        let sum = self.statistics.get(&root, KEY, Reach::Subtree, Freshness::Fresh);
        expect("additions in the root's statistics", sum, added as i64)
    }
}

/// Updates so many times. The addresses of subsystem and group stay in registers: a load in the loop waits for the addition before it.
#[inline(never)]
fn update(statistics: &Statistics, group: &Group, count: u64) {
    for _ in 0..count {
        statistics.add(group, KEY, 1);
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let slots = lab.slots;
    let build = |trees| Leaf::build(trees, slots);
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
        ("update, one tree (control)", &unified.updates()),
        ("update, separate trees", &separate.updates()),
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
