//! One chunk: a mapping with a unit for each slot, and the metadata of one unit, which holds for every unit.
//!
//! - I1. A granule is used or free. The `starts` of used runs separate the blocks.
//! - I2. `stale`: a free granule that is not stale is zero in every unit. The unit of a slot that was never admitted is zero
//!   wherever it is free.
//! - I3. `dirty`: every backed page of a slot holds a byte of a used block or a dirty granule. So where nothing is dirty
//!   nothing can be given back, and no page is given back twice.
//! - I4. The counts of a page are those of its bits: used granules, used ones that are not leaving, dirty ones. Pages are
//!   counted where they lie in a unit that is not shifted; the shift of the others is at most a page.
//! - I5. `longest` and the summaries of blocks agree with the bits (see `hints.rs`).

use core::ops::Range;
use std::sync::Arc;

use crate::arena::block::{LEAVING, NO_OWNER, Shape};
use crate::arena::cursor::Cursor;
use crate::arena::hints::{BLOCK, Hints, Summary};
use crate::arena::os::{self, Refused, Region};
use crate::arena::owners::Owners;
use crate::arena::page::Geometry;
use crate::bits;

const WORDS: usize = BLOCK as usize / 64;

/// The granules of one page of a unit, counted by their state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) used: u32,
    pub(crate) live: u32,
    pub(crate) dirty: u32,
}

impl Page {
    /// Whether the page is backed although no block needs it.
    pub(crate) fn is_empty(self) -> bool {
        self.used == 0 && self.dirty > 0
    }
}

/// The use of a chunk now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Allocations take from it. `sidelined`: some of its pages were given back.
    Open { sidelined: bool },
    /// The chunk is being depopulated, and invisible to allocation. While `in_flight`, `madvise` runs on it without the lock.
    Isolated { in_flight: bool },
    /// The chunk is being emptied of its movable blocks, and invisible to allocation.
    Evacuating,
}

/// One chunk and its metadata; the module lists its invariants.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) region: Arc<Region>,
    pub(crate) geometry: Geometry,
    pub(crate) state: State,
    /// Granules that are free, live, and used but leaving.
    pub(crate) free: u32,
    pub(crate) live: u32,
    pub(crate) leaving: u32,
    /// Pages that are empty, and pages with live granules.
    pub(crate) empty_pages: u32,
    pub(crate) live_pages: u32,
    /// How often in a row it had no room although its hints promised some.
    pub(crate) failures: u32,
    pub(crate) cursor: Option<Cursor>,
    /// Evacuation found nothing to gain here, and nothing was freed since.
    pub(crate) compacted: bool,
    owners: Option<Owners>,
    /// For each slot the pages that were backed as a whole; empty where pages are the system's own.
    backed: Box<[u32]>,
    pub(crate) used: Box<[u64]>,
    pub(crate) starts: Box<[u64]>,
    pub(crate) dirty: Box<[u64]>,
    stale: Box<[u64]>,
    pub(crate) blocks: Box<[Summary]>,
    pub(crate) pages: Box<[Page]>,
    pub(crate) hints: Hints,
}

