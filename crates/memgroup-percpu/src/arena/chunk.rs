//! One chunk: a mapping with a unit for each slot, and the metadata of one unit, which holds for
//! every unit. A unit is a row of equal blocks.
//!
//! - I1. A block is free, live or leaving. A block that is leaving is used until it is freed, and
//!   isn't moved any more.
//! - I2. `stale`: a free block that isn't stale is zero in every unit. The unit of a slot that was
//!   never admitted is zero wherever it is free.
//! - I3. `dirty`: every backed page of a slot holds a byte of a used or a dirty block. So where
//!   nothing is dirty nothing can be given back, and no page is given back twice.
//! - I4. The counts of a page are those of the blocks that touch it. Pages are counted where they
//!   lie in a unit that isn't shifted; the shift of the others is at most a page.
//! - I5. No block below `lowest` is free.

#![allow(unsafe_code)]

use core::ops::Range;
use std::sync::Arc;

use memgroup_sync::atomic::AtomicU64;

use crate::arena::os::{Place, Refused, Region};
use crate::arena::page::Geometry;
use crate::bits;

/// Marks a block that is being moved away; no owner has this number.
pub(crate) const LEAVING: u32 = u32::MAX;

/// The memory of one record: the same place in every unit of one chunk. It is a plain value; its
/// last holder passes it to `Arena::free`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Slot 0's copy, in the form that both builds have.
    pub(crate) place: Place,
    pub(crate) chunk: u32,
    /// The number of the block in its chunk.
    pub(crate) at: u32,
    pub(crate) words: u32,
}

impl Block {
    /// Returns the word `index` of the copy of `slot`, in an arena with this `stride`. Under loom
    /// it panics if the block was freed.
    ///
    /// # Safety
    ///
    /// `slot` is one of the arena's and admitted, and `index` is below `words`. The chunk stays
    /// mapped while the word is used. That holds if the block isn't free, or if a section still
    /// lasts that began before the block was freed.
    #[inline(always)]
    pub(crate) unsafe fn word(self, stride: usize, slot: usize, index: usize) -> &'static AtomicU64 {
        debug_assert!(index < self.words as usize, "word {index} of a block of {} words", self.words);
        // SAFETY: passed on to the caller.
        unsafe { self.place.word(slot * stride + index * size_of::<u64>()) }
    }
}

/// The blocks that touch one page of a unit, counted by their state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) used: u32,
    pub(crate) live: u32,
    pub(crate) dirty: u32,
}

impl Page {
    /// Returns whether the page is backed although no block needs it.
    pub(crate) fn is_empty(self) -> bool {
        self.used == 0 && self.dirty > 0
    }
}

/// The use of a chunk now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Allocations take from it. `sidelined`: some of its pages were given back.
    Open { sidelined: bool },
    /// The chunk is being depopulated, and invisible to allocation. While `in_flight`, `madvise`
    /// runs on it without the lock.
    Isolated { in_flight: bool },
    /// The chunk is being emptied of its blocks, and invisible to allocation.
    Evacuating,
}

/// A dirty stretch of blocks that is being given back, slot by slot.
///
/// Its pages that lie within the free run around it go. They are gone on the slots below `slot`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    run: (u32, u32),
    pub(crate) stretch: (u32, u32),
    pub(crate) slot: usize,
    /// The blocks that are zero on every slot so far.
    zeroed: Range<u32>,
}

impl Cursor {
    /// Returns the pages to give back on a slot. Once they are gone, only the blocks that they
    /// cover stay zeroed.
    pub(crate) fn pages_on(&mut self, geometry: &Geometry, slot: usize) -> Range<usize> {
        let within = geometry.pages_within(slot, self.run.0, self.run.1);
        let around = geometry.pages_around(slot, self.stretch.0, self.stretch.1);
        let start = within.start.max(around.start);
        let pages = start..within.end.min(around.end).max(start);
        let covered = geometry.blocks_within(slot, &pages);
        let start = self.zeroed.start.max(covered.start);
        self.zeroed = start..self.zeroed.end.min(covered.end).max(start);
        pages
    }
}

