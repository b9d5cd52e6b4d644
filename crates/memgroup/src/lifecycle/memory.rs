//! Per-CPU memory of one hierarchy: the stock words, and the records of statistics.

use core::ops::Range;

use memgroup_percpu::{Arena, ArenaStats, Records};
use memgroup_sync::atomic::AtomicU64;

use crate::tree::shared::Shared;
use crate::tree::topology::Tree;

/// The records of each subsystem's statistics.
pub(crate) fn all(shared: &'static Shared) -> impl Iterator<Item = &'static Records> {
    shared.statistics.stores().map(|store| &store.records)
}

/// The arenas of those records.
pub(crate) fn arenas(shared: &'static Shared) -> impl Iterator<Item = &'static Arena> {
    all(shared).map(Records::arena)
}

/// Bytes of one group's records on all slots that have copies, at least those of one slot.
pub(crate) fn record_bytes(shared: &'static Shared) -> u64 {
    let on_slots = |records: &Records| records.record_bytes() * records.admitted().count().max(1);
    all(shared).map(on_slots).sum::<usize>() as u64
}

/// Bytes of one group's stock words on the slots that were used, at least one.
pub(crate) fn stock_bytes(shared: &'static Shared) -> u64 {
    (size_of::<AtomicU64>() * shared.stocks.used().count().max(1)) as u64
}

/// Bytes of all groups and free places: nodes, names' places and per-CPU memory.
pub(crate) fn all_bytes(shared: &'static Shared) -> u64 {
    let places = u64::from(shared.places()) * Tree::PLACE_BYTES;
    stats(shared).populated_bytes + shared.nodes_bytes() as u64 + places
}

/// Bytes that went back to the system so far.
pub(crate) fn returned_bytes(shared: &'static Shared) -> u64 {
    arenas(shared).map(Arena::returned_bytes_total).sum::<u64>() + shared.stocks.returned_bytes_total()
}

pub(crate) fn ranges(shared: &'static Shared) -> Vec<Range<usize>> {
    arenas(shared).flat_map(Arena::ranges).chain(shared.stocks.ranges()).collect()
}

pub(crate) fn stats(shared: &'static Shared) -> PerCpuStats {
    let arenas: Vec<ArenaStats> = arenas(shared).map(Arena::stats).collect();
    let (words, groups) = (shared.stocks.stats(), shared.tree.lock().with_records() as u64);
    let sum = |of: fn(&ArenaStats) -> u64| arenas.iter().map(of).sum::<u64>();
    PerCpuStats {
        populated_bytes: sum(|arena| arena.populated_bytes) + words.populated_bytes,
        stock_bytes: words.populated_bytes,
        live_bytes: sum(|arena| arena.live_bytes) + groups * stock_bytes(shared),
        limbo_bytes: all(shared).map(Records::limbo_bytes).sum(),
        reserved_bytes: sum(|arena| arena.reserved_bytes) + words.reserved_bytes,
        chunks: arenas.iter().map(|arena| arena.chunks).sum::<usize>() + words.blocks,
        slots: shared.stocks.used().count(),
        page_bytes: shared.shape.page_size.bytes() as u64,
    }
}

/// Amount of the per-CPU memory of one hierarchy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerCpuStats {
    /// Bytes that the system backs with memory now, as the system reports.
    pub populated_bytes: u64,
    /// Those of the stock words, which stay where they are: of each place that has a node, with a
    /// group or without.
    pub stock_bytes: u64,
    /// Bytes of the groups' stock words on the slots that were used, and of their statistics'
    /// records on all slots that have copies.
    pub live_bytes: u64,
    /// Bytes of records that moved or were given up and wait for a grace period.
    pub limbo_bytes: u64,
    /// Bytes of reserved address space.
    pub reserved_bytes: u64,
    /// Number of chunks of that address space.
    pub chunks: usize,
    /// Number of slots that threads have charged on.
    pub slots: usize,
    /// Bytes in which memory is given back.
    pub page_bytes: u64,
}
