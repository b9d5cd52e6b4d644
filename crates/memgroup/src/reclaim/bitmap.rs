//! Summary bitmap: a table that grows, and which of its items are marked, by class.
//!
//! ```text
//!   top      a bit for each of the first 8 items, and for each chunk ───────────▶ chunk k: 8 << k items
//!   chunk       a word for 64 items: a bit for each
//! ```
//!
//! A mark is set from below: the item's bit, then the missing bit above it. A thread that takes a
//! mark checks whether it was the last below, and takes the bit above in turn. A chunk is made
//! once and stays where it is. So growing copies nothing, and an item is reached without a lock.
//! Most tables have only the first few items, so a walk of thousands of tables reads little more
//! than their top words. In a chunk with any mark it reads all words, one for 64 items.
//!
//! Items have numbers, which are drawn and given back. The lowest are drawn first as long as none
//! came back.
//!
//! - I1. When the call that marks an item has returned, and no thread is unmarking, the bit above
//!   a marked item is set.
//! - E1. mark below → read above, unmark above → read below: a SeqCst fence between, on both
//!   sides. One of the two threads sees the other. Either the marking thread finds the bit above
//!   missing and sets it, or the unmarking thread finds the item and puts the bit back. A marking
//!   thread climbs to the top also where the bit is set already. Loom:
//!   `finds_every_mark_from_above`.
//! - B1. While a thread puts a bit back, a walk that begins in that moment may miss the items
//!   below it.

use std::ops::Range;
use std::sync::OnceLock;

use memgroup_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use memgroup_sync::{Mutex, interleave};

use crate::base::mutation::{self, Mutation};

/// The number of classes of marks.
#[cfg(not(memgroup_loom))]
pub(crate) const CLASSES: usize = 4;
#[cfg(memgroup_loom)]
pub(crate) const CLASSES: usize = 2;

/// Items that are marked in the top word itself. The first chunk has twice as many, and each chunk
/// twice as many as the one before. A model has one, so that few items are of both kinds.
const FIRST: u32 = if cfg!(memgroup_loom) { 1 } else { 8 };

/// The bits of the first items in the top word.
const FIRST_BITS: u64 = (1 << FIRST) - 1;

/// Enough for two million items, with the first ones.
const CHUNKS: usize = 18;

/// Numbers of items are below this.
pub(crate) const NUMBERS: u32 = FIRST * ((1 << CHUNKS) - 1);

/// Items with numbers from 0 up, and their marks.
#[repr(C)]
pub(crate) struct SummaryBitmap<T> {
    top: [AtomicU64; CLASSES],
    first: OnceLock<Box<[T]>>,
    /// Chunk 0 is `first`.
    chunks: [OnceLock<Box<Chunk<T>>>; CHUNKS],
    /// Numbers that were given back.
    free: Mutex<Vec<u32>>,
    given_out: AtomicU32,
}

struct Chunk<T> {
    items: Box<[T]>,
    /// The words of each class.
    marks: [Box<[AtomicU64]>; CLASSES],
}

impl<T> Chunk<T> {
    fn new(length: usize, make: impl Fn() -> T) -> Chunk<T> {
        let words = || (0..length.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Chunk { items: (0..length).map(|_| make()).collect(), marks: std::array::from_fn(|_| words()) }
    }

    fn is_any(&self, class: usize) -> bool {
        // ORDERING: Relaxed; the caller's fence orders it (E1).
        self.marks[class].iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }
}

/// The marks that are left when one was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unmarked {
    /// None of the class in this table.
    NoneLeft,
    /// Others are left.
    OthersLeft,
    /// Others were set meanwhile, and bits above them were put back. The bits above the table may
    /// have to be put back too.
    OthersCame,
}

/// The position of the item with a number.
#[derive(Clone, Copy)]
struct Position {
    chunk: usize,
    index: usize,
}

impl Position {
    fn of(number: u32) -> Position {
        let chunk = (number / FIRST + 1).ilog2() as usize;
        Position { chunk, index: (number - Position::first(chunk)) as usize }
    }

    /// The first number of a chunk.
    fn first(chunk: usize) -> u32 {
        FIRST * ((1 << chunk) - 1)
    }

    /// The item's word in the chunk, and its bit there.
    fn word(self) -> (usize, u64) {
        (self.index / 64, 1 << (self.index % 64))
    }

    /// The bit in the top word: the item's own, or that of its chunk.
    fn top_bit(self) -> u64 {
        if self.chunk == 0 { 1 << self.index } else { 1 << (FIRST as usize - 1 + self.chunk) }
    }
}

