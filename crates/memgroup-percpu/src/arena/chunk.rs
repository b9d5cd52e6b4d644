//! One chunk: a mapping with a unit for each slot, and the metadata of one unit, which is every unit's.
//!
//! - I1. A granule is used, or free. The `starts` of used runs tell blocks apart.
//! - I2. `stale`: a free granule that is not stale is zero in every unit; a unit whose slot was never admitted is zero
//!   wherever it is free.
//! - I3. `dirty`: every page of a slot that is backed holds a byte of a used block, or a dirty granule. So where nothing
//!   is dirty nothing can be given back, and no page is given back twice.
//! - I4. The counts of a page are those of its bits: used granules, used ones that are not leaving, dirty ones. Pages are
//!   counted where they lie in a unit that is not shifted; the shift of the others is at most a page.
//! - I5. `longest` and the summaries of blocks say what the bits say (see `hints.rs`).

use core::ops::Range;
use std::sync::Arc;

use crate::arena::bits;
use crate::arena::block::{NO_OWNER, Shape};
use crate::arena::depopulate::Cursor;
use crate::arena::hints::{BLOCK, Hints, Summary};
use crate::arena::os::{Refused, Region};
use crate::arena::owners::Owners;
use crate::arena::page::Geometry;

const WORDS: usize = BLOCK as usize / 64;

/// What a page of a unit holds, in granules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) used: u32,
    pub(crate) live: u32,
    pub(crate) dirty: u32,
}

impl Page {
    /// Backed, and nothing needs it.
    pub(crate) fn is_empty(self) -> bool {
        self.used == 0 && self.dirty > 0
    }
}

/// What becomes of a chunk, beside being allocated from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Allocated from; pages of it were given back if `sidelined`.
    Open { sidelined: bool },
    /// Being depopulated: invisible to allocation. While `in_flight`, `madvise` runs on it without the lock.
    Isolated { in_flight: bool },
    /// Being emptied of its movable blocks: invisible to allocation.
    Evacuating,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) region: Arc<Region>,
    pub(crate) geometry: Geometry,
    pub(crate) state: State,
    /// Granules free, live, and used but leaving.
    pub(crate) free: u32,
    pub(crate) live: u32,
    pub(crate) leaving: u32,
    /// Pages that are empty, and pages with live granules.
    pub(crate) empty_pages: u32,
    pub(crate) live_pages: u32,
    /// How often in a row it could not hold what its hints let hope for.
    pub(crate) failures: u32,
    pub(crate) cursor: Option<Cursor>,
    /// Evacuation found nothing to gain here, and nothing was freed since.
    pub(crate) settled: bool,
    pub(crate) owners: Option<Owners>,
    /// For each slot the pages that were backed as a whole; empty where the page is the system's and needs no such thing.
    pub(crate) backed: Box<[u32]>,
    pub(crate) used: Box<[u64]>,
    pub(crate) starts: Box<[u64]>,
    pub(crate) dirty: Box<[u64]>,
    stale: Box<[u64]>,
    blocks: Box<[Summary]>,
    pub(crate) pages: Box<[Page]>,
    hints: Hints,
}

impl Chunk {
    /// A chunk that holds nothing, or the system's refusal.
    pub(crate) fn map(geometry: Geometry) -> Result<Self, Refused> {
        let region = Arc::new(Region::map(geometry.chunk_bytes(), geometry.page_bytes)?);
        let granules = geometry.granules();
        let bitmap = || vec![0; granules as usize / 64].into_boxed_slice();
        let whole_pages = geometry.page_bytes > crate::arena::os::page_bytes();
        Ok(Self {
            region,
            geometry,
            state: State::Open { sidelined: false },
            free: granules,
            live: 0,
            leaving: 0,
            empty_pages: 0,
            live_pages: 0,
            failures: 0,
            cursor: None,
            settled: false,
            owners: None,
            backed: vec![0; if whole_pages { geometry.slots } else { 0 }].into(),
            used: bitmap(),
            starts: bitmap(),
            dirty: bitmap(),
            stale: bitmap(),
            blocks: vec![Summary::FREE; (granules / BLOCK) as usize].into(),
            pages: vec![Page::default(); (granules / geometry.page_granules()) as usize].into(),
            hints: Hints::new(granules),
        })
    }

    /// No free run is longer.
    pub(crate) fn longest(&self) -> u32 {
        self.hints.longest()
    }

    /// Whether no block is in it.
    pub(crate) fn is_vacant(&self) -> bool {
        self.free == self.geometry.granules()
    }

