//! All chunks of an arena: which one an allocation tries, in which order, and the sums over them. Behind the arena's lock.
//!
//! An allocation goes through the chunks of its kind in this order: open ones, tightest first; side-lined ones, tightest
//! first; an empty one; parked ones; at last those that are held for depopulation or evacuation, which are reopened. Only
//! then another chunk is mapped.
//!
//! - I1. An open chunk is in one list of `fit`: empty, parked, or by its longest free run; a held one is in none, so
//!   that allocation does not see it.
//! - I2. `sums` is the sum over the chunks' own counts; every change of a chunk goes through [`Chunks::change`], which
//!   moves the difference.
//! - I3. At most one chunk of each kind is empty, if the arena unmaps and its reserve does not ask for more.
//! - I4. A chunk on which `madvise` runs without the lock is neither unmapped nor allocated from.

use std::collections::BTreeMap;

use crate::arena::ArenaConfig;
use crate::arena::block::{Block, GRANULE_BYTES, LEAVING, NO_OWNER, Shape, Wait};
use crate::arena::chunk::{Chunk, State};
use crate::arena::lists::Lists;
use crate::arena::page::{Geometry, Kind, PageSize};
use crate::mutation::{Mutation, active};

/// Lists by longest free run, eight to an octave: 0..8, then by the three bits behind the first.
const BUCKETS: usize = 160;
const SIDELINED: usize = BUCKETS;
const PARKED: usize = 2 * BUCKETS;
const EMPTY: usize = 2 * BUCKETS + 1;
const FIT_LISTS: usize = 2 * BUCKETS + 2;
/// Lists by live bytes, in 64ths of a unit.
pub(crate) const DENSITIES: usize = 65;
const DENSITY_LISTS: usize = 2 * DENSITIES;
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
fn density(chunk: &Chunk) -> usize {
    (u64::from(chunk.live) * 64).div_ceil(u64::from(chunk.geometry.granules())) as usize
}

fn density_list(chunk: &Chunk) -> usize {
    let settled = if chunk.settled { DENSITIES } else { 0 };
    chunk.geometry.kind as usize * DENSITY_LISTS + settled + density(chunk)
}

/// Counts of one chunk, or of all: granules and pages of one unit.
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
            leaving: u64::from(chunk.leaving),
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
    pub(crate) stride: usize,
    pub(crate) must_clear: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Chunks {
    table: Vec<Option<Box<Chunk>>>,
    vacant: Vec<u32>,
    by_address: BTreeMap<usize, u32>,
    fit: Lists,
    /// Open chunks by live bytes; of those as full, settled ones apart.
    density: Lists,
    /// List 0: chunks that may have something to give back, oldest first.
    pub(crate) pending: Lists,
    /// For each kind.
    sums: [Sums; 2],
    /// Granules freed since a chunk was settled.
    freed_since_settled: u64,
    config: ArenaConfig,
}

impl Chunks {
    pub(crate) fn new(config: ArenaConfig) -> Self {
        Self {
            table: Vec::new(),
            vacant: Vec::new(),
            by_address: BTreeMap::new(),
            fit: Lists::new(2 * FIT_LISTS),
            density: Lists::new(2 * DENSITY_LISTS),
            freed_since_settled: 0,
            pending: Lists::new(1),
            sums: [Sums::default(); 2],
            config,
        }
    }

    pub(crate) fn sums(&self, kind: Kind) -> Sums {
        self.sums[kind as usize]
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, &Chunk)> {
        self.table.iter().enumerate().filter_map(|(id, chunk)| Some((id as u32, chunk.as_deref()?)))
    }

    pub(crate) fn ids(&self) -> core::ops::Range<u32> {
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
        let kind = chunk.geometry.kind;
        self.sums[kind as usize].replace(before, Sums::of(chunk));
        self.relist(id);
        result
    }

    /// Puts a chunk into the lists that its state asks for.
    fn relist(&mut self, id: u32) {
        let Some(chunk) = self.table[id as usize].as_deref() else { return };
        let (fit, density) = (chunk.geometry.kind as usize * FIT_LISTS, density_list(chunk));
        let State::Open { sidelined } = chunk.state else {
            self.fit.remove(id);
            self.density.remove(id);
            return;
        };
        let list = fit
            + match chunk {
                _ if chunk.is_vacant() => EMPTY,
                _ if chunk.failures >= PARK_AFTER => PARKED,
                _ if sidelined => SIDELINED + bucket(chunk.longest()),
                _ => bucket(chunk.longest()),
            };
        match self.fit.list_of(id) {
            Some(before) if before == list => {}
            Some(before) if before > list => self.fit.put_last(id, list),
            _ => self.fit.put_first(id, list),
        }
        if self.density.list_of(id) != Some(density) {
            self.density.put_first(id, density);
        }
    }

