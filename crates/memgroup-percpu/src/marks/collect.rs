//! Collecting marks: the collector's half of the protocol that `marks` describes.
//!
//! It goes through one chunk at a time, and in it through one word at a time over all rows. So
//! each number is delivered once, with all its rows.
//!
//! - I1. A bit that was cleared is in the scratch until it is restored or delivered, so that a
//!   callback may panic at any time.

use memgroup_sync::atomic::Ordering;
use memgroup_sync::interleave;

use super::{BITS, CHUNK, CLASSES_MASK, Leaves, Marks, bit, class, markers};
use crate::bits::places;
use crate::mutation::{Mutation, active};

/// The memory of a collection, made once, so that collecting allocates nothing.
pub struct Scratch {
    rows: usize,
    taken: Vec<Taken>,
    hits: Vec<Hit>,
}

/// A row that was dirty, and the bits that were taken from its upper levels.
struct Taken {
    row: usize,
    /// Classes taken from the head, and those to restore there.
    classes: u64,
    restore: u64,
    /// A marker was under way when the head was cleared.
    marked_at_head: bool,
    /// The summary taken from the chunk that is being collected; `left`: the bits to restore
    /// there.
    summary: u64,
    left: u64,
}

/// The bits that were taken from the current word in one row.
struct Hit {
    row: usize,
    bits: u64,
}

/// The numbers of one call of [`collect_piece`](Marks::collect_piece): from the first one on,
/// until they have so many marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first number.
    pub from: u32,
    /// The most marks, of all rows together. Marks of numbers that are not wanted count, too. A
    /// first number with more marks is a piece alone.
    pub marks_max: usize,
}

impl Piece {
    const ALL: Piece = Piece { from: 0, marks_max: usize::MAX };
}

impl Scratch {
    /// Memory for collections of [`Marks`] of at most `rows` rows.
    pub fn new(rows: usize) -> Scratch {
        Scratch { rows, taken: Vec::with_capacity(rows), hits: Vec::with_capacity(rows) }
    }
}

/// The rows in which a number was marked, in ascending order.
#[derive(Clone)]
pub struct Rows<'a> {
    hits: core::slice::Iter<'a, Hit>,
    bit: u64,
}

impl Iterator for Rows<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let bit = self.bit;
        self.hits.find(|hit| hit.bits & bit != 0).map(|hit| hit.row)
    }
}