    /// Takes the lowest place for `shape` that ends at or before `ceiling`; whether it has to be cleared.
    pub(crate) fn take(&mut self, shape: Shape, ceiling: u32) -> Option<(u32, bool)> {
        if self.hints.longest() < shape.count {
            return None;
        }
        let start = self.find(shape, ceiling)?;
        Some((start, self.occupy(start, shape.count)))
    }

    fn find(&mut self, shape: Shape, ceiling: u32) -> Option<u32> {
        // Every run of this length holds the shape, whatever its alignment.
        let certain = shape.count + shape.align - 1;
        let first = self.hints.first_block(shape.count);
        let mut run = first * BLOCK;
        for block in first..self.blocks.len() as u32 {
            let (begin, summary) = (block * BLOCK, self.blocks[block as usize]);
            if begin >= ceiling {
                return None;
            }
            let mut found = fit(run, begin + u32::from(summary.left), shape);
            if u32::from(summary.left) < BLOCK {
                if found.is_none() && u32::from(summary.longest) >= shape.count {
                    found = self.find_within(begin, shape);
                }
                if found.is_none() {
                    run = begin + BLOCK - u32::from(summary.right);
                }
            }
            if let Some(start) = found {
                self.hints.none_before(certain, start / BLOCK);
                return (start + shape.count <= ceiling).then_some(start);
            }
        }
        self.hints.none_before(certain, self.blocks.len() as u32);
        self.count_runs();
        None
    }

    /// The first place within one block.
    fn find_within(&self, begin: u32, shape: Shape) -> Option<u32> {
        let (mut at, end) = (begin, begin + BLOCK);
        while at < end {
            let run = bits::next_clear(&self.used, at, end);
            at = bits::next_set(&self.used, run, end);
            if let Some(start) = fit(run, at, shape) {
                return Some(start);
            }
        }
        None
    }

    /// Sets the hints right by a walk over the summaries.
    fn count_runs(&mut self) {
        let (mut best, mut others, mut inner, mut run) = ((0, 0), 0, 0, 0);
        let mut see = |start: u32, end: u32| {
            if end - start > best.0 {
                others = best.0;
                best = (end - start, start);
            } else {
                others = others.max(end - start);
            }
        };
        for (block, summary) in self.blocks.iter().enumerate() {
            let begin = block as u32 * BLOCK;
            if u32::from(summary.left) == BLOCK {
                continue;
            }
            see(run, begin + u32::from(summary.left));
            if summary.longest > summary.left && summary.longest > summary.right {
                let shape = Shape { count: u32::from(summary.longest), align: 1 };
                let start = self.find_within(begin, shape).unwrap_or(begin);
                see(start, start + shape.count);
            }
            // Of equally long runs within a block the summary tells one.
            inner = inner.max(u32::from(summary.longest));
            run = begin + BLOCK - u32::from(summary.right);
        }
        see(run, self.geometry.granules());
        self.hints.counted(best.0, best.1, others.max(inner));
    }

    /// Marks a free run used; whether it has to be cleared.
    fn occupy(&mut self, start: u32, count: u32) -> bool {
        let end = start + count;
        debug_assert_eq!(bits::count(&self.used, start, end), 0, "a run that is used is not given out");
        bits::set(&mut self.used, start, end);
        bits::set(&mut self.starts, start, start + 1);
        let must_clear = bits::next_set(&self.stale, start, end) < end;
        for (page, from, to) in self.geometry.pages_of(start, end) {
            let dirty = bits::count(&self.dirty, from, to);
            let (before, counts) = (self.pages[page], &mut self.pages[page]);
            counts.used += to - from;
            counts.live += to - from;
            counts.dirty -= dirty;
            self.live_pages += u32::from(before.live == 0);
            self.empty_pages -= u32::from(before.is_empty());
        }
        bits::clear(&mut self.dirty, start, end);
        if must_clear {
            bits::clear(&mut self.stale, start, end);
        }
        self.free -= count;
        self.live += count;
        self.failures = 0;
        self.summarise(start, end);
        self.hints.taken(start, end);
        must_clear
    }

