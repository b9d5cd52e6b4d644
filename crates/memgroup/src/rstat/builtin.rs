//! The subsystems that every hierarchy has, and their statistics by number.
//!
//! The keys are those of cgroup v2's `memory.stat`, `cpu.stat` and `io.stat` where they mean the same: `file`, `rbytes`, `wbytes`, `rios`
//! and `wios` do. All others are this library's own.

use super::stat::{Stat, Subsystem};

/// The numbers of the built-in subsystems.
pub(crate) const MEMORY: usize = 0;
pub(crate) const CPU: usize = 1;
pub(crate) const IO: usize = 2;

pub(crate) static ALL: [Subsystem; 3] = [
    Subsystem { name: "memory", stats: memory::STATS },
    Subsystem { name: "cpu", stats: cpu::STATS },
    Subsystem { name: "io", stats: io::STATS },
];

/// Statistics of the subsystem `memory`.
pub mod memory {
    use super::Stat;

    /// `file`: bytes that hold pages of files, as cgroup v2 has it. Fed by adapters.
    pub const FILE: usize = 0;
    /// `schema`: bytes of parsed schemas. Fed by adapters.
    pub const SCHEMA: usize = 1;
    /// `statements`: bytes of prepared statements. Fed by adapters.
    pub const STATEMENTS: usize = 2;
    /// `sort`: bytes of sorts, where an engine can tell. Fed by adapters.
    pub const SORT: usize = 3;
    /// `hash`: bytes of hash tables of joins and aggregations, where an engine can tell. Fed by adapters.
    pub const HASH: usize = 4;
    /// `charges`: charges of at least one byte that were tried; in a hierarchy without stock none is counted.
    pub const CHARGES: usize = 5;
    /// `stock_misses`: charges that the stock did not serve alone. The others are hits.
    pub const STOCK_MISSES: usize = 6;
    /// `stock_refills`: misses that bought a batch for the charges to come.
    pub const STOCK_REFILLS: usize = 7;
    /// `stock_returns`: uncharges that overflowed the stock and returned a batch.
    pub const STOCK_RETURNS: usize = 8;
    /// `stock_drains`: stocks emptied by a drain, a refusal, a lowered limit, removal or the slot's budget.
    pub const STOCK_DRAINS: usize = 9;
    /// `stock_drained`: bytes that drained stocks returned to the counters.
    pub const STOCK_DRAINED: usize = 10;
    /// `refusals`: charges of at least one byte that this group itself refused, whoever asked: by its own limit, or because it was
    /// removed.
    pub const REFUSALS: usize = 11;
    /// `forced`: charges made whatever the limits that the stock did not serve.
    pub const FORCED: usize = 12;
    /// `reclaims`: times that caches of the group were asked to give memory up.
    pub const RECLAIMS: usize = 13;
    /// `reclaimed`: bytes that caches gave up because they were asked to.
    pub const RECLAIMED: usize = 14;
    /// `gained`: bytes that caches, of this group or of others, gave up for charges of this group that were then made.
    pub const GAINED: usize = 15;

    /// `throttles`: times that a thread was slowed down, or took it upon itself, because the group was above a `high`, or above a `max` by force.
    pub const THROTTLES: usize = 16;
    /// `throttled_usec`: how long that took, added up over all threads.
    pub const THROTTLED_USEC: usize = 17;

    pub(crate) const STATS: &[Stat] = &[
        Stat::gauge("file"),
        Stat::gauge("schema"),
        Stat::gauge("statements"),
        Stat::gauge("sort"),
        Stat::gauge("hash"),
        Stat::count("charges"),
        Stat::count("stock_misses"),
        Stat::count("stock_refills"),
        Stat::count("stock_returns"),
        Stat::count("stock_drains"),
        Stat::count("stock_drained"),
        Stat::count("refusals"),
        Stat::count("forced"),
        Stat::count("reclaims"),
        Stat::count("reclaimed"),
        Stat::count("gained"),
        Stat::count("throttles"),
        Stat::time("throttled_usec"),
    ];
}

/// Statistics of the subsystem `cpu`.
pub mod cpu {
    use super::Stat;

    /// `scope_usec`: time that threads spent in scopes of the group, in wall-clock time, running or not. Inside a nested scope
    /// it is the inner group's.
    pub const SCOPE_USEC: usize = 0;
    /// `nr_scopes`: scopes that ended.
    pub const NR_SCOPES: usize = 1;

    pub(super) const STATS: &[Stat] = &[Stat::time("scope_usec"), Stat::count("nr_scopes")];
}

/// Statistics of the subsystem `io`, fed by adapters.
pub mod io {
    use super::Stat;

    /// `rbytes`: bytes read.
    pub const RBYTES: usize = 0;
    /// `wbytes`: bytes written.
    pub const WBYTES: usize = 1;
    /// `rios`: reads.
    pub const RIOS: usize = 2;
    /// `wios`: writes.
    pub const WIOS: usize = 3;
    /// `syncs`: times that written data was made durable.
    pub const SYNCS: usize = 4;

    pub(super) const STATS: &[Stat] = &[
        Stat::count("rbytes"),
        Stat::count("wbytes"),
        Stat::count("rios"),
        Stat::count("wios"),
        Stat::count("syncs"),
    ];
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::{ALL, cpu, io, memory};

    #[test]
    fn the_numbers_are_those_of_the_names() {
        for subsystem in ALL {
            subsystem.check().unwrap();
        }
        let name = |subsystem: usize, stat: usize| ALL[subsystem].stats[stat].name();
        assert_eq!(name(super::MEMORY, memory::FILE), "file");
        assert_eq!(name(super::MEMORY, memory::CHARGES), "charges");
        assert_eq!(name(super::MEMORY, memory::REFUSALS), "refusals");
        assert_eq!(name(super::MEMORY, memory::RECLAIMED), "reclaimed");
        assert_eq!(name(super::MEMORY, memory::THROTTLED_USEC), "throttled_usec");
        assert_eq!(name(super::CPU, cpu::NR_SCOPES), "nr_scopes");
        assert_eq!(name(super::IO, io::SYNCS), "syncs");
    }
}
