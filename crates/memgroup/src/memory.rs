//! Memory: where the per-CPU words of one hierarchy's groups are.
//!
//! A group's stock word is a record of its own with a copy on each slot, and so are its statistics in each subsystem (`rstat`), each
//! kind in an arena of its own: so the words that charges go to lie close together, and a subsystem that nobody uses takes
//! nothing. Slots whose threads never charged anything here have no copies in fact: they are *admitted* with the first charge that
//! a thread makes on them, or the first addition.
//!
//! - I1. A slot is admitted under the tree lock, so that whoever closes stocks closes those of all slots there are.

use core::ops::Range;

use memgroup_percpu::{ArenaError, ArenaStats, Records};

use crate::config::Config;
use crate::shared::Shared;

/// The stock words of one hierarchy.
pub(crate) struct Memory {
    pub(crate) stocks: Records,
}

impl Memory {
    pub(crate) fn new(config: &Config) -> Result<Memory, ArenaError> {
        Ok(Memory { stocks: Records::new(config.arena(config.source.slots()), 1)? })
    }

    /// Bytes of one group's stock words over all slots that have copies, at least those of one slot.
    pub(crate) fn stock_bytes(&self) -> u64 {
        on_slots(&self.stocks)
    }

    /// The slots that have copies, in their order.
    pub(crate) fn admitted(&self) -> impl Iterator<Item = usize> + '_ {
        self.stocks.admitted()
    }

    pub(crate) fn is_admitted(&self, slot: usize) -> bool {
        self.stocks.is_admitted(slot)
    }
}

/// All records of a hierarchy: those of the stock words, then of each subsystem.
pub(crate) fn all(shared: &'static Shared) -> impl Iterator<Item = &'static Records> {
    std::iter::once(&shared.memory.stocks).chain(shared.statistics.stores().map(|store| &store.records))
}

/// Bytes of one group's records over all slots that have copies, at least those of one slot.
pub(crate) fn group_bytes(shared: &'static Shared) -> u64 {
    all(shared).map(on_slots).sum()
}

/// Bytes of one group's flushed values.
pub(crate) fn beside_bytes(shared: &'static Shared) -> u64 {
    shared.statistics.stores().map(|store| store.group_bytes() as u64).sum()
}

fn on_slots(records: &Records) -> u64 {
    (records.record_bytes() * records.admitted().count().max(1)) as u64
}

/// Bytes of all groups' flushed values, those that free places keep included.
pub(crate) fn all_beside_bytes(shared: &'static Shared) -> u64 {
    shared.statistics.stores().map(|store| (store.sides() * store.group_bytes()) as u64).sum()
}

/// Bytes that went back to the system so far.
pub(crate) fn returned_bytes(shared: &'static Shared) -> u64 {
    all(shared).map(|records| records.arena().returned_bytes_total()).sum()
}

pub(crate) fn ranges(shared: &'static Shared) -> Vec<Range<usize>> {
    all(shared).flat_map(|records| records.arena().ranges()).collect()
}

pub(crate) fn stats(shared: &'static Shared) -> PerCpuStats {
    let arenas: Vec<ArenaStats> = all(shared).map(|records| records.arena().stats()).collect();
    let sum = |of: fn(&ArenaStats) -> u64| arenas.iter().map(of).sum();
    PerCpuStats {
        populated_bytes: sum(|arena| arena.populated_bytes),
        live_bytes: sum(|arena| arena.live_bytes),
        limbo_bytes: all(shared).map(Records::limbo_bytes).sum(),
        reserved_bytes: sum(|arena| arena.reserved_bytes),
        chunks: arenas.iter().map(|arena| arena.chunks).sum(),
        slots: arenas.iter().map(|arena| arena.admitted_slots).max().unwrap_or(0),
        page_bytes: shared.memory.stocks.arena().page().bytes() as u64,
    }
}

/// The per-CPU memory of one hierarchy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerCpuStats {
    /// Bytes that the system backs with memory now; asked of the system.
    pub populated_bytes: u64,
    /// Bytes of records that groups have, over all slots that have copies.
    pub live_bytes: u64,
    /// Bytes of records that were moved or given up and wait for a grace period.
    pub limbo_bytes: u64,
    /// Address space set aside.
    pub reserved_bytes: u64,
    /// Chunks the address space is made of.
    pub chunks: usize,
    /// Slots that have copies: those that threads have used.
    pub slots: usize,
    /// The granule in which memory is populated and given back.
    pub page_bytes: u64,
}