    /// Adds a chunk that holds nothing.
    pub(crate) fn add(&mut self, chunk: Chunk) -> u32 {
        let id = self.vacant.pop().unwrap_or(self.table.len() as u32);
        if id as usize == self.table.len() {
            self.table.push(None);
            // So that taking a chunk out never allocates.
            self.vacant.reserve(self.table.len());
        }
        [&mut self.fit, &mut self.density, &mut self.pending].into_iter().for_each(|lists| lists.admit(id));
        self.by_address.insert(chunk.region.at(0).number(), id);
        self.sums[chunk.geometry.kind as usize].replace(Sums::default(), Sums::of(&chunk));
        self.table[id as usize] = Some(Box::new(chunk));
        self.relist(id);
        id
    }

    /// Takes a chunk out, to be unmapped after the lock is released.
    fn remove(&mut self, id: u32) -> Option<Box<Chunk>> {
        let chunk = self.table[id as usize].take()?;
        [&mut self.fit, &mut self.density, &mut self.pending].into_iter().for_each(|lists| lists.remove(id));
        self.by_address.remove(&chunk.region.at(0).number());
        self.sums[chunk.geometry.kind as usize].replace(Sums::of(&chunk), Sums::default());
        self.vacant.push(id);
        Some(chunk)
    }

    /// The block of `count` granules at `address`.
    #[cfg(not(memgroup_loom))]
    pub(crate) fn block_at(&self, address: usize, count: u32) -> Block {
        let Some((&base, &id)) = self.by_address.range(..=address).next_back() else {
            unreachable!("a block at {address:#x} is looked up, and every chunk lies above")
        };
        let start = (address - base) / GRANULE_BYTES;
        let place = self.chunk(id).region.at(start * GRANULE_BYTES);
        Block::new(place, id, start as u32, count)
    }

    /// How many blocks of this shape can be placed, each with an owner, where nothing is mapped or allocated for it; exact where
    /// all blocks are of one shape.
    pub(crate) fn room_for(&self, shape: Shape) -> u64 {
        let owning = |chunk: &&Chunk| chunk.geometry.kind == shape.kind() && chunk.can_own(shape);
        let room =
            |chunk: &Chunk| u64::from((chunk.geometry.granules() - chunk.live - chunk.leaving) / shape.count);
        self.all().map(|(_, chunk)| chunk).filter(owning).map(room).sum()
    }

    /// Places a block in a chunk that is mapped already.
    pub(crate) fn place(&mut self, shape: Shape, owner: u32, wait: Wait) -> Option<Placed> {
        let base = shape.kind() as usize * FIT_LISTS;
        let from = bucket(shape.count);
        self.place_by_fit(base + from..base + BUCKETS, shape, owner, wait)
            .or_else(|| self.place_by_fit(base + SIDELINED + from..base + PARKED, shape, owner, wait))
            .or_else(|| self.place_in_list(base + EMPTY, usize::MAX, shape, owner, wait))
            .or_else(|| self.place_in_list(base + PARKED, usize::MAX, shape, owner, wait))
            .or_else(|| self.place_in_held(shape, owner, wait))
    }

    fn place_by_fit(
        &mut self,
        lists: core::ops::Range<usize>,
        shape: Shape,
        owner: u32,
        wait: Wait,
    ) -> Option<Placed> {
        let mut from = lists.start;
        while let Some(list) = self.fit.filled_from(from, lists.end) {
            let tries = if list == lists.start { TRIES } else { usize::MAX };
            if let Some(placed) = self.place_in_list(list, tries, shape, owner, wait) {
                return Some(placed);
            }
            from = list + 1;
        }
        None
    }

    fn place_in_list(
        &mut self,
        list: usize,
        tries: usize,
        shape: Shape,
        owner: u32,
        wait: Wait,
    ) -> Option<Placed> {
        let mut candidate = self.fit.first(list);
        for _ in 0..tries {
            let id = candidate?;
            candidate = self.fit.next(id);
            if let Some(placed) = self.place_in(id, shape, owner, wait, u32::MAX) {
                return Some(placed);
            }
        }
        None
    }

