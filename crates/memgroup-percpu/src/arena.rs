//! All per-slot memory of one slot count and one page size, behind one lock.
//!
//! - I1. A unit is touched only after its slot was admitted, by the arena and by users alike.
//! - I2. A block is zero on every slot when it is handed out: stale bytes were cleared on the admitted slots, the units
//!   of the others were never touched (`chunk.rs`, I2).
//! - I3. A failed request changes nothing: what it took is free again, what it backed is given back.
//! - E1. `free` of a block → `alloc` of one in the same place: the lock.
//! - E2. `alloc`, `free` → `depopulate`: the lock, and while `madvise` runs without it the chunk's state (`chunks.rs`, I4).
//!
//! The lock is held for work on metadata only. Address space is mapped, pages are given back, blocks are cleared and
//! chunks are unmapped outside; only pages larger than the system's are backed under it.

mod bits;
pub(crate) mod block;
#[cfg(test)]
mod check;
pub(crate) mod chunk;
mod chunks;
mod config;
mod decay;
pub(crate) mod depopulate;
pub(crate) mod evacuate;
mod hints;
mod lists;
pub(crate) mod os;
pub(crate) mod out_of_memory;
mod owners;
pub(crate) mod page;
mod shared;
pub(crate) mod slot_set;
#[cfg(all(test, not(memgroup_loom)))]
pub(crate) mod tests;

use core::fmt;

pub use self::config::{ArenaConfig, ArenaStats};

use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::arena::block::{Block, Shape, Wait};
use crate::arena::chunk::Chunk;
use crate::arena::chunks::{Chunks, Placed};
use crate::arena::decay::Decay;
use crate::arena::evacuate::Evacuation;
use crate::arena::out_of_memory::{ArenaError, Lack, OutOfMemory};
use crate::arena::page::{Geometry, Kind, PageSize};
use crate::arena::slot_set::{SLOTS_MAX, SlotSet};

/// All per-slot memory of one slot count and one page size.
///
/// Memory comes in chunks of one unit a slot; `docs/percpu.md` tells how. Objects are made in it by
/// [`PerCpu::try_new_in`](crate::PerCpu::try_new_in).
pub struct Arena {
    pub(crate) slots: SlotSet,
    geometries: [Geometry; 2],
    pub(crate) config: ArenaConfig,
    pub(crate) state: Mutex<Locked>,
    /// A slot was admitted while the lock was taken: whole pages must be backed for it.
    late: AtomicBool,
    pub(crate) depopulated_bytes: AtomicU64,
    unmapped_bytes: AtomicU64,
    pub(crate) refusals: AtomicU64,
}

/// What the lock protects.
#[derive(Debug)]
pub(crate) struct Locked {
    pub(crate) chunks: Chunks,
    pub(crate) decay: Decay,
    pub(crate) evacuation: Evacuation,
}

impl Arena {
    /// An arena without memory.
    ///
    /// # Errors
    ///
    /// [`ArenaError`] if the number of slots is not within 1..=8192 or the page smaller than the system's.
    pub fn new(config: ArenaConfig) -> Result<Self, ArenaError> {
        let ArenaConfig { slots, page, .. } = config;
        if !(1..=SLOTS_MAX).contains(&slots) {
            return Err(ArenaError::Slots { slots });
        }
        let system_bytes = crate::arena::os::page_bytes();
        if page.bytes() < system_bytes {
            return Err(ArenaError::Page { page, system_bytes });
        }
        Ok(Self {
            slots: SlotSet::new(slots),
            geometries: [Kind::Coloured, Kind::Plain].map(|kind| Geometry::new(kind, page, slots)),
            config,
            state: Mutex::new(Locked {
                chunks: Chunks::new(config),
                decay: Decay::new(config.float_bytes, config.decay),
                evacuation: Evacuation::default(),
            }),
            late: AtomicBool::new(false),
            depopulated_bytes: AtomicU64::new(0),
            unmapped_bytes: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
        })
    }

    /// The number of slots.
    #[inline]
    #[must_use]
    pub fn slots(&self) -> usize {
        self.config.slots
    }

