//! Marks: the numbers that have counters to collect, and the rows of those counters.
//!
//! ```text
//!   dirty   1 bit a row ──▶ heads[row]  1 bit a class of chunks ──▶ summary  1 bit a word ──▶ word  1 bit a number
//!                                       + markers under way         └────── Leaves, one for each chunk and row ──┘
//! ```
//!
//! A *marker* sets the bits from left to right, the leaf last. A *collector* clears them from left
//! to right, the leaf last, and takes the counters after that.
//!
//! - I1. A leaf bit that is seen outside a collection has its three upper bits set. An upper bit
//!   may be set without a leaf bit.
//! - I2. A marker is counted in its row's head before it reads or sets any other bit, and until
//!   its leaf bit is set.
//! - I3. A collector restores the bits that it cleared above the leaves in three cases: (a) in a
//!   row with a marker under way when the head was cleared, or after the summary was; (b) where it
//!   left leaf bits; (c) if a callback panicked. It does so before `collecting` is even.
//! - E1. addition → mark → collection. The updater adds and then reads the mark; the collector
//!   clears the mark and then takes. Both the addition and the taking are RMWs of one word, which
//!   orders the two. An addition that is not taken finds its mark cleared, and sets it. Loom:
//!   `loom_an_addition_is_collected_or_marked`.
//! - E2. mark → read: a thread that finds a leaf bit set by another thread finds its upper bits
//!   (Release → Acquire on the word). The other thread need not be done. Loom:
//!   `loom_a_mark_that_is_found_can_be_collected_at_once`.
//! - E3. collection → read from outside: a thread that finds a bit cleared finds `collecting` odd
//!   or newer (Release → Acquire on that bit's word). A thread that finds `collecting` even finds
//!   the writes of the callbacks. Loom: `loom_a_collection_that_looks_over_is_published`.
//!
//! Proof of I1, for a marker *m* and the collector's steps on the row: (1) dirty, (2) head, (3)
//! summary, (4) the head once more, (5) leaves. RMWs of the head order *m*'s first and last step
//! against (2) and (4).
//!
//! - *m* ends before (2): the steps from (2) to (5) see all its bits.
//! - *m* begins before (2) and ends after it: (2) finds it. Dirty bit and head are set again. If
//!   (3) took its summary bit, the next line holds; if not, the bit is still there.
//! - *m* begins after (2): it finds (1) and (2) done, and sets both bits itself where they are not
//!   set. If (3) took its summary bit, *m* began before (4). Then either it ended before (4), and
//!   (5) sees the leaf; or (4) finds it, and the summary is set again.

use std::sync::OnceLock;

use memgroup_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use memgroup_sync::{FixedRef, FixedSlice, erasable, interleave};

use crate::mutation::{Mutation, active};
use crate::slot::error::SLOTS_MAX;

mod collect;
#[cfg(all(test, memgroup_loom))]
mod loom;
#[cfg(all(test, not(memgroup_loom)))]
mod tests;

pub use collect::{Piece, Rows, Scratch};

/// Numbers of one word, words of one chunk, classes of chunks. Models have few, so that two of a
/// kind are at hand.
const BITS: usize = if cfg!(memgroup_loom) { 2 } else { 64 };
const WORDS: usize = if cfg!(memgroup_loom) { 2 } else { 64 };
const CLASSES: usize = if cfg!(memgroup_loom) { 2 } else { 44 };
const CHUNK: usize = BITS * WORDS;

/// Every slot of any source has a row, and a caller may have two more, for counters that belong to
/// no slot.
const ROWS_MAX: usize = SLOTS_MAX + 2;
/// The most groups, and the places beyond that a hierarchy of so many has.
const NUMBERS_MAX: u32 = 1 << 25;

/// One marker in a head; the classes lie below.
const MARKER: u64 = 1 << 44;
const CLASSES_MASK: u64 = MARKER - 1;

#[doc = include_str!("../docs/marks.md")]
pub struct Marks {
    /// The first word is odd during a collection, and grows by two with each. The others have a
    /// bit for each row with a mark. They lie together, because a thread that reads one reads
    /// the other.
    front: Box<[Line]>,
    rows: usize,
    chunks: Box<[OnceLock<Box<[Leaves]>>]>,
    /// Chunks from here on are not provided.
    chunks_end: AtomicUsize,
    numbers_max: u32,
}

