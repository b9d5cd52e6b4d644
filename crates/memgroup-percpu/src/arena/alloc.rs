//! All per-slot memory of one slot count and one page size, behind one lock.
//!
//! - I1. A unit is touched only after its slot was admitted, by the arena and by users alike.
//! - I2. A block is zero on every slot when it is handed out. Stale bytes were cleared on the admitted slots; the units of
//!   the others were never touched (`chunk.rs`, I2).
//! - I3. A failed request changes nothing: the places it took are free again, the pages it backed are given back.
//! - E1. `free` of a block → `alloc` of one in the same place: the lock.
//! - E2. `alloc`, `free` → `depopulate`: the lock, and while `madvise` runs without it the chunk's state (`chunks.rs`, I4).
//!
//! The lock is held for work on metadata only. Mapping, giving pages back, clearing blocks and unmapping happen without it.
//! Only pages larger than the system's are backed under it.

use core::time::Duration;

use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::arena::block::{Block, Shape, Wait};
use crate::arena::chunk::Chunk;
use crate::arena::chunks::{Chunks, Placed, Request};
use crate::arena::config::{ArenaConfig, ArenaStats};
use crate::arena::decay::Decay;
use crate::arena::evacuate::{Evacuation, Move};
use crate::arena::os;
use crate::arena::out_of_memory::{ArenaError, Lack, OutOfMemory};
use crate::arena::page::{GRANULE_BYTES, Geometry, PageSize};
use crate::arena::slot_set::{SLOTS_MAX, SlotSet};

/// All per-slot memory of one slot count and one page size.
///
/// Memory comes in chunks of one unit a slot, which `docs/percpu.md` describes.
/// [`PerCpu::try_new_in`](crate::PerCpu::try_new_in) makes objects in an arena.
pub struct Arena {
    pub(crate) slots: SlotSet,
    geometry: Geometry,
    pub(crate) config: ArenaConfig,
    pub(crate) state: Mutex<Locked>,
    /// A slot was admitted while the lock was taken: whole pages must be backed for it.
    late: AtomicBool,
    pub(crate) depopulated_bytes: AtomicU64,
    unmapped_bytes: AtomicU64,
    refusals: AtomicU64,
}

/// The state that the lock protects.
#[derive(Debug)]
pub(crate) struct Locked {
    pub(crate) chunks: Chunks,
    pub(crate) decay: Decay,
    pub(crate) evacuation: Evacuation,
}

