//! What the statistics of a group say at the end of a run: its memory by kind, its files, its time.
//!
//! Read from the subsystems `memory`, `io` and `cpu`, each by itself, with everything below the group.

use memgroup::stats::{cpu, io, memory};
use memgroup::{Freshness, Group, Hierarchy, Reach};
use serde::{Deserialize, Serialize};

/// The statistics of one group with all below it. Bytes are bytes, times microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Statistics {
    pub(crate) memory: Memory,
    pub(crate) io: Io,
    /// Time that threads spent at the group's expense, by the clock on the wall.
    pub(crate) scope_us: u64,
}

/// Memory by kind, and what was charged for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// Pages of databases.
    pub(crate) file: u64,
    /// Parsed schemas.
    pub(crate) schema: u64,
    /// Prepared statements.
    pub(crate) statements: u64,
    /// All else that is charged: sorts, temporary tables, connections; SQLite tells no more.
    pub(crate) other: u64,
    /// Charged in advance, and held by nothing yet; with it the kinds add up to the usage.
    pub(crate) prepaid: u64,
    pub(crate) charges: u64,
    pub(crate) stock_misses: u64,
    /// Times that caches of the group were asked to give way.
    pub(crate) reclaims: u64,
    /// Bytes that they gave up then, whoever needed them.
    pub(crate) reclaimed: u64,
    /// Bytes that caches, of this group or of others, gave up for charges of this group.
    pub(crate) gained: u64,
    /// Times that a thread was held up because the group was above `high`, or owed what it took by force.
    pub(crate) throttles: u64,
    /// How long that took, over all threads.
    pub(crate) throttled_us: u64,
}

/// Files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Io {
    /// Bytes read.
    pub(crate) rbytes: u64,
    /// Bytes written.
    pub(crate) wbytes: u64,
    /// Reads.
    pub(crate) rios: u64,
    /// Writes.
    pub(crate) wios: u64,
}

impl Statistics {
    pub(crate) fn of(hierarchy: &Hierarchy, group: &Group) -> Statistics {
        let [mut of_memory, mut of_io, mut of_cpu] =
            [[0; memory::THROTTLED_USEC + 1].as_slice(), &[0; io::WIOS + 1], &[0; cpu::SCOPE_USEC + 1]]
                .map(<[i64]>::to_vec);
        for (statistics, values) in [
            (hierarchy.memory(), &mut of_memory),
            (hierarchy.io(), &mut of_io),
            (hierarchy.cpu(), &mut of_cpu),
        ] {
            statistics.read(group, Reach::Subtree, Freshness::Fresh, values);
        }
        // SQLite's gauges are estimates and may fall short, but never below nothing.
        let positive = |value: i64| u64::try_from(value).unwrap_or(0);
        let of_memory: Vec<u64> = of_memory.into_iter().map(positive).collect();
        let of_io: Vec<u64> = of_io.into_iter().map(positive).collect();
        let [file, schema, statements] =
            [memory::FILE, memory::SCHEMA, memory::STATEMENTS].map(|kind| of_memory[kind]);
        let (usage, exact) = (group.usage(), group.usage_exact());
        Statistics {
            memory: Memory {
                file,
                schema,
                statements,
                other: exact.saturating_sub(file + schema + statements),
                prepaid: usage.saturating_sub(exact),
                charges: of_memory[memory::CHARGES],
                stock_misses: of_memory[memory::STOCK_MISSES],
                reclaims: of_memory[memory::RECLAIMS],
                reclaimed: of_memory[memory::RECLAIMED],
                gained: of_memory[memory::GAINED],
                throttles: of_memory[memory::THROTTLES],
                throttled_us: of_memory[memory::THROTTLED_USEC],
            },
            io: Io {
                rbytes: of_io[io::RBYTES],
                wbytes: of_io[io::WBYTES],
                rios: of_io[io::RIOS],
                wios: of_io[io::WIOS],
            },
            scope_us: positive(of_cpu[cpu::SCOPE_USEC]),
        }
    }
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, Hierarchy};

    use super::{Io, Memory, Statistics};

    #[test]
    fn a_parent_has_what_its_children_have_and_what_no_kind_tells_is_other() {
        let hierarchy = Hierarchy::new(Config::new()).expect("a hierarchy");
        let parent = hierarchy.create("/parent").expect("a group");
        let children = ["a", "b"].map(|name| parent.create(name).expect("a group"));
        let charges = children.each_ref().map(|child| child.try_charge(1000).expect("no limit"));
        for child in &children {
            hierarchy.memory().add(child, memgroup::stats::memory::FILE, 700);
            hierarchy.memory().add(child, memgroup::stats::memory::RECLAIMED, 30);
            hierarchy.memory().add(child, memgroup::stats::memory::GAINED, 20);
            hierarchy.io().add(child, memgroup::stats::io::RBYTES, 10);
        }
        let expected = Statistics {
            memory: Memory {
                file: 1400,
                other: 600,
                charges: 2,
                stock_misses: 2,
                reclaimed: 60,
                gained: 40,
                ..Memory::default()
            },
            io: Io { rbytes: 20, ..Io::default() },
            scope_us: 0,
        };
        let found = Statistics::of(&hierarchy, &parent);
        let prepaid = parent.usage() - parent.usage_exact();
        assert!(prepaid > 0);
        assert_eq!(found, Statistics { memory: Memory { prepaid, ..expected.memory }, ..expected });
        drop(charges);
        let after = Statistics::of(&hierarchy, &children[0]);
        assert_eq!((after.memory.file, after.memory.other), (700, 0), "a gauge that lags hides nothing else");
    }
}