/// One chunk and its metadata; the module lists its invariants.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) region: Arc<Region>,
    pub(crate) geometry: Geometry,
    pub(crate) state: State,
    pub(crate) free: u32,
    pub(crate) live: u32,
    /// Pages that are empty, and pages with live blocks.
    pub(crate) empty_pages: u32,
    pub(crate) live_pages: u32,
    pub(crate) cursor: Option<Cursor>,
    /// Evacuation found nothing to gain here, and nothing was freed since.
    pub(crate) compacted: bool,
    pub(crate) lowest: u32,
    pub(crate) used: Box<[u64]>,
    pub(crate) dirty: Box<[u64]>,
    stale: Box<[u64]>,
    /// The owner of each used block, or [`LEAVING`].
    owners: Box<[u32]>,
    pub(crate) pages: Box<[Page]>,
}

impl Chunk {
    /// Maps a chunk that holds nothing, or returns the system's refusal.
    pub(crate) fn map(geometry: Geometry) -> Result<Self, Refused> {
        let region = Arc::new(Region::map(geometry.chunk_bytes(), geometry.page_bytes)?);
        let bitmap = || vec![0; geometry.blocks.div_ceil(64) as usize].into_boxed_slice();
        Ok(Self {
            region,
            geometry,
            state: State::Open { sidelined: false },
            free: geometry.blocks,
            live: 0,
            empty_pages: 0,
            live_pages: 0,
            cursor: None,
            compacted: false,
            lowest: 0,
            used: bitmap(),
            dirty: bitmap(),
            stale: bitmap(),
            owners: vec![0; geometry.blocks as usize].into(),
            pages: vec![Page::default(); geometry.pages_for(geometry.blocks) as usize].into(),
        })
    }

    /// Returns whether no block is used.
    pub(crate) fn is_vacant(&self) -> bool {
        self.free == self.geometry.blocks
    }

    /// The number of blocks that are leaving.
    pub(crate) fn leaving(&self) -> u32 {
        self.geometry.blocks - self.free - self.live
    }

    /// Takes the lowest free block below `ceiling`; also returns whether it must be cleared.
    pub(crate) fn take(&mut self, owner: u32, ceiling: u32) -> Option<(u32, bool)> {
        let at = bits::next_clear(&self.used, self.lowest, ceiling.min(self.geometry.blocks));
        if at >= ceiling.min(self.geometry.blocks) {
            return None;
        }
        bits::set(&mut self.used, at);
        self.lowest = at + 1;
        self.owners[at as usize] = owner;
        (self.free, self.live) = (self.free - 1, self.live + 1);
        let dirty = u32::from(bits::take(&mut self.dirty, at));
        self.change_pages(at, |page| {
            (page.used, page.live, page.dirty) = (page.used + 1, page.live + 1, page.dirty - dirty);
        });
        Some((at, bits::take(&mut self.stale, at)))
    }

    /// Marks a block free. Returns whether a page may be empty now.
    pub(crate) fn release(&mut self, at: u32) -> bool {
        debug_assert!(bits::is_set(&self.used, at), "a block that is freed is used");
        let live = u32::from(self.is_live(at));
        bits::clear(&mut self.used, at, at + 1);
        bits::set(&mut self.dirty, at);
        bits::set(&mut self.stale, at);
        self.change_pages(at, |page| {
            (page.used, page.live, page.dirty) = (page.used - 1, page.live - live, page.dirty + 1);
        });
        (self.free, self.live, self.compacted) = (self.free + 1, self.live - live, false);
        self.lowest = self.lowest.min(at);
        let (reach, blocks) = (self.geometry.page_blocks(), self.geometry.blocks);
        let start = bits::end_of_previous_set(&self.used, at.saturating_sub(reach), at);
        let end = bits::next_set(&self.used, at + 1, (at + 1 + reach).min(blocks));
        start == 0 || end == blocks || end - start >= reach
    }

