//! Statistics of a group and the groups below it: memory by kind, files, time.

use memgroup::GroupSnapshot;
use memgroup::stats::{cpu, io, memory};
use serde::{Deserialize, Serialize};

use super::counts::Counts;

/// Kinds of memory: page caches, parsed schemas, prepared statements, all other charged bytes, and bytes charged in advance. They
/// add up to the usage.
pub(crate) const KINDS: [&str; 5] = ["file", "schema", "statements", "other", "prepaid"];

/// Statistics from the subsystems `memory`, `io` and `cpu`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Statistics {
    /// Bytes of each kind; charges and stock misses; scans of the group's caches (`reclaims`), bytes that they freed for this group or
    /// another (`reclaimed`), bytes that any caches freed for charges of this group (`gained`); delays because of `high` or of
    /// forced charges (`throttles`), and their sum over all threads (`throttled_us`).
    pub(crate) memory: Counts,
    /// Bytes read and written, reads and writes.
    pub(crate) io: Counts,
    /// Wall-clock time that threads spent in the group's scope.
    pub(crate) scope_us: u64,
}

impl Statistics {
    pub(crate) fn of(group: &GroupSnapshot) -> Statistics {
        let mut all = Counts::of_statistics(
            group,
            [
                ("file", memory::FILE),
                ("schema", memory::SCHEMA),
                ("statements", memory::STATEMENTS),
                ("charges", memory::CHARGES),
                ("stock_misses", memory::STOCK_MISSES),
                ("reclaims", memory::RECLAIMS),
                ("reclaimed", memory::RECLAIMED),
                ("gained", memory::GAINED),
                ("throttles", memory::THROTTLES),
                ("throttled_us", memory::THROTTLED_USEC),
            ],
        );
        let known: u64 = KINDS.iter().map(|kind| all.get(kind)).sum();
        all.set("other", group.usage_exact_bytes.saturating_sub(known));
        all.set("prepaid", group.usage_bytes.saturating_sub(group.usage_exact_bytes));
        let io = [("rbytes", io::RBYTES), ("wbytes", io::WBYTES), ("rios", io::RIOS), ("wios", io::WIOS)];
        Statistics {
            memory: all,
            io: Counts::of_statistics(group, io),
            scope_us: Counts::of_statistics(group, [("scope_us", cpu::SCOPE_USEC)]).get("scope_us"),
        }
    }

    /// Adds a `later` run. The kinds of memory are those at its end.
    pub(crate) fn add(self, later: Statistics) -> Statistics {
        Statistics {
            memory: self.memory.add(later.memory, &KINDS),
            io: self.io.add(later.io, &[]),
            scope_us: self.scope_us + later.scope_us,
        }
    }
}

#[cfg(test)]
mod tests {
    use memgroup::{Config, Hierarchy};

    use super::{Counts, Statistics};

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
        let of = |group: &memgroup::Group| Statistics::of(&group.snapshot().groups[0]);
        let found = of(&parent);
        let prepaid = parent.usage() - parent.usage_exact();
        assert!(prepaid > 0);
        let memory = [
            ("file", 1400),
            ("schema", 0),
            ("statements", 0),
            ("other", 600),
            ("prepaid", prepaid),
            ("charges", 2),
            ("stock_misses", 2),
            ("reclaims", 0),
            ("reclaimed", 60),
            ("gained", 40),
            ("throttles", 0),
            ("throttled_us", 0),
        ];
        let io = [("rbytes", 20), ("wbytes", 0), ("rios", 0), ("wios", 0)];
        assert_eq!(found, Statistics { memory: Counts::of(memory), io: Counts::of(io), scope_us: 0 });
        drop(charges);
        let after = of(&children[0]);
        assert_eq!(
            (after.memory.get("file"), after.memory.get("other")),
            (700, 0),
            "a late gauge leaves `other` at 0"
        );
    }
}
