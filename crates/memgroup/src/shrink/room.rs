//! Room: a table that grows, and which of its items are marked, by class.
//!
//! ```text
//!   top      a bit for each of the first 8 items, and for each chunk ───────────▶ chunk k: 8 << k items
//!   chunk       a bit for each word (or for a few words)
//!   word           a bit for each item
//! ```
//!
//! A mark is set from below: the item's bit, then each bit above it that is missing. Who takes an item's mark away looks whether that was
//! the last below, and takes the bit above in its turn. Chunks are made once and stay where they are, so growing copies nothing and
//! visits nobody, and an item is reached without a lock. Most rooms have no more than the first few items, and a walk of thousands of rooms
//! is as long as the way to those.
//!
//! - I1. When the call that marks an item has returned, and nobody is unmarking, each bit above a marked item is set.
//! - E1. mark below → look above, unmark above → look below: a SeqCst fence between, on both sides. One of the two sees the other: who marks
//!   finds the bit above missing and sets it, or who takes it away finds something below and puts it back. A look at what
//!   somebody else has marked counts as marking: nobody relies on another's climb. Loom: `a_mark_is_found_from_above`.
//! - B1. While somebody puts a bit back, a walk that begins in that moment may miss what is below it.

mod words;

use std::ops::Range;
use std::sync::OnceLock;

use memgroup_sync::atomic::{AtomicU64, Ordering, fence};
use memgroup_sync::interleave;

use self::words::{Word, Words};
use crate::mutation::{self, Mutation};

/// How many kinds of marks there are.
#[cfg(not(memgroup_loom))]
pub(crate) const CLASSES: usize = 4;
#[cfg(memgroup_loom)]
pub(crate) const CLASSES: usize = 2;

/// Items that are marked in the top word itself; the first chunk has twice as many, and each twice as many as the one before. A model has both
/// kinds at hand.
const FIRST: u32 = if cfg!(memgroup_loom) { 1 } else { 8 };

/// Enough for two million items, with the first ones.
const CHUNKS: usize = 18;

/// The numbers that items can have lie below.
pub(crate) const NUMBERS: u32 = FIRST * ((1 << CHUNKS) - 1);

/// Items with numbers from 0 up, and their marks.
#[repr(C)]
pub(crate) struct Room<T> {
    top: [AtomicU64; CLASSES],
    first: OnceLock<Box<[T]>>,
    /// Chunk 0 is `first`.
    chunks: [OnceLock<Box<Chunk<T>>>; CHUNKS],
}

struct Chunk<T> {
    items: Box<[T]>,
    marks: [Marks; CLASSES],
}

/// The marks of one class in a chunk.
struct Marks {
    words: Box<[AtomicU64]>,
    top: AtomicU64,
}

/// What became of the marks above an item that was unmarked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unmarked {
    /// No item of the class is left in the room.
    LastOfRoom,
    /// Others are left.
    OthersLeft,
    /// Others came meanwhile, and bits above were put back: whoever is above the room has to be told of them.
    OthersCame,
}

/// Where a number is.
#[derive(Clone, Copy)]
struct Place {
    chunk: usize,
    index: usize,
}

impl Place {
    fn of(number: u32) -> Place {
        let chunk = (number / FIRST + 1).ilog2();
        Place { chunk: chunk as usize, index: (number - Place::first(chunk as usize)) as usize }
    }

    /// The first number of a chunk.
    fn first(chunk: usize) -> u32 {
        FIRST * ((1 << chunk) - 1)
    }

    /// Its word, and its bit there.
    fn word(self) -> (usize, u64) {
        (self.index / 64, 1 << (self.index % 64))
    }

    /// The bit at the top: its own, or that of its chunk.
    fn top_bit(self) -> u64 {
        if self.chunk == 0 { 1 << self.index } else { 1 << (FIRST as usize - 1 + self.chunk) }
    }
}

/// The bits of the first items at the top.
const FIRST_BITS: u64 = (1 << FIRST) - 1;

impl Marks {
    fn new(items: usize) -> Marks {
        let words = items.div_ceil(64);
        Marks { words: (0..words).map(|_| AtomicU64::new(0)).collect(), top: AtomicU64::new(0) }
    }

    /// Words to a bit of `top`.
    fn span(&self) -> usize {
        self.words.len().div_ceil(64)
    }

    /// Whether anything is marked in the words that share a bit of `top` with this one.
    fn is_any_near(&self, word: usize) -> bool {
        let span = self.span();
        let first = word / span * span;
        // ORDERING: Relaxed; the caller's fence orders it (E1).
        self.words[first..].iter().take(span).any(|word| word.load(Ordering::Relaxed) != 0)
    }

    fn top_bit(&self, word: usize) -> u64 {
        1 << (word / self.span())
    }
}