    /// Marks a block free; returns the free run it lies in.
    pub(crate) fn release(&mut self, start: u32, count: u32, leaving: bool) -> (u32, u32) {
        let end = start + count;
        debug_assert_eq!(bits::count(&self.used, start, end), count, "a block that is freed is used");
        debug_assert!(bits::is_set(&self.starts, start), "a block is freed from where it begins");
        debug_assert_eq!(bits::count(&self.starts, start, end), 1, "a block is freed alone");
        bits::clear(&mut self.used, start, end);
        bits::clear(&mut self.starts, start, start + 1);
        bits::set(&mut self.dirty, start, end);
        bits::set(&mut self.stale, start, end);
        for (page, from, to) in self.geometry.pages_of(start, end) {
            let counts = &mut self.pages[page];
            counts.used -= to - from;
            counts.dirty += to - from;
            if !leaving {
                counts.live -= to - from;
                self.live_pages -= u32::from(counts.live == 0);
            }
            self.empty_pages += u32::from(counts.is_empty());
        }
        self.free += count;
        if leaving {
            self.leaving -= count;
        } else {
            self.live -= count;
        }
        (self.failures, self.settled) = (0, false);
        self.summarise(start, end);
        let run = self.run_around(start, end);
        self.hints.freed(run.0, run.1);
        run
    }

    /// A used block stops being live, or becomes live again.
    pub(crate) fn set_leaving(&mut self, start: u32, count: u32, leaving: bool) {
        for (page, from, to) in self.geometry.pages_of(start, start + count) {
            let counts = &mut self.pages[page];
            if leaving {
                counts.live -= to - from;
                self.live_pages -= u32::from(counts.live == 0);
            } else {
                self.live_pages += u32::from(counts.live == 0);
                counts.live += to - from;
            }
        }
        let (from, to) =
            if leaving { (&mut self.live, &mut self.leaving) } else { (&mut self.leaving, &mut self.live) };
        *from -= count;
        *to += count;
    }

    /// What could be given back of the pages of a free stretch was, on every admitted slot; `zeroed` is zero on all of them.
    pub(crate) fn released(&mut self, (start, end): (u32, u32), zeroed: Range<u32>) {
        debug_assert_eq!(bits::count(&self.used, start, end), 0, "what is given back is free");
        for (page, from, to) in self.geometry.pages_of(start, end) {
            let (before, counts) = (self.pages[page], &mut self.pages[page]);
            counts.dirty -= bits::count(&self.dirty, from, to);
            self.empty_pages -= u32::from(before.is_empty() && !counts.is_empty());
        }
        bits::clear(&mut self.dirty, start, end);
        bits::clear(&mut self.stale, zeroed.start, zeroed.end);
    }

    /// The last dirty stretch below `below`, and the free run it lies in. Dirty granules belong to one stretch as long as no
    /// page fits between them.
    pub(crate) fn dirty_stretch_below(&self, below: u32) -> Option<((u32, u32), (u32, u32))> {
        let end = bits::end_of_previous_set(&self.dirty, 0, below);
        if end == 0 {
            return None;
        }
        let run = self.run_around(end - 1, end);
        let mut start = end;
        loop {
            start = bits::end_of_previous_clear(&self.dirty, run.0, start);
            let next = bits::end_of_previous_set(&self.dirty, run.0, start);
            if next == run.0 || start - next >= self.geometry.page_granules() {
                return Some((run, (start, end)));
            }
            start = next;
        }
    }

    /// Whether anything is dirty.
    pub(crate) fn is_dirty(&self) -> bool {
        bits::next_set(&self.dirty, 0, self.geometry.granules()) < self.geometry.granules()
    }

    /// Held for nothing any more; side-lined if it was.
    pub(crate) fn reopen(&mut self) {
        if !matches!(self.state, State::Open { .. }) {
            self.state = State::Open { sidelined: true };
        }
        self.cursor = None;
    }

    fn summarise(&mut self, start: u32, end: u32) {
        for block in (start / BLOCK) as usize..=((end - 1) / BLOCK) as usize {
            self.blocks[block] = Summary::of(&self.used[block * WORDS..][..WORDS]);
        }
    }

    /// The free run around the free granules `start..end`.
    pub(crate) fn run_around(&self, start: u32, end: u32) -> (u32, u32) {
        let mut block = start / BLOCK;
        let mut first = bits::end_of_previous_set(&self.used, block * BLOCK, start);
        while first == block * BLOCK && block > 0 {
            block -= 1;
            first -= u32::from(self.blocks[block as usize].right);
        }
        let mut block = (end - 1) / BLOCK;
        let mut last = bits::next_set(&self.used, end, (block + 1) * BLOCK);
        while last == (block + 1) * BLOCK && last < self.geometry.granules() {
            block += 1;
            last += u32::from(self.blocks[block as usize].left);
        }
        (first, last)
    }

