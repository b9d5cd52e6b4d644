//! The memory of records: an arena, the slots that are enabled, and a limbo.
//!
//! ```text
//!   provide ─▶ arena ─ allocate ─▶ Fresh ─ link ─▶ (a record's) ─ unlink or link ─▶ Unlinked ─ retire ─▶ limbo
//!                ▲                  └── discard ──▶ arena                                                 │
//!                └──────────────────── reclaim, a grace period later ◀────────────────────────────────────┘
//! ```
//!
//! - I1. A block is held by one value: a `Fresh`, a record, an `Unlinked` or the limbo. Each knows
//!   the records it came from, and others refuse it.
//! - I2. A slot is enabled only after the arena admitted it, and for ever.
//! - E1. admit → access → allocate again: Release → Acquire on the slot's flag (`record`). A
//!   thread that uses the slot knows that the arena admitted it, and so does whoever gets the
//!   memory after it, and clears it. Loom: `loom_memory_that_was_used_on_a_new_slot_is_cleared`.

#![allow(unsafe_code)]

use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use memgroup_sync::grace::Limbo;

use crate::arena::alloc::Arena;
use crate::arena::chunk::{Block, LEAVING};
use crate::arena::config::ArenaConfig;
use crate::arena::evacuate::Move;
use crate::arena::out_of_memory::{ArenaError, OutOfMemory};
use crate::mutation::{Mutation, active};

/// A block of other records would be taken for the one at the same place in this arena.
pub(crate) const OTHER_RECORDS: &str = "the block is of other records: give it back where it was allocated";

#[doc = include_str!("../docs/records.md")]
pub struct Records {
    arena: Arena,
    /// A flag for each slot: its copies may be accessed. For accesses to records with a block.
    pub(crate) slot_enabled: Box<[AtomicBool]>,
    /// The same number of flags, which are never set, for records without a block.
    pub(crate) none_enabled: Box<[AtomicBool]>,
    limbo: Mutex<Limbo<Block>>,
}

/// A block that no record has had yet; all words are zero.
#[must_use = "a block that is neither linked nor discarded is never free again"]
pub struct Fresh {
    pub(crate) block: Block,
    pub(crate) records: &'static Records,
}

/// A block that was a record's until now; accesses that began before may still reach it.
#[must_use = "a block that is not retired is never free again"]
pub struct Unlinked {
    pub(crate) block: Block,
    pub(crate) records: &'static Records,
}

/// A record that should move, and the block to move it to.
#[must_use = "a record that is offered is not offered again"]
pub struct Relocation {
    pub(crate) inner: Move,
    records: &'static Records,
}

impl Records {
    /// Makes records of `words` words each, in an arena of their own.
    ///
    /// # Errors
    /// A setting of `config` is out of its range, or a record is empty or larger than 64 KiB.
    pub fn new(config: ArenaConfig, words: usize) -> Result<Records, ArenaError> {
        let arena = Arena::new(config, words)?;
        let flags = || (0..arena.slots()).map(|_| AtomicBool::new(false)).collect();
        let (slot_enabled, none_enabled) = (flags(), flags());
        Ok(Records { arena, slot_enabled, none_enabled, limbo: Mutex::new(Limbo::new(usize::MAX)) })
    }

    /// The arena of the blocks, to depopulate, and for its figures.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// How many words a record has.
    pub fn words(&self) -> usize {
        self.record_bytes() / size_of::<u64>()
    }

    /// Bytes of one record on one slot.
    pub fn record_bytes(&self) -> usize {
        self.arena.geometry.block_bytes
    }

