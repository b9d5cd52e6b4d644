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
//! - I1. While the record has a block, `doors` are those of its [`Records`] and `base` is the address of slot 0's copy of the block, which
//!   has `words` words. Without one, the doors are shut and `base` is what it was.
//! - I2. A block that was linked once goes back to the arena in `reclaim` alone, after a grace period that began after it was unlinked.
//! - I3. The memory of such an arena is made of `AtomicU64` for as long as a section that began before its end can reach it: chunks
//!   are unmapped only by the arena's `free`, which `reclaim` calls for them (I2).
//! - E1. link → access: Release → Acquire on `base`: who finds the block finds what was written into it before.
//! - E2. access → unlink → reuse: the grace period. Loom: `loom_an_access_never_reaches_memory_that_is_used_again`.

#![allow(unsafe_code)]

use core::ops::Deref;
use core::ptr::NonNull;

use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use memgroup_sync::grace::{self, Limbo, Section};

use self::base::Base;
use crate::arena::{Arena, ArenaConfig};
use crate::block::{BLOCK_BYTES_MAX, Block, Shape, Wait};
use crate::evacuate::Move;
use crate::out_of_memory::{ArenaError, OutOfMemory};
use crate::slot_set::SlotSet;
use crate::source::SlotSource;

/// Where records of one length get their memory, and where it goes.
pub struct Records {
    arena: Arena,
    /// Slots whose copies are open to accesses; a subset of those that the arena admitted.
    open: SlotSet,
    /// The same, a flag for each slot: what an access to a record that has a block looks at.
    doors: Box<[AtomicBool]>,
    /// As many that are never open, for records without a block.
    shut: Box<[AtomicBool]>,
    words: u32,
    limbo: Mutex<Limbo<(Block, u64)>>,
}

/// The handle of one record: where its words are now, if it has any.
///
/// Shared by those who access the words; linked and unlinked by one owner at a time. What an access reads is its first 24 bytes.
#[repr(C)]
pub struct Record {
    /// The doors of the slots: those of all records while it has a block, else doors that are never open.
    doors: AtomicUsize,
    base: AtomicUsize,
    slots: u32,
    stride: u32,
    words: u32,
    /// The rest of what says which block it is; the owner's.
    at: AtomicU64,
    records: &'static Records,
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
        let doors = || (0..arena.slots()).map(|_| AtomicBool::new(false)).collect();
        let (doors, shut) = (doors(), doors());
        let limbo = Mutex::new(Limbo::new(usize::MAX));
        Ok(Records { arena, open, doors, shut, words: words as u32, limbo })
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
            prepare(&Early { slot });
            // ORDERING: Release; pairs with the Acquire in `is_open`: who finds the copies open finds what `prepare` wrote.
            self.doors[slot].store(true, Ordering::Release);
            self.open.insert(slot);
        }
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
            doors: AtomicUsize::new(address(&self.shut)),
            slots: self.arena.slots() as u32,
            stride: self.arena.stride_bytes() as u32,
            base: AtomicUsize::new(0),
            words: self.words,
            at: AtomicU64::new(0),
            records: self,
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
        if index >= self.words as usize || !self.is_open(slot) {
            return None;
        }
        // SAFETY: open, below `words`, and within the section that the word is lent for.
        Some(unsafe { self.find(slot, index) })
    }

    /// Whether there is a copy of `slot` to be accessed. Asked in the section of the access.
    #[inline(always)]
    fn is_open(&self, slot: usize) -> bool {
        // ORDERING: Acquire; pairs with the Release in `link`: with the doors the block behind them is seen (E1).
        let doors = core::ptr::with_exposed_provenance::<AtomicBool>(self.doors.load(Ordering::Acquire));
        if slot >= self.slots as usize {
            return false;
        }
        // SAFETY: `doors` is the address of one of the two rows of flags of a `Records` that lives for ever, each with one flag
        // for each slot.
        let door = unsafe { &*doors.wrapping_add(slot) };
        // ORDERING: Acquire; pairs with the Release in `Records::admit`.
        door.load(Ordering::Acquire)
    }

    /// The word `index` of the copy of `slot`.
    ///
    /// # Safety
    ///
    /// `index` is below `words`, and the caller is in a section in which `is_open` found the slot open (or, where nobody else
    /// links or unlinks, the record linked and the slot admitted by the arena); the section lasts for as long as the word is used.
    #[inline(always)]
    unsafe fn find<'s>(&self, slot: usize, index: usize) -> &'s AtomicU64 {
        // ORDERING: Acquire; pairs with the Release in `link` (E1). Weaker, words could be found without the zeroes or
        // the marks that were written before the block was linked.
        let base = self.base.load(Ordering::Acquire);
        // SAFETY: open doors were put up after a `base`, so it stands for a block of `words` words (I1); the arena admitted the
        // slot, so it has a unit, and the index is below `words`: the word is within the chunk's mapping. It stays there while
        // the section lasts: if the block was unlinked before the section began, the doors were seen shut or `base` changed; if
        // later, it is not freed, nor its chunk unmapped, before a grace period that began after that (I2, I3).
        unsafe { Base::word(base, self.stride as usize, slot, index) }
    }

    /// The same with a section of its own.
    #[inline(always)]
    pub fn access(&self, slot: usize, index: usize) -> Option<Access> {
        if index < self.words as usize { self.access_within(slot, index) } else { None }
    }

    /// [`access`](Self::access) to the first word, which every record has.
    #[inline(always)]
    pub fn access_first(&self, slot: usize) -> Option<Access> {
        self.access_within(slot, 0)
    }

    #[inline(always)]
    fn access_within(&self, slot: usize, index: usize) -> Option<Access> {
        let section = grace::enter();
        if !self.is_open(slot) {
            return None;
        }
        // SAFETY: open, below `words` by the callers' looks, and the section goes along with the word.
        let word = NonNull::from(unsafe { self.find(slot, index) });
        Some(Access { word, section })
    }

    /// [`access`](Self::access) to the word `index` on the slot that `source` shows at a glance, if all of it can be had without a call.
    /// `None` says only that the other way is to be tried.
    #[inline(always)]
    pub fn glance(&self, source: &SlotSource, index: usize) -> Option<(usize, Access)> {
        if index < self.words as usize { self.glance_within(source, index) } else { None }
    }

    /// [`glance`](Self::glance) at the first word, which every record has.
    #[inline(always)]
    pub fn glance_first(&self, source: &SlotSource) -> Option<(usize, Access)> {
        self.glance_within(source, 0)
    }

    #[inline(always)]
    fn glance_within(&self, source: &SlotSource, index: usize) -> Option<(usize, Access)> {
        let slot = source.glance()?;
        let section = grace::try_enter()?;
        if self.is_open(slot) {
            // SAFETY: as in `access_within`.
            let word = NonNull::from(unsafe { self.find(slot, index) });
            return Some((slot, Access { word, section }));
        }
        // SAFETY: begun just now, by `try_enter`.
        unsafe { section.end_alone() };
        None
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
        self.doors.load(Ordering::Relaxed) == address(&self.records.doors)
    }

    /// The block it has; for its owner.
    fn linked(&self) -> Option<Unlinked> {
        // ORDERING: Relaxed, twice; the owner's, who takes turns with others by a lock of its own.
        let (base, at) = (self.base.load(Ordering::Relaxed), self.at.load(Ordering::Relaxed));
        let block = || Base::block(base, (at >> 32) as u32, at as u32, self.words);
        self.is_linked().then(|| Unlinked { block: block() })
    }

    /// Gives it a block, and returns the one it had. For its owner: not while another thread links or unlinks.
    pub fn link(&self, fresh: Fresh) -> Option<Unlinked> {
        let before = self.linked();
        let Fresh { block } = fresh;
        // ORDERING: Relaxed, as in `linked`.
        self.at.store(u64::from(block.chunk) << 32 | u64::from(block.start), Ordering::Relaxed);
        // ORDERING: AcqRel; Release pairs with the Acquire in `find` (E1); as an RMW it precedes the RMW that tags the
        // old block when it is retired (`grace`).
        self.base.swap(Base::of(block), Ordering::AcqRel);
        if before.is_none() {
            // ORDERING: Release; pairs with the Acquire in `is_open`: who finds the doors finds the block.
            self.doors.store(address(&self.records.doors), Ordering::Release);
        }
        before
    }

    /// Takes its block away. For its owner, as [`link`](Self::link).
    pub fn unlink(&self) -> Option<Unlinked> {
        let before = self.linked();
        // ORDERING: AcqRel; as an RMW it precedes the RMW that tags the block when it is retired.
        self.doors.swap(address(&self.records.shut), Ordering::AcqRel);
        before
    }
}