/// Sets a bit if it is missing, and orders the next read of the climb: also where the bit was set
/// already.
fn climb(word: &AtomicU64, bit: u64) {
    interleave::point();
    // ORDERING: Relaxed; the fences before and after order it (E1).
    if word.load(Ordering::Relaxed) & bit == 0 {
        // ORDERING: Release; pairs with the Acquire of a walk, which then sees the marks below.
        word.fetch_or(bit, Ordering::Release);
    }
    full_fence();
}

fn full_fence() {
    if !mutation::active(Mutation::MarkWithoutFence) {
        // ORDERING: SeqCst; E1. Weaker, both sides could miss each other.
        fence(Ordering::SeqCst);
    }
}

/// Clears bits, and orders the read below that follows. Returns the bits that are left.
fn take(word: &AtomicU64, bits: u64) -> u64 {
    // ORDERING: AcqRel; Acquire: the read below sees the items that were marked here before;
    // Release continues the chain of the threads that set bits.
    let left = word.fetch_and(!bits, Ordering::AcqRel) & !bits;
    full_fence();
    interleave::point();
    left
}

/// The numbers of the bits that are set.
fn ones(mut bits: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros());
        bits &= bits.wrapping_sub(1);
        bit
    })
}

/// The next word, out of line: most tables have the first items alone.
#[inline(never)]
fn next<I: Iterator>(words: &mut I) -> Option<I::Item> {
    words.next()
}

