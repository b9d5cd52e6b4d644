//! The per-slot memory of equal blocks, of one slot count and one page size, behind one lock.
//!
//! - I1. A unit is touched only after its slot was admitted, by the arena and by users alike.
//! - I2. A block is zero on every slot when it is handed out. Stale bytes were cleared on the
//!   admitted slots; the units of the others were never touched (`chunk.rs`, I2).
//! - I3. An allocation takes a block of a mapped chunk or fails. It never waits, makes no system
//!   call and allocates nothing. `provide` maps chunks for it.
//! - E1. `free` of a block → `alloc` of one in the same place: the lock.
//! - E2. `alloc`, `free` → `depopulate`: the lock, and while `madvise` runs without it the chunk's
//!   state (`chunks.rs`, I4).
//!
//! The lock is held for work on metadata only. Mapping, giving pages back, clearing blocks and
//! unmapping happen without it.

use core::time::Duration;

use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicU64, Ordering};

use crate::arena::chunk::{Block, Chunk};
use crate::arena::chunks::{Chunks, Placed};
use crate::arena::config::{ArenaConfig, ArenaStats};
use crate::arena::decay::Decay;
use crate::arena::evacuate::{Evacuation, Move};
use crate::arena::os;
use crate::arena::out_of_memory::{ArenaError, OutOfMemory};
use crate::arena::page::{BLOCK_BYTES_MAX, Geometry, PageSize};
use crate::arena::slot_set::{SLOTS_MAX, SlotSet};

/// The memory of [`Records`](crate::Records): equal blocks with a copy on each slot, in chunks of
/// one unit a slot. Empty pages can be given back, and blocks moved together so that pages become
/// empty.
pub struct Arena {
    pub(crate) slots: SlotSet,
    pub(crate) geometry: Geometry,
    config: ArenaConfig,
    pub(crate) state: Mutex<Locked>,
    pub(crate) depopulated_bytes: AtomicU64,
    unmapped_bytes: AtomicU64,
    refusals: AtomicU64,
}

/// The state that the lock protects.
#[derive(Debug)]
pub(crate) struct Locked {
    pub(crate) chunks: Chunks,
    pub(crate) decay: Decay,
    evacuation: Evacuation,
}

impl Arena {
    /// Makes an arena without memory, for blocks of `words` words.
    pub(crate) fn new(config: ArenaConfig, words: usize) -> Result<Self, ArenaError> {
        let ArenaConfig { slots, page, .. } = config;
        let bytes = words.saturating_mul(size_of::<u64>());
        if !(1..=BLOCK_BYTES_MAX).contains(&bytes) {
            return Err(ArenaError::Record { bytes });
        }
        if !(1..=SLOTS_MAX).contains(&slots) {
            return Err(ArenaError::Slots { slots });
        }
        let system_bytes = os::page_bytes();
        if page.bytes() < system_bytes {
            return Err(ArenaError::Page { page, system_bytes });
        }
        let geometry = Geometry::new(page, slots, bytes);
        Ok(Self {
            slots: SlotSet::new(slots),
            geometry,
            config,
            state: Mutex::new(Locked {
                chunks: Chunks::new(geometry),
                decay: Decay::new(config.float_bytes, config.decay),
                evacuation: Evacuation::default(),
            }),
            depopulated_bytes: AtomicU64::new(0),
            unmapped_bytes: AtomicU64::new(0),
            refusals: AtomicU64::new(0),
        })
    }

    /// Sets the bytes that may float from now on and their decay, in place of those of its
    /// [`ArenaConfig`].
    pub fn set_float(&self, bytes: u64, decay: Duration) {
        self.state.lock().decay = Decay::new(bytes, decay);
    }

    /// The number of slots.
    #[inline]
    pub fn slots(&self) -> usize {
        self.config.slots
    }

    /// The unit in which memory is given back.
    pub fn page(&self) -> PageSize {
        self.config.page
    }

    /// Takes a block of a mapped chunk, zero on every slot (I2). Returns `None` if there is none,
    /// or another thread has the lock (I3).
    pub(crate) fn alloc(&self, owner: u32) -> Option<Block> {
        let placed = self.state.try_lock()?.chunks.place(owner)?;
        Some(self.cleared(placed))
    }