impl Marks {
    /// Delivers the marks of each number that is marked in any row and that `wanted` accepts. It
    /// clears the marks, and *then* calls `each` with the number and its rows. Other numbers stay
    /// marked. Numbers come in ascending order, each once.
    ///
    /// `finish` is the last part: until it returns, nothing appears [clean](Self::is_clean) or
    /// [settled](super::Mark::is_clean).
    ///
    /// A mark that is set meanwhile is delivered or stays. If a callback panics, numbers that were
    /// not delivered stay marked, and so does the number that was just delivered.
    ///
    /// # Panics
    /// If another thread collects: collectors take turns, by a lock of the caller's. If `scratch`
    /// is for fewer rows.
    pub fn collect(
        &self,
        scratch: &mut Scratch,
        wanted: impl FnMut(u32) -> bool,
        each: impl FnMut(u32, Rows<'_>),
        finish: impl FnOnce(),
    ) {
        let next = self.collect_piece(scratch, Piece::ALL, wanted, each, finish);
        debug_assert_eq!(next, None, "a piece without an end has all numbers");
    }

    /// The same for a piece of the numbers; returns the number that the next piece begins at, or
    /// `None` after the last piece.
    ///
    /// Numbers of the other pieces stay marked, so nothing appears clean between two pieces while
    /// one of them is. An addition that returned before the first piece began is collected when
    /// the last one ends: by one of the pieces, or by another collection in between.
    ///
    /// # Panics
    /// As [`collect`](Self::collect).
    pub fn collect_piece(
        &self,
        scratch: &mut Scratch,
        piece: Piece,
        mut wanted: impl FnMut(u32) -> bool,
        mut each: impl FnMut(u32, Rows<'_>),
        finish: impl FnOnce(),
    ) -> Option<u32> {
        let mut collection = Collection::begin(self, scratch, piece);
        let classes = collection.take_rows();
        // ORDERING: Relaxed; see `provide`.
        let chunks = self.chunks_end.load(Ordering::Relaxed);
        let mut behind = 0;
        for (index, chunk) in self.chunks.iter().enumerate().take(chunks) {
            if let Some(leaves) = chunk.get().filter(|_| classes & class(index) != 0) {
                match collection.next {
                    Some(_) => behind |= class(index),
                    None => collection.take_chunk(index, leaves, &mut wanted, &mut each),
                }
            }
        }
        collection.leave_chunks(behind);
        finish();
        collection.next
    }

    /// The same for one number alone; returns whether it was marked in any row, and `each` was
    /// called. It reads only this number in dirty rows, and clears only its marks.
    ///
    /// # Panics
    /// As [`collect`](Self::collect), and if the number was not provided.
    pub fn collect_one(
        &self,
        scratch: &mut Scratch,
        number: u32,
        each: impl FnOnce(Rows<'_>),
        finish: impl FnOnce(),
    ) -> bool {
        let leaves = self.leaves(number);
        let mut collection = Collection::begin(self, scratch, Piece::ALL);
        let at = At { leaves, number };
        for row in self.dirty_rows() {
            collection.take_leaf(at, row, bit(number));
        }
        let mut each = Some(each);
        collection.deliver(at, &mut |_, rows| each.take().expect("one number is delivered once")(rows));
        finish();
        each.is_none()
    }

    /// The rows that are dirty.
    pub(super) fn dirty_rows(&self) -> impl Iterator<Item = usize> {
        self.dirty().enumerate().flat_map(|(index, word)| {
            // ORDERING: Acquire; as in `is_clean`. For a collector Relaxed would do. A mark that it
            // must see has its row's bit in the order of this word (I1 of `marks`), and only
            // collectors clear that bit.
            places(word.load(Ordering::Acquire)).map(move |place| index * 64 + place)
        })
    }
}

/// A collection under way. Its end, or a panic, restores the bits that it owes.
struct Collection<'a> {
    marks: &'a Marks,
    scratch: &'a mut Scratch,
    /// The word that is being collected; `None` while no callback can be called.
    at: Option<At<'a>>,
    /// Its bits that were cleared and not delivered yet.
    undelivered: u64,
    /// The numbers to collect: those before `from` are left, and no more marks than these are
    /// taken.
    from: u32,
    marks_left: usize,
    /// Whether a number was taken.
    is_begun: bool,
    /// The first marked number after the piece. From there on all are left.
    next: Option<u32>,
}

#[derive(Clone, Copy)]
struct At<'a> {
    leaves: &'a [Leaves],
    /// A number of the word.
    number: u32,
}

impl<'a> Collection<'a> {
    fn begin(marks: &'a Marks, scratch: &'a mut Scratch, piece: Piece) -> Collection<'a> {
        let (rows, has) = (marks.rows(), scratch.rows);
        assert!(rows <= has, "marks of {rows} rows are collected with a scratch for {rows}, not for {has}");
        // ORDERING: Relaxed; the exchange checks it.
        let before = marks.collecting().load(Ordering::Relaxed);
        // ORDERING: Acquire; pairs with the Release of the last collection's end: this one finds
        // its bits. The clearing of bits publishes it (E3). Relaxed on failure, which is a panic.
        let begun = before.is_multiple_of(2)
            && marks
                .collecting()
                .compare_exchange(before, before + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        assert!(begun, "marks are collected by one thread at a time, and another one is collecting these");
        scratch.taken.clear();
        scratch.hits.clear();
        let Piece { from, marks_max: marks_left } = piece;
        Collection { marks, scratch, at: None, undelivered: 0, from, marks_left, is_begun: false, next: None }
    }

    /// Clears the dirty bits, and the classes in the heads of those rows; returns all these
    /// classes.
    fn take_rows(&mut self) -> u64 {
        let mut classes = 0;
        for (index, word) in self.marks.dirty().enumerate() {
            // ORDERING: Relaxed; a mark that must be seen has its bit in the order of this word
            // (E2).
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // ORDERING: Release; pairs with the Acquire in `is_clean`: a thread that finds the
            // zeros finds the collection (E3).
            let dirty = word.swap(0, Ordering::Release);
            interleave::point();
            for row in places(dirty).map(|place| index * 64 + place) {
                // ORDERING: AcqRel; Acquire for the bits of markers that are done, Release so that
                // one which begins now finds the dirty bit cleared (I1 of `marks`).
                let head = self.marks.head(row).fetch_and(!CLASSES_MASK, Ordering::AcqRel);
                let marked_at_head = markers(head) > 0 && !active(Mutation::MarkersAreReadLate);
                let taken = head & CLASSES_MASK;
                let restore = if marked_at_head { taken } else { 0 };
                classes |= taken;
                self.scratch.taken.push(Taken {
                    row,
                    classes: taken,
                    restore,
                    marked_at_head,
                    summary: 0,
                    left: 0,
                });
                interleave::point();
            }
        }
        classes
    }

    /// Returns whether none of `count` numbers from `first` on is in the piece.
    fn is_outside(&self, first: usize, count: usize) -> bool {
        self.next.is_some() || first + count <= self.from as usize
    }

