//! Where in a chunk a free run may be, so that an allocation skips places that cannot hold it.
//!
//! - I1. `longest` is at least the longest free run of the unit. Where its place is known, `longest` is that run's length,
//!   and `rest` is at least the longest of all others.
//! - I2. A memo `(length, block)`: no free run of `length` granules or more begins before `block`.
//!
//! Every allocation and release keeps both, at a cost that does not depend on the unit's size. A walk that fails has seen
//! every run, so it also corrects `longest`.

use crate::bits;

/// Granules that one summary stands for: 4 KiB, whatever the page.
pub(crate) const BLOCK: u32 = 512;

const CLASSES: usize = 15;

/// The free runs of one block of [`BLOCK`] granules: the runs at its two edges, and the longest run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) left: u16,
    pub(crate) right: u16,
    pub(crate) longest: u16,
}

impl Summary {
    pub(crate) const FREE: Self = Self { left: BLOCK as u16, right: BLOCK as u16, longest: BLOCK as u16 };

    pub(crate) fn of(words: &[u64]) -> Self {
        let (left, right, longest) = bits::clear_runs(words);
        Self { left: left as u16, right: right as u16, longest: longest as u16 }
    }
}

#[derive(Clone, Copy, Debug)]
struct Memo {
    length: u32,
    block: u32,
}

/// Bounds on the free runs of a whole unit.
#[derive(Debug)]
pub(crate) struct Hints {
    /// No free run is longer.
    pub(crate) longest: u32,
    place: Option<u32>,
    rest: u32,
    memos: [Memo; CLASSES],
}

impl Hints {
    /// All of `granules` free.
    pub(crate) fn new(granules: u32) -> Self {
        let memos = [Memo { length: u32::MAX, block: 0 }; CLASSES];
        Self { longest: granules, place: Some(0), rest: 0, memos }
    }

    /// `start..end` is no longer free.
    pub(crate) fn taken(&mut self, start: u32, end: u32) {
        let Some(place) = self.place else { return };
        if start < place || start >= place + self.longest {
            return;
        }
        let (before, after) = (start - place, place + self.longest - end);
        self.rest = self.rest.max(before.min(after));
        if before.max(after) >= self.rest {
            (self.longest, self.place) =
                if before > after { (before, Some(place)) } else { (after, Some(end)) };
        } else {
            (self.longest, self.place) = (self.rest, None);
        }
    }

    /// `start..end` is a free run now, in its full length.
    pub(crate) fn freed(&mut self, start: u32, end: u32) {
        let length = end - start;
        match self.place {
            Some(place) if (start..=end).contains(&place) => {
                (self.longest, self.place) = (length, Some(start))
            }
            _ if length > self.longest => {
                self.rest = self.rest.max(self.longest);
                (self.longest, self.place) = (length, Some(start));
            }
            _ => self.rest = self.rest.max(length),
        }
        for memo in &mut self.memos {
            if length >= memo.length {
                memo.block = memo.block.min(start / BLOCK);
            }
        }
    }

    /// A walk over all runs found this one to be the longest, and `rest` the longest of the others.
    pub(crate) fn counted(&mut self, longest: u32, place: u32, rest: u32) {
        (self.longest, self.place, self.rest) = (longest, Some(place), rest);
    }

    /// The first block where a run of `length` may begin.
    pub(crate) fn first_block(&self, length: u32) -> u32 {
        self.memos.iter().filter(|memo| memo.length <= length).map(|memo| memo.block).max().unwrap_or(0)
    }

    /// No run of `length` begins before `block`.
    pub(crate) fn none_before(&mut self, length: u32, block: u32) {
        let memo = &mut self.memos[(length.ilog2() as usize).min(CLASSES - 1)];
        if memo.length > length || memo.block <= block {
            *memo = Memo { length, block };
        }
    }

    /// Panics if the free run `start..end` contradicts the bounds.
    #[cfg(test)]
    pub(crate) fn check(&self, start: u32, end: u32) {
        let length = end - start;
        assert!(length <= self.longest, "a run of {length} is longer than the longest, {}", self.longest);
        if let Some(place) = self.place {
            let is_it = place == start && length == self.longest;
            assert!(is_it || length <= self.rest, "a run of {length} is longer than the rest, {}", self.rest);
            assert!(is_it || place != start, "the longest run at {place} has {length}, not {}", self.longest);
        }
        for memo in &self.memos {
            assert!(
                length < memo.length || start / BLOCK >= memo.block,
                "a run of {length} at {start} lies before block {}, where none of {} should be",
                memo.block,
                memo.length
            );
        }
    }
}