    /// Chunks held for depopulation or evacuation, if nothing else has room; never while `madvise` runs on one (I4).
    fn place_in_held(&mut self, shape: Shape, owner: u32, wait: Wait) -> Option<Placed> {
        for id in self.ids() {
            let held = self.get(id).is_some_and(|chunk| {
                matches!(chunk.state, State::Isolated { in_flight: false } | State::Evacuating)
                    && chunk.geometry.kind == shape.kind()
                    && chunk.longest() >= shape.count
            });
            if held && let Some(placed) = self.place_in(id, shape, owner, wait, u32::MAX) {
                return Some(placed);
            }
        }
        None
    }

    /// Places a block below `ceiling` in one chunk, which is open from then on unless it is being evacuated into itself.
    pub(crate) fn place_in(
        &mut self,
        id: u32,
        shape: Shape,
        owner: u32,
        wait: Wait,
        ceiling: u32,
    ) -> Option<Placed> {
        let placed = self.change(id, |chunk| {
            if wait == Wait::Never && owner != NO_OWNER && !chunk.can_own(shape) {
                return None;
            }
            let Some((start, must_clear)) = chunk.take(shape, ceiling) else {
                chunk.failures += 1;
                return None;
            };
            chunk.set_owner(start, shape, owner);
            if ceiling == u32::MAX {
                (chunk.state, chunk.cursor) = (State::Open { sidelined: false }, None);
            }
            let place = chunk.region.at(start as usize * GRANULE_BYTES);
            let stride = chunk.geometry.stride;
            Some(Placed { block: Block::new(place, id, start, shape.count), stride, must_clear })
        })?;
        for slot in 0..self.config.slots {
            placed.block.place().permit(slot * placed.stride, shape.bytes());
        }
        Some(placed)
    }

    /// Frees a block. A chunk that must be unmapped is returned.
    pub(crate) fn release(&mut self, block: Block) -> Option<Box<Chunk>> {
        let id = block.chunk;
        let stride = self.chunk(id).geometry.stride;
        for slot in 0..self.config.slots {
            block.place().forbid(slot * stride, block.bytes());
        }
        let gives = self.change(id, |chunk| {
            let leaving = chunk.owner_of(block.start, block.count).0 == LEAVING;
            let (start, end) = chunk.release(block.start, block.count, leaving);
            let all = chunk.geometry.granules();
            end - start >= chunk.geometry.page_granules() || start == 0 || end == all
        });
        self.freed_since_settled += u64::from(block.count);
        if gives && self.pending.list_of(id).is_none() {
            self.pending.put_last(id, 0);
        }
        self.retire_if_vacant(id)
    }

    /// Takes back a block that was placed and not used. Does not count as freed: nothing is gained by it.
    pub(crate) fn undo(&mut self, block: Block) -> Option<Box<Chunk>> {
        let settled = self.chunk(block.chunk).settled;
        let freed = self.freed_since_settled;
        let vacant = self.release(block);
        if vacant.is_none() {
            self.change(block.chunk, |chunk| chunk.settled = settled);
        }
        self.freed_since_settled = freed;
        vacant
    }

    /// A chunk in which nothing is left is open, whatever it was held for; the second one of its kind goes (I3, I4).
    pub(crate) fn retire_if_vacant(&mut self, id: u32) -> Option<Box<Chunk>> {
        let chunk = self.chunk(id);
        let in_flight = chunk.state == (State::Isolated { in_flight: true })
            && !active(Mutation::ChunkInFlightIsUnmapped);
        if !chunk.is_vacant() || in_flight {
            return None;
        }
        let (geometry, kind) = (chunk.geometry, chunk.geometry.kind);
        self.change(id, |chunk| (chunk.state, chunk.cursor) = (State::Open { sidelined: false }, None));
        let kept = self.fit.first(kind as usize * FIT_LISTS + EMPTY);
        let another = kept.is_some_and(|first| first != id || self.fit.next(first).is_some());
        let free_after = (self.sums(kind).free - u64::from(geometry.granules())) * GRANULE_BYTES as u64;
        // The reserve is of the kind that `replenish` maps.
        let reserve_bytes = if kind == Kind::Coloured { self.config.reserve_bytes } else { 0 };
        if another && self.config.unmap && free_after >= reserve_bytes { self.remove(id) } else { None }
    }

