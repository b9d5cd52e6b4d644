//! All chunks of an arena: the order in which an allocation tries them, and the sums over them.
//! The arena's lock protects them.
//!
//! An allocation takes a block of the fullest open chunk with a free one, then of the fullest
//! side-lined chunk, then of an empty one, and at last of a chunk held for depopulation or
//! evacuation, which is reopened. So the other chunks become empty.
//!
//! - I1. An open chunk with a free block is in one list of `open`. A full or held chunk is in
//!   none, so allocation doesn't see it.
//! - I2. `sums` is the sum over the chunks' own counts. Every change of a chunk goes through
//!   [`Chunks::change`], which moves the difference.
//! - I3. At most one chunk is empty, apart from those that [`Chunks::add`] provides.
//! - I4. A chunk on which `madvise` runs without the lock is neither unmapped nor allocated from.

use core::ops::Range;

use crate::arena::chunk::{Block, Chunk, State};
use crate::arena::lists::Lists;
#[cfg(memgroup_loom)]
use crate::arena::os::Place;
use crate::arena::page::Geometry;
use crate::mutation::{Mutation, active};

/// The density of a chunk in which all blocks are live.
const DENSITY_MAX: usize = 64;
/// A list for each density, for compacted chunks and others. As many again are for side-lined
/// ones.
const SIDELINED: usize = 2 * (DENSITY_MAX + 1);
/// The list of empty chunks, the last one.
const EMPTY: usize = 2 * SIDELINED;

/// How full of live blocks a chunk is, in 64ths, rounded up.
pub(crate) fn density(chunk: &Chunk) -> usize {
    (u64::from(chunk.live) * DENSITY_MAX as u64).div_ceil(u64::from(chunk.geometry.blocks)) as usize
}

/// The list of open chunks of a kind. The fullest come first.
fn list(density: usize, is_sidelined: bool, is_compacted: bool) -> usize {
    usize::from(is_sidelined) * SIDELINED + 2 * (DENSITY_MAX - density) + usize::from(is_compacted)
}

/// Counts of one chunk, or of all: blocks and pages of one unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) free: u64,
    pub(crate) live: u64,
    pub(crate) leaving: u64,
    pub(crate) empty_pages: u64,
    pub(crate) live_pages: u64,
    pub(crate) live_chunks: u64,
}

impl Sums {
    pub(crate) fn of(chunk: &Chunk) -> Self {
        Self {
            free: u64::from(chunk.free),
            live: u64::from(chunk.live),
            leaving: u64::from(chunk.leaving()),
            empty_pages: u64::from(chunk.empty_pages),
            live_pages: u64::from(chunk.live_pages),
            live_chunks: u64::from(chunk.live > 0),
        }
    }

    /// Takes `before` out and puts `after` in.
    pub(crate) fn replace(&mut self, before: Self, after: Self) {
        self.free = self.free + after.free - before.free;
        self.live = self.live + after.live - before.live;
        self.leaving = self.leaving + after.leaving - before.leaving;
        self.empty_pages = self.empty_pages + after.empty_pages - before.empty_pages;
        self.live_pages = self.live_pages + after.live_pages - before.live_pages;
        self.live_chunks = self.live_chunks + after.live_chunks - before.live_chunks;
    }
}

/// A block that was placed, and whether it must be cleared before it is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) block: Block,
    pub(crate) must_clear: bool,
}

/// The table of chunks and its indexes.
#[derive(Debug)]
pub(crate) struct Chunks {
    geometry: Geometry,
    table: Vec<Option<Box<Chunk>>>,
    vacant: Vec<u32>,
    open: Lists,
    /// List 0: chunks that may have pages to give back, oldest first.
    pub(crate) pending: Lists,
    pub(crate) sums: Sums,
    /// Blocks freed since all chunks counted as not compacted.
    freed_since_compacted: u64,
}

impl Chunks {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Self {
            geometry,
            table: Vec::new(),
            vacant: Vec::new(),
            open: Lists::new(EMPTY + 1),
            pending: Lists::new(1),
            sums: Sums::default(),
            freed_since_compacted: 0,
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, &Chunk)> {
        self.table.iter().enumerate().filter_map(|(id, chunk)| Some((id as u32, chunk.as_deref()?)))
    }

