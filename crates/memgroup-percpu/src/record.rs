//! Records: additive words with a copy on each slot, behind a handle, so that they can be moved while they are in use.
//!
//! ```text
//!   Record ── base ──▶ block A      link(B):     Record ── base ──▶ block B      (new accesses)
//!                                                block A, unlinked               (accesses that began before)
//!                                                ── fold A into B ── retire A ── grace period ── A is free again
//! ```
//!
//! A [`Record`] is the place where the address of the words is looked up at each access. Whoever owns it links a block
//! of memory to it, links another one later, or unlinks it altogether; every access stands in a read section of
//! [`memgroup_sync::grace`], and memory that was unlinked is used again only after a grace period. What the words mean, and
//! how what is in the old ones gets into the new ones, is the owner's: [`counters`](crate::Counters) is one answer.
//!
//! - I1. `base` is zero, or the address of slot 0's copy of a block of the record's own [`Records`], with at least `words` words.
//! - I2. A block that was linked once goes back to the arena in `reclaim` alone, after a grace period that began after it was unlinked.
//! - I3. The memory of such an arena is made of `AtomicU64` for as long as a section that began before its end can reach it: chunks
//!   are unmapped only by the arena's `free`, which `reclaim` calls for them (I2).
//! - E1. link → access: Release → Acquire on `base`: who finds the block finds what was written into it before.
//! - E2. access → unlink → reuse: the grace period. Loom: `loom_an_access_never_reaches_memory_that_is_used_again`.

#![allow(unsafe_code)]

use core::ops::Deref;
use core::ptr::NonNull;

use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use memgroup_sync::grace::{self, Limbo, Section};

use self::base::Base;
use crate::arena::{Arena, ArenaConfig};
use crate::block::{BLOCK_BYTES_MAX, Block, Shape, Wait};
use crate::evacuate::Move;
use crate::out_of_memory::{ArenaError, OutOfMemory};
use crate::slot_set::SlotSet;
use crate::source::SlotSource;

/// What an offset is more than the distance it stands for, so that none is 0.
const OFFSET_OF_SLOT_0: usize = 8;

/// Where records of one length get their memory, and where it goes.
pub struct Records {
    arena: Arena,
    /// Slots whose copies are open to accesses; a subset of those that the arena admitted.
    open: SlotSet,
    /// Where a slot's copies begin, from slot 0's, and 8; 0 while they are not open. One load tells both.
    offsets: Box<[AtomicU64]>,
    words: u32,
    limbo: Mutex<Limbo<(Block, u64)>>,
}

/// The handle of one record: where its words are now, if it has any.
///
/// Shared by those who access the words; linked and unlinked by one owner at a time.
pub struct Record {
    base: AtomicUsize,
    offsets: &'static [AtomicU64],
    words: u32,
    /// The rest of what says which block it is; the owner's.
    at: AtomicU64,
}

/// A block that no record has had yet; all words are zero.
#[must_use = "a block that is neither linked nor discarded is never free again"]
pub struct Fresh {
    block: Block,
}

/// A block that was a record's until now; accesses that began before may still reach it.
#[must_use = "a block that is not retired is never free again"]
pub struct Unlinked {
    block: Block,
}

/// A record that should move, and where to.
#[must_use = "a move is made or cancelled"]
pub struct Relocation {
    inner: Move,
}

/// What was reclaimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Blocks that are free again.
    pub blocks: usize,
    /// Their bytes, over all admitted slots.
    pub bytes: u64,
}

impl Records {
    /// Records of `words` words each, in an arena of their own.
    ///
    /// # Errors
    /// A setting of `config` is out of its range, or a record would not fit a block.
    pub fn new(config: ArenaConfig, words: usize) -> Result<Records, ArenaError> {
        let bytes = words.saturating_mul(size_of::<u64>());
        if !(1..=BLOCK_BYTES_MAX).contains(&bytes) {
            return Err(ArenaError::Object { bytes });
        }
        let arena = Arena::new(config)?;
        let open = SlotSet::new(arena.slots());
        let offsets = (0..arena.slots()).map(|_| AtomicU64::new(0)).collect();
        let limbo = Mutex::new(Limbo::new(usize::MAX));
        Ok(Records { arena, open, offsets, words: words as u32, limbo })
    }

    /// Where the memory comes from, to depopulate, and for its figures. Slots are admitted by [`admit`](Self::admit).
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// How many words a record has.
    pub fn words(&self) -> usize {
        self.words as usize
    }

    /// Bytes of one record on one slot.
    pub fn record_bytes(&self) -> usize {
        self.words() * size_of::<u64>()
    }

    fn bytes_on_all_slots(&self) -> usize {
        self.record_bytes() * self.open.len()
    }

