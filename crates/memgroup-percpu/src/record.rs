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

use memgroup_sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use memgroup_sync::grace::{self, BriefSection, Section};

use self::base::Base;
use crate::arena::block::Block;
use crate::mutation::{Mutation, active};
#[cfg(not(memgroup_loom))]
use crate::raw::prefetch_write;
use crate::records::{Fresh, Records, Unlinked};
use crate::slot::source::SlotSource;

#[cfg(not(memgroup_loom))]
mod base;
#[cfg(memgroup_loom)]
#[path = "record/model.rs"]
mod base;
#[cfg(all(test, memgroup_loom))]
mod loom;
#[cfg(all(test, not(memgroup_loom)))]
mod tests;

#[cfg(memgroup_loom)]
fn prefetch_write(_: *const u8) {}

/// Stands for the place of a block where there is none.
const NO_BLOCK: u64 = u64::MAX;

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
    /// Where in the arena its block begins, or [`NO_BLOCK`]; the owner's.
    at: AtomicU64,
    records: &'static Records,
    /// Somebody links or unlinks.
    busy: AtomicBool,
}

impl Record {
    /// One without memory.
    pub(crate) fn new(records: &'static Records) -> Record {
        Record {
            doors: AtomicUsize::new(address(records.shut())),
            slots: records.arena().slots() as u32,
            stride: records.arena().stride_bytes() as u32,
            base: AtomicUsize::new(0),
            words: records.words() as u32,
            at: AtomicU64::new(NO_BLOCK),
            records,
            busy: AtomicBool::new(false),
        }
    }

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

    /// All words of the copy of `slot`, in their order; as [`word`](Self::word) for each.
    #[inline]
    pub fn words<'s>(
        &self,
        _section: &'s Section,
        slot: usize,
    ) -> Option<impl DoubleEndedIterator<Item = &'s AtomicU64> + ExactSizeIterator + use<'s>> {
        if !self.is_open(slot) {
            return None;
        }
        // ORDERING: Acquire, as in `find`.
        let (base, stride) = (self.base.load(Ordering::Acquire), self.stride as usize);
        // SAFETY: as in `find`: open, below `words`, and within the section that the words are lent for.
        Some((0..self.words as usize).map(move |index| unsafe { Base::word(base, stride, slot, index) }))
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
    /// `index` is below `words`, and the caller is in a section in which `is_open` found the slot open, or the doors of a record that
    /// has memory with an Acquire, for a slot that the arena admitted; the section lasts for as long as the word is used.
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

    /// Stores zero in the words of the copy of `slot` from `index` on; for its owner, while nobody else accesses them.
    pub fn clear_from(&self, _section: &Section, slot: usize, index: usize) {
        if !self.is_open(slot) {
            return;
        }
        // ORDERING: Acquire, as in `find`.
        let base = self.base.load(Ordering::Acquire);
        for index in index..self.words as usize {
            // SAFETY: as in `find`: open, below `words`, within the section.
            let word: &AtomicU64 = unsafe { Base::word(base, self.stride as usize, slot, index) };
            // ORDERING: Relaxed; the owner publishes it with whatever it hands the record out by.
            word.store(0, Ordering::Relaxed);
        }
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

    /// [`access`](Self::access) to the word `index` on the slot that `source` shows at a glance, if all of it can be had without a call;
    /// and which slot that is. `None` says only that the other way is to be tried.
    #[inline(always)]
    pub fn glance(&self, source: &SlotSource, index: usize) -> Option<(usize, Glance)> {
        if index < self.words as usize { self.glance_within(source, index) } else { None }
    }

    /// [`glance`](Self::glance) at the first word, which every record has.
    #[inline(always)]
    pub fn glance_first(&self, source: &SlotSource) -> Option<(usize, Glance)> {
        self.glance_within(source, 0)
    }

    #[inline(always)]
    fn glance_within(&self, source: &SlotSource, index: usize) -> Option<(usize, Glance)> {
        let slot = source.glance()?;
        let section = grace::enter_briefly()?;
        if !self.is_open(slot) {
            return None;
        }
        // SAFETY: as in `access_within`.
        let word = NonNull::from(unsafe { self.find(slot, index) });
        Some((slot, Glance { word, section }))
    }

    /// Asks for the line of the first word of a slot's copy to be brought here for writing; a hint.
    #[inline]
    pub fn prefetch_write(&self, section: &Section, slot: usize) {
        if let Some(word) = self.word(section, slot, 0) {
            prefetch_write(core::ptr::from_ref(word).cast());
        }
    }

    /// Asks for the lines of all words of a slot's copy; a hint, as [`prefetch_write`](Self::prefetch_write).
    #[inline]
    pub fn prefetch_words(&self, section: &Section, slot: usize) {
        for index in (0..self.words as usize).step_by(8) {
            if let Some(word) = self.word(section, slot, index) {
                prefetch_write(core::ptr::from_ref(word).cast());
            }
        }
        if let Some(last) = self.words.checked_sub(1).and_then(|last| self.word(section, slot, last as usize))
        {
            prefetch_write(core::ptr::from_ref(last).cast());
        }
    }

    /// Whether it has memory now.
    pub fn is_linked(&self) -> bool {
        // ORDERING: Relaxed; the owner knows, for others it is a hint.
        self.doors.load(Ordering::Relaxed) == address(self.records.doors())
    }

    /// Runs `change` alone: a block that two had unlinked would be free twice.
    fn alone<T>(&self, change: impl FnOnce() -> T) -> T {
        // ORDERING: Acquire; pairs with the Release below: what the last one linked is seen.
        let busy = self.busy.swap(true, Ordering::Acquire);
        assert!(!busy, "a record is linked and unlinked by one owner at a time: two threads did at once");
        let done = change();
        // ORDERING: Release; as above.
        self.busy.store(false, Ordering::Release);
        done
    }

    /// The block with this `base`, which begins at `at`; `None` if that says that there is none.
    fn block(&self, base: usize, at: u64) -> Option<Unlinked> {
        let block = || Base::block(base, (at >> 32) as u32, at as u32, self.words);
        (at != NO_BLOCK).then(|| Unlinked::new(block(), self.records))
    }

    /// Whether this is its block; for its owner.
    pub(crate) fn has(&self, block: Block) -> bool {
        // ORDERING: Relaxed; the owner's, who takes turns with others by a lock of its own.
        self.at.load(Ordering::Relaxed) == place(block)
    }

    /// Gives it a block, and returns the one it had.
    ///
    /// # Panics
    /// If another thread links or unlinks it at the same time, or the block is of other records.
    pub fn link(&self, fresh: Fresh) -> Option<Unlinked> {
        let block = self.records.take(fresh);
        self.alone(|| self.link_block(block))
    }

    fn link_block(&self, block: Block) -> Option<Unlinked> {
        // ORDERING: Relaxed; the owner's, who takes turns with others by `alone`.
        let at = self.at.load(Ordering::Relaxed);
        // ORDERING: Relaxed, as above.
        self.at.store(place(block), Ordering::Relaxed);
        let order = if active(Mutation::LinkPublishesNothing) { Ordering::Relaxed } else { Ordering::AcqRel };
        // ORDERING: AcqRel; Release pairs with the Acquire in `find` (E1); as an RMW it precedes the RMW that tags the
        // old block when it is retired (`grace`).
        let base = self.base.swap(Base::of(block), order);
        let before = self.block(base, at);
        if before.is_none() {
            // ORDERING: Release; pairs with the Acquire in `is_open`: who finds the doors finds the block.
            self.doors.store(address(self.records.doors()), Ordering::Release);
        }
        before
    }

    /// Takes its block away.
    ///
    /// # Panics
    /// As [`link`](Self::link).
    pub fn unlink(&self) -> Option<Unlinked> {
        self.alone(|| {
            // ORDERING: Relaxed, twice, as in `link_block`.
            let (base, at) = (self.base.load(Ordering::Relaxed), self.at.load(Ordering::Relaxed));
            // ORDERING: Relaxed, as above.
            self.at.store(NO_BLOCK, Ordering::Relaxed);
            if !active(Mutation::UnlinkLeavesDoorsOpen) {
                // ORDERING: AcqRel; as an RMW it precedes the RMW that tags the block when it is retired.
                self.doors.swap(address(self.records.shut()), Ordering::AcqRel);
            }
            self.block(base, at)
        })
    }
}

/// Asks for the lines of `value` to be brought here for writing; a hint.
#[inline]
pub fn prefetch<T>(value: &T) {
    const LINE: usize = 64;
    let first = core::ptr::from_ref(value).cast::<u8>();
    for offset in (0..size_of::<T>()).step_by(LINE) {
        prefetch_write(first.wrapping_add(offset));
    }
    if size_of::<T>() > LINE {
        prefetch_write(first.wrapping_add(size_of::<T>() - 1));
    }
}

fn address(doors: &[AtomicBool]) -> usize {
    doors.as_ptr().expose_provenance()
}

/// Where in the arena a block begins.
fn place(block: Block) -> u64 {
    u64::from(block.chunk) << 32 | u64::from(block.start)
}

/// The copies of a slot that is about to be opened.
pub struct Early<'r> {
    pub(crate) slot: usize,
    pub(crate) records: &'r Records,
}