    /// The unit in which memory is backed and given back.
    #[must_use]
    pub fn page(&self) -> PageSize {
        self.config.page
    }

    /// From one slot's copy of an object to the next slot's, for objects aligned to at most 128 bytes.
    #[inline]
    #[must_use]
    pub fn stride_bytes(&self) -> usize {
        self.geometries[Kind::Coloured as usize].stride
    }

    /// The stride of blocks of this shape.
    #[cfg(not(memgroup_loom))]
    #[inline]
    pub(crate) fn stride_of(&self, shape: Shape) -> usize {
        self.geometries[shape.kind() as usize].stride
    }

    /// Says that `slot` runs: from now on its copies may be touched.
    ///
    /// # Panics
    ///
    /// If `slot` is not below [`slots`](Self::slots).
    pub fn admit(&self, slot: usize) {
        if self.slots.insert(slot) && self.backs_whole_pages() {
            // The caller may be inside an allocation of the thread that holds the lock: it never waits.
            match self.state.try_lock() {
                Some(mut state) => self.back_slots(&mut state, core::iter::once(slot)),
                // ORDERING: Relaxed; only says that there is work, which is done under the lock.
                None => self.late.store(true, Ordering::Relaxed),
            }
        }
    }

    /// Whether `slot` was admitted.
    #[inline(always)]
    #[must_use]
    pub fn is_admitted(&self, slot: usize) -> bool {
        self.slots.contains(slot)
    }

    /// The slots that were admitted, in order.
    pub fn admitted(&self) -> impl Iterator<Item = usize> {
        self.slots.iter()
    }

    /// The set of admitted slots.
    #[inline(always)]
    #[must_use]
    pub fn slot_set(&self) -> &SlotSet {
        &self.slots
    }

    /// Takes memory for an object, zero on every slot (I2).
    pub(crate) fn alloc(&self, shape: Shape, owner: u32, wait: Wait) -> Result<Block, OutOfMemory> {
        let out_of = |lack, bytes| OutOfMemory { lack, bytes, slots: self.slots() };
        if wait == Wait::Never {
            let mut state = self.state.try_lock().ok_or(out_of(Lack::Room, shape.bytes()))?;
            let placed = state.chunks.place(shape, owner, wait);
            drop(state);
            return placed.map(|placed| self.cleared(placed)).ok_or(out_of(Lack::Room, shape.bytes()));
        }
        let placed = self.place_waiting(shape, owner).map_err(|geometry| {
            geometry.map_or(out_of(Lack::Pages, shape.bytes()), |geometry| {
                out_of(Lack::Chunk, geometry.chunk_bytes())
            })
        })?;
        Ok(self.cleared(placed))
    }

    /// Places a block, in a new chunk if need be. The error is the geometry of the chunk that could not be mapped, or
    /// nothing if pages could not be backed.
    fn place_waiting(&self, shape: Shape, owner: u32) -> Result<Placed, Option<Geometry>> {
        let mut state = self.state.lock();
        self.back_late(&mut state);
        let placed = match state.chunks.place(shape, owner, Wait::May) {
            Some(placed) => placed,
            None => {
                drop(state);
                let geometry = self.geometries[shape.kind() as usize];
                let chunk = Chunk::map(geometry).map_err(|_| Some(geometry))?;
                state = self.state.lock();
                let id = state.chunks.add(chunk);
                let Some(placed) = state.chunks.place_in(id, shape, owner, Wait::May, u32::MAX) else {
                    unreachable!("an empty chunk has no room for {} bytes", shape.bytes())
                };
                placed
            }
        };
        if !self.back_placed(&mut state, placed) {
            let vacant = state.chunks.undo(placed.block);
            drop(state);
            self.unmap(vacant);
            return Err(None);
        }
        Ok(placed)
    }

    /// Clears what must be cleared, on the slots that ran.
    #[allow(unsafe_code)]
    pub(crate) fn cleared(&self, placed: Placed) -> Block {
        let Placed { block, stride, must_clear } = placed;
        if must_clear {
            for slot in self.slots.iter() {
                // SAFETY: the block was handed out just now, to nobody else yet, and lies in this slot's unit.
                unsafe { block.place().clear(slot * stride, block.bytes()) };
            }
        }
        block
    }