    /// Marks a block as leaving: it stays used, and is live no more.
    pub(crate) fn leave(&mut self, at: u32) {
        if self.is_live(at) {
            self.owners[at as usize] = LEAVING;
            self.change_pages(at, |page| page.live -= 1);
            self.live -= 1;
        }
    }

    /// Applies `change` to the counts of each page that a block touches. The counts of pages
    /// follow (I4).
    fn change_pages(&mut self, at: u32, change: impl Fn(&mut Page)) {
        for page in &mut self.pages[self.geometry.pages_of(at)] {
            let (was_live, was_empty) = (page.live > 0, page.is_empty());
            change(page);
            self.live_pages = self.live_pages + u32::from(page.live > 0) - u32::from(was_live);
            self.empty_pages = self.empty_pages + u32::from(page.is_empty()) - u32::from(was_empty);
        }
    }

    /// Notes that the pages of a stretch were given back on every admitted slot.
    pub(crate) fn given_back(&mut self, cursor: &Cursor) {
        let (mut at, end) = cursor.stretch;
        loop {
            at = bits::next_set(&self.dirty, at, end);
            if at == end {
                break;
            }
            debug_assert!(!bits::is_set(&self.used, at), "a block that is given back is free");
            bits::take(&mut self.dirty, at);
            self.change_pages(at, |page| page.dirty -= 1);
        }
        bits::clear(&mut self.stale, cursor.zeroed.start, cursor.zeroed.end);
    }

    /// Returns a cursor at the last dirty stretch below `below`, at most `pages_max` pages long or
    /// one block. Dirty blocks belong to one stretch as long as no page fits between them.
    pub(crate) fn stretch_below(&self, below: u32, pages_max: u64) -> Option<Cursor> {
        let end = bits::end_of_previous_set(&self.dirty, 0, below);
        let last = end.checked_sub(1)?;
        let low = bits::end_of_previous_set(&self.used, 0, last);
        let run = (low, bits::next_set(&self.used, end, self.geometry.blocks));
        let mut start = last;
        loop {
            start = bits::end_of_previous_clear(&self.dirty, low, start);
            let next = bits::end_of_previous_set(&self.dirty, low, start);
            if next == low || start - next >= self.geometry.page_blocks() {
                break;
            }
            start = next;
        }
        if u64::from(self.geometry.pages_for(end - start)) > pages_max {
            let first = u64::from(self.geometry.pages_for(end)).saturating_sub(pages_max) as usize;
            start = (first * self.geometry.page_bytes).div_ceil(self.geometry.block_bytes) as u32;
        }
        let stretch = (start.min(last), end);
        Some(Cursor { run, stretch, slot: 0, zeroed: run.0..run.1 })
    }

    /// Returns whether any block is dirty.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.iter().any(|&word| word != 0)
    }

    /// Ends an isolation or evacuation: the chunk is open again, and side-lined.
    pub(crate) fn reopen(&mut self) {
        if !matches!(self.state, State::Open { .. }) {
            self.state = State::Open { sidelined: true };
        }
        self.cursor = None;
    }

    /// How many of the pages that a live block touches hold no other live block.
    pub(crate) fn pages_of_one(&self, at: u32) -> u32 {
        self.pages[self.geometry.pages_of(at)].iter().filter(|page| page.live == 1).count() as u32
    }

    fn is_live(&self, at: u32) -> bool {
        self.owners[at as usize] != LEAVING
    }

    /// Returns the highest live block below `below`, and its owner.
    pub(crate) fn live_below(&self, below: u32) -> Option<(u32, u32)> {
        let mut end = below;
        loop {
            end = bits::end_of_previous_set(&self.used, 0, end);
            let at = end.checked_sub(1)?;
            if self.is_live(at) {
                return Some((at, self.owners[at as usize]));
            }
            end = at;
        }
    }
}
