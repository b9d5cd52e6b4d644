//! Regions under loom. Loom's atomics are not bytes. So a word is made at its first use, and a
//! word of a small block when the block is handed out. To loom that is a write, so a word that two
//! threads may use first belongs to a small block.
//!
//! Clearing and discarding are plain writes here (`with_mut`). So a model fails wherever a user's
//! access is not ordered against them. Asking for a word of a block that is free panics.

use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use memgroup_sync::atomic::{AtomicU64, Ordering};

use super::{Call, Refused, permitted};

/// The size that stands for the system's page.
pub(crate) fn page_bytes() -> usize {
    4096
}

/// A word of loom's behind an address that stays, and whether its block is free.
struct Word {
    atomic: *mut AtomicU64,
    free: bool,
}

impl Word {
    fn new() -> Self {
        Self {
            atomic: core::ptr::from_ref(memgroup_sync::keep(Box::new(AtomicU64::new(0)))).cast_mut(),
            free: false,
        }
    }
}

// SAFETY: the pointer is to a word that is kept for the execution, and loom's own atomics order
// its uses.
unsafe impl Send for Word {}

type Words = Mutex<BTreeMap<usize, Word>>;

/// Words by offset; kept for the execution, so that a stale reference is a reference.
#[derive(Debug)]
pub(crate) struct Region {
    words: &'static Words,
    bytes: usize,
    calls: AtomicU64,
}

impl core::fmt::Debug for Word {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Word").field("free", &self.free).finish_non_exhaustive()
    }
}

impl Region {
    pub(crate) fn map(bytes: usize, _page: usize) -> Result<Self, Refused> {
        permitted(Call::Map)?;
        Ok(Self { words: memgroup_sync::keep(Box::default()), bytes, calls: AtomicU64::new(0) })
    }

    pub(crate) fn at(&self, offset: usize) -> Place {
        assert!(offset < self.bytes, "offset {offset} of a region of {} bytes", self.bytes);
        Place { words: self.words, offset }
    }

    pub(crate) fn discard(&self, range: Range<usize>) -> Result<(), Refused> {
        permitted(Call::Discard)?;
        // ORDERING: Relaxed; orders nothing. To loom it separates the writes from an unlock before.
        self.calls.fetch_add(1, Ordering::Relaxed);
        store_in(self.words, range, 0);
        Ok(())
    }

    pub(crate) fn resident_bytes(&self, _range: Range<usize>) -> Result<usize, Refused> {
        permitted(Call::Resident)?;
        Ok(0)
    }
}

/// Stores `value` into the words that exist in `range`, as a plain write.
fn store_in(words: &'static Words, range: Range<usize>, value: u64) {
    let words = words.lock().unwrap_or_else(PoisonError::into_inner);
    let atomics: Vec<_> = words.range(range).map(|(_, word)| word.atomic).collect();
    drop(words);
    for atomic in atomics {
        // SAFETY: kept for the execution; loom's `with_mut` panics where another access is not
        // ordered against this one.
        unsafe { (*atomic).with_mut(|word| *word = value) };
    }
}

/// An offset in a region.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    words: &'static Words,
    offset: usize,
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self.words, other.words) && self.offset == other.offset
    }
}

impl Eq for Place {}

impl core::fmt::Debug for Place {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Place").field(&self.offset).finish()
    }
}

impl Place {
    /// A value that no block holds, so that a use after free shows.
    const POISON: u64 = 0xdead_f7ee_dead_f7ee;
    /// Blocks of up to this size have their words from the beginning.
    const SMALL_BYTES: usize = 64;

    /// The address of a copy that is kept for the execution.
    pub(crate) fn expose(self) -> usize {
        core::ptr::from_ref(memgroup_sync::keep(Box::new(self))).expose_provenance()
    }

    /// The place that [`expose`](Self::expose) turned into this number.
    pub(crate) fn of_exposed(number: usize) -> Self {
        assert!(number != 0, "a place is looked for that was never exposed");
        // SAFETY: the number came from `expose`, which keeps the copy that it points to.
        unsafe { *core::ptr::with_exposed_provenance::<Place>(number) }
    }

    /// A number that distinguishes it from all other places.
    pub(crate) fn number(self) -> usize {
        core::ptr::from_ref(self.words).addr() + self.offset
    }

    /// The word `offset` bytes further on; panics if its block is free.
    ///
    /// # Safety
    ///
    /// None under loom; the signature is the other builds'.
    pub(crate) unsafe fn word(self, offset: usize) -> &'static AtomicU64 {
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let word = words.entry(self.offset + offset).or_insert_with(Word::new);
        let (atomic, free) = (word.atomic, word.free);
        drop(words);
        assert!(!free, "the word at offset {} is used after its block was freed", self.offset + offset);
        // SAFETY: kept for the execution.
        unsafe { &*atomic }
    }

    /// Sets `bytes` from `offset` on to zero; no other thread may use them.
    ///
    /// # Safety
    ///
    /// None under loom; the signature is the other builds'.
    pub(crate) unsafe fn clear(self, offset: usize, bytes: usize) {
        let start = self.offset + offset;
        store_in(self.words, start..start + bytes, 0);
    }

    /// The block of these bytes was freed: from now on a use of them panics.
    pub(crate) fn forbid(self, offset: usize, bytes: usize) {
        let start = self.offset + offset;
        store_in(self.words, start..start + bytes, Self::POISON);
        self.mark(start..start + bytes, true);
    }

    /// The bytes belong to a block again.
    pub(crate) fn permit(self, offset: usize, bytes: usize) {
        let start = self.offset + offset;
        if bytes <= Self::SMALL_BYTES {
            let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
            for at in (start..start + bytes).step_by(size_of::<u64>()) {
                words.entry(at).or_insert_with(Word::new);
            }
        }
        self.mark(start..start + bytes, false);
    }

    fn mark(self, range: Range<usize>, free: bool) {
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        words.range_mut(range).for_each(|(_, word)| word.free = free);
    }
}