    /// Enables the copies of `slot` for accesses; nothing happens if they are enabled.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn admit(&self, slot: usize) {
        if !self.is_admitted(slot) {
            self.arena.slots.insert(slot);
            let relaxed = active(Mutation::SlotIsEnabledRelaxed);
            // ORDERING: Release; pairs with the Acquire in `is_enabled` (E1).
            self.slot_enabled[slot].store(true, if relaxed { Ordering::Relaxed } else { Ordering::Release });
        }
    }

    /// Returns whether the copies of `slot` are enabled.
    #[inline(always)]
    pub fn is_admitted(&self, slot: usize) -> bool {
        // ORDERING: Acquire; pairs with the Release in `admit` (E1).
        self.slot_enabled.get(slot).is_some_and(|enabled| enabled.load(Ordering::Acquire))
    }

    /// The slots with enabled copies.
    pub fn admitted(&self) -> impl Iterator<Item = usize> {
        self.arena.slots.iter().filter(|&slot| self.is_admitted(slot))
    }

    /// Takes memory for one record, all zero. `owner` is the number by which
    /// [`next_move`](Self::next_move) will name it.
    ///
    /// It returns `None` if the memory that was [provided](Self::provide) is used up, or another
    /// thread is in the arena. It never waits, makes no system call and allocates nothing.
    ///
    /// # Panics
    /// If `owner` is the largest number, which the arena keeps for itself.
    pub fn allocate(&'static self, owner: u32) -> Option<Fresh> {
        assert!(owner < LEAVING, "records have owners below {LEAVING}, not {owner}");
        Some(Fresh { block: self.arena.alloc(owner)?, records: self })
    }

    /// Sets address space aside until so many more records can be allocated. It backs no pages:
    /// the first touch does. Empty chunks beyond that are unmapped, all but one.
    ///
    /// # Errors
    /// The system refuses address space.
    pub fn provide(&self, records: u64) -> Result<(), OutOfMemory> {
        self.arena.provide(records)
    }

    /// Frees a block that no record ever had, at once, because no access can have reached it.
    ///
    /// # Panics
    /// If it isn't one of these records', like all functions that take a block.
    pub fn discard(&self, fresh: Fresh) {
        self.check(fresh.records);
        self.arena.free(fresh.block);
    }

    /// Keeps an unlinked block in the limbo until a grace period is over.
    pub fn retire(&self, unlinked: Unlinked) {
        self.check(unlinked.records);
        if active(Mutation::RetiredIsFreeAtOnce) {
            return self.arena.free(unlinked.block);
        }
        self.arena.leave(unlinked.block);
        let bytes = self.record_bytes() * self.arena.slots.len();
        let refused = self.limbo.lock().retire(unlinked.block, bytes);
        assert!(refused.is_ok(), "the limbo of records has no bound of its own");
    }

    /// Refuses a block of [other records](OTHER_RECORDS).
    fn check(&self, of: &'static Records) {
        assert!(core::ptr::eq(self, of), "{OTHER_RECORDS}");
    }

    /// Bytes that wait for a grace period, over the slots that were enabled when they were
    /// retired.
    pub fn limbo_bytes(&self) -> u64 {
        self.limbo.lock().bytes() as u64
    }

    /// Records that wait for a grace period, also those that no enabled slot has a copy of.
    pub fn limbo_records(&self) -> usize {
        self.limbo.lock().len()
    }

    /// Frees the blocks that were retired before the last grace period that is over. Returns how
    /// many. It waits for nothing: see [`synchronize`](memgroup_sync::grace::synchronize).
    pub fn reclaim(&self) -> usize {
        self.reclaim_some(usize::MAX)
    }

    /// Like [`reclaim`](Self::reclaim), for at most `most` blocks, the oldest first.
    pub fn reclaim_some(&self, most: usize) -> usize {
        const AT_ONCE: usize = 256;
        let (mut done, mut freed) = (Vec::new(), 0);
        loop {
            let blocks = self.limbo.lock().reclaim_some(AT_ONCE.min(most - freed), |block| done.push(block));
            if blocks == 0 {
                return freed;
            }
            freed += blocks;
            done.drain(..).for_each(|block| self.arena.free(block));
        }
    }

    /// Returns the next record that should move so that pages become free, and a block for it;
    /// `None` when moving on gains nothing. The caller links [`Relocation::into_target`] to the
    /// record and retires the old block. If the record has another block by then
    /// ([`Relocation::is_current`]), the caller discards the target.
    pub fn next_move(&'static self) -> Option<Relocation> {
        Some(Relocation { inner: self.arena.begin_move()?, records: self })
    }

    #[inline]
    fn word_of<'b>(&self, block: &'b Block, slot: usize, index: usize) -> Option<&'b AtomicU64> {
        if index >= self.words() || !self.is_admitted(slot) {
            return None;
        }
        // SAFETY: the slot is admitted, and the index is within the block. The block isn't free: a
        // `Fresh` or an `Unlinked` holds it, and only `discard` and `reclaim` free those.
        Some(unsafe { block.word(self.arena.geometry.stride, slot, index) })
    }

    /// A word of a block that isn't linked yet; `None` beyond its end and on a slot that was not
    /// admitted.
    pub fn fresh_word<'b>(&self, fresh: &'b Fresh, slot: usize, index: usize) -> Option<&'b AtomicU64> {
        self.check(fresh.records);
        self.word_of(&fresh.block, slot, index)
    }

    /// A word of a block that was unlinked; `None` beyond its end and on a slot that was not
    /// admitted.
    pub fn unlinked_word<'b>(&self, old: &'b Unlinked, slot: usize, index: usize) -> Option<&'b AtomicU64> {
        self.check(old.records);
        self.word_of(&old.block, slot, index)
    }
}

impl Relocation {
    /// The number of the record, as given to [`Records::allocate`].
    pub fn owner(&self) -> u32 {
        self.inner.owner
    }

    /// The block to link.
    pub fn into_target(self) -> Fresh {
        Fresh { block: self.inner.to, records: self.records }
    }
}
