//! Giving pages back: which, when, and in what order.
//!
//! A chunk that may have something to give is *isolated*: invisible to allocation, so that nobody backs what is about to
//! go. Its dirty stretches are taken from the high end down, each on every admitted slot, neighbouring pages in one call.
//! When nothing dirty is left it is reopened as *side-lined*, and allocation prefers others to it.
//!
//! - I1. A stretch is given back on all admitted slots before its granules stop being dirty; an interruption, a refusal of
//!   the system or an allocation that needs the chunk leaves them dirty.
//! - I2. What is given back lies in one free run, and the run stays free while `madvise` runs: the chunk is in flight.
//! - B1. A page that straddles the end of a stretch which was cut short, and a stretch that is interrupted between two slots
//!   and taken up anew, are asked for twice: 0.45 us a call.
//!
//! # The lock
//!
//! It is *not* held during `madvise`: a call takes 0.2 us a page, and whoever frees or allocates meanwhile would wait. That
//! is right because of I2: pages that vanish belong to nobody, the chunk cannot be unmapped (`chunks.rs`, I4), a block freed
//! meanwhile lies outside the run, and a slot admitted meanwhile has touched nothing in it. A lock hold looks at 64 pages
//! at most.

use std::sync::Arc;
use std::time::Instant;

use core::ops::Range;

use memgroup_sync::atomic::Ordering;
use memgroup_sync::interleave;

use crate::arena::block::GRANULE_BYTES;
use crate::arena::chunk::{Chunk, State};
use crate::arena::os::Region;
use crate::arena::page::{Geometry, Kind};
use crate::arena::{Arena, Locked};
use crate::mutation::{Mutation, active};

/// The most pages of one lock hold.
const PAGES_MAX: usize = 64;

/// What one call gave back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Depopulated {
    /// Pages, of the arena's size.
    pub pages: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Requests made to the system.
    pub calls: usize,
    /// Whether another call would give back more now.
    pub more: bool,
}

/// How far the depopulation of a chunk has come: the pages of the dirty stretch that lie within its free run, on slots
/// below `slot` and the last `pages` ones of it, are given back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cursor {
    run: (u32, u32),
    stretch: (u32, u32),
    slot: usize,
    pages: usize,
    /// What is zero on every slot so far.
    zeroed: Range<u32>,
}

impl Cursor {
    /// The next stretch below `below`; only the upper end of it if that has `pages_max` pages already.
    fn new(chunk: &Chunk, below: u32, pages_max: u64) -> Option<Self> {
        let (run, mut stretch) = chunk.dirty_stretch_below(below)?;
        let page = chunk.geometry.page_granules();
        let pages = u64::from((stretch.1 - stretch.0).div_ceil(page));
        if pages > pages_max {
            stretch.0 = (stretch.1.div_ceil(page) - pages_max as u32) * page;
        }
        Some(Self { run, stretch, slot: 0, pages: 0, zeroed: run.0..run.1 })
    }

    /// The pages to give back on a slot.
    fn pages_of(&self, geometry: &Geometry, slot: usize) -> Range<usize> {
        let within = geometry.pages_within(slot, self.run.0, self.run.1);
        let around = geometry.pages_around(slot, self.stretch.0, self.stretch.1);
        let start = within.start.max(around.start);
        start..within.end.min(around.end).max(start)
    }

    /// The pages of a slot are given back: what they cover stays zeroed.
    fn covered(&mut self, geometry: &Geometry, slot: usize, pages: &Range<usize>) {
        let granule = |offset: usize| (offset.saturating_sub(slot * geometry.stride) / GRANULE_BYTES) as u32;
        self.zeroed.start = self.zeroed.start.max(granule(pages.start));
        self.zeroed.end = self.zeroed.end.min(granule(pages.end)).max(self.zeroed.start);
    }
}

/// Work on one chunk, taken under the lock and done without.
struct Batch {
    id: u32,
    region: Arc<Region>,
    /// Slot and pages, in the order in which they go.
    ranges: Vec<(usize, Range<usize>)>,
    /// Where the chunk stands when all of them are gone; the stretches finished on the way.
    after: Option<Cursor>,
    finished: Vec<Cursor>,
    pages: usize,
}

