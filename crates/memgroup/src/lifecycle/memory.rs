//! Per-CPU memory of one hierarchy: all records together.

use core::ops::Range;

use memgroup_percpu::{ArenaStats, Records};

use crate::state::memory::on_slots;
use crate::tree::shared::Shared;
use crate::tree::topology::Tree;

/// All records of a hierarchy: those of the stock words, then those of each subsystem.
pub(crate) fn all(shared: &'static Shared) -> impl Iterator<Item = &'static Records> {
    std::iter::once(&shared.memory.stocks).chain(shared.statistics.stores().map(|store| &store.records))
}

/// Bytes of one group's records on all slots that have copies, at least those of one slot.
pub(crate) fn group_bytes(shared: &'static Shared) -> u64 {
    all(shared).map(on_slots).sum()
}

/// Bytes of all groups and free places: nodes, names' places and per-CPU memory.
pub(crate) fn all_bytes(shared: &'static Shared) -> u64 {
    let places = u64::from(shared.places()) * Tree::PLACE_BYTES;
    stats(shared).populated_bytes + shared.nodes_bytes() as u64 + places
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

/// Amount of the per-CPU memory of one hierarchy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerCpuStats {
    /// Bytes that the system backs with memory now, as the system reports.
    pub populated_bytes: u64,
    /// Bytes of the groups' records, on all slots that have copies.
    pub live_bytes: u64,
    /// Bytes of records that moved or were given up and wait for a grace period.
    pub limbo_bytes: u64,
    /// Bytes of reserved address space.
    pub reserved_bytes: u64,
    /// Number of chunks of that address space.
    pub chunks: usize,
    /// Number of slots that have copies: those that threads have used.
    pub slots: usize,
    /// Bytes in which memory is populated and given back.
    pub page_bytes: u64,
}
