//! All chunks of an arena: the order in which an allocation tries them, and the sums over them. The arena's lock protects them.
//!
//! An allocation tries open chunks, then side-lined ones, both tightest first. Then it tries an empty one, parked ones, and at last
//! chunks held for depopulation or evacuation, which are reopened. Only then another chunk is mapped.
//!
//! - I1. An open chunk is in one list of `fit`: empty, parked, or by its longest free run. A held chunk is in none, so
//!   that allocation does not see it.
//! - I2. `sums` is the sum over the chunks' own counts. Every change of a chunk goes through [`Chunks::change`], which
//!   moves the difference.
//! - I3. At most one chunk is empty, if the arena unmaps.
//! - I4. A chunk on which `madvise` runs without the lock is neither unmapped nor allocated from.

use core::ops::Range;
use std::collections::BTreeMap;

use crate::arena::block::{Block, NO_OWNER, Shape, Wait};
use crate::arena::chunk::{Chunk, State};
use crate::arena::config::ArenaConfig;
use crate::arena::lists::Lists;
#[cfg(memgroup_loom)]
use crate::arena::os::Place;
use crate::arena::page::{GRANULE_BYTES, PageSize};
use crate::mutation::{Mutation, active};

/// Lists by longest free run, eight to an octave: 0..8, then by the three bits after the first.
const BUCKETS: usize = 160;
const SIDELINED: usize = BUCKETS;
const EMPTY: usize = 2 * BUCKETS;
const PARKED: usize = 2 * BUCKETS + 1;
const FIT_LISTS: usize = 2 * BUCKETS + 2;
/// Lists by live bytes, in 64ths of a unit.
pub(crate) const DENSITIES: usize = 65;
/// How many chunks of the tightest list, where not each has room, are tried.
const TRIES: usize = 8;
/// After how many failures in a row a chunk is parked.
const PARK_AFTER: u32 = 16;

const fn bucket(granules: u32) -> usize {
    if granules < 8 {
        return granules as usize;
    }
    let octave = granules.ilog2();
    ((octave - 2) * 8 + (granules >> (octave - 3) & 7)) as usize
}

// A chunk that is free from end to end has a list too.
const _: () = {
    let mut at = 0;
    while at < PageSize::ALL.len() {
        assert!(bucket((PageSize::ALL[at].unit_bytes() / GRANULE_BYTES) as u32) < BUCKETS);
        at += 1;
    }
};

/// How full a chunk is, in 64ths, rounded up.
pub(crate) fn density(chunk: &Chunk) -> usize {
    (u64::from(chunk.live) * 64).div_ceil(u64::from(chunk.geometry.granules())) as usize
}

/// The list of `density` for an open chunk: compacted chunks have lists of their own.
fn density_list(chunk: &Chunk) -> usize {
    density(chunk) + if chunk.compacted { DENSITIES } else { 0 }
}

/// Counts of one chunk, or of all: granules and pages of one unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) live: u64,
    pub(crate) leaving: u64,
    pub(crate) empty_pages: u64,
    pub(crate) live_pages: u64,
    pub(crate) live_chunks: u64,
}

impl Sums {
    pub(crate) fn of(chunk: &Chunk) -> Self {
        Self {
            live: u64::from(chunk.live),
            leaving: u64::from(chunk.leaving),
            empty_pages: u64::from(chunk.empty_pages),
            live_pages: u64::from(chunk.live_pages),
            live_chunks: u64::from(chunk.live > 0),
        }
    }

    /// Takes `before` out and puts `after` in.
    pub(crate) fn replace(&mut self, before: Self, after: Self) {
        self.live = self.live + after.live - before.live;
        self.leaving = self.leaving + after.leaving - before.leaving;
        self.empty_pages = self.empty_pages + after.empty_pages - before.empty_pages;
        self.live_pages = self.live_pages + after.live_pages - before.live_pages;
        self.live_chunks = self.live_chunks + after.live_chunks - before.live_chunks;
    }
}

/// An allocation to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) shape: Shape,
    pub(crate) owner: u32,
    pub(crate) wait: Wait,
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
    table: Vec<Option<Box<Chunk>>>,
    vacant: Vec<u32>,
    by_address: BTreeMap<usize, u32>,
    fit: Lists,
    /// Open chunks by live bytes, compacted ones in lists of their own.
    density: Lists,
    /// List 0: chunks that may have pages to give back, oldest first.
    pub(crate) pending: Lists,
    pub(crate) sums: Sums,
    /// Granules freed since a chunk was compacted.
    freed_since_compacted: u64,
    config: ArenaConfig,
}