    /// Takes chunks out that hold nothing, while one is left and so many blocks of this shape can be placed as in `room_for`, to be
    /// unmapped after the lock is released.
    pub(crate) fn take_surplus(&mut self, shape: Shape, blocks: u64, chunks_max: usize) -> Vec<Chunk> {
        let (mut surplus, kind, mut room) = (Vec::new(), shape.kind(), self.room_for(shape));
        let empty = kind as usize * FIT_LISTS + EMPTY;
        while self.config.unmap
            && surplus.len() < chunks_max
            && let Some(id) = self.fit.first(empty).and_then(|kept| self.fit.next(kept))
        {
            let chunk = self.chunk(id);
            let granules = chunk.geometry.granules();
            let of_it = if chunk.can_own(shape) { u64::from(granules / shape.count) } else { 0 };
            let free_after = (self.sums(kind).free - u64::from(granules)) * GRANULE_BYTES as u64;
            if room < blocks + of_it || free_after < self.config.reserve_bytes {
                break;
            }
            room -= of_it;
            surplus.extend(self.remove(id).map(|chunk| *chunk));
        }
        surplus
    }

    /// Free bytes of a unit in the chunks of a kind.
    pub(crate) fn free_bytes(&self, kind: Kind) -> u64 {
        self.sums(kind).free * GRANULE_BYTES as u64
    }

    /// How much more is backed for the live blocks of a kind than must be, beyond what is worth a move: their pages, and
    /// the page that each chunk costs a shifted unit.
    pub(crate) fn waste_bytes(&self, kind: Kind) -> u64 {
        let sums = self.sums(kind);
        let page = self.config.page.bytes() as u64;
        let live = sums.live * GRANULE_BYTES as u64;
        let unit = Geometry::new(kind, self.config.page, self.config.slots).unit_bytes as u64;
        let chunks_beyond = sums.live_chunks.saturating_sub(live.div_ceil(unit));
        let waste = (sums.live_pages + chunks_beyond) * page - live;
        waste.saturating_sub((page / 2).max(live / 20))
    }

    /// The chunk of a kind with the fewest live bytes, not empty and not settled.
    pub(crate) fn emptiest(&mut self, kind: Kind) -> Option<u32> {
        let base = kind as usize * DENSITY_LISTS;
        let find = |density: &Lists| density.first(density.filled_from(base + 1, base + DENSITIES)?);
        let found = find(&self.density);
        if found.is_some()
            || self.freed_since_settled * (GRANULE_BYTES as u64) < self.config.page.bytes() as u64
        {
            return found;
        }
        self.freed_since_settled = 0;
        for id in self.ids() {
            if self.get(id).is_some_and(|chunk| chunk.settled && chunk.geometry.kind == kind) {
                self.change(id, |chunk| chunk.settled = false);
            }
        }
        find(&self.density)
    }

    /// Opens a chunk whose evacuation is over, and leaves it alone from now on.
    pub(crate) fn settle(&mut self, id: u32) {
        self.change(id, |chunk| {
            chunk.settled = true;
            chunk.reopen();
        });
    }

    pub(crate) fn density_of(&self, id: u32) -> usize {
        density(self.chunk(id))
    }

    /// The first chunk with this many 64ths live; `next_of_density` goes on from it, settled ones last.
    pub(crate) fn first_of_density(&self, kind: Kind, density: usize) -> Option<u32> {
        let list = kind as usize * DENSITY_LISTS + density;
        self.density.first(list).or_else(|| self.density.first(list + DENSITIES))
    }

    pub(crate) fn next_of_density(&self, id: u32) -> Option<u32> {
        self.density.next(id).or_else(|| {
            let list = self.density.list_of(id)?;
            if list % DENSITY_LISTS < DENSITIES { self.density.first(list + DENSITIES) } else { None }
        })
    }

    /// Panics unless a chunk is in the lists that its state asks for.
    #[cfg(test)]
    pub(crate) fn check_lists(&self, id: u32) {
        let chunk = self.chunk(id);
        let base = chunk.geometry.kind as usize * FIT_LISTS;
        assert_eq!(self.fit.list_of(id).is_some(), chunk.state.is_open(), "only open chunks are seen");
        assert_eq!(self.density.list_of(id), chunk.state.is_open().then(|| density_list(chunk)));
        assert_eq!(self.fit.list_of(id) == Some(base + EMPTY), chunk.is_vacant() && chunk.state.is_open());
        assert!(!chunk.is_dirty() || self.pending.list_of(id).is_some() || chunk.empty_pages == 0);
    }
}