    fn shape(&self) -> Shape {
        Shape::new(self.record_bytes(), size_of::<u64>())
    }

    /// Opens the copies of `slot` to accesses. Before that, `prepare` sees them alone. For one caller at a time; nothing if they
    /// are open.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn admit(&self, slot: usize, prepare: impl FnOnce(&Early)) {
        if !self.open.contains(slot) {
            self.arena.admit(slot);
            let offset = self.offset(slot);
            prepare(&Early { offset });
            // ORDERING: Release; pairs with the Acquire in `word`: who finds the copies open finds what `prepare` wrote.
            self.offsets[slot].store(offset, Ordering::Release);
            self.open.insert(slot);
        }
    }

    fn offset(&self, slot: usize) -> u64 {
        (slot * self.arena.stride_bytes() + OFFSET_OF_SLOT_0) as u64
    }

    /// Whether the copies of `slot` are open.
    #[inline(always)]
    pub fn is_admitted(&self, slot: usize) -> bool {
        self.open.contains(slot)
    }

    /// The slots whose copies are open.
    pub fn admitted(&self) -> impl Iterator<Item = usize> {
        self.open.iter()
    }

    /// A record without memory.
    pub fn record(&'static self) -> Record {
        Record {
            base: AtomicUsize::new(0),
            offsets: &self.offsets,
            words: self.words,
            at: AtomicU64::new(0),
        }
    }

    /// Takes memory for one record, all zero. `owner` is the number by which [`next_move`](Self::next_move) will name it.
    ///
    /// # Errors
    /// The system refuses memory; with [`Wait::Never`] also when nothing is at hand, or the arena is busy.
    pub fn allocate(&self, owner: u32, wait: Wait) -> Result<Fresh, OutOfMemory> {
        let block = self.arena.alloc(self.shape(), owner, wait)?;
        Ok(Fresh { block })
    }

    /// Gives back a block that no record ever had; at once, since nobody can have seen it.
    pub fn discard(&self, fresh: Fresh) {
        self.arena.free(fresh.block);
    }

    /// Puts an unlinked block aside until a grace period is over. `tag` is handed to [`reclaim`](Self::reclaim) with it.
    pub fn retire(&self, unlinked: Unlinked, tag: u64) {
        let bytes = self.bytes_on_all_slots();
        let refused = self.limbo.lock().retire((unlinked.block, tag), bytes);
        assert!(refused.is_ok(), "the limbo of records has no bound of its own");
    }

    /// Bytes that wait for a grace period, over all admitted slots.
    pub fn limbo_bytes(&self) -> u64 {
        self.limbo.lock().bytes() as u64
    }

    /// Frees what was retired before the last grace period that is over; `last_look` sees each block, which nobody else can
    /// reach any more, with its tag. Waits for nothing: see [`grace::synchronize`].
    pub fn reclaim(&self, mut last_look: impl FnMut(&Unlinked, u64)) -> Reclaimed {
        let mut done = Vec::new();
        self.limbo.lock().reclaim(|item| done.push(item));
        let reclaimed =
            Reclaimed { blocks: done.len(), bytes: (done.len() * self.bytes_on_all_slots()) as u64 };
        for (block, tag) in done {
            let unlinked = Unlinked { block };
            last_look(&unlinked, tag);
            self.arena.free(unlinked.block);
        }
        reclaimed
    }

    /// The next record that should move so that pages become free, and a place for it; `None` when moving on gains
    /// nothing. The caller links [`Relocation::take_target`] to the record and retires what was there, or cancels.
    pub fn next_move(&self) -> Option<Relocation> {
        self.arena.begin_move().map(|inner| Relocation { inner })
    }

    /// The record stays where it is.
    pub fn cancel_move(&self, relocation: Relocation) {
        self.arena.cancel_move(relocation.inner);
    }

    #[inline]
    fn word_of<'b>(&self, block: &'b Block, slot: usize, index: usize) -> Option<&'b AtomicU64> {
        if index >= self.words() || !self.open.contains(slot) {
            return None;
        }
        // SAFETY: the slot is admitted, the index within the block, and the block is not free: it is held by a `Fresh` or an
        // `Unlinked`, which only `discard` and `reclaim` give back, by value.
        Some(unsafe { block.word(self.arena.stride_bytes(), slot, index) })
    }

    /// A word of a block that is not linked yet; `None` beyond its end and on a slot that was not admitted.
    pub fn fresh_word<'b>(&self, fresh: &'b Fresh, slot: usize, index: usize) -> Option<&'b AtomicU64> {
        self.word_of(&fresh.block, slot, index)
    }

    /// A word of a block that is linked no more; `None` beyond its end and on a slot that was not admitted.
    pub fn unlinked_word<'b>(
        &self,
        unlinked: &'b Unlinked,
        slot: usize,
        index: usize,
    ) -> Option<&'b AtomicU64> {
        self.word_of(&unlinked.block, slot, index)
    }
}

