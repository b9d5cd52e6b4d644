//! Records: additive words with a copy on each slot, behind a handle, so that they can be moved
//! while threads use them.
//!
//! ```text
//!   Record ── base ──▶ block A      link(B):     Record ── base ──▶ block B      (new accesses)
//!                                                block A, unlinked               (accesses that began before)
//!                                                ── fold A into B ── retire A ── grace period ── A is free again
//! ```
//!
//! A [`Record`] holds the address of the words, and every access reads it anew. The record's owner
//! links a block of memory to it, links another one later, or unlinks it altogether. Every access
//! is in a read section of [`memgroup_sync::grace`], and memory that was unlinked is used again
//! only after a grace period. The owner defines the meaning of the words, and moves the values
//! from the old block to the new one.
//!
//! - I1. While the record has a block, `slot_enabled` is the row of flags of its [`Records`].
//!   `base` is then the address of slot 0's copy of the block, which has `words` words. Without a
//!   block, `slot_enabled` is a row of flags that are never set, and `base` is the last block's.
//! - I2. A block that was linked once goes back to the arena in `reclaim` alone, after a grace
//!   period that began after it was unlinked.
//! - I3. The memory of such an arena consists of `AtomicU64`, for as long as a section that began
//!   before its end can reach it. Only the arena's `free` unmaps chunks, and `reclaim` calls it
//!   for these blocks (I2).
//! - I4. Number of slots, number of words, flags and block of one access are read in one section:
//!   then they are of one owner, or zero ([`Chunk`]). Read outside of it, the number of words
//!   could be that of an owner that is gone.
//! - I5. `at` is zero if and only if the record belongs to no records. So a thread that comes late
//!   with a block neither links it to a cell that is being erased, nor to one that meanwhile
//!   belongs to other records.
//! - E1. link → access: Release → Acquire on `base`: an access that finds the block finds the
//!   words written into it before.
//! - E2. access → unlink → reuse: the grace period. Loom:
//!   `loom_an_access_never_reaches_memory_that_is_used_again`.

#![allow(unsafe_code)]

use core::ops::Deref;
use core::ptr::NonNull;

use memgroup_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use memgroup_sync::grace::{self, BriefSection, Section};
use memgroup_sync::spin::Wait;
use memgroup_sync::{Chunk, Erasable, FixedRef, FixedU32};

use crate::arena::chunk::Block;
use crate::arena::os::Place;
use crate::arena::page::BLOCK_BYTES_MAX;
use crate::mutation::{Mutation, active};
use crate::prefetch::prefetch_write;
use crate::records::{Fresh, OTHER_RECORDS, Records, Relocation, Unlinked};
use crate::slot::error::SLOTS_MAX;
use crate::slot::source::FastSlot;
use crate::words::word_at;

#[cfg(all(test, memgroup_loom))]
mod loom;
#[cfg(all(test, not(memgroup_loom)))]
mod tests;

/// In `at`: the record belongs to no records.
const NO_RECORDS: u64 = 0;
/// In `at`: there is no block.
const NO_BLOCK: u64 = 1;
/// In `at`: the first number that stands for a block.
const BLOCKS: u64 = 2;
/// In `at`: a thread links or unlinks the record now, or it is retired.
const BUSY: u64 = u64::MAX;

/// Bits of half a shape.
const HALF: u32 = 16;

const HALF_MASK: usize = (1 << HALF) - 1;

const _: () = assert!(BLOCK_BYTES_MAX / size_of::<u64>() < 1 << HALF && SLOTS_MAX < 1 << HALF);

/// The handle of one record: the address of its words, if it has any.
///
/// Threads that access the words share it; one owner at a time links and unlinks it. An access
/// reads its first 24 bytes.
///
/// It is [erasable](Erasable). From its retirement on it has no memory. Erased it belongs to no
/// records, until [`belong_to`](Self::belong_to).
#[repr(C)]
pub struct Record {
    /// The address of a row of flags, one a slot: those of all records while it has a block, else
    /// flags that are never set. 0 in an erased record.
    slot_enabled: AtomicUsize,
    /// The number of words in the lower half, that of slots in the upper.
    shape: FixedU32,
    stride: FixedU32,
    base: AtomicUsize,
    /// The position of its block in the arena plus [`BLOCKS`], or one of the other numbers. Only
    /// the owner uses it.
    at: AtomicU64,
    records: FixedRef<Records>,
}

// SAFETY: atomics alone. `retire` leaves the flags that are never set, for good, so an access that
// finds the others is in a section that began before; no field turns to zero then. Any other
// access finds flags that are never set, or none, or no slots.
unsafe impl Erasable for Record {
    fn zero() -> Record {
        Record {
            slot_enabled: AtomicUsize::new(0),
            base: AtomicUsize::new(0),
            shape: FixedU32::new(0),
            stride: FixedU32::new(0),
            at: AtomicU64::new(NO_RECORDS),
            records: FixedRef::none(),
        }
    }