impl Chunks {
    pub(crate) fn new(config: ArenaConfig) -> Self {
        Self {
            table: Vec::new(),
            vacant: Vec::new(),
            by_address: BTreeMap::new(),
            fit: Lists::new(FIT_LISTS),
            density: Lists::new(2 * DENSITIES),
            pending: Lists::new(1),
            sums: Sums::default(),
            freed_since_compacted: 0,
            config,
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, &Chunk)> {
        self.table.iter().enumerate().filter_map(|(id, chunk)| Some((id as u32, chunk.as_deref()?)))
    }

    pub(crate) fn ids(&self) -> Range<u32> {
        0..self.table.len() as u32
    }

    pub(crate) fn get(&self, id: u32) -> Option<&Chunk> {
        self.table.get(id as usize)?.as_deref()
    }

    /// The chunk of a block.
    pub(crate) fn chunk(&self, id: u32) -> &Chunk {
        self.get(id).unwrap_or_else(|| unreachable!("chunk {id} holds a block and is not there"))
    }

    /// Changes a chunk; sums and lists follow (I1, I2).
    pub(crate) fn change<R>(&mut self, id: u32, change: impl FnOnce(&mut Chunk) -> R) -> R {
        let Some(chunk) = self.table[id as usize].as_deref_mut() else {
            unreachable!("chunk {id} holds a block and is not there")
        };
        let before = Sums::of(chunk);
        let result = change(chunk);
        self.sums.replace(before, Sums::of(chunk));
        self.relist(id);
        result
    }

    /// Puts a chunk into the lists that belong to its state.
    fn relist(&mut self, id: u32) {
        let Some(chunk) = self.table[id as usize].as_deref() else { return };
        let State::Open { sidelined } = chunk.state else {
            self.fit.remove(id);
            self.density.remove(id);
            return;
        };
        let list = match chunk {
            _ if chunk.is_vacant() => EMPTY,
            _ if chunk.failures >= PARK_AFTER => PARKED,
            _ if sidelined => SIDELINED + bucket(chunk.hints.longest),
            _ => bucket(chunk.hints.longest),
        };
        match self.fit.list_of(id) {
            Some(before) if before == list => {}
            Some(before) if before > list => self.fit.put_last(id, list),
            _ => self.fit.put_first(id, list),
        }
        let density = density_list(chunk);
        if self.density.list_of(id) != Some(density) {
            self.density.put_first(id, density);
        }
    }

    /// Adds a chunk that holds nothing.
    pub(crate) fn add(&mut self, chunk: Chunk) -> u32 {
        let id = self.vacant.pop().unwrap_or(self.table.len() as u32);
        if id as usize == self.table.len() {
            self.table.push(None);
            // So that removing a chunk never allocates.
            self.vacant.reserve(self.table.len());
        }
        [&mut self.fit, &mut self.density, &mut self.pending].into_iter().for_each(|lists| lists.admit(id));
        self.by_address.insert(chunk.region.at(0).number(), id);
        self.sums.replace(Sums::default(), Sums::of(&chunk));
        self.table[id as usize] = Some(Box::new(chunk));
        self.relist(id);
        id
    }

    /// Removes a chunk; the caller unmaps it after it has released the lock.
    fn remove(&mut self, id: u32) -> Option<Box<Chunk>> {
        let chunk = self.table[id as usize].take()?;
        [&mut self.fit, &mut self.density, &mut self.pending].into_iter().for_each(|lists| lists.remove(id));
        self.by_address.remove(&chunk.region.at(0).number());
        self.sums.replace(Sums::of(&chunk), Sums::default());
        self.vacant.push(id);
        Some(chunk)
    }

    /// The block of `count` granules at `address`.
    #[cfg(not(memgroup_loom))]
    pub(crate) fn block_at(&self, address: usize, count: u32) -> Block {
        let Some((&base, &id)) = self.by_address.range(..=address).next_back() else {
            unreachable!("a block is at {address:#x}, and every chunk lies above")
        };
        let start = (address - base) / GRANULE_BYTES;
        let place = self.chunk(id).region.at(start * GRANULE_BYTES);
        Block { place, chunk: id, start: start as u32, count }
    }

    /// How many blocks of `count` granules can be placed, each with an owner, without mapping or allocating; exact where all
    /// blocks have that size.
    pub(crate) fn room_for(&self, count: u32) -> u64 {
        let chunks = self.all().map(|(_, chunk)| chunk).filter(|chunk| chunk.can_own(count));
        chunks.map(|chunk| u64::from(chunk.free / count)).sum()
    }

    /// Places a block in a chunk that is mapped already.
    pub(crate) fn place(&mut self, request: &Request) -> Option<Placed> {
        let tightest = bucket(request.shape.count);
        self.place_in_lists(tightest..BUCKETS, TRIES, request)
            .or_else(|| self.place_in_lists(SIDELINED + tightest..EMPTY, TRIES, request))
            .or_else(|| self.place_in_lists(EMPTY..FIT_LISTS, usize::MAX, request))
            .or_else(|| self.place_in_held(request))
    }

    /// Places a block in a chunk of these lists, after at most `tries` chunks of the first one.
    fn place_in_lists(&mut self, lists: Range<usize>, tries: usize, request: &Request) -> Option<Placed> {
        let mut from = lists.start;
        while let Some(list) = self.fit.filled_from(from, lists.end) {
            let mut candidate = self.fit.first(list);
            for _ in 0..if list == lists.start { tries } else { usize::MAX } {
                let Some(id) = candidate else { break };
                candidate = self.fit.next(id);
                if let Some(placed) = self.place_in(id, request, u32::MAX) {
                    return Some(placed);
                }
            }
            from = list + 1;
        }
        None
    }

    /// Places a block in a chunk that is held for depopulation or evacuation; never while `madvise` runs on it (I4).
    fn place_in_held(&mut self, request: &Request) -> Option<Placed> {
        self.ids().find_map(|id| {
            let chunk = self.get(id)?;
            let held = matches!(chunk.state, State::Isolated { in_flight: false } | State::Evacuating);
            let fits = held && chunk.hints.longest >= request.shape.count;
            if fits { self.place_in(id, request, u32::MAX) } else { None }
        })
    }

    /// Places a block below `ceiling` in one chunk. Without a ceiling the chunk is open from then on; with one it is being
    /// evacuated into itself.
    pub(crate) fn place_in(&mut self, id: u32, request: &Request, ceiling: u32) -> Option<Placed> {
        let &Request { shape, owner, wait } = request;
        let placed = self.change(id, |chunk| {
            if wait == Wait::Never && owner != NO_OWNER && !chunk.can_own(shape.count) {
                return None;
            }
            let Some((start, must_clear)) = chunk.take(shape, ceiling) else {
                chunk.failures += 1;
                return None;
            };
            chunk.set_owner(start, shape.count, owner);
            if ceiling == u32::MAX {
                (chunk.state, chunk.cursor) = (State::Open { sidelined: false }, None);
            }
            let place = chunk.region.at(start as usize * GRANULE_BYTES);
            Some(Placed { block: Block { place, chunk: id, start, count: shape.count }, must_clear })
        })?;
        #[cfg(memgroup_loom)]
        self.each_copy(placed.block, Place::permit);
        Some(placed)
    }

    /// Frees a block. Returns a chunk that the caller must unmap.
    pub(crate) fn release(&mut self, block: Block) -> Option<Box<Chunk>> {
        let id = block.chunk;
        #[cfg(memgroup_loom)]
        self.each_copy(block, Place::forbid);
        let gives = self.change(id, |chunk| {
            let (start, end) = chunk.release(block.start, block.count);
            let all = chunk.geometry.granules();
            end - start >= chunk.geometry.page_granules() || start == 0 || end == all
        });
        self.freed_since_compacted += u64::from(block.count);
        if gives && self.pending.list_of(id).is_none() {
            self.pending.put_last(id, 0);
        }
        self.retire_if_vacant(id)
    }

    /// Tells loom about the copies of a block: each call gets the offset and size of one.
    #[cfg(memgroup_loom)]
    fn each_copy(&self, block: Block, tell: fn(Place, usize, usize)) {
        let stride = self.chunk(block.chunk).geometry.stride;
        (0..self.config.slots).for_each(|slot| tell(block.place, slot * stride, block.bytes()));
    }

    /// Takes back a block that was placed and not used. It does not count as freed, because nothing is gained by it.
    pub(crate) fn undo(&mut self, block: Block) -> Option<Box<Chunk>> {
        let compacted = self.chunk(block.chunk).compacted;
        let freed = self.freed_since_compacted;
        let vacant = self.release(block);
        if vacant.is_none() {
            self.change(block.chunk, |chunk| chunk.compacted = compacted);
        }
        self.freed_since_compacted = freed;
        vacant
    }

    /// Opens a chunk that holds nothing, also a held one, and removes it if another one is empty (I3, I4).
    pub(crate) fn retire_if_vacant(&mut self, id: u32) -> Option<Box<Chunk>> {
        let chunk = self.chunk(id);
        let in_flight = chunk.state == (State::Isolated { in_flight: true })
            && !active(Mutation::ChunkInFlightIsUnmapped);
        if !chunk.is_vacant() || in_flight {
            return None;
        }
        self.change(id, |chunk| (chunk.state, chunk.cursor) = (State::Open { sidelined: false }, None));
        let kept = self.fit.first(EMPTY);
        let another = kept.is_some_and(|first| first != id || self.fit.next(first).is_some());
        if another && self.config.unmap { self.remove(id) } else { None }
    }

    /// Removes empty chunks, while one is left and `room_for` still finds `blocks` places of this size. The caller unmaps them
    /// after it has released the lock.
    pub(crate) fn take_surplus(&mut self, count: u32, blocks: u64, chunks_max: usize) -> Vec<Chunk> {
        let (mut surplus, mut room) = (Vec::new(), self.room_for(count));
        while self.config.unmap
            && surplus.len() < chunks_max
            && let Some(id) = self.fit.first(EMPTY).and_then(|kept| self.fit.next(kept))
        {
            let chunk = self.chunk(id);
            let of_it = if chunk.can_own(count) { u64::from(chunk.free / count) } else { 0 };
            if room < blocks + of_it {
                break;
            }
            room -= of_it;
            surplus.extend(self.remove(id).map(|chunk| *chunk));
        }
        surplus
    }

    /// Removes the first empty chunk. The caller unmaps it after it has released the lock.
    pub(crate) fn take_empty(&mut self) -> Option<Box<Chunk>> {
        let first = self.fit.first(EMPTY).filter(|_| self.config.unmap)?;
        self.remove(first)
    }

    /// The wasted bytes, less the part that no move is worth. Wasted are the bytes without live blocks in pages with live blocks, and
    /// a page of a shifted unit for each chunk more than needed.
    pub(crate) fn waste_bytes(&self) -> u64 {
        let page = self.config.page.bytes() as u64;
        let live = self.sums.live * GRANULE_BYTES as u64;
        let chunks_needed = live.div_ceil(self.config.page.unit_bytes() as u64);
        let chunks_beyond = self.sums.live_chunks.saturating_sub(chunks_needed);
        let waste = (self.sums.live_pages + chunks_beyond) * page - live;
        waste.saturating_sub((page / 2).max(live / 20))
    }

    /// The chunk with the fewest live bytes that is neither empty nor compacted. Where there is none, all chunks become not compacted
    /// once a page's worth was freed.
    pub(crate) fn emptiest(&mut self) -> Option<u32> {
        let find = |density: &Lists| density.first(density.filled_from(1, DENSITIES)?);
        let found = find(&self.density);
        if found.is_some()
            || self.freed_since_compacted * (GRANULE_BYTES as u64) < self.config.page.bytes() as u64
        {
            return found;
        }
        self.freed_since_compacted = 0;
        for id in self.ids() {
            if self.get(id).is_some_and(|chunk| chunk.compacted) {
                self.change(id, |chunk| chunk.compacted = false);
            }
        }
        find(&self.density)
    }

    /// Opens a chunk after its evacuation, and leaves it alone from now on.
    pub(crate) fn mark_compacted(&mut self, id: u32) {
        self.change(id, |chunk| {
            chunk.compacted = true;
            chunk.reopen();
        });
    }

    /// The first chunk with this many 64ths live; `next_of_density` continues, compacted chunks last.
    pub(crate) fn first_of_density(&self, density: usize) -> Option<u32> {
        self.density.first(density).or_else(|| self.density.first(density + DENSITIES))
    }

    pub(crate) fn next_of_density(&self, id: u32) -> Option<u32> {
        self.density.next(id).or_else(|| {
            let list = self.density.list_of(id)?;
            if list < DENSITIES { self.density.first(list + DENSITIES) } else { None }
        })
    }

    /// Panics unless a chunk is in the lists that belong to its state.
    #[cfg(test)]
    pub(crate) fn check_lists(&self, id: u32) {
        let chunk = self.chunk(id);
        let is_open = matches!(chunk.state, State::Open { .. });
        assert_eq!(self.fit.list_of(id).is_some(), is_open, "only open chunks are seen");
        assert_eq!(self.density.list_of(id), is_open.then(|| density_list(chunk)));
        assert_eq!(self.fit.list_of(id) == Some(EMPTY), chunk.is_vacant() && is_open);
        assert!(!chunk.is_dirty() || self.pending.list_of(id).is_some() || chunk.empty_pages == 0);
    }
}