/// Visits the marked items of one word, of which the first has the number `first`.
#[inline(always)]
fn each_in_word<T>(
    mut bits: u64,
    first: u32,
    items: &'static [T],
    numbers: &Range<u32>,
    visit: &mut impl FnMut(u32, &'static T) -> bool,
) -> bool {
    if first < numbers.start {
        bits &= u64::MAX.checked_shl(numbers.start - first).unwrap_or(0);
    }
    while bits != 0 {
        let bit = bits.trailing_zeros();
        bits &= bits - 1;
        if first + bit >= numbers.end {
            return true;
        }
        if !visit(first + bit, &items[bit as usize]) {
            return false;
        }
    }
    true
}

impl<T> SummaryBitmap<T> {
    pub(crate) fn new() -> SummaryBitmap<T> {
        SummaryBitmap {
            top: std::array::from_fn(|_| AtomicU64::new(0)),
            first: OnceLock::new(),
            chunks: [const { OnceLock::new() }; CHUNKS],
            free: Mutex::new(Vec::new()),
            given_out: AtomicU32::new(0),
        }
    }

    /// Draws a free number, and makes its item if it is new; `None` if all numbers are in use.
    pub(crate) fn draw(&self, make: impl Fn() -> T) -> Option<u32> {
        let mut free = self.free.lock();
        let number = free.pop().or_else(|| {
            let number = self.given_out();
            (number < NUMBERS).then(|| {
                // For all numbers: `give_back` may be called inside an allocator, so it allocates
                // nothing.
                free.reserve(number as usize + 1);
                // ORDERING: Relaxed; written under the lock, and a hint elsewhere.
                self.given_out.store(number + 1, Ordering::Relaxed);
                number
            })
        })?;
        drop(free);
        self.extend(number, make);
        Some(number)
    }

    /// Gives the number of an item back that is not marked.
    pub(crate) fn give_back(&self, number: u32) {
        self.free.lock().push(number);
    }

    /// All numbers that were ever drawn are below this.
    pub(crate) fn given_out(&self) -> u32 {
        // ORDERING: Relaxed; a reader may miss an item that is new.
        self.given_out.load(Ordering::Relaxed)
    }

    /// Makes the chunk of `number` if it is missing; `make` makes an item.
    fn extend(&self, number: u32, make: impl Fn() -> T) {
        let chunk = Position::of(number).chunk;
        let length = (FIRST as usize) << chunk;
        if chunk == 0 {
            self.first.get_or_init(|| (0..length).map(|_| make()).collect());
        } else {
            self.chunks[chunk].get_or_init(|| Box::new(Chunk::new(length, make)));
        }
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let position = Position::of(number);
        match position.chunk {
            0 => self.first.get()?.get(position.index),
            chunk => self.chunks.get(chunk)?.get()?.items.get(position.index),
        }
    }

    /// Returns whether anything of the class may be marked.
    pub(crate) fn is_any(&self, class: usize) -> bool {
        // ORDERING: Acquire; pairs with the Release in `climb`.
        self.top[class].load(Ordering::Acquire) != 0
    }

    /// Returns whether an item is marked.
    pub(crate) fn is_marked(&self, number: u32, class: usize) -> bool {
        let position = Position::of(number);
        let (word, bit) = position.word();
        let word = match position.chunk {
            0 => Some(&self.top[class]),
            _ => self.chunk(position).map(|chunk| &chunk.marks[class][word]),
        };
        // ORDERING: Acquire; as in `is_any`.
        word.is_some_and(|word| word.load(Ordering::Acquire) & bit != 0)
    }

    /// Marks an item. A thread that finds the mark, or takes it while the call lasts, sees all
    /// that was stored before the call.
    pub(crate) fn mark(&self, number: u32, class: usize) {
        let position = Position::of(number);
        let (word, bit) = position.word();
        // The caller's stores come before the read of the mark.
        full_fence();
        if position.chunk == 0 {
            if self.first.get().is_some() {
                climb(&self.top[class], bit);
            }
        } else if let Some(chunk) = self.chunk(position) {
            climb(&chunk.marks[class][word], bit);
            climb(&self.top[class], position.top_bit());
        }
    }

    /// Takes an item's mark. The caller checks afterwards whether that was right, and marks again
    /// if not.
    #[must_use = "the marks above the table may have to change"]
    pub(crate) fn unmark(&self, number: u32, class: usize) -> Unmarked {
        let position = Position::of(number);
        let (word, bit) = position.word();
        let left = |bits| if bits == 0 { Unmarked::NoneLeft } else { Unmarked::OthersLeft };
        if position.chunk == 0 {
            return left(take(&self.top[class], bit));
        }
        let Some(chunk) = self.chunk(position) else { return Unmarked::OthersLeft };
        if take(&chunk.marks[class][word], bit) != 0 || chunk.is_any(class) {
            return Unmarked::OthersLeft;
        }
        let top_left = take(&self.top[class], position.top_bit());
        if chunk.is_any(class) && !mutation::active(Mutation::UnmarkDoesNotLookAgain) {
            climb(&self.top[class], position.top_bit());
            return Unmarked::OthersCame;
        }
        left(top_left)
    }

    /// Calls `visit` for the items of a range of numbers that are marked in a class, until it
    /// returns `false`. Returns its last answer.
    #[inline(always)]
    pub(crate) fn each_marked(
        &'static self,
        class: usize,
        numbers: Range<u32>,
        mut visit: impl FnMut(u32, &'static T) -> bool,
    ) -> bool {
        // ORDERING: Acquire; as in `is_any`.
        let top = self.top[class].load(Ordering::Acquire);
        let mut word = self.first.get().map(|items| (top & FIRST_BITS, 0, &**items));
        let chunks = top & !FIRST_BITS;
        let mut words = (chunks != 0).then(|| self.words_in_chunks(class, chunks, numbers.start));
        // One loop for both, so that the visit is inlined once.
        loop {
            if let Some((bits, first, items)) = word
                && !each_in_word(bits, first, items, &numbers, &mut visit)
            {
                return false;
            }
            word = words.as_mut().and_then(next);
            if word.is_none() {
                return true;
            }
        }
    }

    /// The marks in the chunks that `top` has bits for, with items from `start` on. Each is a
    /// word, the number of its first item, and the items from there on.
    fn words_in_chunks(
        &'static self,
        class: usize,
        top: u64,
        start: u32,
    ) -> impl Iterator<Item = (u64, u32, &'static [T])> {
        let start = Position::of(start);
        let chunks = ones(top).map(|bit| (bit + 1 - FIRST) as usize);
        let chunks = chunks.skip_while(move |&number| number < start.chunk);
        let chunks = chunks.filter_map(|number| Some((number, self.chunks[number].get()?)));
        chunks.flat_map(move |(number, chunk)| {
            // A walk that comes back for the next item does not read the words before it again.
            let from = if number == start.chunk { start.word().0 } else { 0 };
            let words = chunk.marks[class].iter().enumerate().skip(from);
            words.map(move |(word, marks)| {
                // ORDERING: Acquire; pairs with the Release in `climb`: the stores before the mark
                // are seen.
                let bits = marks.load(Ordering::Acquire);
                (bits, Position::first(number) + word as u32 * 64, &chunk.items[word * 64..])
            })
        })
    }

    /// The chunk of a number; `None` if there is none: a walk may be late, and come with the
    /// number of another table.
    fn chunk(&self, position: Position) -> Option<&Chunk<T>> {
        self.chunks[position.chunk].get().map(|chunk| &**chunk)
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests;
