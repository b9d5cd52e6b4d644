//! Statistics of a group and the groups below it: memory by kind, files, time.

use memgroup::stats::{cpu, io, memory};
use memgroup::{GroupSnapshot, Reach, StatKey};
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
    pub(crate) fn of(group: &GroupSnapshot) -> Statistics {
        // SQLite's gauges are estimates, so a sum may be below zero for a moment.
        let read = |key: StatKey| group.statistic(key, Reach::Subtree).map_or(0, |value| value.max(0) as u64);
        let [file, schema, statements] = [memory::FILE, memory::SCHEMA, memory::STATEMENTS].map(read);
        Statistics {
            memory: Memory {
                file,
                schema,
                statements,
                other: group.usage_exact_bytes.saturating_sub(file + schema + statements),
                prepaid: group.usage_bytes.saturating_sub(group.usage_exact_bytes),
                charges: read(memory::CHARGES),
                stock_misses: read(memory::STOCK_MISSES),
                reclaims: read(memory::RECLAIMS),
                reclaimed: read(memory::RECLAIMED),
                gained: read(memory::GAINED),
                throttles: read(memory::THROTTLES),
                throttled_us: read(memory::THROTTLED_USEC),
            },
            io: Io {
                rbytes: read(io::RBYTES),
                wbytes: read(io::WBYTES),
                rios: read(io::RIOS),
                wios: read(io::WIOS),
            },
            scope_us: read(cpu::SCOPE_USEC),
        }
    }

    /// Adds a `later` run. The kinds of memory are those at its end.
    pub(crate) fn add(self, mut later: Statistics) -> Statistics {
        let (memory, io) = (&mut later.memory, &mut later.io);
        memory.charges += self.memory.charges;
        memory.stock_misses += self.memory.stock_misses;
        memory.reclaims += self.memory.reclaims;
        memory.reclaimed += self.memory.reclaimed;
        memory.gained += self.memory.gained;
        memory.throttles += self.memory.throttles;
        memory.throttled_us += self.memory.throttled_us;
        io.rbytes += self.io.rbytes;
        io.wbytes += self.io.wbytes;
        io.rios += self.io.rios;
        io.wios += self.io.wios;
        later.scope_us += self.scope_us;
        later
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
        let of = |group: &memgroup::Group| Statistics::of(&group.snapshot().groups[0]);
        let found = of(&parent);
        let prepaid = parent.usage() - parent.usage_exact();
        assert!(prepaid > 0);
        assert_eq!(found, Statistics { memory: Memory { prepaid, ..expected.memory }, ..expected });
        drop(charges);
        let after = of(&children[0]);
        assert_eq!((after.memory.file, after.memory.other), (700, 0), "a late gauge leaves `other` at 0");
    }
}
