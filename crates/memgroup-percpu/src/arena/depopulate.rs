//! Giving pages back: the choice of pages, and the order in which they go.
//!
//! A chunk that may have pages to give back is *isolated*. Allocation doesn't see it, so no thread
//! backs a page that is about to go. Its dirty stretches are given back from the high end down,
//! each on every admitted slot, neighbouring pages in one call. When nothing dirty is left, the
//! chunk is reopened as *side-lined*, and allocation prefers others to it.
//!
//! - I1. A stretch is given back on all admitted slots before its blocks stop being dirty. An
//!   interruption, a refusal of the system or an allocation that needs the chunk leaves them
//!   dirty.
//! - I2. Pages that are given back lie in one free run, and the run stays free while `madvise`
//!   runs: the chunk is in flight.
//! - B1. Two kinds of pages are given back twice, at 0.45 us a call. One lies across the end of a
//!   stretch that was cut short. The other belongs to a stretch that was interrupted between two
//!   slots.
//!
//! # The lock
//!
//! The lock is *not* held during `madvise`. A call takes 0.2 us a page, and another thread that
//! frees or allocates would wait that long. I2 makes this safe. Pages that vanish belong to no
//! block, and the chunk cannot be unmapped (`chunks.rs`, I4). A block that is freed meanwhile lies
//! outside the run. A slot that is admitted meanwhile has touched nothing in it. One lock hold
//! visits at most 64 pages, or those of one block on one slot.

use core::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use memgroup_sync::atomic::Ordering;
use memgroup_sync::interleave;

use crate::arena::alloc::{Arena, Locked};
use crate::arena::chunk::{Chunk, Cursor, State};
use crate::arena::os::Region;
use crate::mutation::{Mutation, active};

/// The most pages of one lock hold, unless a single block has more.
const PAGES_MAX: usize = 64;

/// The memory that one call gave back.
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

/// Pages of one chunk, chosen under the lock and given back without it.
struct Batch {
    id: u32,
    region: Arc<Region>,
    /// The pages, in the order in which they go.
    ranges: Vec<Range<usize>>,
    /// The position of the chunk's depopulation after these ranges, and the stretches finished on
    /// the way.
    after: Option<Cursor>,
    finished: Vec<Cursor>,
    pages: usize,
}

impl Arena {
    /// Gives back empty pages beyond the float, at most `pages_max` and at most 64, or those of
    /// one record on one slot. The caller calls it again while it returns `more`. `now` drives
    /// the decay of the float.
    ///
    /// Several threads may call it at once. It never waits for another thread's system call.
    pub fn depopulate(&self, now: Instant, pages_max: usize) -> Depopulated {
        self.depopulate_at(Some(now), pages_max)
    }

    /// Gives back all empty pages, whatever the float and its age; as many in one call as
    /// [`depopulate`](Self::depopulate).
    pub fn depopulate_now(&self, pages_max: usize) -> Depopulated {
        self.depopulate_at(None, pages_max)
    }

    /// Without a time no empty page may stay.
    fn depopulate_at(&self, now: Option<Instant>, pages_max: usize) -> Depopulated {
        let pages_max = pages_max.min(PAGES_MAX);
        let mut state = self.state.lock();
        let empty = self.empty_bytes(&state);
        let allowed = now.map(|now| state.decay.allowed(now, empty));
        let excess = allowed.map_or(u64::MAX, |allowed| empty.saturating_sub(allowed));
        if excess == 0 || pages_max == 0 {
            let more = excess > 0 && state.chunks.pending.first(0).is_some();
            return Depopulated { more, ..Depopulated::default() };
        }
        let Some(batch) = self.isolate(&mut state, pages_max, excess) else {
            return Depopulated::default();
        };
        drop(state);
        interleave::point();

        let discarded = |range: &&Range<usize>| batch.region.discard((*range).clone()).is_ok();
        let done = batch.ranges.iter().take_while(discarded).count();
        interleave::point();

        let refused = done < batch.ranges.len();
        let bytes: u64 = batch.ranges[..done].iter().map(|range| range.len() as u64).sum();
        let pages = (bytes / self.geometry.page_bytes as u64) as usize;
        // ORDERING: Relaxed; a statistic.
        self.depopulated_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.count_refusals(u64::from(refused));
        let mut state = self.state.lock();
        let vacant = self.book(&mut state, batch, refused, allowed);
        let left = self.empty_bytes(&state);
        state.decay.given_back(empty.saturating_sub(left));
        let more = !refused
            && state.chunks.pending.first(0).is_some()
            && allowed.is_none_or(|allowed| left > allowed);
        drop(state);
        self.unmap(vacant);
        Depopulated { pages, bytes, calls: done + usize::from(refused), more }
    }