    /// Whether pages are larger than the system's, so that the arena must back and give back several at a time.
    fn backs_whole_pages(&self) -> bool {
        self.config.page.bytes() > crate::arena::os::page_bytes()
    }

    /// Backs the whole pages of a block for the slots that ran; whether the system gave them.
    pub(crate) fn back_placed(&self, state: &mut Locked, placed: Placed) -> bool {
        if !self.backs_whole_pages() {
            return true;
        }
        let Block { chunk, start, count, .. } = placed.block;
        let backed = state.chunks.change(chunk, |chunk| chunk.back(self.slots.iter(), start, start + count));
        self.count_refusals(u64::from(backed.is_err()));
        backed.is_ok()
    }

    /// Backs what slots need that were admitted while the lock was taken.
    fn back_late(&self, state: &mut Locked) {
        // ORDERING: Relaxed, as the store; what it misses is done by the next caller.
        if self.backs_whole_pages() && self.late.load(Ordering::Relaxed) {
            // ORDERING: Relaxed, as above; before the slots are read.
            self.late.store(false, Ordering::Relaxed);
            self.back_slots(state, self.slots.iter());
        }
    }

    /// Backs the pages that hold blocks, for some slots. What the system refuses is backed page by page when it is touched.
    fn back_slots(&self, state: &mut Locked, slots: impl Iterator<Item = usize> + Clone) {
        for id in state.chunks.ids() {
            if state.chunks.get(id).is_none() {
                continue;
            }
            let refused = state.chunks.change(id, |chunk| {
                let runs = chunk.used_runs();
                runs.into_iter()
                    .filter(|&(start, end)| chunk.back(slots.clone(), start, end).is_err())
                    .count()
            });
            self.count_refusals(refused as u64);
        }
    }

    pub(crate) fn count_refusals(&self, refusals: u64) {
        // ORDERING: Relaxed; a statistic.
        self.refusals.fetch_add(refusals, Ordering::Relaxed);
    }

    /// Gives a block back. Nobody uses it any more.
    pub(crate) fn free(&self, block: Block) {
        let mut state = self.state.lock();
        let vacant = state.chunks.release(block);
        drop(state);
        self.unmap(vacant);
    }

    /// Gives a chunk back as a whole; without the lock.
    pub(crate) fn unmap(&self, vacant: Option<Box<Chunk>>) {
        let Some(chunk) = vacant else { return };
        match chunk.region.resident_bytes(0..chunk.geometry.chunk_bytes()) {
            // ORDERING: Relaxed; a statistic.
            Ok(bytes) => self.unmapped_bytes.fetch_add(bytes as u64, Ordering::Relaxed),
            Err(_) => return self.count_refusals(1),
        };
        drop(chunk);
    }

    /// Bytes that went back to the system since the arena was made, as pages and as whole chunks.
    pub fn returned_bytes_total(&self) -> u64 {
        // ORDERING: Relaxed, both; statistics.
        self.depopulated_bytes.load(Ordering::Relaxed) + self.unmapped_bytes.load(Ordering::Relaxed)
    }

    /// As [`free`](Self::free), for the block of this shape whose first copy is at `address`.
    #[cfg(not(memgroup_loom))]
    pub(crate) fn free_at(&self, address: usize, shape: Shape) {
        let mut state = self.state.lock();
        let block = state.chunks.block_at(address, shape.count);
        let vacant = state.chunks.release(block);
        drop(state);
        self.unmap(vacant);
    }

    /// Maps chunks until each unit has `reserve_bytes` free.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] if the system refuses address space.
    pub fn replenish(&self) -> Result<(), OutOfMemory> {
        let geometry = self.geometries[Kind::Coloured as usize];
        let lacks = || self.state.lock().chunks.free_bytes(Kind::Coloured) < self.config.reserve_bytes;
        while lacks() {
            let refused =
                |_| OutOfMemory { lack: Lack::Chunk, bytes: geometry.chunk_bytes(), slots: self.slots() };
            let chunk = Chunk::map(geometry).map_err(refused)?;
            self.state.lock().chunks.add(chunk);
        }
        Ok(())
    }