    unsafe fn retire(&self) {
        let Some(records) = self.records.get() else { return };
        let mut wait = Wait::new();
        // ORDERING: Acquire in the exchange, as in `exclusively`. It stays busy until it is erased,
        // so nothing is linked any more.
        while self
            .at
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |at| (at != BUSY).then_some(BUSY))
            .is_err()
        {
            wait.wait();
        }
        if !active(Mutation::RetireLeavesSlotsEnabled) {
            // ORDERING: AcqRel; as in `unlink`.
            self.slot_enabled.swap(address(&records.none_enabled), Ordering::AcqRel);
        }
    }

    unsafe fn erase(&self) {
        // ORDERING: Relaxed, all; an access that may find a zero goes no further (the argument
        // above).
        self.slot_enabled.store(0, Ordering::Relaxed);
        // ORDERING: as above.
        self.base.store(0, Ordering::Relaxed);
        // ORDERING: as above.
        self.at.store(NO_RECORDS, Ordering::Relaxed);
        self.shape.set(0);
        self.stride.set(0);
        // SAFETY: the caller's promise.
        unsafe { self.records.erase() };
    }
}

impl Records {
    /// Makes a record without memory.
    pub fn record(&'static self) -> Record {
        let record = Record::zero();
        record.begin(self);
        record
    }
}

impl Record {
    /// Makes a zero record in a cell of `chunk` one of `records`, without memory.
    ///
    /// # Panics
    /// If it is not in the chunk, or belongs to records.
    pub fn belong_to<T: Erasable>(&self, records: &'static Records, chunk: &Chunk<T>) {
        // In a cell without an owner, an access of a section that lasts could take the flags of one
        // row and the length of another.
        assert!(chunk.owns(self), "the record lies in another chunk");
        self.begin(records);
    }

    fn begin(&self, records: &'static Records) {
        // ORDERING: Acquire; pairs with nothing: whoever handed out the cell ordered its zeros
        // before this (`ChunkPool`).
        let taken = self.at.compare_exchange(NO_RECORDS, BUSY, Ordering::Acquire, Ordering::Relaxed);
        assert!(taken.is_ok(), "the record belongs to records already");
        let arena = records.arena();
        self.stride.set(arena.geometry.stride as u32);
        self.shape.set(records.words() as u32 | (arena.slots() as u32) << HALF);
        self.records.set(records);
        // ORDERING: Release; an access that finds the flags finds the slots.
        self.slot_enabled.store(address(&records.none_enabled), Ordering::Release);
        // ORDERING: Release; pairs with the Acquire in `exclusively`: a thread that links finds the
        // records.
        self.at.store(NO_BLOCK, Ordering::Release);
    }

    #[inline(always)]
    fn word_count(&self) -> usize {
        self.shape.get() as usize & HALF_MASK
    }
}

