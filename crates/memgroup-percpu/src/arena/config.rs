//! The settings of an arena, and its figures.

use core::time::Duration;

use crate::arena::page::PageSize;

/// How to make the arena of [`Records`](crate::Records); checked by
/// [`Records::new`](crate::Records::new).
///
/// ```
/// use core::time::Duration;
/// use memgroup_percpu::{ArenaConfig, PageSize};
///
/// let config = ArenaConfig::new(8).page(PageSize::Kib64).float_bytes(256 << 10);
/// let config = config.decay(Duration::from_secs(1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaConfig {
    pub(crate) slots: usize,
    pub(crate) page: PageSize,
    pub(crate) float_bytes: u64,
    pub(crate) decay: Duration,
}

impl ArenaConfig {
    /// The defaults for this many slots: the system's page, and 1 MiB of float that decays over
    /// ten seconds.
    pub fn new(slots: usize) -> Self {
        Self { slots, page: PageSize::of_system(), float_bytes: 1 << 20, decay: Duration::from_secs(10) }
    }

    /// The unit in which memory is given back; at least the system's page.
    #[must_use]
    pub fn page(self, page: PageSize) -> Self {
        Self { page, ..self }
    }

    /// How many bytes of empty pages, over all slots, may stay backed for the next allocations.
    /// Pages beyond that go with the next [`depopulate`](crate::Arena::depopulate).
    #[must_use]
    pub fn float_bytes(self, float_bytes: u64) -> Self {
        Self { float_bytes, ..self }
    }

    /// The time over which an unused float is given back, in even parts.
    #[must_use]
    pub fn decay(self, decay: Duration) -> Self {
        Self { decay, ..self }
    }
}

/// The figures of an arena, in bytes over all slots unless the field names another unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArenaStats {
    /// Address space mapped.
    pub reserved_bytes: u64,
    /// Memory behind it, as the system reports it (`mincore`). A page that was only read counts,
    /// although the system lends its one page of zeros for it. Equal to `reserved_bytes` where the
    /// system cannot be asked.
    pub populated_bytes: u64,
    /// Records that are live, on the admitted slots.
    pub live_bytes: u64,
    /// Records that were moved away and not freed yet, on the admitted slots.
    pub leaving_bytes: u64,
    /// Pages that are backed and hold nothing, on the admitted slots: the float.
    pub empty_bytes: u64,
    /// Records that are live, on one slot.
    pub unit_live_bytes: u64,
    /// Chunks.
    pub chunks: usize,
    /// Slots that were admitted.
    pub admitted_slots: usize,
    /// Bytes of pages given back since the arena was made, out of chunks that stayed.
    pub depopulated_bytes_total: u64,
    /// Bytes that were backed in chunks that were unmapped since then.
    pub unmapped_bytes_total: u64,
    /// Requests that the system refused: to take pages back, or to report which are there.
    pub refusals_total: u64,
}
