//! Words: how a walk goes through the marks of a room, a word at a time.

use std::ops::Range;

use memgroup_sync::atomic::Ordering;

use super::{Chunk, FIRST, Place, Room};

/// A word of marks as it was, the number of its first bit, and the items from there on.
pub(super) struct Word<T: 'static> {
    pub(super) bits: u64,
    pub(super) first: u32,
    pub(super) items: &'static [T],
}

impl<T> Word<T> {
    /// Visits its items.
    #[inline(always)]
    pub(super) fn each(self, numbers: &Range<u32>, visit: &mut impl FnMut(u32, &'static T) -> bool) -> bool {
        let Word { mut bits, first, items } = self;
        if first < numbers.start {
            bits &= u64::MAX.checked_shl(numbers.start - first).unwrap_or(0);
        }
        while bits != 0 {
            let bit = bits.trailing_zeros();
            bits &= bits - 1;
            let number = first + bit;
            if number >= numbers.end {
                return true;
            }
            if !visit(number, &items[bit as usize]) {
                return false;
            }
        }
        true
    }
}

/// The words of the chunks in which something is marked, beyond the first items.
pub(super) struct Words<T: 'static> {
    pub(super) room: &'static Room<T>,
    pub(super) class: usize,
    /// Bits of the top word that are still to come.
    pub(super) chunks: u64,
    /// The chunk that it is in, its number, the bits of its top that are still to come, and words of the bit before.
    pub(super) chunk: Option<(&'static Chunk<T>, usize, u64, Range<usize>)>,
}

impl<T> Words<T> {
    #[inline(always)]
    pub(super) fn is_done(&self) -> bool {
        self.chunks == 0 && self.chunk.is_none()
    }

    /// The next word, if there is one, of chunks with numbers from `start` on.
    #[inline(never)]
    pub(super) fn next(&mut self, start: u32) -> Option<Word<T>> {
        loop {
            let Some((chunk, number, tops, words)) = &mut self.chunk else {
                self.enter(start)?;
                continue;
            };
            let marks = &chunk.marks[self.class];
            if let Some(at) = words.next() {
                // ORDERING: Acquire; pairs with the Release of who marked: what it stored before is seen.
                let bits = marks.words[at].load(Ordering::Acquire);
                let first = Place::first(*number) + at as u32 * 64;
                return Some(Word { bits, first, items: &chunk.items[at * 64..] });
            }
            if *tops == 0 {
                self.chunk = None;
                continue;
            }
            let begin = tops.trailing_zeros() as usize * marks.span();
            *tops &= *tops - 1;
            *words = begin..marks.words.len().min(begin + marks.span());
        }
    }

    /// Enters the next chunk that is there.
    fn enter(&mut self, start: u32) -> Option<()> {
        while self.chunks != 0 {
            let number = self.chunks.trailing_zeros() as usize + 1 - FIRST as usize;
            self.chunks &= self.chunks - 1;
            if number >= Place::of(start).chunk
                && let Some(chunk) = self.room.chunks[number].get()
            {
                // ORDERING: Acquire; as in `is_any`.
                let tops = chunk.marks[self.class].top.load(Ordering::Acquire);
                self.chunk = Some((chunk, number, tops, 0..0));
                return Some(());
            }
        }
        None
    }
}
