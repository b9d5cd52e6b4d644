//! Where the memory of records comes from, and where it goes: an arena, the slots that are open, and a limbo.
//!
//! ```text
//!   allocate ──▶ Fresh ── link ──▶ (a record's) ── unlink, or link of another ──▶ Unlinked ── retire ──▶ limbo
//!      ▲           └── discard ──▶ arena                                                                   │
//!      └────────────────────────── arena ◀──────────────── reclaim, a grace period later ◀────────────────┘
//! ```
//!
//! - I1. A block is held by one value: a `Fresh`, a record, an `Unlinked` or the limbo. Each knows the records it came from, and is refused
//!   by others.
//! - I2. A slot is open only after the arena admitted it, and for ever.
//! - E1. admit → access: Release → Acquire on the slot's door (`record`).

#![allow(unsafe_code)]

use memgroup_sync::Mutex;
use memgroup_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use memgroup_sync::grace::Limbo;

use crate::arena::block::{BLOCK_BYTES_MAX, Block, LEAVING, Shape, Wait};
use crate::arena::evacuate::Move;
use crate::arena::out_of_memory::{ArenaError, OutOfMemory};
use crate::arena::slot_set::SlotSet;
use crate::arena::{Arena, ArenaConfig};
use crate::mutation::{Mutation, active};
use crate::record::{Early, Record};

#[doc = include_str!("../docs/records.md")]
pub struct Records {
    arena: Arena,
    /// Slots whose copies are open to accesses; a subset of those that the arena admitted.
    open: SlotSet,
    /// The same, a flag for each slot: what an access to a record that has a block looks at.
    doors: Box<[AtomicBool]>,
    /// As many that are never open, for records without a block.
    shut: Box<[AtomicBool]>,
    words: u32,
    /// Blocks that are neither free nor in the limbo.
    lent: AtomicUsize,
    limbo: Mutex<Limbo<(Block, u64)>>,
}

/// A block that no record has had yet; all words are zero.
#[must_use = "a block that is neither linked nor discarded is never free again"]
pub struct Fresh {
    block: Block,
    records: &'static Records,
}

/// A block that was a record's until now; accesses that began before may still reach it.
#[must_use = "a block that is not retired is never free again"]
pub struct Unlinked {
    block: Block,
    records: &'static Records,
}

/// A record that should move, and where to.
#[must_use = "a move is made or cancelled"]
pub struct Relocation {
    inner: Move,
    records: &'static Records,
}