    /// Bytes of pages that are backed and hold nothing.
    fn empty_bytes(&self, state: &Locked) -> u64 {
        state.chunks.sums.empty_pages * (self.geometry.page_bytes * self.slots.len()) as u64
    }

    /// Isolates the oldest chunk that has pages to give back, and chooses those pages.
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
            if !batch.ranges.is_empty() {
                let in_flight = !active(Mutation::IsolatedChunkIsVisible);
                state.chunks.change(id, |chunk| chunk.state = State::Isolated { in_flight });
                return Some(batch);
            }
            // Nothing lies on whole pages: its dirt goes with the blocks that are freed beside it.
            state.chunks.change(id, |chunk| {
                batch.finished.iter().for_each(|cursor| chunk.given_back(cursor));
                chunk.reopen();
            });
            if resumed && state.chunks.chunk(id).is_dirty() {
                // A block was freed above the place where the last call stopped: again from the
                // top.
                state.chunks.pending.put_last(id, 0);
                candidate = candidate.or(Some(id));
            } else {
                state.chunks.pending.remove(id);
            }
        }
        None
    }

    /// Notes that a batch was given back. Opens the chunk to allocation unless the next call goes
    /// on with it. After a refusal its stretches stay dirty, and the chunk waits until the others
    /// had their turn (I1).
    fn book(
        &self,
        state: &mut Locked,
        batch: Batch,
        refused: bool,
        allowed: Option<u64>,
    ) -> Option<Box<Chunk>> {
        let Batch { id, after, finished, .. } = batch;
        let complete = after.is_none() && !refused;
        state.chunks.change(id, |chunk| {
            finished.iter().filter(|_| !refused).for_each(|cursor| chunk.given_back(cursor));
        });
        let has_excess = || allowed.is_none_or(|allowed| self.empty_bytes(state) > allowed);
        let goes_on = !complete && !refused && has_excess();
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

    /// Chooses pages from the chunk's cursor downwards, until there are enough.
    fn gather(&self, chunk: &Chunk, id: u32, pages_max: usize, excess: u64) -> Batch {
        let (geometry, page) = (&chunk.geometry, chunk.geometry.page_bytes);
        // Pages of one unit, so that all slots together give back the excess.
        let stretch_below = |below, excess: u64| {
            let pages = (excess / page as u64).div_ceil(self.slots.len().max(1) as u64);
            // In a unit that is shifted, they may touch a page more.
            chunk.stretch_below(below, pages.min(pages_max as u64 - 1).max(1))
        };
        let mut batch = Batch {
            id,
            region: Arc::clone(&chunk.region),
            ranges: Vec::new(),
            after: chunk.cursor.clone().or_else(|| stretch_below(geometry.blocks, excess)),
            finished: Vec::new(),
            pages: 0,
        };
        while let Some(cursor) = &mut batch.after {
            let first = cursor.slot;
            for slot in self.slots.iter().filter(|&slot| slot >= first) {
                let pages = cursor.pages_on(geometry, slot);
                let count = pages.len() / page;
                if batch.pages > 0 && batch.pages + count > pages_max {
                    cursor.slot = slot;
                    return batch;
                }
                batch.pages += count;
                batch.ranges.extend((count > 0).then_some(pages));
            }
            let left = excess.saturating_sub((batch.pages * page) as u64);
            let next = stretch_below(cursor.stretch.0, left);
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
    use memgroup_sync::thread;

    use super::*;
    use crate::arena::chunk::Block;
    use crate::arena::config::ArenaConfig;
    use crate::mutation;

    /// An arena of one slot with blocks of this many words, and with one chunk.
    fn arena(words: usize) -> Arc<Arena> {
        let arena = Arc::new(Arena::new(ArenaConfig::new(1), words).expect("right"));
        arena.slots.insert(0);
        arena.provide(1).expect("loom has memory");
        arena
    }

    /// An arena with a page that was used and can be given back.
    fn used_arena() -> Arc<Arena> {
        let arena = arena(1);
        let block = arena.alloc(0).expect("there is a chunk");
        // SAFETY: the slot is admitted, the word within the block.
        // ORDERING: Relaxed; the arena's lock hands the block on.
        unsafe { block.word(arena.geometry.stride, 0, 0) }.store(9, Ordering::Relaxed);
        arena.free(block);
        arena
    }

    /// Allocates, uses and keeps a word; returns the block and its last value.
    fn use_a_word(arena: &Arena) -> Option<(Block, u64)> {
        // The model checker runs another thread before a lock that waits, and none before
        // `try_lock`.
        drop(arena.state.lock());
        let block = arena.alloc(0)?;
        // SAFETY: the slot is admitted, the word within the block.
        let word = unsafe { block.word(arena.geometry.stride, 0, 0) };
        // ORDERING: Relaxed, both; the oracle: the block is this thread's alone.
        assert_eq!(word.fetch_add(7, Ordering::Relaxed), 0, "a block is zero");
        Some((block, word.load(Ordering::Relaxed)))
    }

    fn allocation_against_isolation() {
        memgroup_sync::model(|| {
            let arena = used_arena();
            let other = thread::spawn({
                let arena = Arc::clone(&arena);
                move || while arena.depopulate_now(1).more {}
            });
            let used = use_a_word(&arena);
            other.join().unwrap();
            if let Some((block, value)) = used {
                assert_eq!(value, 7);
                // SAFETY: as above.
                let word = unsafe { block.word(arena.geometry.stride, 0, 0) };
                // ORDERING: Relaxed; after the join.
                assert_eq!(word.load(Ordering::Relaxed), 7, "pages of a block in use are not given back");
            }
            arena.check();
        });
    }

    #[test]
    fn loom_e2_allocation_never_gets_pages_that_are_given_back() {
        allocation_against_isolation();
    }

    /// The mutation: the chunk stays visible while `madvise` runs.
    #[test]
    #[should_panic(expected = "Causality violation")]
    fn loom_finds_the_word_that_is_given_back_under_its_user() {
        mutation::with(Mutation::IsolatedChunkIsVisible, allocation_against_isolation);
    }

    /// The last block of a chunk is freed while pages of that chunk go, and another empty chunk is
    /// kept already.
    fn vacated_in_flight() {
        memgroup_sync::model(|| {
            // Two blocks fill a chunk.
            let arena = arena(4096);
            arena.provide(3).expect("loom has memory");
            let [first, last, third] = [(); 3].map(|()| arena.alloc(0).expect("there are chunks"));
            arena.free(first);
            // Its chunk is empty and kept from now on.
            arena.free(third);
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
    fn loom_e1_a_word_freed_by_one_thread_is_zero_for_the_next() {
        memgroup_sync::model(|| {
            let arena = used_arena();
            let turn = |arena: &Arena| {
                if let Some((block, _)) = use_a_word(arena) {
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
            let block = arena.alloc(0).expect("there is a chunk");
            let other = thread::spawn({
                let arena = Arc::clone(&arena);
                // SAFETY: the slot is admitted, the word within the block; the model is about its
                // being free. ORDERING: Relaxed; no order makes this right.
                move || unsafe { block.word(arena.geometry.stride, 0, 0) }.fetch_add(1, Ordering::Relaxed)
            });
            arena.free(block);
            other.join().unwrap();
        });
    }
}
