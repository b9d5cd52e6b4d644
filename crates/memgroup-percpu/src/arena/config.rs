//! How an arena is to be, and what it says of itself.

use core::time::Duration;

#[cfg(doc)]
use crate::arena::Arena;
use crate::arena::page::PageSize;

/// How to make an [`Arena`]; checked by [`Arena::new`].
///
/// ```
/// use core::time::Duration;
/// use memgroup_percpu::{ArenaConfig, PageSize};
///
/// let config = ArenaConfig::new(8).page(PageSize::Kib64).float_bytes(256 << 10).decay(Duration::from_secs(1));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaConfig {
    pub(crate) slots: usize,
    pub(crate) page: PageSize,
    pub(crate) float_bytes: u64,
    pub(crate) decay: Duration,
    pub(crate) reserve_bytes: u64,
    pub(crate) unmap: bool,
}

impl ArenaConfig {
    /// The defaults for this many slots: the system's page, 1 MiB of float that decays over ten seconds, no reserve, empty
    /// chunks unmapped.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self {
            slots,
            page: PageSize::of_system(),
            float_bytes: 1 << 20,
            decay: Duration::from_secs(10),
            reserve_bytes: 0,
            unmap: true,
        }
    }

    /// The unit in which memory is backed and given back; at least the system's page.
    #[must_use]
    pub fn page(self, page: PageSize) -> Self {
        Self { page, ..self }
    }

    /// How many bytes of empty pages, over all slots, may stay backed for the next allocations. What exceeds it goes with
    /// the next [`depopulate`](crate::Arena::depopulate).
    #[must_use]
    pub fn float_bytes(self, float_bytes: u64) -> Self {
        Self { float_bytes, ..self }
    }

    /// The time over which the float itself is given back, in even parts, if nobody uses it.
    #[must_use]
    pub fn decay(self, decay: Duration) -> Self {
        Self { decay, ..self }
    }

    /// How many free bytes of each unit [`replenish`](crate::Arena::replenish) provides for callers that may not wait: address
    /// space, not pages.
    #[must_use]
    pub fn reserve_bytes(self, reserve_bytes: u64) -> Self {
        Self { reserve_bytes, ..self }
    }

    /// Whether chunks in which nothing is left are unmapped, all but one. If not, their pages are given back and their
    /// addresses stay valid until the arena is dropped.
    #[must_use]
    pub fn unmap(self, unmap: bool) -> Self {
        Self { unmap, ..self }
    }
}

/// What an arena holds, in bytes over all slots unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArenaStats {
    /// Address space mapped.
    pub reserved_bytes: u64,
    /// Memory behind it: what the system says (`mincore`). A page that was only read counts, though the system lends its
    /// one page of zeros for it. Equal to `reserved_bytes` where the system cannot be asked.
    pub populated_bytes: u64,
    /// Objects that are live, on the admitted slots.
    pub live_bytes: u64,
    /// Objects that were moved away and not freed yet, on the admitted slots.
    pub leaving_bytes: u64,
    /// Pages that are backed and hold nothing, on the admitted slots: the float.
    pub empty_bytes: u64,
    /// Objects that are live, on one slot.
    pub unit_live_bytes: u64,
    /// Chunks.
    pub chunks: usize,
    /// Slots that ever ran.
    pub admitted_slots: usize,
    /// Bytes of pages given back since the arena was made, out of chunks that stayed.
    pub depopulated_bytes_total: u64,
    /// Bytes that were backed in chunks that were unmapped since then.
    pub unmapped_bytes_total: u64,
    /// Times that the system refused to take pages back or to say which are there.
    pub refusals_total: u64,
}
