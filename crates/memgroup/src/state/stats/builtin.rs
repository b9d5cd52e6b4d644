//! The built-in subsystems, which every hierarchy has, and the keys of their statistics.
//!
//! `file`, `rbytes`, `wbytes`, `rios` and `wios` have the meaning of cgroup v2's `memory.stat` and
//! `io.stat`. All other names are this library's own.

/// Positions of the built-in subsystems.
pub(crate) const MEMORY: usize = 0;
pub(crate) const CPU: usize = 1;
pub(crate) const IO: usize = 2;

#[cfg(not(memgroup_loom))]
pub(crate) static ALL: [super::stat::Subsystem; 3] = [memory::SUBSYSTEM, cpu::SUBSYSTEM, io::SUBSYSTEM];

/// Keys of the subsystem `memory`.
pub mod memory {
    use crate::state::stats::stat::{Stat, StatKey, Subsystem};

    pub(crate) const SUBSYSTEM: Subsystem = Subsystem {
        name: "memory",
        stats: &[
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
        ],
    };

    /// `file`: bytes that hold pages of files, as in cgroup v2. Adapters add to it.
    pub const FILE: StatKey = SUBSYSTEM.key("file");
    /// `schema`: bytes of parsed schemas. Adapters add to it.
    pub const SCHEMA: StatKey = SUBSYSTEM.key("schema");
    /// `statements`: bytes of prepared statements. Adapters add to it.
    pub const STATEMENTS: StatKey = SUBSYSTEM.key("statements");
    /// `sort`: bytes of sorts, where a database can tell. Adapters add to it.
    pub const SORT: StatKey = SUBSYSTEM.key("sort");
    /// `hash`: bytes of hash tables of joins and aggregations, where a database can tell. Adapters
    /// add to it.
    pub const HASH: StatKey = SUBSYSTEM.key("hash");
    /// `charges`: attempts to charge at least one byte. In a hierarchy without stock none is
    /// counted.
    pub const CHARGES: StatKey = SUBSYSTEM.key("charges");
    /// `stock_misses`: charges that the stock did not serve alone. All others are hits.
    pub const STOCK_MISSES: StatKey = SUBSYSTEM.key("stock_misses");
    /// `stock_refills`: misses that bought a batch for later charges.
    pub const STOCK_REFILLS: StatKey = SUBSYSTEM.key("stock_refills");
    /// `stock_returns`: uncharges that overflowed the stock and returned a batch.
    pub const STOCK_RETURNS: StatKey = SUBSYSTEM.key("stock_returns");
    /// `stock_drains`: stocks emptied by a drain, a refusal, a lowered limit, removal or the
    /// slot's budget.
    pub const STOCK_DRAINS: StatKey = SUBSYSTEM.key("stock_drains");
    /// `stock_drained`: bytes that drained stocks returned to the counters.
    pub const STOCK_DRAINED: StatKey = SUBSYSTEM.key("stock_drained");
    /// `refusals`: charges of at least one byte that this group refused, by its own limit or
    /// because it was removed.
    ///
    /// The charge may be one of the group or of a group below it.
    pub const REFUSALS: StatKey = SUBSYSTEM.key("refusals");
    /// `forced`: charges made beyond all limits that the stock did not serve.
    pub const FORCED: StatKey = SUBSYSTEM.key("forced");
    /// `reclaims`: calls that asked a cache of the group to give memory back.
    pub const RECLAIMS: StatKey = SUBSYSTEM.key("reclaims");
    /// `reclaimed`: bytes that caches of the group gave back in those calls.
    pub const RECLAIMED: StatKey = SUBSYSTEM.key("reclaimed");
    /// `gained`: bytes that caches of any group gave back for charges of this group that were then
    /// made.
    pub const GAINED: StatKey = SUBSYSTEM.key("gained");
    /// `throttles`: times that a thread was delayed, or delayed itself, because the group was
    /// above a `high`, or above a `max` after a forced charge.
    pub const THROTTLES: StatKey = SUBSYSTEM.key("throttles");
    /// `throttled_usec`: sum of those delays over all threads.
    pub const THROTTLED_USEC: StatKey = SUBSYSTEM.key("throttled_usec");
}

/// Keys of the subsystem `cpu`.
pub mod cpu {
    use crate::state::stats::stat::{Stat, StatKey, Subsystem};

    pub(crate) const SUBSYSTEM: Subsystem =
        Subsystem { name: "cpu", stats: &[Stat::time("scope_usec"), Stat::count("nr_scopes")] };

    /// `scope_usec`: wall-clock time that threads spent in scopes of the group, running or
    /// waiting.
    ///
    /// Time inside a nested scope counts for the inner group only.
    pub const SCOPE_USEC: StatKey = SUBSYSTEM.key("scope_usec");
    /// `nr_scopes`: scopes that ended.
    pub const NR_SCOPES: StatKey = SUBSYSTEM.key("nr_scopes");
}

/// Keys of the subsystem `io`. Adapters add to all of them.
pub mod io {
    use crate::state::stats::stat::{Stat, StatKey, Subsystem};

    pub(crate) const SUBSYSTEM: Subsystem = Subsystem {
        name: "io",
        stats: &[
            Stat::count("rbytes"),
            Stat::count("wbytes"),
            Stat::count("rios"),
            Stat::count("wios"),
            Stat::count("syncs"),
        ],
    };

    /// `rbytes`: bytes read.
    pub const RBYTES: StatKey = SUBSYSTEM.key("rbytes");
    /// `wbytes`: bytes written.
    pub const WBYTES: StatKey = SUBSYSTEM.key("wbytes");
    /// `rios`: reads.
    pub const RIOS: StatKey = SUBSYSTEM.key("rios");
    /// `wios`: writes.
    pub const WIOS: StatKey = SUBSYSTEM.key("wios");
    /// `syncs`: times that written data was made durable.
    pub const SYNCS: StatKey = SUBSYSTEM.key("syncs");
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use crate::state::stats::builtin::{ALL, CPU, IO, MEMORY};

    #[test]
    fn defines_valid_subsystems_at_their_positions() {
        ALL.iter().for_each(|subsystem| subsystem.check().unwrap());
        assert_eq!([MEMORY, CPU, IO].map(|number| ALL[number].name), ["memory", "cpu", "io"]);
    }
}