impl Relocation {
    /// Whose record it is: the number given to [`Records::allocate`].
    pub fn owner(&self) -> u32 {
        self.inner.owner
    }

    /// The block to link.
    pub fn into_target(self) -> Fresh {
        Fresh { block: self.inner.to }
    }
}

impl Record {
    /// A word of the copy of `slot`, for as long as the section lasts; `None` while the record has no memory, on a slot that was not
    /// admitted, and beyond the end.
    #[inline(always)]
    pub fn word<'s>(&self, _section: &'s Section, slot: usize, index: usize) -> Option<&'s AtomicU64> {
        if index < self.words as usize { self.find(self.offset(slot)?, index) } else { None }
    }

    /// Where the copies of `slot` begin, if they are open.
    #[inline(always)]
    fn offset(&self, slot: usize) -> Option<u64> {
        // ORDERING: Acquire; pairs with the Release in `Records::admit`.
        let offset = self.offsets.get(slot)?.load(Ordering::Acquire);
        if offset == 0 { None } else { Some(offset) }
    }

    /// The word `index`, below `words`, of the copies that begin at `offset`. The caller is in a section for as long as it uses
    /// the word.
    #[inline(always)]
    fn find<'s>(&self, offset: u64, index: usize) -> Option<&'s AtomicU64> {
        // ORDERING: Acquire; pairs with the Release in `replace` (E1). Weaker, words could be found without the zeroes or
        // the marks that were written before the block was linked.
        let base = self.base.load(Ordering::Acquire);
        if base == 0 {
            return None;
        }
        // SAFETY: `base` was linked, so it stands for a block of `words` words (I1); the offset is that of a slot that the arena
        // admitted, and the index below `words`: the word is within the chunk's mapping. It
        // stays there while the section lasts, which began before `base` was read: the block is not freed, nor its chunk
        // unmapped, before a grace period that begins after it was unlinked (I2, I3).
        Some(unsafe { Base::word(base, offset, index) })
    }

    /// The same with a section of its own.
    #[inline(always)]
    pub fn access(&self, slot: usize, index: usize) -> Option<Access> {
        let offset = self.offset(slot)?;
        if index < self.words as usize { self.access_within(offset, index, grace::enter()) } else { None }
    }

    /// [`access`](Self::access) to the first word, which every record has.
    #[inline(always)]
    pub fn access_first(&self, slot: usize) -> Option<Access> {
        self.access_within(self.offset(slot)?, 0, grace::enter())
    }

    /// [`access`](Self::access) to the word `index` on the slot that `source` shows at a glance, if all of it can be had without a call.
    /// `None` says only that the other way is to be tried.
    #[inline(always)]
    pub fn glance(&self, source: &SlotSource, index: usize) -> Option<(usize, Access)> {
        let slot = source.glance()?;
        let offset = self.offset(slot)?;
        if index >= self.words as usize {
            return None;
        }
        Some((slot, self.try_access(offset, index)?))
    }

    /// [`glance`](Self::glance) at the first word, which every record has.
    #[inline(always)]
    pub fn glance_first(&self, source: &SlotSource) -> Option<(usize, Access)> {
        let slot = source.glance()?;
        let offset = self.offset(slot)?;
        Some((slot, self.try_access(offset, 0)?))
    }

    #[inline(always)]
    fn try_access(&self, offset: u64, index: usize) -> Option<Access> {
        let section = grace::try_enter()?;
        match self.find(offset, index) {
            Some(word) => Some(Access { word: NonNull::from(word), section }),
            None => {
                // SAFETY: begun just now, by `try_enter`.
                unsafe { section.end_alone() };
                None
            }
        }
    }

    #[inline(always)]
    fn access_within(&self, offset: u64, index: usize, section: Section) -> Option<Access> {
        let word = NonNull::from(self.find(offset, index)?);
        Some(Access { word, section })
    }

    /// Asks for the line of the first word of a slot's copy to be brought here for writing; a hint.
    #[inline]
    pub fn prefetch_write(&self, section: &Section, slot: usize) {
        if let Some(word) = self.word(section, slot, 0) {
            prefetch_write(core::ptr::from_ref(word).cast());
        }
    }

    /// Whether it has memory now.
    pub fn is_linked(&self) -> bool {
        // ORDERING: Relaxed; the owner knows, for others it is a hint.
        self.base.load(Ordering::Relaxed) != 0
    }

    /// Gives it a block, and returns the one it had. For its owner: not while another thread links or unlinks.
    pub fn link(&self, fresh: Fresh) -> Option<Unlinked> {
        self.replace(Some(fresh.block))
    }

    /// Takes its block away. For its owner, as [`link`](Self::link).
    pub fn unlink(&self) -> Option<Unlinked> {
        self.replace(None)
    }

    fn replace(&self, block: Option<Block>) -> Option<Unlinked> {
        let (base, at) = block
            .map_or((0, 0), |block| (Base::of(block), u64::from(block.chunk) << 32 | u64::from(block.start)));
        // ORDERING: Relaxed; the owner's, who takes turns with others by a lock of its own.
        let was_at = self.at.load(Ordering::Relaxed);
        // ORDERING: Relaxed, as above.
        self.at.store(at, Ordering::Relaxed);
        // ORDERING: AcqRel; Release pairs with the Acquire in `word` (E1); as an RMW it precedes the RMW that
        // tags the block when it is retired (`grace`).
        let before = self.base.swap(base, Ordering::AcqRel);
        let (chunk, start) = ((was_at >> 32) as u32, was_at as u32);
        (before != 0).then(|| Unlinked { block: Base::block(before, chunk, start, self.words) })
    }
}