    /// Maps chunks until so many blocks of this shape can be placed, each with an owner, by a caller that may not wait; unmaps those
    /// that hold nothing and are not needed for it, all but one.
    pub(crate) fn provide(&self, shape: Shape, blocks: u64) -> Result<(), OutOfMemory> {
        let geometry = self.geometries[shape.kind() as usize];
        while self.state.lock().chunks.room_for(shape) < blocks {
            let refused =
                |_| OutOfMemory { lack: Lack::Chunk, bytes: geometry.chunk_bytes(), slots: self.slots() };
            let mut chunk = Chunk::map(geometry).map_err(refused)?;
            chunk.make_room_for_owner(shape);
            self.state.lock().chunks.add(chunk);
        }
        while self.trim(shape, blocks) {}
        Ok(())
    }

    /// Unmaps some of the chunks that hold nothing and are not needed for so many blocks; whether there were any.
    fn trim(&self, shape: Shape, blocks: u64) -> bool {
        const CHUNKS_HELD_MAX: usize = 64;
        let mut state = self.state.lock();
        let surplus = state.chunks.take_surplus(shape, blocks, CHUNKS_HELD_MAX);
        drop(state);
        !surplus.is_empty()
    }

    /// Where its memory is mapped, to be found in the system's own reports.
    #[cfg(not(memgroup_loom))]
    pub fn ranges(&self) -> Vec<core::ops::Range<usize>> {
        let state = self.state.lock();
        let range = |chunk: &Chunk| {
            let start = chunk.region.at(0).number();
            start..start + chunk.geometry.chunk_bytes()
        };
        state.chunks.all().map(|(_, chunk)| range(chunk)).collect()
    }

    /// Nothing: a model's memory has no addresses.
    #[cfg(memgroup_loom)]
    pub fn ranges(&self) -> Vec<core::ops::Range<usize>> {
        Vec::new()
    }

    /// What it holds now. Asks the system about every page of every admitted slot, about a nanosecond a page, with the lock
    /// held.
    pub fn stats(&self) -> ArenaStats {
        let state = self.state.lock();
        let admitted = self.slots.len() as u64;
        let granule = crate::arena::block::GRANULE_BYTES as u64;
        let mut stats = ArenaStats { admitted_slots: admitted as usize, ..ArenaStats::default() };
        for (_, chunk) in state.chunks.all() {
            stats.chunks += 1;
            stats.reserved_bytes += chunk.geometry.chunk_bytes() as u64;
            for slot in self.slots.iter() {
                let unit = chunk.geometry.pages_around(slot, 0, chunk.geometry.granules());
                match chunk.region.resident_bytes(unit.clone()) {
                    Ok(bytes) => stats.populated_bytes += bytes as u64,
                    Err(_) => {
                        self.count_refusals(1);
                        stats.populated_bytes += unit.len() as u64;
                    }
                }
            }
        }
        for sums in [Kind::Coloured, Kind::Plain].map(|kind| state.chunks.sums(kind)) {
            stats.unit_live_bytes += sums.live * granule;
            stats.live_bytes += sums.live * granule * admitted;
            stats.leaving_bytes += sums.leaving * granule * admitted;
            stats.empty_bytes += sums.empty_pages * self.config.page.bytes() as u64 * admitted;
        }
        // ORDERING: Relaxed; statistics.
        stats.depopulated_bytes_total = self.depopulated_bytes.load(Ordering::Relaxed);
        // ORDERING: Relaxed; statistics.
        stats.unmapped_bytes_total = self.unmapped_bytes.load(Ordering::Relaxed);
        // ORDERING: Relaxed; statistics.
        stats.refusals_total = self.refusals.load(Ordering::Relaxed);
        stats
    }
}

impl fmt::Debug for Arena {
    /// Never locks, so that a holder may be debugged.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("config", &self.config).finish_non_exhaustive()
    }
}
