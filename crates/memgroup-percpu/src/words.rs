//! Words: one word for each place and slot, at an address that never changes.
//!
//! ```text
//!   a block:  │ slot 0: a word for each of 512 places │ 128 B │ slot 1: 512 words │ 128 B │ slot 2 ...
//! ```
//!
//! A [`WordCell`] finds the word of its place on a slot with one load and one multiplication.
//! Nothing has to be held meanwhile: the address stays good for ever, so an access needs no read
//! section. The price is that the memory of a place goes back only with that of its whole block.
//!
//! - I1. The address space of a block is never unmapped, and holds nothing but these words. So a
//!   reference to a word is good for the life of the process.
//! - I2. A cell has the address of slot 0's word and the number of slots in one number. So an
//!   access never combines the address of one table with the slots of another.
//! - I3. A block's pages go back when each of its places was [released](Words::release). The
//!   caller waits for a grace period before that, so a section that found the cell set finds the
//!   word as its users left it.
//! - E1. retire → grace period → release: a section that begins after the retirement finds the
//!   cell empty. Loom: `loom_a_word_is_not_taken_back_under_a_section`.
//!
//! # Why slots are 128 bytes further apart than a page
//!
//! At a distance of whole pages all words of one place would fall into the same set of a level-1
//! cache, and a walk over 128 slots would keep missing it (`arena/page.rs` has figures). With the
//! shift, two slots never share a line, nor a pair of lines that are fetched together. Slots that
//! are neighbours share a page.

#![allow(unsafe_code)]

use core::ops::Range;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use memgroup_sync::atomic::{AtomicU64, Ordering};
use memgroup_sync::{Erasable, Mutex};

use crate::arena::os::{Region, page_bytes};
use crate::arena::out_of_memory::OutOfMemory;
use crate::arena::page::COLOUR_BYTES;
use crate::arena::slot_set::SlotSet;
use crate::mutation::{Mutation, active};
use crate::prefetch::prefetch_write;
use crate::slot::error::SLOTS_MAX;
use crate::slot::source::FastSlot;

#[cfg(all(test, memgroup_loom))]
mod loom;
#[cfg(all(test, not(memgroup_loom)))]
mod tests;

/// Places with words in one block.
const PLACES: u32 = if cfg!(memgroup_loom) { 4 } else { 512 };

const WORD_BYTES: usize = size_of::<AtomicU64>();

/// The distance between the words of one place on two slots that are neighbours.
const STRIDE: usize = PLACES as usize * WORD_BYTES + COLOUR_BYTES;

/// The bits of a cell above those of the address.
const SLOTS_SHIFT: u32 = memgroup_sync::ADDRESS_BITS;

const _: () = assert!(SLOTS_MAX < 1 << (u64::BITS - SLOTS_SHIFT));

/// Returns the word `offset` bytes behind a place, which [`Place::expose`] turned into `number`.
///
/// # Safety
///
/// As for [`Place::word`].
///
/// [`Place::expose`]: crate::arena::os::Place::expose
/// [`Place::word`]: crate::arena::os::Place::word
#[inline(always)]
pub(crate) unsafe fn word_at<'a>(number: usize, offset: usize) -> &'a AtomicU64 {
    #[cfg(not(memgroup_loom))]
    // SAFETY: within the region, mapped, aligned, and an `AtomicU64`, by the caller's promise.
    let word = unsafe { &*core::ptr::with_exposed_provenance(number + offset) };
    #[cfg(memgroup_loom)]
    // SAFETY: passed on to the caller.
    let word = unsafe { crate::arena::os::Place::of_exposed(number).word(offset) };
    word
}

/// A table with one word for each place and slot. All words are zero at first.
///
/// Address space is reserved for 512 places at a time, and a page is backed when a word in it is
/// first written. See [`WordCell`] for an example.
pub struct Words {
    slots: usize,
    /// The slots on which words may have been written to.
    used: SlotSet,
    blocks: Mutex<BTreeMap<u32, Block>>,
    returned_bytes: AtomicU64,
}

/// The words of [`PLACES`] places.
struct Block {
    region: Region,
    /// Reservations that were not released.
    reservations: u32,
}

/// Returns whether addresses of the region leave the bits for the number of slots free.
fn is_near(region: &Region) -> bool {
    (region.at(0).number() as u64) < (1 << SLOTS_SHIFT) - (1 << 32)
}