impl Arena {
    /// Gives back empty pages beyond what may stay, at most `pages_max` and at most 64: to be called again while it says
    /// that there is more. `now` drives the decay of the float.
    ///
    /// May be called by several threads at once, and never waits for one that gives back.
    pub fn depopulate(&self, now: Instant, pages_max: usize) -> Depopulated {
        self.depopulate_beyond(pages_max, |locked, empty| Some(locked.decay.allowed(now, empty)))
    }

    /// Gives back all empty pages, whatever the float and its age; at most `pages_max` and at most 64 in one call.
    pub fn depopulate_now(&self, pages_max: usize) -> Depopulated {
        self.depopulate_beyond(pages_max, |_, _| None)
    }

    /// `allowed` says how many empty bytes may stay; `None` if nothing that can go may.
    fn depopulate_beyond(
        &self,
        pages_max: usize,
        allowed: impl FnOnce(&mut Locked, u64) -> Option<u64>,
    ) -> Depopulated {
        let pages_max = pages_max.min(PAGES_MAX);
        let mut state = self.state.lock();
        let empty = self.empty_bytes(&state);
        let allowed = allowed(&mut state, empty);
        let excess = allowed.map_or(u64::MAX, |allowed| empty.saturating_sub(allowed));
        if excess == 0 || pages_max == 0 {
            return Depopulated {
                more: excess > 0 && state.chunks.pending.first(0).is_some(),
                ..Depopulated::default()
            };
        }
        let Some(batch) = self.isolate(&mut state, pages_max, excess) else { return Depopulated::default() };
        drop(state);
        interleave::point();

        let mut done = 0;
        for (_, range) in &batch.ranges {
            if batch.region.discard(range.clone()).is_err() {
                break;
            }
            done += 1;
        }
        interleave::point();

        let refused = done < batch.ranges.len();
        let bytes: u64 = batch.ranges[..done].iter().map(|(_, range)| range.len() as u64).sum();
        let calls = done + usize::from(refused);
        let pages = (bytes / self.config.page.bytes() as u64) as usize;
        // ORDERING: Relaxed; a statistic.
        self.depopulated_bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut state = self.state.lock();
        let vacant = self.book(&mut state, batch, done, allowed);
        let left = self.empty_bytes(&state);
        state.decay.given_back(empty.saturating_sub(left));
        let more = !refused
            && state.chunks.pending.first(0).is_some()
            && allowed.is_none_or(|allowed| left > allowed);
        drop(state);
        self.unmap(vacant);
        Depopulated { pages, bytes, calls, more }
    }

    /// Bytes of pages that are backed and hold nothing.
    fn empty_bytes(&self, state: &Locked) -> u64 {
        let pages: u64 =
            [Kind::Coloured, Kind::Plain].map(|kind| state.chunks.sums(kind).empty_pages).iter().sum();
        pages * (self.config.page.bytes() * self.slots.len()) as u64
    }

    /// Takes the oldest chunk that has something to give away from allocation, and what to give back of it.
    fn isolate(&self, state: &mut Locked, pages_max: usize, excess: u64) -> Option<Batch> {
        let mut candidate = state.chunks.pending.first(0);
        while let Some(id) = candidate {
            candidate = state.chunks.pending.next(id);
            let chunk = state.chunks.chunk(id);
            if !matches!(chunk.state, State::Open { .. } | State::Isolated { in_flight: false }) {
                continue;
            }
            let resumed = chunk.cursor.is_some();
            let batch = self.gather(chunk, id, pages_max, excess);
            if batch.ranges.is_empty() {
                // Nothing lies on whole pages: its dirt goes with what is freed beside it.
                for cursor in &batch.finished {
                    state.chunks.change(id, |chunk| chunk.released(cursor.stretch, cursor.zeroed.clone()));
                }
                state.chunks.change(id, |chunk| chunk.reopen());
                if resumed && state.chunks.chunk(id).is_dirty() {
                    // Something was freed above the place where the last call stopped: once more from the top.
                    state.chunks.pending.put_last(id, 0);
                    candidate = candidate.or(Some(id));
                } else {
                    state.chunks.pending.remove(id);
                }
                continue;
            }
            state.chunks.change(id, |chunk| {
                chunk.state = State::Isolated { in_flight: !active(Mutation::IsolatedChunkIsVisible) }
            });
            return Some(batch);
        }
        None
    }

