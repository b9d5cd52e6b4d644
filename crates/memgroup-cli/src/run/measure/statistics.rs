//! Statistics of a group and the groups below it: memory by kind, files, time.

use memgroup::stats::{cpu, io, memory};
use memgroup::{Freshness, Group, Hierarchy, Reach, StatKey};
use serde::{Deserialize, Serialize};

/// Statistics from the subsystems `memory`, `io` and `cpu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Statistics {
    pub(crate) memory: Memory,
    pub(crate) io: Io,
    /// Wall-clock time that threads spent in the group's scope.
    pub(crate) scope_us: u64,
}

/// Memory by kind, charges and reclaim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Memory {
    /// Page caches.
    pub(crate) file: u64,
    /// Parsed schemas.
    pub(crate) schema: u64,
    /// Prepared statements.
    pub(crate) statements: u64,
    /// All other charged bytes: sorts, temporary tables, connections.
    pub(crate) other: u64,
    /// Bytes charged in advance. All five kinds add up to the usage.
    pub(crate) prepaid: u64,
    pub(crate) charges: u64,
    pub(crate) stock_misses: u64,
    /// Scans of the group's caches.
    pub(crate) reclaims: u64,
    /// Bytes that its caches freed, for this group or another.
    pub(crate) reclaimed: u64,
    /// Bytes that caches of any group freed for charges of this group.
    pub(crate) gained: u64,
    /// Delays of threads because of `high` or of forced charges.
    pub(crate) throttles: u64,
    /// Sum of these delays over all threads.
    pub(crate) throttled_us: u64,
}

/// File input and output.
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
    /// Reads the statistics of `group`.
    pub(crate) fn of(hierarchy: &Hierarchy, group: &Group) -> Statistics {
        let read = |statistics: memgroup::Statistics| {
            let mut values = vec![0; statistics.stats().len()];
            statistics.read(group, Reach::Subtree, Freshness::Fresh, &mut values);
            // SQLite's gauges are estimates, so a sum may be below zero for a moment.
            move |key: StatKey| u64::try_from(values[key.index()]).unwrap_or(0)
        };
        let of_memory = read(hierarchy.memory());
        let of_io = read(hierarchy.io());
        let of_cpu = read(hierarchy.cpu());
        let [file, schema, statements] = [memory::FILE, memory::SCHEMA, memory::STATEMENTS].map(&of_memory);
        let (usage, exact) = (group.usage(), group.usage_exact());
        Statistics {
            memory: Memory {
                file,
                schema,
                statements,
                other: exact.saturating_sub(file + schema + statements),
                prepaid: usage.saturating_sub(exact),
                charges: of_memory(memory::CHARGES),
                stock_misses: of_memory(memory::STOCK_MISSES),
                reclaims: of_memory(memory::RECLAIMS),
                reclaimed: of_memory(memory::RECLAIMED),
                gained: of_memory(memory::GAINED),
                throttles: of_memory(memory::THROTTLES),
                throttled_us: of_memory(memory::THROTTLED_USEC),
            },
            io: Io {
                rbytes: of_io(io::RBYTES),
                wbytes: of_io(io::WBYTES),
                rios: of_io(io::RIOS),
                wios: of_io(io::WIOS),
            },
            scope_us: of_cpu(cpu::SCOPE_USEC),
        }
    }
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, Hierarchy};

    use super::{Io, Memory, Statistics};

    #[test]
    fn adds_the_groups_below_and_counts_the_rest_as_other() {
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
        assert_eq!((after.memory.file, after.memory.other), (700, 0), "a late gauge leaves `other` at 0");
    }
}