fn address(doors: &[AtomicBool]) -> usize {
    doors.as_ptr().expose_provenance()
}

/// The copies of a slot that is about to be opened.
#[derive(Debug)]
pub struct Early {
    slot: usize,
}

impl Early {
    /// A word of this slot's copy of a record, which nobody else reaches yet.
    pub fn word<'s>(&self, _section: &'s Section, record: &Record, index: usize) -> Option<&'s AtomicU64> {
        if index >= record.words as usize || !record.is_linked() {
            return None;
        }
        // SAFETY: linked, below `words`, within the section; the arena admitted the slot before it made this, and nobody
        // links or unlinks meanwhile (`admit`).
        Some(unsafe { record.find(self.slot, index) })
    }
}

/// What stands for a block in one atomic word.
#[cfg(not(memgroup_loom))]
mod base {
    use core::ptr::{self, NonNull};

    use memgroup_sync::atomic::AtomicU64;

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
        /// `base` came from `of` for a block that is not free, or was not when a section began that still lasts; `slot` is
        /// admitted; `index` is within the block.
        #[inline(always)]
        pub(super) unsafe fn word<'a>(
            base: usize,
            stride: usize,
            slot: usize,
            index: usize,
        ) -> &'a AtomicU64 {
            let word = base + slot * stride + index * size_of::<u64>();
            // SAFETY: within the chunk's mapping, aligned, and an AtomicU64, by the caller's promise.
            unsafe { &*ptr::with_exposed_provenance::<AtomicU64>(word) }
        }
    }
}

/// The same under loom, where memory has no addresses.
#[cfg(memgroup_loom)]
mod base {
    use memgroup_sync::atomic::AtomicU64;

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
        pub(super) unsafe fn word<'a>(
            base: usize,
            stride: usize,
            slot: usize,
            index: usize,
        ) -> &'a AtomicU64 {
            // SAFETY: passed on to the caller.
            unsafe { Self::block(base, 0, 0, 0).word(stride, slot, index) }
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
        // SAFETY: `find` gave it for the section that is held beside it.
        unsafe { self.word.as_ref() }
    }
}

#[cfg(not(memgroup_loom))]
use crate::raw::prefetch_write;

#[cfg(memgroup_loom)]
fn prefetch_write(_: *const u8) {}