impl Chunk {
    /// Maps a chunk that holds nothing, or returns the system's refusal.
    pub(crate) fn map(geometry: Geometry) -> Result<Self, Refused> {
        let region = Arc::new(Region::map(geometry.chunk_bytes(), geometry.page_bytes)?);
        let granules = geometry.granules();
        let bitmap = || vec![0; granules as usize / 64].into_boxed_slice();
        let whole_pages = geometry.page_bytes > os::page_bytes();
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
            compacted: false,
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

    /// Whether no block is in it.
    pub(crate) fn is_vacant(&self) -> bool {
        self.free == self.geometry.granules()
    }

    /// Takes the lowest place for `shape` that ends at or before `ceiling`; also returns whether it has to be cleared.
    pub(crate) fn take(&mut self, shape: Shape, ceiling: u32) -> Option<(u32, bool)> {
        if self.hints.longest < shape.count {
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
        self.recount_runs();
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

    /// Corrects the hints by a walk over the summaries.
    fn recount_runs(&mut self) {
        let (mut best, mut others, mut inner, mut run) = ((0, 0), 0, 0, 0);
        let mut count = |start: u32, end: u32| {
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
            count(run, begin + u32::from(summary.left));
            if summary.longest > summary.left && summary.longest > summary.right {
                let shape = Shape { count: u32::from(summary.longest), align: 1 };
                let start = self.find_within(begin, shape).unwrap_or(begin);
                count(start, start + shape.count);
            }
            // Of equally long runs within a block the summary names one.
            inner = inner.max(u32::from(summary.longest));
            run = begin + BLOCK - u32::from(summary.right);
        }
        count(run, self.geometry.granules());
        self.hints.counted(best.0, best.1, others.max(inner));
    }

    /// Applies `change` to the counts of each page of `start..end`, with the dirty bits and the part of the range on that page. The
    /// counts of pages follow (I4).
    fn change_pages(&mut self, start: u32, end: u32, change: impl Fn(&mut Page, &[u64], u32, u32)) {
        for (page, from, to) in self.geometry.pages_of(start, end) {
            let page = &mut self.pages[page];
            let (was_live, was_empty) = (page.live > 0, page.is_empty());
            change(page, &self.dirty, from, to);
            if (page.live > 0, page.is_empty()) != (was_live, was_empty) {
                self.live_pages = self.live_pages + u32::from(page.live > 0) - u32::from(was_live);
                self.empty_pages = self.empty_pages + u32::from(page.is_empty()) - u32::from(was_empty);
            }
        }
    }

    /// Marks a free run used; returns whether it has to be cleared.
    fn occupy(&mut self, start: u32, count: u32) -> bool {
        let end = start + count;
        debug_assert_eq!(bits::count(&self.used, start, end), 0, "a run that is used is not given out");
        bits::set(&mut self.used, start, end);
        bits::set(&mut self.starts, start, start + 1);
        let must_clear = bits::next_set(&self.stale, start, end) < end;
        self.change_pages(start, end, |page, dirty, from, to| {
            page.used += to - from;
            page.live += to - from;
            page.dirty -= bits::count(dirty, from, to);
        });
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

    /// Marks a block free; returns the free run around it.
    pub(crate) fn release(&mut self, start: u32, count: u32) -> (u32, u32) {
        let end = start + count;
        debug_assert_eq!(bits::count(&self.used, start, end), count, "a block that is freed is used");
        debug_assert!(bits::is_set(&self.starts, start), "a block is freed from where it begins");
        debug_assert_eq!(bits::count(&self.starts, start, end), 1, "a block is freed alone");
        let leaving = self.owner_of(start, count) == LEAVING;
        bits::clear(&mut self.used, start, end);
        bits::clear(&mut self.starts, start, start + 1);
        bits::set(&mut self.dirty, start, end);
        bits::set(&mut self.stale, start, end);
        self.change_pages(start, end, |page, _, from, to| {
            page.used -= to - from;
            page.live -= if leaving { 0 } else { to - from };
            page.dirty += to - from;
        });
        self.free += count;
        *(if leaving { &mut self.leaving } else { &mut self.live }) -= count;
        (self.failures, self.compacted) = (0, false);
        self.summarise(start, end);
        let run = self.run_around(start, end);
        self.hints.freed(run.0, run.1);
        run
    }

    /// Marks a movable block as leaving: it stays used, and is live no more.
    pub(crate) fn leave(&mut self, start: u32, count: u32) {
        if [LEAVING, NO_OWNER].contains(&self.owner_of(start, count)) {
            return;
        }
        self.set_owner(start, count, LEAVING);
        self.change_pages(start, start + count, |page, _, from, to| page.live -= to - from);
        self.live -= count;
        self.leaving += count;
    }

    /// Notes that the pages of a free stretch were given back on every admitted slot, and that `zeroed` is zero on all of them.
    pub(crate) fn given_back(&mut self, (start, end): (u32, u32), zeroed: Range<u32>) {
        debug_assert_eq!(bits::count(&self.used, start, end), 0, "a stretch that is given back is free");
        self.change_pages(start, end, |page, dirty, from, to| page.dirty -= bits::count(dirty, from, to));
        bits::clear(&mut self.dirty, start, end);
        bits::clear(&mut self.stale, zeroed.start, zeroed.end);
    }

    /// A cursor at the last dirty stretch below `below`, at most `pages_max` pages long. Dirty granules belong to one stretch as
    /// long as no page fits between them.
    pub(crate) fn stretch_below(&self, below: u32, pages_max: u64) -> Option<Cursor> {
        let end = bits::end_of_previous_set(&self.dirty, 0, below);
        if end == 0 {
            return None;
        }
        let (run, page) = (self.run_around(end - 1, end), self.geometry.page_granules());
        let mut start = end;
        loop {
            start = bits::end_of_previous_clear(&self.dirty, run.0, start);
            let next = bits::end_of_previous_set(&self.dirty, run.0, start);
            if next == run.0 || start - next >= page {
                break;
            }
            start = next;
        }
        if u64::from((end - start).div_ceil(page)) > pages_max {
            start = (end.div_ceil(page) - pages_max as u32) * page;
        }
        Some(Cursor::new(run, (start, end)))
    }

    /// Whether any granule is dirty.
    pub(crate) fn is_dirty(&self) -> bool {
        bits::next_set(&self.dirty, 0, self.geometry.granules()) < self.geometry.granules()
    }

    /// Ends an isolation or evacuation: the chunk is open again, and side-lined.
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
    fn run_around(&self, start: u32, end: u32) -> (u32, u32) {
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

    /// The used runs, in order. Blocks that touch are one run.
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

    /// Backs the whole pages that hold `start..end` for some slots, where they are not backed yet. If the system refuses one,
    /// the pages that this call backed are given back.
    pub(crate) fn back(
        &mut self,
        slots: impl Iterator<Item = usize>,
        start: u32,
        end: u32,
    ) -> Result<(), Refused> {
        let mut done = Vec::new();
        for slot in slots {
            for page in self.pages_of(slot, &self.geometry.pages_around(slot, start, end)) {
                if self.backed[slot] >> page & 1 != 0 {
                    continue;
                }
                if let Err(refused) = self.region.populate(self.page_range(slot, page)) {
                    for (slot, page) in done {
                        if self.region.discard(self.page_range(slot, page)).is_ok() {
                            self.backed[slot] &= !(1 << page);
                        }
                    }
                    return Err(refused);
                }
                self.backed[slot] |= 1 << page;
                done.push((slot, page));
            }
        }
        Ok(())
    }

    /// Notes that pages of a slot were given back.
    pub(crate) fn unbacked(&mut self, slot: usize, range: &Range<usize>) {
        let pages = self.pages_of(slot, range);
        if let Some(backed) = self.backed.get_mut(slot) {
            pages.for_each(|page| *backed &= !(1 << page));
        }
    }

    /// The pages of `slot` in `range` of the chunk's bytes, by their number.
    fn pages_of(&self, slot: usize, range: &Range<usize>) -> Range<usize> {
        let (first, page) = (self.page_range(slot, 0).start, self.geometry.page_bytes);
        (range.start - first) / page..(range.end - first) / page
    }

    fn page_range(&self, slot: usize, page: usize) -> Range<usize> {
        let start = self.geometry.pages_around(slot, 0, 1).start + page * self.geometry.page_bytes;
        start..start + self.geometry.page_bytes
    }

    /// How many of the pages that a live block touches hold no other live block.
    pub(crate) fn pages_of_one(&self, start: u32, count: u32) -> u32 {
        let own = |&(page, from, to): &(usize, u32, u32)| self.pages[page].live == to - from;
        self.geometry.pages_of(start, start + count).filter(own).count() as u32
    }

    /// How many granules the block at `start` has.
    pub(crate) fn count_at(&self, start: u32) -> u32 {
        let all = self.geometry.granules();
        let free = bits::next_clear(&self.used, start, all);
        bits::next_set(&self.starts, start + 1, free) - start
    }

    /// The owner of the block at `start`.
    pub(crate) fn owner_of(&self, start: u32, count: u32) -> u32 {
        self.owners.as_ref().map_or(NO_OWNER, |owners| owners.get(start, count))
    }

    /// Whether a block of `count` granules can be given an owner without allocating.
    pub(crate) fn can_own(&self, count: u32) -> bool {
        self.owners.as_ref().is_some_and(|owners| owners.has_room_for(count))
    }

    /// Makes the table of owners, if a block of `count` granules needs it.
    pub(crate) fn make_room_for_owner(&mut self, count: u32) -> &mut Owners {
        let granules = self.geometry.granules();
        let owners = self.owners.get_or_insert_with(|| Owners::new(granules));
        owners.make_room_for(count);
        owners
    }

    /// Notes the owner of a block that was just taken. The first owner makes the table.
    pub(crate) fn set_owner(&mut self, start: u32, count: u32, owner: u32) {
        if owner != NO_OWNER || self.can_own(count) {
            self.make_room_for_owner(count).set(start, count, owner);
        }
    }
}

/// The first place for `shape` in the free run `start..end`.
fn fit(start: u32, end: u32, shape: Shape) -> Option<u32> {
    let start = start.next_multiple_of(shape.align);
    (start + shape.count <= end).then_some(start)
}
