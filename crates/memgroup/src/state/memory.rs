//! Stock words of one hierarchy: a record for each group, with a copy on each slot.
//!
//! The stock words have an arena of their own, and so have the statistics of each subsystem. So the words that charges use lie close
//! together, and an unused subsystem takes nothing. A slot has no copies until it is *admitted*, with the first charge or addition
//! of a thread on it.
//!
//! - I1. A slot is admitted under the tree lock. So a thread that closes the words of a record closes those of all slots that have copies.

use memgroup_percpu::{ArenaError, Records};

use crate::state::config::Config;

/// The stock words of one hierarchy.
pub(crate) struct Memory {
    pub(crate) stocks: Records,
}

impl Memory {
    pub(crate) fn new(config: &Config) -> Result<Memory, ArenaError> {
        Ok(Memory { stocks: Records::new(config.arena(config.source.slots()), 1)? })
    }

    /// Bytes of one group's stock words on all slots that have copies, at least those of one slot.
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

/// Bytes of one record on all slots that have copies, at least those of one slot.
pub(crate) fn on_slots(records: &Records) -> u64 {
    (records.record_bytes() * records.admitted().count().max(1)) as u64
}