    /// Returns whether the piece has a number with so many marks. The first one that it does not
    /// have begins the next piece.
    fn admit(&mut self, number: u32, marks: usize) -> bool {
        if number < self.from || self.next.is_some() {
            return false;
        }
        if marks > self.marks_left && self.is_begun {
            self.next = Some(number);
            return false;
        }
        self.marks_left = self.marks_left.saturating_sub(marks);
        self.is_begun = true;
        true
    }

    /// Collects one chunk.
    fn take_chunk(
        &mut self,
        index: usize,
        leaves: &'a [Leaves],
        wanted: &mut impl FnMut(u32) -> bool,
        each: &mut impl FnMut(u32, Rows<'_>),
    ) {
        if self.is_outside(index * CHUNK, CHUNK) {
            for taken in self.scratch.taken.iter_mut().filter(|_| !active(Mutation::PieceForgetsChunks)) {
                // ORDERING: Relaxed; after the Acquire of the head, as in `take_summaries`. A chunk
                // without a mark needs no bit in the head.
                if leaves[taken.row].summary.load(Ordering::Relaxed) != 0 {
                    taken.restore |= taken.classes & class(index);
                }
            }
            return;
        }
        let words = self.take_summaries(index, leaves);
        for word in places(words) {
            let at = At { leaves, number: (index * CHUNK + word * BITS) as u32 };
            if self.is_outside(at.number as usize, BITS) {
                self.leave_word(word);
                continue;
            }
            self.at = Some(at);
            self.take_word(at, word, wanted);
            self.deliver(at, each);
        }
        self.at = None;
        for taken in &mut self.scratch.taken {
            if taken.left != 0 && !active(Mutation::LeftIsNotRestored) {
                restore_summary(&leaves[taken.row], taken.left);
                taken.restore |= class(index);
            }
            (taken.summary, taken.left) = (0, 0);
        }
    }

    /// Clears the summaries of a chunk; returns the words that had a bit in them.
    fn take_summaries(&mut self, index: usize, leaves: &[Leaves]) -> u64 {
        let mut words = 0;
        for taken in self.scratch.taken.iter_mut().filter(|taken| taken.classes & class(index) != 0) {
            let (summary, head) = (&leaves[taken.row].summary, self.marks.head(taken.row));
            // ORDERING: Relaxed; after the Acquire of the head: a marker that was done by then is
            // seen, and another leaves its upper bits set. So zero needs no RMW.
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // ORDERING: AcqRel, as below; the fault is that the markers are counted before the
            // summary is cleared.
            let early = active(Mutation::MarkersAreReadEarly).then(|| head.fetch_add(0, Ordering::AcqRel));
            interleave::point();
            // ORDERING: Relaxed; the RMW of the head that follows publishes it, and acquires the
            // writes of the markers.
            taken.summary = summary.swap(0, Ordering::Relaxed);
            interleave::point();
            // ORDERING: AcqRel; Acquire for the leaf bits of markers that are done, Release so that
            // one which begins now finds the summary cleared (I1 of `marks`). An RMW, because a
            // marker may only have read the summary: of its RMW of the head and this one, the
            // second sees the first. The fault's load may be older than a marker that read the old
            // summary.
            let late = || match active(Mutation::MarkersAreReadByLoad) {
                false => head.fetch_add(0, Ordering::AcqRel),
                true => head.load(Ordering::Acquire),
            };
            if markers(early.unwrap_or_else(late)) > 0 {
                taken.left = taken.summary;
            }
            interleave::point();
            words |= taken.summary;
        }
        words
    }

    /// Clears the wanted bits of one word, in all rows; notes where others are left.
    fn take_word(&mut self, at: At<'a>, word: usize, wanted: &mut impl FnMut(u32) -> bool) {
        self.scratch.hits.clear();
        let (mut marked, mut marks) = (0, 0);
        for taken in self.scratch.taken.iter().filter(|taken| taken.summary >> word & 1 != 0) {
            // ORDERING: Relaxed; after the Acquire of the head. If a bit is not seen, its marker
            // was found under way, or leaves its upper bits set.
            let bits = at.leaves[taken.row].words[word].load(Ordering::Relaxed);
            marked |= bits;
            marks += bits.count_ones() as usize;
        }
        let is_short = marks <= self.marks_left;
        let mut mask = 0;
        for place in places(marked) {
            let number = at.number + place as u32;
            // Counted for each number only where the piece may end in this word.
            let count = if is_short { 0 } else { self.count_marks(at, word, place) };
            if self.admit(number, count) && wanted(number) {
                mask |= 1 << place;
            }
        }
        if is_short {
            self.marks_left -= marks;
        }
        interleave::point();
        for index in 0..self.scratch.taken.len() {
            let taken = &self.scratch.taken[index];
            if taken.summary >> word & 1 != 0 && self.take_leaf(at, taken.row, mask) != 0 {
                self.scratch.taken[index].left |= 1 << word;
            }
        }
    }

    /// Number of rows in which the number at this place of a word is marked.
    fn count_marks(&self, at: At<'a>, word: usize, place: usize) -> usize {
        let rows = self.scratch.taken.iter().filter(|taken| taken.summary >> word & 1 != 0);
        // ORDERING: Relaxed; a mark that is set meanwhile may be taken, and not counted.
        rows.filter(|taken| at.leaves[taken.row].words[word].load(Ordering::Relaxed) >> place & 1 != 0)
            .count()
    }

    /// Leaves all bits of chunks of these classes, which the next piece reads.
    fn leave_chunks(&mut self, classes: u64) {
        for taken in self.scratch.taken.iter_mut().filter(|_| !active(Mutation::PieceForgetsChunks)) {
            taken.restore |= taken.classes & classes;
        }
    }

    /// Leaves all bits of a word that is not in the piece.
    fn leave_word(&mut self, word: usize) {
        for taken in self.scratch.taken.iter_mut().filter(|_| !active(Mutation::PieceForgetsWords)) {
            taken.left |= taken.summary & 1 << word;
        }
    }

    /// Clears the bits of `mask` in the current word of `row`, and notes them as hits. Returns the
    /// other bits.
    fn take_leaf(&mut self, at: At<'a>, row: usize, mask: u64) -> u64 {
        let word = at.leaves[row].word(at.number);
        // ORDERING: Relaxed, as in `take_word`: a bit that is not seen stays marked.
        let mut found = word.load(Ordering::Relaxed);
        if found & mask != 0 {
            if !active(Mutation::LeafIsClearedLate) {
                // ORDERING: AcqRel; Acquire for the writes before the mark, Release for `is_clean`
                // (E3). An addition that comes too late learns it from the counter (E1).
                found = word.fetch_and(!mask, Ordering::AcqRel);
            }
            self.scratch.hits.push(Hit { row, bits: found & mask });
            interleave::point();
        }
        found & !mask
    }

    /// Delivers the numbers of the hits in the current word, with their rows.
    fn deliver(&mut self, at: At<'a>, each: &mut impl FnMut(u32, Rows<'_>)) {
        let first = at.number - at.number % BITS as u32;
        self.at = Some(at);
        self.undelivered = self.scratch.hits.iter().fold(0, |bits, hit| bits | hit.bits);
        for place in places(self.undelivered) {
            each(first + place as u32, Rows { hits: self.scratch.hits.iter(), bit: 1 << place });
            self.undelivered &= !(1 << place);
        }
        self.at = None;
        for hit in self.scratch.hits.iter().filter(|_| active(Mutation::LeafIsClearedLate)) {
            // ORDERING: AcqRel; the fault is that it comes after the counters were taken.
            at.leaves[hit.row].word(at.number).fetch_and(!hit.bits, Ordering::AcqRel);
        }
    }