impl Arena {
    /// Makes an arena without memory.
    ///
    /// # Errors
    ///
    /// [`ArenaError`] if the number of slots is not within 1..=8192 or the page is smaller than the system's.
    pub fn new(config: ArenaConfig) -> Result<Self, ArenaError> {
        let ArenaConfig { slots, page, .. } = config;
        if !(1..=SLOTS_MAX).contains(&slots) {
            return Err(ArenaError::Slots { slots });
        }
        let system_bytes = os::page_bytes();
        if page.bytes() < system_bytes {
            return Err(ArenaError::Page { page, system_bytes });
        }
        Ok(Self {
            slots: SlotSet::new(slots),
            geometry: Geometry::new(page, slots),
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

    /// Sets the bytes that may float from now on, and their decay, in place of those of its [`ArenaConfig`].
    pub fn set_float(&self, bytes: u64, decay: Duration) {
        self.state.lock().decay = Decay::new(bytes, decay);
    }

    /// The number of slots.
    #[inline]
    pub fn slots(&self) -> usize {
        self.config.slots
    }

    /// The unit in which memory is backed and given back.
    pub fn page(&self) -> PageSize {
        self.config.page
    }

    /// The distance from one slot's copy of an object to the next slot's.
    #[inline]
    pub fn stride_bytes(&self) -> usize {
        self.geometry.stride
    }

    /// Admits `slot`: from now on its copies may be touched.
    ///
    /// # Panics
    ///
    /// If `slot` is not below [`slots`](Self::slots).
    pub fn admit(&self, slot: usize) {
        if self.slots.insert(slot) && self.backs_whole_pages() {
            // The caller may be inside an allocation of the thread that holds the lock, so it never waits.
            match self.state.try_lock() {
                Some(mut state) => self.back_slots(&mut state.chunks, core::iter::once(slot)),
                // ORDERING: Relaxed; it only announces work, which is done under the lock.
                None => self.late.store(true, Ordering::Relaxed),
            }
        }
    }

    fn out_of(&self, lack: Lack, bytes: usize) -> OutOfMemory {
        OutOfMemory { lack, bytes, slots: self.slots() }
    }

    fn map_chunk(&self) -> Result<Chunk, OutOfMemory> {
        Chunk::map(self.geometry).map_err(|_| self.out_of(Lack::Chunk, self.geometry.chunk_bytes()))
    }

    /// Takes memory for an object, zero on every slot (I2).
    pub(crate) fn alloc(&self, shape: Shape, owner: u32, wait: Wait) -> Result<Block, OutOfMemory> {
        debug_assert!(owner >= crate::arena::block::LEAVING || shape.align == 1, "a movable block has words");
        let request = Request { shape, owner, wait };
        let placed = match wait {
            Wait::May => self.place_waiting(&request)?,
            Wait::Never => {
                let placed = self.state.try_lock().and_then(|mut state| state.chunks.place(&request));
                placed.ok_or(self.out_of(Lack::Room, shape.bytes()))?
            }
        };
        Ok(self.cleared(placed))
    }

    /// Places a block, in a new chunk where no mapped one has room.
    fn place_waiting(&self, request: &Request) -> Result<Placed, OutOfMemory> {
        let mut state = self.state.lock();
        self.back_late(&mut state.chunks);
        let placed = match state.chunks.place(request) {
            Some(placed) => placed,
            None => {
                drop(state);
                let chunk = self.map_chunk()?;
                state = self.state.lock();
                let id = state.chunks.add(chunk);
                let Some(placed) = state.chunks.place_in(id, request, u32::MAX) else {
                    unreachable!("an empty chunk has no room for {} bytes", request.shape.bytes())
                };
                placed
            }
        };
        if !self.back_placed(&mut state.chunks, placed) {
            let vacant = state.chunks.undo(placed.block);
            drop(state);
            self.unmap(vacant);
            return Err(self.out_of(Lack::Pages, request.shape.bytes()));
        }
        Ok(placed)
    }

    /// Clears a block that was just placed, on the admitted slots and where it is stale.
    #[allow(unsafe_code)]
    fn cleared(&self, placed: Placed) -> Block {
        let Placed { block, must_clear } = placed;
        if must_clear {
            for slot in self.slots.iter() {
                // SAFETY: the block was handed out just now, to no other thread yet, and lies in this slot's unit.
                unsafe { block.place.clear(slot * self.stride_bytes(), block.bytes()) };
            }
        }
        block
    }

    /// Whether pages are larger than the system's, so that the arena must back and give back several at a time.
    fn backs_whole_pages(&self) -> bool {
        self.config.page.bytes() > os::page_bytes()
    }

    /// Backs the whole pages of a block for the admitted slots; returns whether the system gave them.
    fn back_placed(&self, chunks: &mut Chunks, placed: Placed) -> bool {
        if !self.backs_whole_pages() {
            return true;
        }
        let Block { chunk, start, count, .. } = placed.block;
        let backed = chunks.change(chunk, |chunk| chunk.back(self.slots.iter(), start, start + count));
        self.count_refusals(u64::from(backed.is_err()));
        backed.is_ok()
    }

    /// Backs the pages of slots that were admitted while the lock was taken.
    fn back_late(&self, chunks: &mut Chunks) {
        // ORDERING: Relaxed, as the store; the next caller does the work that this one misses.
        if self.backs_whole_pages() && self.late.load(Ordering::Relaxed) {
            // ORDERING: Relaxed, as above; before the slots are read.
            self.late.store(false, Ordering::Relaxed);
            self.back_slots(chunks, self.slots.iter());
        }
    }

    /// Backs the pages that hold blocks, for some slots. A page that the system refuses is backed when it is touched.
    fn back_slots(&self, chunks: &mut Chunks, slots: impl Iterator<Item = usize> + Clone) {
        for id in chunks.ids() {
            if chunks.get(id).is_none() {
                continue;
            }
            let refused = chunks.change(id, |chunk| {
                let runs = chunk.used_runs().into_iter();
                runs.filter(|&(start, end)| chunk.back(slots.clone(), start, end).is_err()).count()
            });
            self.count_refusals(refused as u64);
        }
    }

    pub(crate) fn count_refusals(&self, refusals: u64) {
        // ORDERING: Relaxed; a statistic.
        self.refusals.fetch_add(refusals, Ordering::Relaxed);
    }

    /// Gives a block back, which no thread uses any more.
    pub(crate) fn free(&self, block: Block) {
        self.free_found(|_| block);
    }

    /// Gives back the block of this shape with its first copy at `address`.
    #[cfg(not(memgroup_loom))]
    pub(crate) fn free_at(&self, address: usize, shape: Shape) {
        self.free_found(|chunks| chunks.block_at(address, shape.count));
    }

    fn free_found(&self, find: impl FnOnce(&Chunks) -> Block) {
        let mut state = self.state.lock();
        let block = find(&state.chunks);
        let vacant = state.chunks.release(block);
        drop(state);
        self.unmap(vacant);
    }

    /// Unmaps a chunk; the caller does not hold the lock.
    pub(crate) fn unmap(&self, vacant: Option<Box<Chunk>>) {
        let Some(chunk) = vacant else { return };
        match chunk.region.resident_bytes(0..chunk.geometry.chunk_bytes()) {
            // ORDERING: Relaxed; a statistic.
            Ok(bytes) => _ = self.unmapped_bytes.fetch_add(bytes as u64, Ordering::Relaxed),
            Err(_) => self.count_refusals(1),
        }
    }

    /// Bytes that went back to the system since the arena was made, as pages and as whole chunks.
    pub fn returned_bytes_total(&self) -> u64 {
        // ORDERING: Relaxed, both; statistics.
        self.depopulated_bytes.load(Ordering::Relaxed) + self.unmapped_bytes.load(Ordering::Relaxed)
    }

    /// The next block to move, placed and cleared already; `None` when moving on gains nothing.
    pub(crate) fn begin_move(&self) -> Option<Move> {
        let mut state = self.state.lock();
        let Locked { chunks, evacuation, .. } = &mut *state;
        let (owner, from, placed) = evacuation.next_move(chunks)?;
        if !self.back_placed(chunks, placed) {
            let vacant = evacuation.give_up(chunks, from, placed.block);
            drop(state);
            self.unmap(vacant);
            return None;
        }
        chunks.change(from.chunk, |chunk| chunk.leave(from.start, from.count));
        drop(state);
        Some(Move { owner, from, to: self.cleared(placed) })
    }

    /// Notes that the block will be freed: it stays used until then, but is not live, and is not moved any more.
    pub(crate) fn leave(&self, block: Block) {
        self.state.lock().chunks.change(block.chunk, |chunk| chunk.leave(block.start, block.count));
    }

    /// Maps chunks until a caller that may not wait can place so many blocks of `count` granules, each with an owner. Unmaps
    /// empty chunks that are not needed for that, all but one.
    pub(crate) fn provide(&self, count: u32, blocks: u64) -> Result<(), OutOfMemory> {
        const UNMAPPED_AT_ONCE_MAX: usize = 64;
        while self.state.lock().chunks.room_for(count) < blocks {
            let mut chunk = self.map_chunk()?;
            chunk.make_room_for_owner(count);
            self.state.lock().chunks.add(chunk);
        }
        loop {
            let surplus = self.state.lock().chunks.take_surplus(count, blocks, UNMAPPED_AT_ONCE_MAX);
            if surplus.is_empty() {
                return Ok(());
            }
        }
    }

    /// Unmaps the chunk that is kept although it is empty, for an arena that nothing will be made in for long. The next object maps another
    /// one. It does nothing in an arena that does not [unmap](ArenaConfig::unmap).
    pub fn unmap_empty(&self) {
        loop {
            let empty = self.state.lock().chunks.take_empty();
            if empty.is_none() {
                return;
            }
            self.unmap(empty);
        }
    }

    /// The address ranges of its mappings, to be found in the system's own reports.
    #[cfg(not(memgroup_loom))]
    pub fn ranges(&self) -> Vec<core::ops::Range<usize>> {
        let state = self.state.lock();
        let starts = state.chunks.all().map(|(_, chunk)| chunk.region.at(0).number());
        starts.map(|start| start..start + self.geometry.chunk_bytes()).collect()
    }

    /// Nothing: a model's memory has no addresses.
    #[cfg(memgroup_loom)]
    pub fn ranges(&self) -> Vec<core::ops::Range<usize>> {
        Vec::new()
    }

    /// The memory that it holds now. Asks the system about every page of every admitted slot, about a nanosecond a page, with
    /// the lock held.
    pub fn stats(&self) -> ArenaStats {
        let state = self.state.lock();
        let admitted = self.slots.len() as u64;
        let sums = state.chunks.sums;
        let mut stats = ArenaStats {
            admitted_slots: admitted as usize,
            unit_live_bytes: sums.live * GRANULE_BYTES as u64,
            live_bytes: sums.live * GRANULE_BYTES as u64 * admitted,
            leaving_bytes: sums.leaving * GRANULE_BYTES as u64 * admitted,
            empty_bytes: sums.empty_pages * self.config.page.bytes() as u64 * admitted,
            // ORDERING: Relaxed; statistics.
            depopulated_bytes_total: self.depopulated_bytes.load(Ordering::Relaxed),
            // ORDERING: Relaxed; statistics.
            unmapped_bytes_total: self.unmapped_bytes.load(Ordering::Relaxed),
            ..ArenaStats::default()
        };
        for (_, chunk) in state.chunks.all() {
            stats.chunks += 1;
            stats.reserved_bytes += self.geometry.chunk_bytes() as u64;
            for slot in self.slots.iter() {
                let unit = self.geometry.pages_around(slot, 0, self.geometry.granules());
                let resident = chunk.region.resident_bytes(unit.clone());
                self.count_refusals(u64::from(resident.is_err()));
                stats.populated_bytes += resident.unwrap_or(unit.len()) as u64;
            }
        }
        // ORDERING: Relaxed; statistics.
        stats.refusals_total = self.refusals.load(Ordering::Relaxed);
        stats
    }
}