/// The copies of a slot that is about to be opened.
#[derive(Debug)]
pub struct Early {
    offset: u64,
}

impl Early {
    /// A word of this slot's copy of a record, which nobody else reaches yet.
    pub fn word<'s>(&self, _section: &'s Section, record: &Record, index: usize) -> Option<&'s AtomicU64> {
        if index < record.words as usize { record.find(self.offset, index) } else { None }
    }
}

/// What stands for a block in one atomic word.
#[cfg(not(memgroup_loom))]
mod base {
    use core::ptr::{self, NonNull};

    use memgroup_sync::atomic::AtomicU64;

    use super::OFFSET_OF_SLOT_0;
    use crate::block::Block;
    use crate::os::Place;

    /// The address of slot 0's copy.
    pub(super) struct Base;

    impl Base {
        pub(super) fn of(block: Block) -> usize {
            block.address().as_ptr().expose_provenance()
        }

        pub(super) fn block(base: usize, chunk: u32, start: u32, words: u32) -> Block {
            let address = NonNull::new(ptr::with_exposed_provenance_mut(base));
            Block::new(Place::new(address.expect("a linked block has an address")), chunk, start, words)
        }

        /// # Safety
        ///
        /// `base` came from `of` for a block that is not free, or was not when a section began that still lasts; `offset` is an
        /// admitted slot's; `index` is within the block.
        #[inline(always)]
        pub(super) unsafe fn word<'a>(base: usize, offset: u64, index: usize) -> &'a AtomicU64 {
            let word = base + offset as usize - OFFSET_OF_SLOT_0 + index * size_of::<u64>();
            // SAFETY: within the chunk's mapping, aligned, and an AtomicU64, by the caller's promise.
            unsafe { &*ptr::with_exposed_provenance::<AtomicU64>(word) }
        }
    }
}

/// The same under loom, where memory has no addresses.
#[cfg(memgroup_loom)]
mod base {
    use memgroup_sync::atomic::AtomicU64;

    use super::OFFSET_OF_SLOT_0;
    use crate::block::Block;

    /// The address of a leaked copy of the block.
    pub(super) struct Base;

    impl Base {
        pub(super) fn of(block: Block) -> usize {
            core::ptr::from_ref(Box::leak(Box::new(block))).expose_provenance()
        }

        pub(super) fn block(base: usize, _chunk: u32, _start: u32, _words: u32) -> Block {
            // SAFETY: `base` came from `of`, which leaks what it points to.
            unsafe { *core::ptr::with_exposed_provenance::<Block>(base) }
        }

        /// # Safety
        ///
        /// As in the other build.
        pub(super) unsafe fn word<'a>(base: usize, offset: u64, index: usize) -> &'a AtomicU64 {
            // SAFETY: passed on to the caller; one stride of this length is as far as many shorter ones.
            unsafe { Self::block(base, 0, 0, 0).word(offset as usize - OFFSET_OF_SLOT_0, 1, index) }
        }
    }
}

/// A word of a record and the read section that keeps it.
pub struct Access {
    word: NonNull<AtomicU64>,
    #[expect(dead_code, reason = "ends when dropped")]
    section: Section,
}

impl Deref for Access {
    type Target = AtomicU64;

    #[inline(always)]
    fn deref(&self) -> &AtomicU64 {
        // SAFETY: `access_within` made it for the section that is held beside it.
        unsafe { self.word.as_ref() }
    }
}

#[cfg(not(memgroup_loom))]
use crate::raw::prefetch_write;

#[cfg(memgroup_loom)]
fn prefetch_write(_: *const u8) {}