/// What was reclaimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reclaimed {
    /// Blocks that are free again.
    pub blocks: usize,
    /// Their bytes, over the slots that were open when they were retired.
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
        Ok(Records { arena, open, doors, shut, words: words as u32, lent: AtomicUsize::new(0), limbo })
    }

    pub(crate) fn doors(&self) -> &[AtomicBool] {
        &self.doors
    }

    pub(crate) fn shut(&self) -> &[AtomicBool] {
        &self.shut
    }

    /// The block, to be a record's.
    pub(crate) fn take(&self, fresh: Fresh) -> Block {
        self.check(fresh.records);
        fresh.block
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
    pub fn admit(&self, slot: usize, prepare: impl FnOnce(&Early<'_>)) {
        if !self.open.contains(slot) {
            self.arena.admit(slot);
            if active(Mutation::SlotOpensBeforePrepare) {
                self.open(slot);
            }
            prepare(&Early { slot, records: self });
            self.open(slot);
        }
    }

    fn open(&self, slot: usize) {
        // ORDERING: Release; pairs with the Acquire in `is_open`: who finds the copies open finds what `prepare` wrote (E1).
        let order =
            if active(Mutation::SlotOpensPublishingNothing) { Ordering::Relaxed } else { Ordering::Release };
        self.doors[slot].store(true, order);
        self.open.insert(slot);
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
        Record::new(self)
    }

    /// Takes memory for one record, all zero. `owner` is the number by which [`next_move`](Self::next_move) will name it.
    ///
    /// # Errors
    /// The system refuses memory; with [`Wait::Never`] also when nothing is at hand, or the arena is busy.
    ///
    /// # Panics
    /// If `owner` is one of the two largest numbers, which the arena keeps for itself.
    pub fn allocate(&'static self, owner: u32, wait: Wait) -> Result<Fresh, OutOfMemory> {
        assert!(owner < LEAVING, "records have owners below {LEAVING}, not {owner}");
        let block = self.arena.alloc(self.shape(), owner, wait)?;
        self.lend();
        Ok(Fresh { block, records: self })
    }

    fn lend(&self) {
        // ORDERING: Relaxed; a count for `reserve_limbo`, whose caller allocated the blocks it is about or was told of them.
        self.lent.fetch_add(1, Ordering::Relaxed);
    }

    fn is_back(&self) {
        // ORDERING: Relaxed, as in `lend`.
        self.lent.fetch_sub(1, Ordering::Relaxed);
    }

    /// Makes room in the limbo for all records that are allocated now: to [`retire`](Self::retire) one then allocates nothing, so that it
    /// can be done inside an allocator.
    pub fn reserve_limbo(&self) {
        let mut limbo = self.limbo.lock();
        // ORDERING: Relaxed, as in `lend`. Under the lock of the limbo, so that what leaves the count meanwhile is in there or finds
        // the room made for it.
        limbo.reserve(self.lent.load(Ordering::Relaxed));
    }

    /// Sets address space aside until so many more records can be allocated with [`Wait::Never`]. No pages: those come with the first
    /// touch. Address space beyond that, in which nothing is allocated, goes back, but for one chunk.
    ///
    /// # Errors
    /// The system refuses address space.
    pub fn provide(&self, records: u64) -> Result<(), OutOfMemory> {
        self.arena.provide(self.shape(), records)
    }

    /// Gives back a block that no record ever had; at once, since nobody can have seen it.
    ///
    /// # Panics
    /// If it is not one of these records', as all functions do that take a block.
    pub fn discard(&self, fresh: Fresh) {
        self.check(fresh.records);
        self.is_back();
        self.arena.free(fresh.block);
    }

    /// Puts an unlinked block aside until a grace period is over. `tag` is handed to [`reclaim`](Self::reclaim) with it.
    pub fn retire(&self, unlinked: Unlinked, tag: u64) {
        self.check(unlinked.records);
        if active(Mutation::RetiredIsFreeAtOnce) {
            self.is_back();
            return self.arena.free(unlinked.block);
        }
        self.arena.leave(unlinked.block);
        let bytes = self.bytes_on_all_slots();
        let mut limbo = self.limbo.lock();
        let refused = limbo.retire((unlinked.block, tag), bytes);
        self.is_back();
        drop(limbo);
        assert!(refused.is_ok(), "the limbo of records has no bound of its own");
    }

    /// An arena knows its blocks by their place; another's would be taken for one of its own.
    fn check(&self, of: &'static Records) {
        assert!(
            core::ptr::eq(self, of),
            "the block is of other records: give it back where it was allocated"
        );
    }

    /// Bytes that wait for a grace period, over the slots that were open when they were retired.
    pub fn limbo_bytes(&self) -> u64 {
        self.limbo.lock().bytes() as u64
    }

    /// Records that wait for a grace period; also where no slot has copies of them yet, which makes no bytes.
    pub fn limbo_records(&self) -> usize {
        self.limbo.lock().len()
    }

    /// Frees what was retired before the last grace period that is over; `last_look` sees each block, which nobody else can
    /// reach any more, with its tag. Waits for nothing: see [`synchronize`](memgroup_sync::grace::synchronize).
    pub fn reclaim(&'static self, mut last_look: impl FnMut(&Unlinked, u64)) -> Reclaimed {
        let mut done = Vec::new();
        let mut limbo = self.limbo.lock();
        let before = limbo.bytes();
        limbo.reclaim(|item| done.push(item));
        let reclaimed = Reclaimed { blocks: done.len(), bytes: (before - limbo.bytes()) as u64 };
        drop(limbo);
        for (block, tag) in done {
            let unlinked = Unlinked { block, records: self };
            last_look(&unlinked, tag);
            self.arena.free(unlinked.block);
        }
        reclaimed
    }

    /// The next record that should move so that pages become free, and a place for it; `None` when moving on gains
    /// nothing. The caller links [`Relocation::into_target`] to the record and retires what was there, or cancels.
    pub fn next_move(&'static self) -> Option<Relocation> {
        let inner = self.arena.begin_move()?;
        self.lend();
        Some(Relocation { inner, records: self })
    }

    /// The record stays where it is.
    pub fn cancel_move(&self, relocation: Relocation) {
        self.check(relocation.records);
        self.is_back();
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
        self.check(fresh.records);
        self.word_of(&fresh.block, slot, index)
    }

    /// A word of a block that is linked no more; `None` beyond its end and on a slot that was not admitted.
    pub fn unlinked_word<'b>(
        &self,
        unlinked: &'b Unlinked,
        slot: usize,
        index: usize,
    ) -> Option<&'b AtomicU64> {
        self.check(unlinked.records);
        self.word_of(&unlinked.block, slot, index)
    }
}

impl Unlinked {
    /// The block was linked to one of `records`, and is no more.
    pub(crate) fn new(block: Block, records: &'static Records) -> Unlinked {
        Unlinked { block, records }
    }
}

impl Relocation {
    /// Whose record it is: the number given to [`Records::allocate`].
    pub fn owner(&self) -> u32 {
        self.inner.owner
    }

    /// Whether `record` still has the block that is to move away. If not, that one was unlinked, is on its way back to the arena, and
    /// the target is to be [discarded](Records::discard).
    pub fn is_of(&self, record: &Record) -> bool {
        record.has(self.inner.from)
    }

    /// The block to link.
    pub fn into_target(self) -> Fresh {
        Fresh { block: self.inner.to, records: self.records }
    }
}