    /// The used runs, in order; blocks that touch are one run.
    pub(crate) fn used_runs(&self) -> Vec<(u32, u32)> {
        let (mut runs, mut at, all) = (Vec::new(), 0, self.geometry.granules());
        loop {
            let start = bits::next_set(&self.used, at, all);
            if start == all {
                return runs;
            }
            at = bits::next_clear(&self.used, start, all);
            runs.push((start, at));
        }
    }

    /// Backs the whole pages that hold `start..end` for some slots, those that are not backed yet. If the system refuses,
    /// what was backed here is given back.
    pub(crate) fn back(
        &mut self,
        slots: impl Iterator<Item = usize>,
        start: u32,
        end: u32,
    ) -> Result<(), Refused> {
        let mut done = Vec::new();
        for slot in slots {
            let (first, missing) = self.missing(slot, start, end);
            for page in missing {
                let backed = self.region.populate(self.page_range(first, page));
                if let Err(refused) = backed {
                    for (slot, first, page) in done {
                        if self.region.discard(self.page_range(first, page)).is_ok() {
                            self.backed[slot] &= !(1 << page);
                        }
                    }
                    return Err(refused);
                }
                self.backed[slot] |= 1 << page;
                done.push((slot, first, page));
            }
        }
        Ok(())
    }

    /// Where the pages of a slot begin, and those among them that hold `start..end` and are not backed.
    fn missing(&self, slot: usize, start: u32, end: u32) -> (usize, Vec<usize>) {
        let first = self.geometry.pages_around(slot, 0, 1).start;
        let around = self.geometry.pages_around(slot, start, end);
        let page = self.geometry.page_bytes;
        let pages = (around.start - first) / page..(around.end - first) / page;
        (first, pages.filter(|page| self.backed[slot] >> page & 1 == 0).collect())
    }

    fn page_range(&self, first: usize, page: usize) -> Range<usize> {
        let start = first + page * self.geometry.page_bytes;
        start..start + self.geometry.page_bytes
    }

    /// Notes that pages of a slot were given back.
    pub(crate) fn unbacked(&mut self, slot: usize, range: &Range<usize>) {
        let first = self.geometry.pages_around(slot, 0, 1).start;
        let page = self.geometry.page_bytes;
        if let Some(backed) = self.backed.get_mut(slot) {
            for page in (range.start - first) / page..(range.end - first) / page {
                *backed &= !(1 << page);
            }
        }
    }

    /// How many of the pages that a live block touches hold nothing else that is live.
    pub(crate) fn pages_of_one(&self, start: u32, count: u32) -> u32 {
        let own = |&(page, from, to): &(usize, u32, u32)| self.pages[page].live == to - from;
        self.geometry.pages_of(start, start + count).filter(own).count() as u32
    }

    #[cfg(test)]
    pub(crate) fn summaries(&self) -> &[Summary] {
        &self.blocks
    }

    #[cfg(test)]
    pub(crate) fn hints(&self) -> &Hints {
        &self.hints
    }

    /// How many granules the block at `start` has.
    pub(crate) fn count_at(&self, start: u32) -> u32 {
        let all = self.geometry.granules();
        let free = bits::next_clear(&self.used, start, all);
        bits::next_set(&self.starts, start + 1, free) - start
    }

    /// The owner and shape of the block at `start`.
    pub(crate) fn owner_of(&self, start: u32, count: u32) -> (u32, Shape) {
        match &self.owners {
            Some(owners) => owners.get(start, count),
            None => (NO_OWNER, Shape { count, align: 1 }),
        }
    }

    /// Whether the block can be given an owner without allocating.
    pub(crate) fn can_own(&self, shape: Shape) -> bool {
        self.owners.as_ref().is_some_and(|owners| owners.has_room_for(shape))
    }

    /// Makes the table of owners, if a block of this shape needs it.
    pub(crate) fn make_room_for_owner(&mut self, shape: Shape) -> &mut Owners {
        let granules = self.geometry.granules();
        let owners = self.owners.get_or_insert_with(|| Owners::new(granules));
        owners.make_room_for(shape);
        owners
    }

    /// Notes the owner of a block that was just taken. A table is made on the first one.
    pub(crate) fn set_owner(&mut self, start: u32, shape: Shape, owner: u32) {
        if owner != NO_OWNER || self.can_own(shape) {
            self.make_room_for_owner(shape).set(start, shape, owner);
        }
    }
}

/// The first place for `shape` in the free run `start..end`.
fn fit(start: u32, end: u32, shape: Shape) -> Option<u32> {
    let start = start.next_multiple_of(shape.align);
    (start + shape.count <= end).then_some(start)
}