impl Early<'_> {
    /// A word of this slot's copy of a record, which nobody else reaches yet; `None` while the record has no memory, and beyond the
    /// end.
    ///
    /// # Panics
    /// If it is a record of others than those whose slot is admitted.
    pub fn word<'s>(&self, _section: &'s Section, record: &Record, index: usize) -> Option<&'s AtomicU64> {
        assert!(
            core::ptr::eq(self.records, record.records),
            "the record is one of other records: their slot {} is not admitted here",
            self.slot
        );
        // ORDERING: Acquire, as in `is_open`: with the doors the block behind them is seen, also where another thread has just
        // linked it. Weaker, `base` could still be that of no block.
        let order =
            if active(Mutation::PrepareSeesDoorsAlone) { Ordering::Relaxed } else { Ordering::Acquire };
        let doors = record.doors.load(order);
        if index >= record.words as usize || doors != address(self.records.doors()) {
            return None;
        }
        // SAFETY: linked, below `words`, within the section; the arena that the record's blocks come from admitted the slot
        // before `admit` made this. If the block is unlinked meanwhile, it stays while the section lasts, as in `find`.
        Some(unsafe { record.find(self.slot, index) })
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

/// A word of a record and the brief read section that keeps it.
pub struct Glance {
    word: NonNull<AtomicU64>,
    section: BriefSection,
}

impl Glance {
    /// The same word, to be kept for longer.
    pub fn extend(self) -> Access {
        Access { word: self.word, section: self.section.extend() }
    }
}

impl Deref for Glance {
    type Target = AtomicU64;

    #[inline(always)]
    fn deref(&self) -> &AtomicU64 {
        // SAFETY: `find` gave it for the section that is held beside it.
        unsafe { self.word.as_ref() }
    }
}