    fn ids(&self) -> Range<u32> {
        0..self.table.len() as u32
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Chunk> {
        self.table.get(id as usize)?.as_deref()
    }

    /// The chunk of a block.
    pub(crate) fn chunk(&self, id: u32) -> &Chunk {
        self.get(id).unwrap_or_else(|| unreachable!("chunk {id} holds a block and is not there"))
    }

    /// The block of this number in a chunk.
    pub(crate) fn block(&self, id: u32, at: u32) -> Block {
        let bytes = self.geometry.block_bytes;
        let place = self.chunk(id).region.at(at as usize * bytes);
        Block { place, chunk: id, at, words: (bytes / size_of::<u64>()) as u32 }
    }

    /// Changes a chunk; sums and lists follow (I1, I2).
    pub(crate) fn change<R>(&mut self, id: u32, change: impl FnOnce(&mut Chunk) -> R) -> R {
        let Some(chunk) = self.table[id as usize].as_deref_mut() else {
            unreachable!("chunk {id} holds a block and is not there")
        };
        let before = Sums::of(chunk);
        let result = change(chunk);
        self.sums.replace(before, Sums::of(chunk));
        match (Self::list_of(chunk), self.open.list_of(id)) {
            (after, before) if after == before => {}
            (Some(list), _) => self.open.put_first(id, list),
            (None, _) => self.open.remove(id),
        }
        result
    }

    /// Returns the list that belongs to the state of a chunk.
    fn list_of(chunk: &Chunk) -> Option<usize> {
        match chunk.state {
            State::Open { .. } if chunk.is_vacant() => Some(EMPTY),
            State::Open { sidelined } if chunk.free > 0 => {
                Some(list(density(chunk), sidelined, chunk.compacted))
            }
            _ => None,
        }
    }

    /// Adds a chunk that holds nothing.
    pub(crate) fn add(&mut self, chunk: Chunk) {
        let id = self.vacant.pop().unwrap_or(self.table.len() as u32);
        if id as usize == self.table.len() {
            self.table.push(None);
            // So that removing a chunk never allocates.
            self.vacant.reserve(self.table.len());
        }
        [&mut self.open, &mut self.pending].into_iter().for_each(|lists| lists.admit(id));
        self.sums.replace(Sums::default(), Sums::of(&chunk));
        self.table[id as usize] = Some(Box::new(chunk));
        self.open.put_first(id, EMPTY);
    }

    /// Removes a chunk; the caller unmaps it after it has released the lock.
    fn remove(&mut self, id: u32) -> Option<Box<Chunk>> {
        let chunk = self.table[id as usize].take()?;
        [&mut self.open, &mut self.pending].into_iter().for_each(|lists| lists.remove(id));
        self.sums.replace(Sums::of(&chunk), Sums::default());
        self.vacant.push(id);
        Some(chunk)
    }

    /// Places a block in a chunk that is mapped already.
    pub(crate) fn place(&mut self, owner: u32) -> Option<Placed> {
        let open = self.open.filled_from(0, EMPTY + 1).and_then(|list| self.open.first(list));
        self.place_in(open.or_else(|| self.held_with_room())?, owner, u32::MAX)
    }

    /// Returns a chunk with a free block that is held for depopulation or evacuation; never one on
    /// which `madvise` runs (I4).
    fn held_with_room(&self) -> Option<u32> {
        let is_held = |state| matches!(state, State::Isolated { in_flight: false } | State::Evacuating);
        self.all().find(|(_, chunk)| is_held(chunk.state) && chunk.free > 0).map(|(id, _)| id)
    }

    /// Places a block below `ceiling` in one chunk. Without a ceiling the chunk is open from then
    /// on; with one it is being evacuated into itself.
    pub(crate) fn place_in(&mut self, id: u32, owner: u32, ceiling: u32) -> Option<Placed> {
        let (at, must_clear) = self.change(id, |chunk| {
            let taken = chunk.take(owner, ceiling)?;
            if ceiling == u32::MAX {
                (chunk.state, chunk.cursor) = (State::Open { sidelined: false }, None);
            }
            Some(taken)
        })?;
        let block = self.block(id, at);
        #[cfg(memgroup_loom)]
        self.each_copy(block, Place::permit);
        Some(Placed { block, must_clear })
    }

    /// Frees a block. Returns a chunk that the caller must unmap.
    pub(crate) fn release(&mut self, block: Block) -> Option<Box<Chunk>> {
        let id = block.chunk;
        #[cfg(memgroup_loom)]
        self.each_copy(block, Place::forbid);
        let may_give = self.change(id, |chunk| chunk.release(block.at));
        self.freed_since_compacted += 1;
        if may_give && self.pending.list_of(id).is_none() {
            self.pending.put_last(id, 0);
        }
        self.retire_if_vacant(id)
    }

    /// Tells loom about the copies of a block: each call gets the offset and size of one.
    #[cfg(memgroup_loom)]
    fn each_copy(&self, block: Block, tell: fn(Place, usize, usize)) {
        let Geometry { slots, stride, block_bytes, .. } = self.geometry;
        (0..slots).for_each(|slot| tell(block.place, slot * stride, block_bytes));
    }

    /// Takes back a block that was placed and not used. It doesn't count as freed, because nothing
    /// is gained by it. Its chunk holds other blocks.
    pub(crate) fn undo(&mut self, block: Block) {
        let (compacted, freed) = (self.chunk(block.chunk).compacted, self.freed_since_compacted);
        let vacant = self.release(block);
        debug_assert!(vacant.is_none(), "a block was placed beside others");
        self.change(block.chunk, |chunk| chunk.compacted = compacted);
        self.freed_since_compacted = freed;
    }

    /// Opens a chunk that holds nothing, also a held one, and removes it if another one is empty
    /// (I3, I4).
    pub(crate) fn retire_if_vacant(&mut self, id: u32) -> Option<Box<Chunk>> {
        let chunk = self.chunk(id);
        let in_flight = chunk.state == (State::Isolated { in_flight: true })
            && !active(Mutation::ChunkInFlightIsUnmapped);
        if !chunk.is_vacant() || in_flight {
            return None;
        }
        self.change(id, |chunk| (chunk.state, chunk.cursor) = (State::Open { sidelined: false }, None));
        let kept = self.open.first(EMPTY);
        let another = kept.is_some_and(|first| first != id || self.open.next(first).is_some());
        if another { self.remove(id) } else { None }
    }

    /// Removes an empty chunk, if another one is left and so are `blocks` free blocks. The caller
    /// unmaps it after it has released the lock.
    pub(crate) fn take_surplus(&mut self, blocks: u64) -> Option<Box<Chunk>> {
        let id = self.open.first(EMPTY).and_then(|kept| self.open.next(kept))?;
        let has_enough = self.sums.free >= blocks + u64::from(self.geometry.blocks);
        if has_enough { self.remove(id) } else { None }
    }

    /// Removes the first empty chunk. The caller unmaps it after it has released the lock.
    pub(crate) fn take_empty(&mut self) -> Option<Box<Chunk>> {
        let first = self.open.first(EMPTY)?;
        self.remove(first)
    }

    /// The wasted bytes, less the part that no move is worth. Wasted are the bytes without live
    /// blocks in pages with live blocks, and a page of a shifted unit for each chunk more than
    /// needed.
    pub(crate) fn waste_bytes(&self) -> u64 {
        let page = self.geometry.page_bytes as u64;
        let live = self.sums.live * self.geometry.block_bytes as u64;
        let chunks_needed = self.sums.live.div_ceil(u64::from(self.geometry.blocks));
        let chunks_beyond = self.sums.live_chunks.saturating_sub(chunks_needed);
        let waste = (self.sums.live_pages + chunks_beyond) * page - live;
        waste.saturating_sub((page / 2).max(live / 20))
    }

    /// Returns the chunk with the fewest live blocks that is neither empty, full nor compacted. If
    /// there is none, all chunks count as not compacted once a page's worth was freed.
    pub(crate) fn emptiest(&mut self) -> Option<u32> {
        if let Some(found) = self.emptiest_loose() {
            return Some(found);
        }
        if self.freed_since_compacted < u64::from(self.geometry.page_blocks()) {
            return None;
        }
        self.freed_since_compacted = 0;
        for id in self.ids() {
            if self.get(id).is_some_and(|chunk| chunk.compacted) {
                self.change(id, |chunk| chunk.compacted = false);
            }
        }
        self.emptiest_loose()
    }

    fn emptiest_loose(&self) -> Option<u32> {
        (1..=DENSITY_MAX)
            .flat_map(|density| [false, true].map(|sidelined| list(density, sidelined, false)))
            .find_map(|list| self.open.first(list))
    }

    /// Returns the fullest open chunk with a free block that is at least this dense; side-lined
    /// and compacted chunks come last.
    pub(crate) fn fullest(&self, least: usize) -> Option<u32> {
        let kinds = [(false, false), (true, false), (false, true), (true, true)];
        (least..=DENSITY_MAX)
            .rev()
            .flat_map(|density| kinds.map(|(sidelined, compacted)| list(density, sidelined, compacted)))
            .find_map(|list| self.open.first(list))
    }

    /// Panics unless a chunk is in the list that belongs to its state.
    #[cfg(test)]
    pub(crate) fn check_lists(&self, id: u32) {
        let chunk = self.chunk(id);
        assert_eq!(self.open.list_of(id), Self::list_of(chunk));
        assert!(!chunk.is_dirty() || self.pending.list_of(id).is_some() || chunk.empty_pages == 0);
    }
}