impl Record {
    /// A word of the copy of `slot`, for as long as the section lasts. `None` while the record has
    /// no memory, on a slot that was not admitted, and beyond the end.
    #[inline(always)]
    pub fn word<'s>(&self, _section: &'s Section, slot: usize, index: usize) -> Option<&'s AtomicU64> {
        if !self.is_enabled(slot, Some(index)) {
            return None;
        }
        // SAFETY: enabled, and within the section that the word is lent for.
        Some(unsafe { self.find(slot, index) })
    }

    /// All words of the copy of `slot`, in their order; as [`word`](Self::word) for each.
    #[inline]
    pub fn words<'s>(
        &self,
        _section: &'s Section,
        slot: usize,
    ) -> Option<impl DoubleEndedIterator<Item = &'s AtomicU64> + ExactSizeIterator + use<'s>> {
        if !self.is_enabled(slot, None) {
            return None;
        }
        // ORDERING: Acquire, as in `find`.
        let (base, copy) = (self.base.load(Ordering::Acquire), slot * self.stride.get() as usize);
        let offsets = (0..self.word_count()).map(move |index| copy + index * size_of::<u64>());
        // SAFETY: as in `find`: enabled, below `words`, and within the section that the words are
        // lent for.
        Some(offsets.map(move |offset| unsafe { word_at(base, offset) }))
    }

    /// Returns whether there is a word `index` in a copy of `slot` to access; without an index,
    /// the first one, which every record has. The caller is in the section of the access (I4).
    #[inline(always)]
    fn is_enabled(&self, slot: usize, index: Option<usize>) -> bool {
        // ORDERING: Acquire; pairs with the Release in `link`: an access that reads the row of
        // flags finds the block (E1).
        let flags =
            core::ptr::with_exposed_provenance::<AtomicBool>(self.slot_enabled.load(Ordering::Acquire));
        let shape = self.shape.get() as usize;
        // An erased record has no flags. One that is about to belong to records may have flags and
        // no slots yet.
        if flags.is_null() || slot >= shape >> HALF {
            return false;
        }
        if index.is_some_and(|index| index >= shape & HALF_MASK) {
            return false;
        }
        // SAFETY: `flags` is the address of one of the two rows of flags of a `Records` that lives
        // for ever, and each has a flag for each slot. Both were read in one section, so the slots
        // are those of the same records, or 0 (`Erasable`, `belong_to`).
        let enabled = unsafe { &*flags.wrapping_add(slot) };
        // ORDERING: Acquire; pairs with the Release in `Records::admit`.
        enabled.load(Ordering::Acquire)
    }

    /// The word `index` of the copy of `slot`.
    ///
    /// # Safety
    ///
    /// The caller is in a section, which lasts for as long as the word is used. In that section
    /// `is_enabled` returned true for the slot and the word. Or, in that section, the index was
    /// below `words`, the arena has admitted the slot, and an Acquire load of `slot_enabled` found
    /// the flags of a record with memory.
    #[inline(always)]
    unsafe fn find<'s>(&self, slot: usize, index: usize) -> &'s AtomicU64 {
        // ORDERING: Acquire; pairs with the Release in `link` (E1). Weaker, an access could miss
        // the zeroes or the values that were written before the block was linked.
        let base = self.base.load(Ordering::Acquire);
        // SAFETY: the flags were published after a `base`, so it stands for a block of `words`
        // words (I1). The arena admitted the slot, so it has a unit, and the index is below
        // `words`: the word is within the chunk's mapping. It stays there while the section lasts.
        // If the block was unlinked before the section began, the access found no flag set, or
        // another `base`. If later, the block is not freed, nor its chunk unmapped, before a grace
        // period that began after that (I2, I3).
        unsafe { word_at(base, slot * self.stride.get() as usize + index * size_of::<u64>()) }
    }

    /// A word together with a section of its own. `None` as for [`word`](Self::word).
    #[inline(always)]
    pub fn access(&self, slot: usize, index: usize) -> Option<Access> {
        let is_compared_early = active(Mutation::LengthIsReadOutsideTheSection);
        if is_compared_early && index >= self.word_count() {
            return None;
        }
        let section = grace::enter();
        if !self.is_enabled(slot, (!is_compared_early).then_some(index)) {
            return None;
        }
        // SAFETY: enabled, and the section goes along with the word.
        let word = NonNull::from(unsafe { self.find(slot, index) });
        Some(Access { word, _section: section })
    }

    /// [`access`](Self::access) to the word `index` on the current slot of a source, without a
    /// function call; also returns the slot. Where that is not possible it returns `None`, and the
    /// caller takes the other way.
    #[inline(always)]
    pub fn fast_access(&self, source: &FastSlot, index: usize) -> Option<(usize, FastAccess)> {
        let slot = source.value()?;
        let section = grace::enter_briefly()?;
        if !self.is_enabled(slot, Some(index)) {
            return None;
        }
        // SAFETY: as in `access`.
        let word = NonNull::from(unsafe { self.find(slot, index) });
        Some((slot, Access { word, _section: section }))
    }

    /// Asks the processor for the lines of all words of a slot's copy; a hint.
    #[inline]
    pub fn prefetch_words(&self, section: &Section, slot: usize) {
        let words = self.word_count();
        for index in (0..words).step_by(8).chain(words.checked_sub(1)) {
            if let Some(word) = self.word(section, slot, index) {
                prefetch_write(core::ptr::from_ref(word).cast());
            }
        }
    }

    /// Returns whether it has memory now.
    pub fn is_linked(&self) -> bool {
        // ORDERING: Relaxed; the owner knows, for others it is a hint.
        let flags = self.slot_enabled.load(Ordering::Relaxed);
        self.records.get().is_some_and(|records| flags == address(&records.slot_enabled))
    }

    /// Runs `change` with the records and the position of the block, which it replaces. Refuses,
    /// and changes nothing, if another thread does so too, because a block that two threads had
    /// unlinked would be freed twice. Refuses also if the record belongs to no records, or to
    /// others than `of`.
    fn exclusively<T>(
        &self,
        of: Option<&'static Records>,
        change: impl FnOnce(&'static Records, u64) -> (u64, T),
    ) -> Result<T, &'static str> {
        // ORDERING: Acquire in the exchange; pairs with the Release below and in `begin`: the owner
        // finds the block that the last one linked, and the records. Relaxed before, because the
        // exchange checks the value again.
        let mut before = self.at.load(Ordering::Relaxed);
        loop {
            match before {
                NO_RECORDS => return Err("a record belongs to records before it gets memory"),
                BUSY => {
                    return Err(
                        "a record is linked and unlinked by one owner at a time: two threads did at once",
                    );
                }
                _ => {}
            }
            match self.at.compare_exchange(before, BUSY, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => before = now,
            }
        }
        // The record is not retired until `at` is given back, so it belongs to these records until
        // then (I5).
        let records = self.records.get().expect("`at` is zero without records");
        if of.is_some_and(|of| !core::ptr::eq(of, records)) {
            // ORDERING: Release; as below.
            self.at.store(before, Ordering::Release);
            return Err(OTHER_RECORDS);
        }
        let (at, done) = change(records, before);
        // ORDERING: Release; pairs with the Acquire above.
        self.at.store(at, Ordering::Release);
        Ok(done)
    }

    /// Gives it a block, and returns the one it had.
    ///
    /// # Panics
    /// If another thread links or unlinks it at the same time, or the block is of other records.
    pub fn link(&self, fresh: Fresh) -> Option<Unlinked> {
        self.try_link(fresh).unwrap_or_else(|refused| panic!("{refused}"))
    }

    fn try_link(&self, fresh: Fresh) -> Result<Option<Unlinked>, &'static str> {
        let mut of = Some(fresh.records);
        if active(Mutation::LinkChecksRecordsFirst) {
            if self.records.get().is_none_or(|records| !core::ptr::eq(fresh.records, records)) {
                return Err(OTHER_RECORDS);
            }
            of = None;
        }
        self.exclusively(of, |records, at| {
            let relaxed = active(Mutation::LinkPublishesNothing);
            // ORDERING: AcqRel; Release pairs with the Acquire in `find` (E1). As an RMW it
            // precedes the RMW that tags the old block when it is retired (`grace`).
            let base = self
                .base
                .swap(fresh.block.place.expose(), if relaxed { Ordering::Relaxed } else { Ordering::AcqRel });
            let before = block(records, base, at);
            if before.is_none() {
                // ORDERING: Release; pairs with the Acquire in `is_enabled`: an access that finds
                // the flags finds the block.
                self.slot_enabled.store(address(&records.slot_enabled), Ordering::Release);
            }
            (place(fresh.block) + BLOCKS, before)
        })
    }

    /// Takes its block away.
    ///
    /// # Panics
    /// If another thread links or unlinks it at the same time.
    pub fn unlink(&self) -> Option<Unlinked> {
        let unlinked = self.exclusively(None, |records, at| {
            // ORDERING: Relaxed; the owner's, and owners take turns by `exclusively`.
            let base = self.base.load(Ordering::Relaxed);
            if !active(Mutation::UnlinkLeavesSlotsEnabled) {
                // ORDERING: AcqRel; as an RMW it precedes the RMW that tags the block when it is
                // retired.
                self.slot_enabled.swap(address(&records.none_enabled), Ordering::AcqRel);
            }
            (NO_BLOCK, block(records, base, at))
        });
        unlinked.unwrap_or_else(|refused| panic!("{refused}"))
    }
}