    /// Restores the bits that were cleared and not delivered, after a callback panicked.
    fn recover(&mut self, at: At<'_>) {
        for hit in &self.scratch.hits {
            // ORDERING: Release; as the marker that set it (E2).
            at.leaves[hit.row].word(at.number).fetch_or(hit.bits & self.undelivered, Ordering::Release);
        }
        for taken in &mut self.scratch.taken {
            restore_summary(&at.leaves[taken.row], taken.summary);
            taken.restore = taken.classes;
        }
    }
}

fn restore_summary(leaves: &Leaves, words: u64) {
    // ORDERING: Relaxed; the end of the collection publishes it to the next one and to `is_clean`.
    leaves.summary.fetch_or(words, Ordering::Relaxed);
}

impl Drop for Collection<'_> {
    fn drop(&mut self) {
        if let Some(at) = self.at.take() {
            self.recover(at);
        }
        interleave::point();
        for taken in &self.scratch.taken {
            if taken.restore != 0 {
                // ORDERING: Relaxed, as in `restore_summary`.
                self.marks.head(taken.row).fetch_or(taken.restore, Ordering::Relaxed);
            }
            if taken.restore != 0 || taken.marked_at_head {
                self.marks.set_dirty(taken.row);
            }
        }
        interleave::point();
        // ORDERING: Release; pairs with the Acquire in `unless_collecting` and in the next `begin`.
        // They find the bits that were restored and the writes of the callbacks (E3).
        self.marks.collecting().fetch_add(1, Ordering::Release);
    }
}