/// Sets a bit that a climb finds missing, and orders what the climb looks at next: also where it was there already.
fn climb(word: &AtomicU64, bit: u64) {
    interleave::point();
    // ORDERING: Relaxed; the fences before and after (E1).
    if word.load(Ordering::Relaxed) & bit == 0 {
        // ORDERING: Release; who finds the bit sees what was marked below.
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

/// Clears bits, and orders the look below that follows; what is left.
fn take(word: &AtomicU64, bits: u64) -> u64 {
    // ORDERING: AcqRel; Acquire: what was marked here before is seen by the look below; Release continues the chain of who set bits.
    let left = word.fetch_and(!bits, Ordering::AcqRel) & !bits;
    full_fence();
    interleave::point();
    left
}

impl<T> Room<T> {
    pub(crate) fn new() -> Room<T> {
        Room {
            top: std::array::from_fn(|_| AtomicU64::new(0)),
            first: OnceLock::new(),
            chunks: [const { OnceLock::new() }; CHUNKS],
        }
    }

    /// Makes room for `number`, if there is none; `make` makes items.
    pub(crate) fn extend(&self, number: u32, make: impl Fn() -> T) {
        let place = Place::of(number);
        let items = (FIRST as usize) << place.chunk;
        let made = || (0..items).map(|_| make()).collect();
        if place.chunk == 0 {
            self.first.get_or_init(made);
        } else {
            let marks = || std::array::from_fn(|_| Marks::new(items));
            self.chunks[place.chunk].get_or_init(|| Box::new(Chunk { items: made(), marks: marks() }));
        }
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        let place = Place::of(number);
        match place.chunk {
            0 => self.first.get()?.get(place.index),
            chunk => self.chunks.get(chunk)?.get()?.items.get(place.index),
        }
    }

    /// Whether anything of the class may be marked.
    pub(crate) fn is_any(&self, class: usize) -> bool {
        // ORDERING: Acquire; pairs with the Release of who set the bit.
        self.top[class].load(Ordering::Acquire) != 0
    }

    /// Whether an item is marked.
    pub(crate) fn is_marked(&self, number: u32, class: usize) -> bool {
        let place = Place::of(number);
        let (word, bit) = place.word();
        let word = match place.chunk {
            0 => Some(&self.top[class]),
            _ => self.chunk(place).map(|chunk| &chunk.marks[class].words[word]),
        };
        // ORDERING: Acquire; as in `is_any`.
        word.is_some_and(|word| word.load(Ordering::Acquire) & bit != 0)
    }

    /// Marks an item. What was stored before the call is seen by who finds the mark, or by who takes it away while the call lasts.
    pub(crate) fn mark(&self, number: u32, class: usize) {
        let place = Place::of(number);
        let (word, bit) = place.word();
        // What the caller has stored comes before the look at the mark.
        full_fence();
        if place.chunk == 0 {
            if self.first.get().is_some() {
                climb(&self.top[class], bit);
            }
            return;
        }
        let Some(chunk) = self.chunk(place) else { return };
        climb(&chunk.marks[class].words[word], bit);
        self.climb_from(chunk, place, class);
    }

    /// Sets what is missing above a word.
    fn climb_from(&self, chunk: &Chunk<T>, place: Place, class: usize) {
        let marks = &chunk.marks[class];
        climb(&marks.top, marks.top_bit(place.word().0));
        climb(&self.top[class], place.top_bit());
    }

    /// Takes an item's mark away. The caller looks afterwards whether it was right, and marks again if not.
    #[must_use = "the marks above the room may have to change"]
    pub(crate) fn unmark(&self, number: u32, class: usize) -> Unmarked {
        let place = Place::of(number);
        let (word, bit) = place.word();
        if place.chunk == 0 {
            let left = take(&self.top[class], bit);
            return if left == 0 { Unmarked::LastOfRoom } else { Unmarked::OthersLeft };
        }
        let Some(chunk) = self.chunk(place) else { return Unmarked::OthersLeft };
        let marks = &chunk.marks[class];
        if take(&marks.words[word], bit) != 0 || marks.is_any_near(word) {
            return Unmarked::OthersLeft;
        }
        let top_left = take(&marks.top, marks.top_bit(word));
        if marks.is_any_near(word) && !mutation::active(Mutation::UnmarkDoesNotLookAgain) {
            self.climb_from(chunk, place, class);
            return Unmarked::OthersCame;
        }
        if top_left != 0 {
            return Unmarked::OthersLeft;
        }
        let room_left = take(&self.top[class], place.top_bit());
        // ORDERING: Relaxed; after the fence in `take` (E1).
        if marks.top.load(Ordering::Relaxed) != 0 {
            climb(&self.top[class], place.top_bit());
            return Unmarked::OthersCame;
        }
        if room_left == 0 { Unmarked::LastOfRoom } else { Unmarked::OthersLeft }
    }

    /// Calls `visit` for the items that are marked in a class, from a number on and below another, until it answers `false`; what it answered last.
    #[inline(always)]
    pub(crate) fn each_marked(
        &'static self,
        class: usize,
        numbers: Range<u32>,
        mut visit: impl FnMut(u32, &'static T) -> bool,
    ) -> bool {
        // ORDERING: Acquire; as in `is_any`.
        let top = self.top[class].load(Ordering::Acquire);
        let mut word = self.first.get().map(|items| Word { bits: top & FIRST_BITS, first: 0, items });
        let mut words = Words { room: self, class, chunks: top & !FIRST_BITS, chunk: None };
        loop {
            if let Some(word) = word
                && !word.each(&numbers, &mut visit)
            {
                return false;
            }
            if words.is_done() {
                return true;
            }
            word = words.next(numbers.start);
        }
    }

    /// The chunk of a number; `None` where there is no room for it: a walk may come with a number that is of another room by then.
    fn chunk(&self, place: Place) -> Option<&Chunk<T>> {
        self.chunks[place.chunk].get().map(|chunk| &**chunk)
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests;
