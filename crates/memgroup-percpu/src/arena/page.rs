//! Page sizes as values, and the geometry of a chunk that follows from them.
//!
//!   chunk of 3 slots, page P, stride 17 P + 128:
//!
//!   │ unit 0: 16 P usable │ P pad + 128 │ unit 1: 16 P usable │ P pad + 128 │ unit 2: 16 P usable │ ...
//!   ▲ page boundary        the first byte of unit 1 lies 128 bytes into a page, that of unit 2 256 bytes, ...
//!
//! - I1. A chunk begins on a page, and unit `s` begins `s * stride` bytes into it.
//! - I2. No page holds bytes of two units, because units are a page and 128 bytes apart.
//! - I3. An offset has the same alignment in every unit, up to 128 bytes.
//!
//! # Why the units are shifted
//!
//! With a stride of whole pages all copies of an object fall into the same set of a level-1 cache. A walk over 128 hot
//! copies then costs 2.2 us instead of 0.34. The shift is also the reason why no object is aligned to more than 128 bytes.
//!
//! # Why these unit sizes
//!
//! A unit holds at least 64 KiB, the largest object. The shift makes a full unit touch one page more than it fills: of
//! sixteen pages that is a sixteenth. Pages of 2 MiB take eight, so that the address space of a chunk stays small.

use crate::arena::os;

/// Blocks begin and end at multiples of this.
pub(crate) const GRANULE_BYTES: usize = 8;

/// How far the units of a chunk are shifted against each other: two lines, because processors fetch lines in pairs.
pub(crate) const COLOUR_BYTES: usize = 128;

/// The unit in which memory is backed and given back, at least the system's own page.
///
/// With a size above the system's, this machine behaves like one with such pages. Memory is backed and given back by whole
/// pages of this size only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageSize {
    /// 4 KiB, as on x86_64.
    Kib4,
    /// 16 KiB, as on some aarch64 systems.
    Kib16,
    /// 64 KiB, as on POWER9 and on some aarch64 systems.
    Kib64,
    /// 2 MiB, a huge page.
    Mib2,
}

impl PageSize {
    /// All page sizes, smallest first.
    pub const ALL: [Self; 4] = [Self::Kib4, Self::Kib16, Self::Kib64, Self::Mib2];

    /// The size in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Kib4 => 4 << 10,
            Self::Kib16 => 16 << 10,
            Self::Kib64 => 64 << 10,
            Self::Mib2 => 2 << 20,
        }
    }

    /// The system's page, or the next larger size here where it has another one.
    pub fn of_system() -> Self {
        let system = os::page_bytes();
        Self::ALL.into_iter().find(|page| page.bytes() >= system).unwrap_or(Self::Mib2)
    }

    /// The bytes that a unit may fill.
    pub(crate) const fn unit_bytes(self) -> usize {
        match self {
            Self::Kib4 | Self::Kib16 | Self::Kib64 => 16 * self.bytes(),
            Self::Mib2 => 8 * self.bytes(),
        }
    }
}

/// The positions of a chunk's units, and of the pages in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) page_bytes: usize,
    pub(crate) stride: usize,
    pub(crate) unit_bytes: usize,
    pub(crate) slots: usize,
}

impl Geometry {
    pub(crate) fn new(page: PageSize, slots: usize) -> Self {
        let page_bytes = page.bytes();
        let unit_bytes = page.unit_bytes();
        Self { page_bytes, stride: unit_bytes + page_bytes + COLOUR_BYTES, unit_bytes, slots }
    }

    /// The bytes of a whole chunk, a multiple of the page.
    pub(crate) fn chunk_bytes(&self) -> usize {
        (self.slots * self.stride).next_multiple_of(self.page_bytes)
    }

    /// The granules of a unit.
    pub(crate) fn granules(&self) -> u32 {
        (self.unit_bytes / GRANULE_BYTES) as u32
    }

    /// The granules of a page.
    pub(crate) fn page_granules(&self) -> u32 {
        (self.page_bytes / GRANULE_BYTES) as u32
    }

    /// The pages of a unit that is not shifted which `start..end` touches, each with the part of the range on it.
    pub(crate) fn pages_of(&self, start: u32, end: u32) -> impl Iterator<Item = (usize, u32, u32)> + use<> {
        let granules = self.page_granules();
        (start / granules..end.div_ceil(granules))
            .map(move |page| (page as usize, start.max(page * granules), end.min((page + 1) * granules)))
    }

    /// The pages of `slot` that lie wholly in the run of granules `start..end`, as a range of the chunk's bytes. A run at
    /// an edge of the unit reaches to the edge of the page there, where nothing else lies (I2).
    pub(crate) fn pages_within(&self, slot: usize, start: u32, end: u32) -> core::ops::Range<usize> {
        let (around, page) = (self.pages_around(slot, start, end), self.page_bytes);
        let at = |granule: u32| slot * self.stride + granule as usize * GRANULE_BYTES;
        let begin = if start == 0 { around.start } else { at(start).next_multiple_of(page) };
        let finish = if end == self.granules() { around.end } else { at(end) / page * page };
        begin..finish.max(begin)
    }

    /// The pages of `slot` that hold a byte of `start..end`, as a range of the chunk's bytes.
    pub(crate) fn pages_around(&self, slot: usize, start: u32, end: u32) -> core::ops::Range<usize> {
        let at = |granule: u32| slot * self.stride + granule as usize * GRANULE_BYTES;
        at(start) / self.page_bytes * self.page_bytes..at(end).next_multiple_of(self.page_bytes)
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;

    #[test]
    fn no_page_holds_bytes_of_two_units() {
        for page in PageSize::ALL {
            let geometry = Geometry::new(page, 300);
            for slot in 1..300 {
                let before = geometry.pages_around(slot - 1, 0, geometry.granules());
                let after = geometry.pages_around(slot, 0, geometry.granules());
                assert!(before.end <= after.start, "{geometry:?} slot {slot}");
            }
            let last = geometry.pages_around(299, 0, geometry.granules());
            assert!(last.end <= geometry.chunk_bytes(), "{geometry:?}");
        }
    }

    #[test]
    fn a_stride_is_no_power_of_two_and_keeps_alignment() {
        for page in PageSize::ALL {
            let geometry = Geometry::new(page, 2);
            assert!(!geometry.stride.is_power_of_two() && geometry.stride.is_multiple_of(128));
            assert!(geometry.unit_bytes >= 64 << 10);
        }
    }

    #[test]
    fn pages_within_a_run_are_those_that_it_covers() {
        for page in [PageSize::Kib4, PageSize::Kib64] {
            let geometry = Geometry::new(page, 40);
            let all = geometry.granules();
            for slot in [0, 1, 2, 31, 32, 39] {
                assert_eq!(geometry.pages_within(slot, 0, all), geometry.pages_around(slot, 0, all));
                let (start, end) = (all / 3, all * 2 / 3 + 5);
                let within = geometry.pages_within(slot, start, end);
                let first = slot * geometry.stride + start as usize * 8;
                let last = slot * geometry.stride + end as usize * 8;
                assert!(within.is_empty() || (within.start >= first && within.end <= last));
                assert!(within.start < first + page.bytes() && within.end + page.bytes() > last);
                assert!(within.start.is_multiple_of(page.bytes()) && within.end.is_multiple_of(page.bytes()));
            }
        }
    }
}