/// Makes the words of the slots that models use, because to loom a word's first use is a write,
/// which nothing would order against the others.
#[cfg(memgroup_loom)]
fn loom_prepare(region: &Region, bytes: usize) {
    for offset in (0..bytes.min(4 * STRIDE)).step_by(STRIDE) {
        for place in 0..PLACES as usize {
            // SAFETY: within the region.
            let _ = unsafe { region.at(offset).word(place * WORD_BYTES) };
        }
    }
}

/// The memory of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WordsStats {
    /// Bytes of reserved address space. They never decrease.
    pub reserved_bytes: u64,
    /// Bytes that the system backs with memory now, as it reports.
    pub populated_bytes: u64,
    /// Blocks of address space.
    pub blocks: usize,
}

impl Words {
    /// A table without places.
    ///
    /// # Panics
    /// If `slots` is 0 or more than 8192.
    pub fn new(slots: usize) -> Self {
        assert!((1..=SLOTS_MAX).contains(&slots), "a table of words for {slots} slots");
        Words {
            slots,
            used: SlotSet::new(slots),
            blocks: Mutex::new(BTreeMap::new()),
            returned_bytes: AtomicU64::new(0),
        }
    }

    /// Reserves the word of `place` on each slot, along with those of its neighbours.
    ///
    /// # Errors
    /// The system refuses address space.
    pub fn reserve(&self, place: u32) -> Result<(), OutOfMemory> {
        let mut blocks = self.blocks.lock();
        let block = match blocks.entry(place / PLACES) {
            Entry::Occupied(block) => block.into_mut(),
            Entry::Vacant(vacant) => {
                let bytes = self.block_bytes();
                let region = Region::map(bytes, page_bytes()).ok().filter(is_near);
                let region = region.ok_or(OutOfMemory { bytes, slots: self.slots })?;
                #[cfg(memgroup_loom)]
                loom_prepare(&region, bytes);
                vacant.insert(Block { region, reservations: 0 })
            }
        };
        block.reservations += 1;
        Ok(())
    }

    /// Takes one reservation of `place` back. With the last one of its block the system gets the
    /// pages, and all words are zero again.
    ///
    /// The caller has retired the cells of the place, and a grace period has passed since.
    ///
    /// # Panics
    /// If the place isn't reserved.
    pub fn release(&self, place: u32) {
        let mut blocks = self.blocks.lock();
        let block = blocks.get_mut(&(place / PLACES)).filter(|block| block.reservations > 0);
        let block = block.unwrap_or_else(|| panic!("place {place} has no words to release"));
        block.reservations -= 1;
        if block.reservations > 0 {
            return;
        }
        let bytes = block.region.resident_bytes(0..self.block_bytes()).unwrap_or(0);
        if block.region.discard(0..self.block_bytes()).is_ok() {
            // ORDERING: Relaxed, a figure.
            self.returned_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        } else {
            // The system refuses that for memory that is locked.
            // SAFETY: the region is as long, and mapped.
            unsafe { block.region.at(0).clear(0, self.block_bytes()) };
        }
    }