    /// Notes that the first `done` ranges of a batch are given back, and lets allocation see the chunk again unless the next
    /// call is to go on with it. After a refusal its stretches stay dirty, and the chunk waits behind the others (I1).
    fn book(
        &self,
        state: &mut Locked,
        batch: Batch,
        done: usize,
        allowed: Option<u64>,
    ) -> Option<Box<Chunk>> {
        let Batch { id, ranges, after, finished, .. } = batch;
        let refused = done < ranges.len();
        if refused {
            self.count_refusals(1);
        }
        let complete = after.is_none() && !refused;
        state.chunks.change(id, |chunk| {
            for (slot, range) in &ranges[..done] {
                chunk.unbacked(*slot, range);
            }
            for cursor in finished.into_iter().filter(|_| !refused) {
                chunk.released(cursor.stretch, cursor.zeroed);
            }
        });
        let goes_on =
            !complete && !refused && allowed.is_none_or(|allowed| self.empty_bytes(state) > allowed);
        state.chunks.change(id, |chunk| {
            if goes_on {
                (chunk.state, chunk.cursor) = (State::Isolated { in_flight: false }, after);
            } else {
                chunk.reopen();
            }
        });
        if refused {
            state.chunks.pending.put_last(id, 0);
        } else if complete && !state.chunks.chunk(id).is_dirty() {
            state.chunks.pending.remove(id);
        }
        // A chunk that the next call goes on with keeps its place, even with nothing left in it.
        if goes_on { None } else { state.chunks.retire_if_vacant(id) }
    }

    /// Collects pages from where the chunk's cursor stands downwards, until there are enough.
    fn gather(&self, chunk: &Chunk, id: u32, pages_max: usize, excess: u64) -> Batch {
        let page = chunk.geometry.page_bytes;
        // Of one unit, so that all slots together give back the excess.
        let unit_pages = |excess: u64| (excess / page as u64).div_ceil(self.slots.len().max(1) as u64).max(1);
        let mut batch = Batch {
            id,
            region: Arc::clone(&chunk.region),
            ranges: Vec::new(),
            after: chunk
                .cursor
                .clone()
                .or_else(|| Cursor::new(chunk, chunk.geometry.granules(), unit_pages(excess))),
            finished: Vec::new(),
            pages: 0,
        };
        while let Some(cursor) = &mut batch.after {
            let first = cursor.slot;
            for slot in self.slots.iter().filter(|&slot| slot >= first) {
                if slot > cursor.slot {
                    (cursor.slot, cursor.pages) = (slot, 0);
                }
                let whole = cursor.pages_of(&chunk.geometry, slot);
                let left =
                    whole.start..whole.end.max(whole.start + cursor.pages * page) - cursor.pages * page;
                let take = (left.len() / page).min(pages_max - batch.pages);
                if take > 0 {
                    batch.ranges.push((slot, left.end - take * page..left.end));
                    batch.pages += take;
                }
                if take * page < left.len() {
                    cursor.pages += take;
                    return batch;
                }
                cursor.covered(&chunk.geometry, slot, &whole);
                (cursor.slot, cursor.pages) = (slot + 1, 0);
            }
            let left = excess.saturating_sub((batch.pages * page) as u64);
            let next = Cursor::new(chunk, cursor.stretch.0, unit_pages(left));
            batch.finished.extend(core::mem::replace(&mut batch.after, next));
            if batch.pages >= pages_max || left == 0 {
                return batch;
            }
        }
        batch
    }
}

#[cfg(all(test, memgroup_loom))]
#[allow(unsafe_code)]
mod loom_models {
    use super::*;
    use crate::arena::ArenaConfig;
    use crate::arena::block::{NO_OWNER, Shape, Wait};
    use crate::mutation;
    use memgroup_sync::thread;

    const SMALL: Shape = Shape::new(8, 8);

    /// An arena of one slot whose only chunk was used and has two pages to give back.
    fn used_arena() -> Arc<Arena> {
        let arena = Arc::new(Arena::new(ArenaConfig::new(1)).expect("right"));
        arena.admit(0);
        let block = arena.alloc(Shape::new(8192, 8), NO_OWNER, Wait::May).expect("loom has memory");
        // SAFETY: the slot is admitted, the word within the block.
        // ORDERING: Relaxed; the arena's lock hands the block on.
        unsafe { block.word(arena.stride_bytes(), 0, 0) }.store(9, Ordering::Relaxed);
        arena.free(block);
        arena
    }

