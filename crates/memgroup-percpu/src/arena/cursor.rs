//! How far the depopulation of a chunk has come.

use core::ops::Range;

use crate::arena::page::{GRANULE_BYTES, Geometry};

/// A dirty stretch that is being given back, slot by slot and from the high end down.
///
/// Its pages that lie within the free run around it go. They are gone on the slots below `slot`; on `slot` itself the last
/// `pages` of them are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    run: (u32, u32),
    pub(crate) stretch: (u32, u32),
    pub(crate) slot: usize,
    pub(crate) pages: usize,
    /// The granules that are zero on every slot so far.
    pub(crate) zeroed: Range<u32>,
}

impl Cursor {
    pub(crate) fn new(run: (u32, u32), stretch: (u32, u32)) -> Self {
        Self { run, stretch, slot: 0, pages: 0, zeroed: run.0..run.1 }
    }

    /// The pages to give back on a slot.
    pub(crate) fn pages_of(&self, geometry: &Geometry, slot: usize) -> Range<usize> {
        let within = geometry.pages_within(slot, self.run.0, self.run.1);
        let around = geometry.pages_around(slot, self.stretch.0, self.stretch.1);
        let start = within.start.max(around.start);
        start..within.end.min(around.end).max(start)
    }

    /// Notes that `pages` of a slot were given back: the granules that they cover stay zeroed.
    pub(crate) fn covered(&mut self, geometry: &Geometry, slot: usize, pages: &Range<usize>) {
        let granule = |offset: usize| (offset.saturating_sub(slot * geometry.stride) / GRANULE_BYTES) as u32;
        self.zeroed.start = self.zeroed.start.max(granule(pages.start));
        self.zeroed.end = self.zeroed.end.min(granule(pages.end)).max(self.zeroed.start);
    }
}