/// The block of one of `records` with this `base` and this position; `None` if the position stands
/// for no block.
fn block(records: &'static Records, base: usize, at: u64) -> Option<Unlinked> {
    let at = at.checked_sub(BLOCKS)?;
    let (place, words) = (Place::of_exposed(base), records.words() as u32);
    Some(Unlinked { block: Block { place, chunk: (at >> 32) as u32, at: at as u32, words }, records })
}

fn address(flags: &[AtomicBool]) -> usize {
    flags.as_ptr().expose_provenance()
}

/// The position of a block in the arena, as one word.
fn place(block: Block) -> u64 {
    u64::from(block.chunk) << 32 | u64::from(block.at)
}

impl Relocation {
    /// Returns whether `record` still has the block that is to move away. If not, the block was
    /// unlinked and is on its way back to the arena: the caller [discards](Records::discard) the
    /// target.
    pub fn is_current(&self, record: &Record) -> bool {
        // ORDERING: Relaxed; the owner's, which takes turns with others by a lock of its own.
        record.at.load(Ordering::Relaxed) == place(self.inner.from) + BLOCKS
    }
}

/// A word of a record and the read section that keeps it.
pub struct Access<S = Section> {
    word: NonNull<AtomicU64>,
    _section: S,
}

/// A word of a record and the brief read section that keeps it.
pub type FastAccess = Access<BriefSection>;

impl<S> Deref for Access<S> {
    type Target = AtomicU64;

    #[inline(always)]
    fn deref(&self) -> &AtomicU64 {
        // SAFETY: `find` returned it for the section that is held beside it.
        unsafe { self.word.as_ref() }
    }
}