/// Words of one line.
const LINE: usize = 8;

/// A line of its own: writes beside it do not disturb its readers.
#[derive(Default)]
#[repr(align(64))]
struct Line([AtomicU64; LINE]);

/// The marks of one chunk of numbers in one row. It has an odd number of lines, so that the same
/// word of many rows is not in one cache set. With few numbers, a marker and a collector touch the
/// first line of a row only.
#[repr(C, align(64))]
struct Leaves {
    /// The row's head: the classes of chunks with a mark, and the number of markers under way.
    /// Only the first chunk's heads are used.
    head: AtomicU64,
    summary: AtomicU64,
    /// The marks that it is part of, once a number has a [`Mark`] here. In the first row only, and
    /// only for markers.
    marks: FixedRef<Marks>,
    words: [AtomicU64; WORDS],
}

impl Leaves {
    fn new() -> Leaves {
        Leaves {
            head: AtomicU64::new(0),
            summary: AtomicU64::new(0),
            marks: FixedRef::none(),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    #[inline(always)]
    fn word(&self, number: u32) -> &AtomicU64 {
        &self.words[number as usize / BITS % WORDS]
    }
}

/// The bit of a number in its word.
#[inline(always)]
fn bit(number: u32) -> u64 {
    1 << (number as usize % BITS)
}

/// Returns whether a number is marked, according to its word of a row.
#[inline(always)]
fn is_set_in(word: &AtomicU64, number: u32) -> bool {
    // ORDERING: Acquire; pairs with the Release of the leaf bit in `set`: a thread that relies on
    // another thread's mark finds the upper bits (E2). Against a collector the addition before it
    // orders it (E1).
    word.load(Ordering::Acquire) & bit(number) != 0
}

/// The bit in a head of a chunk's class.
fn class(chunk: usize) -> u64 {
    1 << (chunk % CLASSES)
}

fn markers(head: u64) -> u64 {
    if active(Mutation::MarkersAreNotCounted) { 0 } else { head / MARKER }
}

/// The place of one number in [`Marks`], for an updater to keep.
#[derive(Clone, Copy)]
pub struct Mark {
    rows: &'static [Leaves],
    number: u32,
}

impl Marks {
    /// Marks of numbers below `numbers_max` in `rows` rows, none set. The first numbers are
    /// [provided](Self::provide).
    ///
    /// # Panics
    /// If `rows` is not in 1..=8194, or `numbers_max` not in 1..=2<sup>25</sup>.
    pub fn new(rows: usize, numbers_max: u32) -> Marks {
        assert!((1..=ROWS_MAX).contains(&rows), "marks have 1 to {ROWS_MAX} rows, not {rows}");
        assert!(
            (1..=NUMBERS_MAX).contains(&numbers_max),
            "marks have 1 to {NUMBERS_MAX} numbers, not {numbers_max}"
        );
        let marks = Marks {
            front: (0..(1 + rows.div_ceil(64)).div_ceil(LINE)).map(|_| Line::default()).collect(),
            rows,
            chunks: (0..(numbers_max as usize).div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(),
            chunks_end: AtomicUsize::new(0),
            numbers_max,
        };
        // For the heads.
        marks.provide(0);
        marks
    }

    #[inline]
    fn collecting(&self) -> &AtomicU64 {
        &self.front[0].0[0]
    }

    /// A bit for each row, 64 a word.
    #[inline]
    fn dirty(&self) -> impl Iterator<Item = &AtomicU64> {
        self.front.iter().flat_map(|line| &line.0).skip(1).take(self.rows.div_ceil(64))
    }

    fn dirty_word(&self, row: usize) -> &AtomicU64 {
        let word = 1 + row / 64;
        &self.front[word / LINE].0[word % LINE]
    }

    /// The head of a row.
    fn head(&self, row: usize) -> &AtomicU64 {
        &self.leaves(0)[row].head
    }

    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes that it takes now, for the numbers that are provided.
    pub fn bytes(&self) -> usize {
        let provided = self.chunks.iter().filter(|chunk| chunk.get().is_some()).count();
        provided * self.rows() * size_of::<Leaves>() + size_of_val(&*self.front) + size_of_val(&*self.chunks)
    }

    /// Makes room for `number`, and for the others of its chunk of 4,096. It allocates 576 bytes a
    /// row, once for each chunk.
    ///
    /// # Panics
    /// If `number` is not below the bound given to [`new`](Self::new).
    pub fn provide(&self, number: u32) {
        self.check(number);
        let chunk = number as usize / CHUNK;
        self.chunks[chunk].get_or_init(|| {
            // ORDERING: Relaxed; before the chunk is set, which publishes it to each marker of the
            // chunk. A collector that finds the marker's bits finds it through them.
            self.chunks_end.fetch_max(chunk + 1, Ordering::Relaxed);
            (0..self.rows()).map(|_| Leaves::new()).collect()
        });
    }

    fn check(&self, number: u32) {
        let max = self.numbers_max;
        assert!(number < max, "marks are of numbers below {max}, not of {number}");
    }

    fn leaves(&self, number: u32) -> &[Leaves] {
        self.check(number);
        let leaves = self.chunks[number as usize / CHUNK].get();
        leaves.unwrap_or_else(|| panic!("number {number} was not provided: call `provide` before"))
    }

    /// The place of `number`.
    ///
    /// # Panics
    /// If it was not [provided](Self::provide).
    pub fn of(&'static self, number: u32) -> Mark {
        let rows = self.leaves(number);
        rows[0].marks.set(self);
        Mark { rows, number }
    }

    /// Returns whether no mark is set and no collection is under way. Consider a thread that has
    /// added, and then set the mark or found it set. It learns from `true` that a collection has
    /// taken the addition and is over.
    #[inline]
    pub fn is_clean(&self) -> bool {
        // ORDERING: Acquire; pairs with the Release in `take_rows`: a thread that finds the zeros
        // finds the collection (E3).
        let all_zero = || self.dirty().all(|word| word.load(Ordering::Acquire) == 0);
        self.unless_collecting(all_zero)
    }

    /// The answer of `is_unmarked`, if no collection is under way from before it until after it.
    #[inline]
    fn unless_collecting(&self, is_unmarked: impl FnOnce() -> bool) -> bool {
        // ORDERING: Acquire; pairs with the Release of the end of a collection: the bits that it
        // restored and the writes of its callbacks are seen (E3).
        let before = self.collecting().load(Ordering::Acquire);
        interleave::point();
        // ORDERING: Relaxed; after Acquire loads in `is_unmarked`, which find a cleared bit only
        // with the beginning of the collection that cleared it (E3). Without this second load, that
        // collection may still restore the bits.
        before.is_multiple_of(2)
            && is_unmarked()
            && (active(Mutation::CleanIsReadOnce) || self.collecting().load(Ordering::Relaxed) == before)
    }

    /// Sets the bit of a row in `dirty`.
    fn set_dirty(&self, row: usize) {
        let (word, bit) = (self.dirty_word(row), 1 << (row % 64));
        // ORDERING: Relaxed; in `set` after the Acquire of the head: a zero that a collector put
        // there before is seen (I1). It is read first, because it is set by then in most rows, and
        // 64 rows share the line.
        if word.load(Ordering::Relaxed) & bit == 0 {
            // ORDERING: Relaxed; published by the leaf bit (E2). An RMW, which keeps the order that
            // `take_rows` began (E3).
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }
}

erasable! {
    /// A [`Mark`] in a cell that may be [erased](memgroup_sync::Erasable). The owner of the cell
    /// knows the number, so the cell does not hold it.
    pub struct MarkCell {
        rows: FixedSlice<Leaves>,
    }
}

impl MarkCell {
    /// Puts a mark in.
    pub fn set(&self, mark: Mark) {
        self.rows.set(mark.rows);
    }

    /// Returns the result of [`Mark::word`] for the mark of this number, which was put in.
    #[inline(always)]
    pub fn word(&self, row: usize, number: u32) -> Option<&'static AtomicU64> {
        self.rows.item(row).map(|leaves| leaves.word(number))
    }

    /// Returns whether this number is marked, as [`Mark::is_set_in`].
    #[inline(always)]
    pub fn is_set_in(word: &AtomicU64, number: u32) -> bool {
        is_set_in(word, number)
    }

    /// Returns the mark of this number, which was put in. Until then it has no rows.
    #[inline(always)]
    pub fn get(&self, number: u32) -> Mark {
        Mark { rows: self.rows.get(), number }
    }
}

impl Mark {
    fn marks(self) -> &'static Marks {
        self.rows.first().and_then(|row| row.marks.get()).expect("a mark is of some marks")
    }

    /// The word with the number's mark in `row`, for [`is_set_in`](Self::is_set_in); `None` if
    /// there is no such row. A fast path calls this before its addition, so that only a load
    /// remains to be done after it.
    #[inline(always)]
    pub fn word(&self, row: usize) -> Option<&'static AtomicU64> {
        self.rows.get(row).map(|leaves| leaves.word(self.number))
    }

    /// Returns whether the number is marked, according to its word of a row.
    #[inline(always)]
    pub fn is_set_in(&self, word: &AtomicU64) -> bool {
        is_set_in(word, self.number)
    }

    /// Returns whether the number is marked in `row`. An updater calls this after its addition, an
    /// AcqRel RMW of the word that a collector takes from. It [sets](Self::set) the mark if it is
    /// not set.
    #[inline(always)]
    pub fn is_set(&self, row: usize) -> bool {
        self.word(row).is_some_and(|word| self.is_set_in(word))
    }

    /// The rows before `end` in which the number is marked.
    #[inline]
    pub fn marked_rows(self, end: usize) -> impl Iterator<Item = usize> {
        let leaves = self.rows[..end.min(self.rows.len())].iter().enumerate();
        leaves.filter(move |(_, leaves)| is_set_in(leaves.word(self.number), self.number)).map(|(row, _)| row)
    }

    /// Marks the number in `row`. It never waits and allocates nothing.
    ///
    /// # Panics
    /// If there is no such row.
    #[cold]
    #[inline(never)]
    pub fn set(&self, row: usize) {
        let marks = self.marks();
        assert!(row < marks.rows(), "marks have {} rows, no row {row}", marks.rows());
        let (head, leaves) = (marks.head(row), &self.rows[row]);
        let class = class(self.number as usize / CHUNK);
        let word_bit = 1 << (self.number as usize / BITS % WORDS);
        if active(Mutation::LeafBeforeUpperBits) {
            // ORDERING: Release, as below.
            leaves.word(self.number).fetch_or(bit(self.number), Ordering::Release);
        }
        // ORDERING: Acquire; pairs with the Release of the collector's RMWs of the head: the bits
        // that it cleared before them are seen cleared (I1). Release is not needed: the collector
        // learns from it only that a marker is under way.
        let before = head.fetch_add(MARKER, Ordering::Acquire);
        interleave::point();
        if before & class == 0 {
            // ORDERING: Relaxed; if a collector cleared the head in between, it found this marker
            // and restores the bits.
            head.fetch_or(class, Ordering::Relaxed);
        }
        interleave::point();
        marks.set_dirty(row);
        interleave::point();
        // ORDERING: Relaxed; after the Acquire of the head. A collector changes the head by an RMW
        // after it has cleared the summary. So if a collector takes a bit that is seen here, it
        // finds this marker (I1).
        if leaves.summary.load(Ordering::Relaxed) & word_bit == 0 {
            // ORDERING: Relaxed, as above; published by the leaf bit (E2).
            leaves.summary.fetch_or(word_bit, Ordering::Relaxed);
        }
        interleave::point();
        // ORDERING: Release; pairs with the Acquire in `is_set_in` and in the taking of the bit
        // (E1, E2).
        leaves.word(self.number).fetch_or(bit(self.number), Ordering::Release);
        interleave::point();
        // ORDERING: Release; pairs with the Acquire of the collector's RMWs of the head. A
        // collector that does not find this marker any more finds its leaf bit (I1).
        head.fetch_sub(MARKER, Ordering::Release);
    }

    /// Clears the mark of one row. The caller knows that no thread marks or collects the number
    /// meanwhile.
    pub fn clear(&self, row: usize) {
        if let Some(word) = self.word(row).filter(|word| self.is_set_in(word)) {
            // ORDERING: Release; as a collector's, for `is_clean`. The upper bits stay, as they may
            // (I1).
            word.fetch_and(!bit(self.number), Ordering::Release);
        }
    }

    /// Returns whether the number is marked in no row and no collection is under way; as
    /// [`Marks::is_clean`], for this number alone.
    pub fn is_clean(&self) -> bool {
        self.marks().unless_collecting(|| !self.marks().dirty_rows().any(|row| self.is_set(row)))
    }
}