    /// Clears a block that was just placed, on the admitted slots and where it is stale.
    #[allow(unsafe_code)]
    fn cleared(&self, Placed { block, must_clear }: Placed) -> Block {
        for slot in self.slots.iter().filter(|_| must_clear) {
            // SAFETY: the block was handed out just now, to no other thread yet, and lies in this
            // slot's unit.
            unsafe { block.place.clear(slot * self.geometry.stride, self.geometry.block_bytes) };
        }
        block
    }

    pub(crate) fn count_refusals(&self, refusals: u64) {
        // ORDERING: Relaxed; a statistic.
        self.refusals.fetch_add(refusals, Ordering::Relaxed);
    }

    /// Gives a block back, which no thread uses any more.
    pub(crate) fn free(&self, block: Block) {
        let vacant = self.state.lock().chunks.release(block);
        self.unmap(vacant);
    }

    /// Unmaps a chunk; the caller doesn't hold the lock.
    pub(crate) fn unmap(&self, vacant: Option<Box<Chunk>>) {
        let Some(chunk) = vacant else { return };
        match chunk.region.resident_bytes(0..self.geometry.chunk_bytes()) {
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

    /// Returns the next block to move, whose new place is cleared already; `None` when moving on
    /// gains nothing.
    pub(crate) fn begin_move(&self) -> Option<Move> {
        let mut state = self.state.lock();
        let Locked { chunks, evacuation, .. } = &mut *state;
        let (owner, from, placed) = evacuation.next_move(chunks)?;
        chunks.change(from.chunk, |chunk| chunk.leave(from.at));
        drop(state);
        Some(Move { owner, from, to: self.cleared(placed) })
    }

    /// Notes that the block will be freed: it stays used until then, but isn't live, and isn't
    /// moved any more.
    pub(crate) fn leave(&self, block: Block) {
        self.state.lock().chunks.change(block.chunk, |chunk| chunk.leave(block.at));
    }

    /// Maps chunks until `blocks` more blocks can be allocated. Unmaps empty chunks that aren't
    /// needed for that, all but one.
    pub(crate) fn provide(&self, blocks: u64) -> Result<(), OutOfMemory> {
        while self.state.lock().chunks.sums.free < blocks {
            let out_of_memory = OutOfMemory { bytes: self.geometry.chunk_bytes(), slots: self.slots() };
            let chunk = Chunk::map(self.geometry).map_err(|_| out_of_memory)?;
            self.state.lock().chunks.add(chunk);
        }
        loop {
            let surplus = self.state.lock().chunks.take_surplus(blocks);
            if surplus.is_none() {
                return Ok(());
            }
            drop(surplus);
        }
    }

    /// Unmaps the chunk that is kept although it is empty, for an arena in which nothing will be
    /// made for long. The next record maps another one.
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

    /// The memory that it holds now. Asks the system about every page of every admitted slot,
    /// about a nanosecond a page, with the lock held.
    pub fn stats(&self) -> ArenaStats {
        let state = self.state.lock();
        let (admitted, sums, geometry) = (self.slots.len() as u64, state.chunks.sums, self.geometry);
        let block_bytes = geometry.block_bytes as u64;
        let mut stats = ArenaStats {
            admitted_slots: admitted as usize,
            unit_live_bytes: sums.live * block_bytes,
            live_bytes: sums.live * block_bytes * admitted,
            leaving_bytes: sums.leaving * block_bytes * admitted,
            empty_bytes: sums.empty_pages * geometry.page_bytes as u64 * admitted,
            // ORDERING: Relaxed, both; statistics.
            depopulated_bytes_total: self.depopulated_bytes.load(Ordering::Relaxed),
            unmapped_bytes_total: self.unmapped_bytes.load(Ordering::Relaxed),
            ..ArenaStats::default()
        };
        for (_, chunk) in state.chunks.all() {
            stats.chunks += 1;
            stats.reserved_bytes += geometry.chunk_bytes() as u64;
            for slot in self.slots.iter() {
                let unit = geometry.pages_around(slot, 0, geometry.blocks);
                let resident = chunk.region.resident_bytes(unit.clone());
                self.count_refusals(u64::from(resident.is_err()));
                stats.populated_bytes += resident.unwrap_or(unit.len()) as u64;
            }
        }
        // ORDERING: Relaxed; a statistic.
        stats.refusals_total = self.refusals.load(Ordering::Relaxed);
        stats
    }
}