    /// Bytes that went back to the system so far.
    pub fn returned_bytes_total(&self) -> u64 {
        // ORDERING: Relaxed, a figure.
        self.returned_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of a block, without the shift behind the last slot.
    fn block_bytes(&self) -> usize {
        (self.slots * STRIDE - COLOUR_BYTES).next_multiple_of(page_bytes())
    }

    /// Notes that words on `slot` may be written to. A walk over [`used`](Self::used) slots that
    /// begins afterwards visits it.
    ///
    /// # Panics
    /// If there is no such slot.
    #[inline]
    pub fn note(&self, slot: usize) {
        if !self.used.contains(slot) {
            self.used.insert(slot);
        }
    }

    /// The noted slots, in order. All words on other slots are zero.
    pub fn used(&self) -> impl Iterator<Item = usize> + Clone {
        self.used.iter()
    }

    /// Address space and memory. Asks the system about each page.
    pub fn stats(&self) -> WordsStats {
        let blocks = self.blocks.lock();
        let populated = |block: &Block| block.region.resident_bytes(0..self.block_bytes()).unwrap_or(0);
        WordsStats {
            reserved_bytes: (blocks.len() * self.block_bytes()) as u64,
            populated_bytes: blocks.values().map(populated).sum::<usize>() as u64,
            blocks: blocks.len(),
        }
    }

    /// The addresses of the blocks.
    pub fn ranges(&self) -> Vec<Range<usize>> {
        let blocks = self.blocks.lock();
        let starts = blocks.values().map(|block| block.region.at(0).number());
        starts.map(|start| start..start + self.block_bytes()).collect()
    }
}

/// The place of a word in a table, in eight bytes: leads to its copy on each slot.
///
/// It is [erasable](Erasable). A retired cell is empty, and so is one that was never set.
///
/// ```
/// # #[cfg(not(memgroup_loom))] {
/// use memgroup_percpu::{WordCell, Words};
/// use memgroup_sync::Erasable;
/// use std::sync::atomic::Ordering;
///
/// let words: &'static Words = Box::leak(Box::new(Words::new(8)));
/// words.reserve(1000)?;
/// let cell = WordCell::zero();
/// assert!(cell.get(3).is_none(), "it is empty");
/// cell.set(words, 1000);
/// cell.get(3).unwrap().fetch_add(1, Ordering::Relaxed);
/// assert!(cell.get(8).is_none(), "there is no such slot");
/// # }
/// # Ok::<(), memgroup_percpu::OutOfMemory>(())
/// ```
pub struct WordCell(AtomicU64);

// SAFETY: one atomic, for which zero is a value: it stands for no word. `retire` stores it
// already.
unsafe impl Erasable for WordCell {
    fn zero() -> Self {
        WordCell(AtomicU64::new(0))
    }

    unsafe fn retire(&self) {
        if !active(Mutation::RetireLeavesTheWord) {
            // ORDERING: AcqRel; as an RMW it precedes the one that begins the grace period (E1).
            self.0.swap(0, Ordering::AcqRel);
        }
    }

    unsafe fn erase(&self) {
        // ORDERING: Relaxed; an access that finds the zero goes no further.
        self.0.store(0, Ordering::Relaxed);
    }
}

impl WordCell {
    /// Has the cell lead to the words of `place`, before other threads get to it.
    ///
    /// # Panics
    /// If the place isn't reserved.
    pub fn set(&self, words: &'static Words, place: u32) {
        let blocks = words.blocks.lock();
        let block = blocks.get(&(place / PLACES)).filter(|block| block.reservations > 0);
        let block = block.unwrap_or_else(|| panic!("place {place} has no words"));
        let first = block.region.at((place % PLACES) as usize * WORD_BYTES);
        // ORDERING: Release; pairs with the Acquire in `get`.
        self.0.store(first.expose() as u64 | (words.slots as u64) << SLOTS_SHIFT, Ordering::Release);
    }

    /// The word on `slot`; `None` if the cell is empty or the table has no such slot.
    ///
    /// Whether the word is still that of the caller's object is the caller's affair: it holds the
    /// object, or is in a section of [`grace`](crate::grace) and found the cell set in it.
    #[inline(always)]
    pub fn get(&self, slot: usize) -> Option<&'static AtomicU64> {
        // ORDERING: Acquire; pairs with the Release in `set`.
        let cell = self.0.load(Ordering::Acquire);
        if slot as u64 >= cell >> SLOTS_SHIFT {
            return None;
        }
        // SAFETY: `set` combined the address of a word on slot 0 with the number of slots of its
        // table (I2), and the slot is below. The table is static, so its blocks stay mapped (I1).
        Some(unsafe { word_at((cell & ((1 << SLOTS_SHIFT) - 1)) as usize, slot * STRIDE) })
    }

    /// The current slot of a source and the word on it, without a function call. Where that is not
    /// possible it returns `None`, and the caller asks the source.
    #[inline(always)]
    pub fn get_current(&self, source: &FastSlot) -> Option<(usize, &'static AtomicU64)> {
        let slot = source.value()?;
        Some((slot, self.get(slot)?))
    }

    /// Returns whether `word` is the one on `slot`.
    #[inline]
    pub fn leads_to(&self, slot: usize, word: &'static AtomicU64) -> bool {
        self.get(slot).is_some_and(|own| core::ptr::eq(own, word))
    }

    /// Asks the processor for the line of the word on `slot`, to write it; a hint.
    #[inline]
    pub fn prefetch(&self, slot: usize) {
        if let Some(word) = self.get(slot) {
            prefetch_write(core::ptr::from_ref(word).cast());
        }
    }
}
