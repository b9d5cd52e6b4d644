//! Collecting marks: the collector's half of the protocol, which `marks` tells.
//!
//! One chunk at a time, and in it one word at a time over all rows, so that a number is handed out once with all its rows.
//!
//! - I1. What was cleared is in the scratch until it is set again or handed out, so that a callback may panic at any time.

use core::iter::from_fn;

use memgroup_sync::atomic::Ordering;
use memgroup_sync::interleave;

use super::{BITS, CHUNK, CLASSES_MASK, Leaves, Marks, bit, class, markers};
use crate::mutation::{Mutation, active};

/// What a collection needs to remember; made once, so that collecting allocates nothing.
pub struct Scratch {
    rows: usize,
    taken: Vec<Taken>,
    hits: Vec<Hit>,
}

/// A row that was dirty, and what was taken from its upper levels.
struct Taken {
    row: usize,
    /// Classes taken from the head, and those to set there again.
    classes: u64,
    again: u64,
    /// A marker was under way when the head was cleared.
    marked_at_head: bool,
    /// Of the chunk that is being collected: the summary taken, and what to set there again.
    summary: u64,
    left: u64,
}

/// What was taken from the current word in one row.
struct Hit {
    row: usize,
    bits: u64,
}

impl Scratch {
    /// For [`Marks`] of at most `rows` rows.
    #[must_use]
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

/// The places of the bits of `bits`, in ascending order.
fn places(mut bits: u64) -> impl Iterator<Item = usize> {
    from_fn(move || {
        let place = bits.trailing_zeros() as usize;
        (bits != 0).then(|| {
            bits &= bits - 1;
            place
        })
    })
}

impl Marks {
    /// Hands out what is marked: for each number that is marked in any row, and that `wanted` says yes to, its marks are cleared, *then*
    /// `each` is called with the number and its rows. Others stay marked. Numbers come in ascending order, each once.
    ///
    /// A mark that is made meanwhile is handed out or stays. If a callback panics, what was not handed out stays marked, and so does
    /// the number that was just handed out.
    ///
    /// # Panics
    /// If somebody collects already: collectors take turns, by a lock of the caller's. If `scratch` is for fewer rows.
    pub fn collect(
        &self,
        scratch: &mut Scratch,
        wanted: impl FnMut(u32) -> bool,
        each: impl FnMut(u32, Rows<'_>),
    ) {
        self.collect_then(scratch, wanted, each, || ());
    }

    /// [`collect`](Self::collect), with `finish` as the collection's last part: until it is done, nothing looks
    /// [clean](Self::is_clean) or [settled](super::Mark::is_settled).
    ///
    /// # Panics
    /// As [`collect`](Self::collect).
    pub fn collect_then(
        &self,
        scratch: &mut Scratch,
        mut wanted: impl FnMut(u32) -> bool,
        mut each: impl FnMut(u32, Rows<'_>),
        finish: impl FnOnce(),
    ) {
        let mut collection = Collection::begin(self, scratch);
        let classes = collection.take_rows();
        // ORDERING: Relaxed; see `provide`.
        let chunks = self.chunks_end.load(Ordering::Relaxed);
        for (index, chunk) in self.chunks.iter().enumerate().take(chunks) {
            if let Some(leaves) = chunk.get().filter(|_| classes & class(index) != 0) {
                collection.take_chunk(index, leaves, &mut wanted, &mut each);
            }
        }
        finish();
    }

    /// The same for one number alone; whether it was marked in any row, and `each` was called. It looks at nothing but this number in
    /// dirty rows, and clears nothing but its marks.
    ///
    /// # Panics
    /// As [`collect`](Self::collect), and if the number was not provided.
    pub fn collect_one(&self, scratch: &mut Scratch, number: u32, each: impl FnOnce(Rows<'_>)) -> bool {
        self.collect_one_then(scratch, number, each, || ())
    }

    /// [`collect_one`](Self::collect_one), with a last part as [`collect_then`](Self::collect_then) has it.
    ///
    /// # Panics
    /// As [`collect_one`](Self::collect_one).
    pub fn collect_one_then(
        &self,
        scratch: &mut Scratch,
        number: u32,
        each: impl FnOnce(Rows<'_>),
        finish: impl FnOnce(),
    ) -> bool {
        let leaves = self.leaves(number);
        let mut collection = Collection::begin(self, scratch);
        collection.at = Some(At { leaves, number, undelivered: 0 });
        for row in self.dirty_rows() {
            collection.take_leaf(row, bit(number));
        }
        let found = !collection.scratch.hits.is_empty();
        if found {
            collection.deliver(bit(number), &mut Some(each), |each, _, rows| {
                each.take().expect("one number is delivered once")(rows);
            });
        }
        collection.at = None;
        finish();
        found
    }

    /// The rows that are dirty.
    pub(super) fn dirty_rows(&self) -> impl Iterator<Item = usize> {
        self.dirty().enumerate().flat_map(|(index, word)| {
            // ORDERING: Acquire; as in `is_clean`. For a collector Relaxed would do: a mark that it must see has its row's bit in the
            // order of this word (I1 of `marks`), and nobody else clears it.
            places(word.load(Ordering::Acquire)).map(move |place| index * 64 + place)
        })
    }
}

/// A collection under way. Its end, or a panic, sets again what it owes.
struct Collection<'a> {
    marks: &'a Marks,
    scratch: &'a mut Scratch,
    /// Where it is; `None` while no callback can be called.
    at: Option<At<'a>>,
}

#[derive(Clone, Copy)]
struct At<'a> {
    leaves: &'a [Leaves],
    /// A number of the word that is being collected.
    number: u32,
    /// Its bits that were cleared and not handed out yet.
    undelivered: u64,
}

impl<'a> Collection<'a> {
    fn begin(marks: &'a Marks, scratch: &'a mut Scratch) -> Collection<'a> {
        let (rows, has) = (marks.rows(), scratch.rows);
        assert!(rows <= has, "marks of {rows} rows are collected with a scratch for {rows}, not for {has}");
        // ORDERING: Relaxed; the exchange checks it.
        let before = marks.collecting().load(Ordering::Relaxed);
        // ORDERING: Acquire; pairs with the Release of the last collection's end, whose bits this one finds. What this one clears
        // publishes it (E3). Relaxed on failure, which is a panic.
        let begun = before.is_multiple_of(2)
            && marks
                .collecting()
                .compare_exchange(before, before + 1, Ordering::Acquire, Ordering::Relaxed)
                .is_ok();
        assert!(begun, "marks are collected by one at a time, and somebody is collecting these");
        scratch.taken.clear();
        scratch.hits.clear();
        Collection { marks, scratch, at: None }
    }

    /// Clears the dirty bits, and the classes in the heads of those rows; which classes there were.
    fn take_rows(&mut self) -> u64 {
        let mut classes = 0;
        for (index, word) in self.marks.dirty().enumerate() {
            // ORDERING: Relaxed; a mark that must be seen has its bit in the order of this word (E2).
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // ORDERING: Release; pairs with the Acquire in `is_clean`: who finds the zeros finds that somebody collects (E3).
            let dirty = word.swap(0, Ordering::Release);
            interleave::point();
            for row in places(dirty).map(|place| index * 64 + place) {
                // ORDERING: AcqRel; Acquire for the bits of markers that are done, Release so that one which begins now finds
                // the dirty bit cleared (I1 of `marks`).
                let head = self.marks.head(row).fetch_and(!CLASSES_MASK, Ordering::AcqRel);
                let marked_at_head = markers(head) > 0 && !active(Mutation::MarkersAreReadLate);
                let taken = head & CLASSES_MASK;
                classes |= taken;
                self.scratch.taken.push(Taken {
                    row,
                    classes: taken,
                    again: if marked_at_head { taken } else { 0 },
                    marked_at_head,
                    summary: 0,
                    left: 0,
                });
                interleave::point();
            }
        }
        classes
    }

    /// Collects one chunk.
    fn take_chunk(
        &mut self,
        index: usize,
        leaves: &'a [Leaves],
        wanted: &mut impl FnMut(u32) -> bool,
        each: &mut impl FnMut(u32, Rows<'_>),
    ) {
        let words = self.take_summaries(index, leaves);
        for word in places(words) {
            let number = (index * CHUNK + word * BITS) as u32;
            self.at = Some(At { leaves, number, undelivered: 0 });
            self.take_word(leaves, word, number, wanted);
            self.deliver_all(each);
        }
        self.at = None;
        for taken in &mut self.scratch.taken {
            if taken.left != 0 && !active(Mutation::LeftIsNotSetAgain) {
                set_summary(&leaves[taken.row], taken.left);
                taken.again |= class(index);
            }
            (taken.summary, taken.left) = (0, 0);
        }
    }

    /// Clears the summaries of a chunk; which words there were.
    fn take_summaries(&mut self, index: usize, leaves: &[Leaves]) -> u64 {
        let mut words = 0;
        for taken in self.scratch.taken.iter_mut().filter(|taken| taken.classes & class(index) != 0) {
            let (summary, head) = (&leaves[taken.row].summary, self.marks.head(taken.row));
            // ORDERING: Relaxed; after the Acquire of the head: a marker that was done by then is seen, and another leaves its upper
            // bits set. So zero needs no RMW.
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // ORDERING: AcqRel, as below; the fault is that the markers are counted before the summary is cleared.
            let early = active(Mutation::MarkersAreReadEarly).then(|| head.fetch_add(0, Ordering::AcqRel));
            interleave::point();
            // ORDERING: Relaxed; the RMW of the head that follows publishes it, and acquires what the markers did.
            taken.summary = summary.swap(0, Ordering::Relaxed);
            interleave::point();
            // ORDERING: AcqRel; Acquire for the leaf bits of markers that are done, Release so that one which begins now finds the
            // summary cleared (I1 of `marks`). An RMW, because a marker may only have looked at the summary: of its RMW of the head and
            // this one, the second sees the first.
            let late = || match active(Mutation::MarkersAreReadByLoad) {
                false => head.fetch_add(0, Ordering::AcqRel),
                // ORDERING: Acquire; the fault is that the load may be older than a marker that looked at the old summary.
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

    /// Clears in one word, in all rows, what is wanted; notes what is left.
    fn take_word(
        &mut self,
        leaves: &[Leaves],
        word: usize,
        number: u32,
        wanted: &mut impl FnMut(u32) -> bool,
    ) {
        self.scratch.hits.clear();
        let of_word = |taken: &&mut Taken| taken.summary >> word & 1 != 0;
        let mut marked = 0;
        for taken in self.scratch.taken.iter_mut().filter(of_word) {
            // ORDERING: Relaxed; after the Acquire of the head: what is not seen belongs to a marker that was found under way, or that
            // leaves its upper bits set.
            marked |= leaves[taken.row].words[word].load(Ordering::Relaxed);
        }
        let mask = places(marked)
            .filter(|&place| wanted(number + place as u32))
            .fold(0, |mask, place| mask | 1 << place);
        interleave::point();
        for index in 0..self.scratch.taken.len() {
            let taken = &self.scratch.taken[index];
            if taken.summary >> word & 1 == 0 {
                continue;
            }
            let kept = self.take_leaf(taken.row, mask);
            if kept != 0 {
                self.scratch.taken[index].left |= 1 << word;
            }
        }
    }

    /// Clears the bits of `mask` in the current word of `row`, and notes them as hits. Which others there are.
    fn take_leaf(&mut self, row: usize, mask: u64) -> u64 {
        let Some(At { leaves, number, .. }) = self.at else { return 0 };
        let word = leaves[row].word(number);
        // ORDERING: Relaxed, as in `take_word`: what is not seen is marked still.
        let mut found = word.load(Ordering::Relaxed);
        if found & mask != 0 {
            if !active(Mutation::LeafIsClearedLate) {
                // ORDERING: AcqRel; Acquire for what was done before the mark, Release for who looks at it in `is_settled` (E3). The
                // addition that comes too late is told of it by the counter (E1).
                found = word.fetch_and(!mask, Ordering::AcqRel);
            }
            self.scratch.hits.push(Hit { row, bits: found & mask });
            interleave::point();
        }
        found & !mask
    }

    fn deliver_all(&mut self, each: &mut impl FnMut(u32, Rows<'_>)) {
        let bits = self.scratch.hits.iter().fold(0, |bits, hit| bits | hit.bits);
        self.deliver(bits, each, |each, number, rows| each(number, rows));
    }

    /// Hands out the numbers of `bits` in the current word, with their rows.
    fn deliver<F>(&mut self, bits: u64, each: &mut F, call: impl Fn(&mut F, u32, Rows<'_>)) {
        let Some(at) = &mut self.at else { return };
        let first = at.number - at.number % BITS as u32;
        at.undelivered = bits;
        for place in places(bits) {
            let rows = Rows { hits: self.scratch.hits.iter(), bit: 1 << place };
            call(each, first + place as u32, rows);
            at.undelivered &= !(1 << place);
        }
        if active(Mutation::LeafIsClearedLate) {
            for hit in &self.scratch.hits {
                // ORDERING: AcqRel; the fault is that it comes after the counters were taken.
                at.leaves[hit.row].word(at.number).fetch_and(!hit.bits, Ordering::AcqRel);
            }
        }
    }

    /// Sets again what was cleared and not handed out, after a callback panicked.
    fn recover(&mut self, at: At<'_>) {
        for hit in &self.scratch.hits {
            // ORDERING: Release; as the marker whose bit it was (E2).
            at.leaves[hit.row].word(at.number).fetch_or(hit.bits & at.undelivered, Ordering::Release);
        }
        for taken in &mut self.scratch.taken {
            set_summary(&at.leaves[taken.row], taken.summary);
            taken.again = taken.classes;
        }
    }
}

fn set_summary(leaves: &Leaves, words: u64) {
    // ORDERING: Relaxed; published by the end of the collection to the next one and to who looks for what is clean.
    leaves.summary.fetch_or(words, Ordering::Relaxed);
}

impl Drop for Collection<'_> {
    fn drop(&mut self) {
        if let Some(at) = self.at.take() {
            self.recover(at);
        }
        interleave::point();
        for taken in &self.scratch.taken {
            if taken.again != 0 {
                // ORDERING: Relaxed, as in `set_summary`.
                self.marks.head(taken.row).fetch_or(taken.again, Ordering::Relaxed);
            }
            if taken.again != 0 || taken.marked_at_head {
                self.marks.dirty_row(taken.row);
            }
        }
        interleave::point();
        // ORDERING: Release; pairs with the Acquire of who looks for what is clean, and of the next collector: they find what was set
        // again and what the callbacks did (E3).
        self.marks.collecting().fetch_add(1, Ordering::Release);
    }
}
