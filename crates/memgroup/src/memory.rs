//! Memory: where the per-CPU words of one hierarchy's groups are.
//!
//! A group's stock word and its counters are one record with a copy on each slot, from one arena. A group that was idle for
//! long has its counters in a record of one copy instead, from another. Slots whose threads never charged anything here have no
//! copies in fact: they are *admitted* with the first charge or count that a thread makes on them.
//!
//! - I1. A slot is admitted under the tree lock, so that whoever closes stocks closes those of all slots there are.

use core::ops::Range;

use memgroup_percpu::{ArenaConfig, ArenaError, ArenaStats, Records};

use crate::config::Config;
use crate::counts;

/// The arenas of one hierarchy.
pub(crate) struct Memory {
    /// Records with a copy on each slot: the stock word, then the counters.
    pub(crate) hot: Records,
    /// Records with a single copy: the counters of idle groups.
    pub(crate) cold: Records,
}

impl Memory {
    pub(crate) fn new(config: &Config) -> Result<Memory, ArenaError> {
        let arena = |slots| {
            ArenaConfig::new(slots).page(config.page_size).float_bytes(config.float_bytes).decay(config.decay)
        };
        let counters = config.counters as usize;
        let hot = Records::new(arena(config.source.slots()), counts::FIRST + counters)?;
        let cold = Records::new(arena(1), counts::FIRST + counters)?;
        cold.admit(0, |_| ());
        Ok(Memory { hot, cold })
    }

    /// The slots that have copies, in their order.
    pub(crate) fn admitted(&self) -> impl Iterator<Item = usize> + '_ {
        self.hot.admitted()
    }

    pub(crate) fn is_admitted(&self, slot: usize) -> bool {
        self.hot.is_admitted(slot)
    }

    /// Bytes of one group's record over all slots that have copies.
    pub(crate) fn record_bytes(&self) -> u64 {
        (self.hot.record_bytes() * self.hot.admitted().count()) as u64
    }

    /// As `record_bytes`; before any slot has copies, those of the first one.
    pub(crate) fn record_bytes_least(&self) -> u64 {
        self.record_bytes().max(self.hot.record_bytes() as u64)
    }

    /// Bytes that went back to the system so far.
    pub(crate) fn returned_bytes(&self) -> u64 {
        self.hot.arena().returned_bytes_total() + self.cold.arena().returned_bytes_total()
    }

    pub(crate) fn stats(&self) -> PerCpuStats {
        let (hot, cold) = (self.hot.arena().stats(), self.cold.arena().stats());
        let sum = |of: fn(&ArenaStats) -> u64| of(&hot) + of(&cold);
        PerCpuStats {
            populated_bytes: sum(|arena| arena.populated_bytes),
            live_bytes: sum(|arena| arena.live_bytes),
            limbo_bytes: self.hot.limbo_bytes() + self.cold.limbo_bytes(),
            reserved_bytes: sum(|arena| arena.reserved_bytes),
            chunks: hot.chunks + cold.chunks,
            slots: hot.admitted_slots,
            page_bytes: self.hot.arena().page().bytes() as u64,
        }
    }

    pub(crate) fn ranges(&self) -> Vec<Range<usize>> {
        let mut ranges = self.hot.arena().ranges();
        ranges.extend(self.cold.arena().ranges());
        ranges
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