    /// Allocates, uses and keeps a word; what it reads at the end.
    fn use_a_word(arena: &Arena, wait: Wait) -> Option<(crate::arena::block::Block, u64)> {
        let block = arena.alloc(SMALL, NO_OWNER, wait).ok()?;
        // SAFETY: the slot is admitted, the word within the block.
        let word = unsafe { block.word(arena.stride_bytes(), 0, 0) };
        // ORDERING: Relaxed, both; that the block is this thread's alone is what is modelled.
        assert_eq!(word.fetch_add(7, Ordering::Relaxed), 0, "a block is zero");
        Some((block, word.load(Ordering::Relaxed)))
    }

    fn allocation_against_isolation(wait: Wait) {
        memgroup_sync::model(move || {
            let arena = used_arena();
            let other = thread::spawn({
                let arena = Arc::clone(&arena);
                move || while arena.depopulate_now(1).more {}
            });
            let used = use_a_word(&arena, wait);
            other.join().unwrap();
            if let Some((block, value)) = used {
                assert_eq!(value, 7);
                // SAFETY: as above.
                let word = unsafe { block.word(arena.stride_bytes(), 0, 0) };
                // ORDERING: Relaxed; after the join.
                assert_eq!(word.load(Ordering::Relaxed), 7, "pages of a block in use are not given back");
            }
            arena.check();
        });
    }

    #[test]
    fn loom_e2_allocation_never_gets_what_is_being_given_back() {
        allocation_against_isolation(Wait::May);
        allocation_against_isolation(Wait::Never);
    }

    /// The mutation: the chunk stays visible while `madvise` runs.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_finds_the_word_that_is_given_back_under_its_user() {
        mutation::with(Mutation::IsolatedChunkIsVisible, || allocation_against_isolation(Wait::May));
    }

    /// The last block of a chunk is freed while pages of that chunk go, and another empty chunk is kept already.
    fn vacated_in_flight() {
        memgroup_sync::model(|| {
            let arena = used_arena();
            let take =
                |bytes| arena.alloc(Shape::new(bytes, 8), NO_OWNER, Wait::May).expect("loom has memory");
            let last = take(8);
            // Fills a chunk of its own, which is empty and kept from now on.
            arena.free(take(65_536));
            let other = thread::spawn({
                let arena = Arc::clone(&arena);
                move || arena.depopulate_now(64)
            });
            arena.free(last);
            other.join().unwrap();
            arena.check();
            while arena.depopulate_now(64).more {}
            assert_eq!(arena.stats().chunks, 1, "of two empty chunks one goes");
        });
    }

    #[test]
    fn loom_i4_a_chunk_stays_while_its_pages_go() {
        vacated_in_flight();
    }

    /// The mutation: the chunk goes as soon as it is empty.
    #[test]
    #[should_panic(expected = "and is not there")]
    fn loom_finds_the_chunk_that_is_unmapped_in_flight() {
        mutation::with(Mutation::ChunkInFlightIsUnmapped, vacated_in_flight);
    }

    #[test]
    fn loom_e1_what_one_thread_freed_is_zero_for_the_next() {
        memgroup_sync::model(|| {
            let arena = used_arena();
            let turn = |arena: &Arena| {
                if let Some((block, _)) = use_a_word(arena, Wait::May) {
                    arena.free(block);
                }
            };
            let other = thread::spawn({
                let arena = Arc::clone(&arena);
                move || turn(&arena)
            });
            turn(&arena);
            other.join().unwrap();
            arena.check();
        });
    }

    /// The mutation: a block is freed while another thread still uses it.
    #[test]
    #[should_panic(expected = "used after its block was freed")]
    fn loom_finds_the_use_of_a_block_that_was_freed() {
        memgroup_sync::model(|| {
            let arena = used_arena();
            let block = arena.alloc(SMALL, NO_OWNER, Wait::May).expect("loom has memory");
            let other = thread::spawn({
                let arena = Arc::clone(&arena);
                // SAFETY: the slot is admitted, the word within the block; that it may be free is what is looked for.
                // ORDERING: Relaxed; no order makes this right.
                move || unsafe { block.word(arena.stride_bytes(), 0, 0) }.fetch_add(1, Ordering::Relaxed)
            });
            arena.free(block);
            other.join().unwrap();
        });
    }
}
