//! Side: what was flushed of one subsystem of one group, and what waits beside the slots.
//!
//! ```text
//!   sequence, flushed_at, next, and the sequence at which all was zero last: one word each
//!   late       a bit for each statistic that is not zero in pending
//!   local[n]   flushed: the group's own
//!   total[n]   flushed: with all that is and was below it
//!   pending[n] a flush's own: arrived from below, and on its way up
//!   base[n]    additions that found no record: as one more slot, shared by all threads
//! ```
//!
//! All in one piece, so that its lines are found from its address alone.
//!
//! - I1. `local`, `total` and `pending` are written by one thread at a time: a flush of the subsystem, which holds its turn, or a
//!   release, which has the layout of the statistics for itself.
//! - I2. Outside of a flush `pending` is zero, and `total` is `local` plus the totals of the children and of those that were.
//! - E1. write → copy: a sequence lock. Who copies sees the values of one section or none of it. Loom:
//!   `a_copy_is_of_one_moment`.

use memgroup_sync::atomic::{AtomicU64, Ordering, fence};
use memgroup_sync::spin::Wait;

use crate::mutation::{self, Mutation};

/// In no list. Zero, as all is at the beginning.
const UNLISTED: u64 = 0;
/// What the last of a list points to.
pub(super) const END: u32 = u32::MAX;

/// Which values of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reach {
    /// The group's own.
    Local,
    /// The group's and those of all groups below it, removed ones included.
    Subtree,
}

pub(crate) struct Side {
    words: Box<[AtomicU64]>,
    stats: u32,
}

const SEQUENCE: usize = 0;
const FLUSHED_AT: usize = 1;
const NEXT: usize = 2;
const ZERO_AT: usize = 3;
const LATE: usize = 4;

/// The rows of values, in their order.
#[derive(Clone, Copy)]
enum Row {
    Local,
    Total,
    Pending,
    Base,
}

impl Side {
    pub(super) fn new(stats: usize) -> Side {
        let words = LATE + stats.div_ceil(64) + 4 * stats;
        Side { words: (0..words).map(|_| AtomicU64::new(0)).collect(), stats: stats as u32 }
    }

    /// Bytes of one, with its values.
    pub(super) fn bytes(stats: usize) -> usize {
        size_of::<Side>() + (LATE + stats.div_ceil(64) + 4 * stats) * size_of::<AtomicU64>()
    }

    fn sequence(&self) -> &AtomicU64 {
        &self.words[SEQUENCE]
    }

    fn late(&self) -> &[AtomicU64] {
        &self.words[LATE..][..(self.stats as usize).div_ceil(64)]
    }

    fn row(&self, row: Row) -> &[AtomicU64] {
        let stats = self.stats as usize;
        &self.words[LATE + stats.div_ceil(64) + row as usize * stats..][..stats]
    }

    /// An addition that found no record. These words are never left behind, so every value is one.
    pub(super) fn add_beside(&self, index: usize, delta: i64) {
        // ORDERING: AcqRel; as an addition to a slot's word (`additive`).
        self.row(Row::Base)[index].fetch_add(delta as u64, Ordering::AcqRel);
    }

    /// Takes the additions that found no record, by an RMW each, as from a slot's words; the last first.
    pub(super) fn take_beside(&self, mut each: impl FnMut(usize, i64)) {
        for (index, word) in self.row(Row::Base).iter().enumerate().rev() {
            // ORDERING: AcqRel; as `additive::take`, and for its reasons.
            let value = word.swap(0, Ordering::AcqRel) as i64;
            if value != 0 {
                each(index, value);
            }
        }
    }

    /// One of them, for a look.
    pub(super) fn peek_beside(&self, index: usize) -> i64 {
        // ORDERING: Relaxed; a look.
        self.row(Row::Base)[index].load(Ordering::Relaxed) as i64
    }

    fn flushed(&self, reach: Reach) -> &[AtomicU64] {
        self.row(match reach {
            Reach::Local => Row::Local,
            Reach::Subtree => Row::Total,
        })
    }

    pub(super) fn pending(&self) -> &[AtomicU64] {
        self.row(Row::Pending)
    }

    /// Changes flushed values: all that `change` does is seen at once.
    fn write(&self, change: impl FnOnce()) {
        // ORDERING: Relaxed; there is one writer (I1).
        let sequence = self.sequence().load(Ordering::Relaxed);
        if mutation::active(Mutation::CopyIsNotOfOneMoment) {
            return change();
        }
        // ORDERING: Relaxed, and the fence: who reads a value that is stored below sees the odd number (E1).
        self.sequence().store(sequence + 1, Ordering::Relaxed);
        // ORDERING: Release; pairs with the Acquire fence in `copy`.
        fence(Ordering::Release);
        change();
        // ORDERING: Release; pairs with the Acquire in `copy`: who sees the even number sees the values.
        self.sequence().store(sequence + 2, Ordering::Release);
    }

    /// What a flush found arrives, and goes on to `parent`. `deltas` is zero then. Whether it was anything.
    pub(super) fn receive(&self, deltas: &mut [i64], parent: Option<&Side>) -> bool {
        if deltas.iter().all(|&delta| delta == 0) {
            return false;
        }
        self.write(|| {
            let own = self.flushed(Reach::Local).iter().zip(self.flushed(Reach::Subtree));
            for ((local, total), &delta) in own.zip(deltas.iter()).filter(|(_, delta)| **delta != 0) {
                raise(local, delta);
                raise(total, delta);
            }
        });
        if let Some(parent) = parent {
            parent.delay_all(deltas);
        }
        deltas.fill(0);
        true
    }

    /// As `delay` for each that is not zero.
    fn delay_all(&self, deltas: &[i64]) {
        let blocks = deltas.chunks(64).zip(self.pending().chunks(64));
        for ((deltas, pending), late) in blocks.zip(self.late()) {
            let mut bits = 0;
            for (nth, (&delta, pending)) in deltas.iter().zip(pending).enumerate() {
                if delta != 0 {
                    raise(pending, delta);
                    bits |= 1 << nth;
                }
            }
            // ORDERING: Relaxed, twice; the flush's own (I1).
            late.store(late.load(Ordering::Relaxed) | bits, Ordering::Relaxed);
        }
    }

    /// Asks for the lines that `receive` writes to.
    pub(super) fn prefetch(&self) {
        let to_the_totals = LATE + (self.stats as usize).div_ceil(64) + 2 * self.stats as usize;
        self.words[..to_the_totals].iter().step_by(8).for_each(memgroup_percpu::prefetch);
    }

    /// A change goes on its way; the flush's own, or the release's.
    pub(super) fn delay(&self, index: usize, delta: i64) {
        raise(&self.pending()[index], delta);
        let late = &self.late()[index / 64];
        // ORDERING: Relaxed, twice; the flush's own (I1).
        late.store(late.load(Ordering::Relaxed) | 1 << (index % 64), Ordering::Relaxed);
    }

    /// What is on its way, by number.
    fn delayed(&self) -> impl Iterator<Item = (usize, i64)> {
        let places = |(nth, late): (usize, &AtomicU64)| {
            // ORDERING: Relaxed; the flush's own (I1).
            let mut bits = late.load(Ordering::Relaxed);
            std::iter::from_fn(move || {
                let index = nth * 64 + bits.trailing_zeros() as usize;
                (bits != 0).then(|| {
                    bits &= bits - 1;
                    index
                })
            })
        };
        // ORDERING: Relaxed, as above.
        let value = |index: usize| (index, self.pending()[index].load(Ordering::Relaxed) as i64);
        self.late().iter().enumerate().flat_map(places).map(value)
    }

    /// Nothing is on its way any more.
    fn undelay(&self) {
        for (index, _) in self.delayed() {
            // ORDERING: Relaxed; the flush's own (I1).
            self.pending()[index].store(0, Ordering::Relaxed);
        }
        // ORDERING: Relaxed, as above.
        self.late().iter().for_each(|late| late.store(0, Ordering::Relaxed));
    }

    /// What is on the way arrives here, and goes on to `parent`.
    pub(super) fn arrive(&self, parent: Option<&Side>) {
        self.inherit(self);
        if let Some(parent) = parent {
            self.delayed().for_each(|(index, value)| parent.delay(index, value));
        }
        self.undelay();
    }

    /// Adds what is on its way in `from`.
    pub(super) fn inherit(&self, from: &Side) {
        let totals = self.flushed(Reach::Subtree);
        self.write(|| from.delayed().for_each(|(index, value)| raise(&totals[index], value)));
    }

    /// All is zero again; the place is free, and nothing waits beside the slots.
    pub(super) fn forget(&self) {
        self.undelay();
        // ORDERING: Relaxed, here and below; nobody reads or writes any more.
        if self.sequence().load(Ordering::Relaxed) != self.words[ZERO_AT].load(Ordering::Relaxed) {
            self.write(|| {
                for value in [Row::Local, Row::Total].into_iter().flat_map(|row| self.row(row)) {
                    value.store(0, Ordering::Relaxed);
                }
            });
            self.words[ZERO_AT].store(self.sequence().load(Ordering::Relaxed), Ordering::Relaxed);
        }
        // ORDERING: Relaxed, as above.
        self.words[FLUSHED_AT].store(0, Ordering::Relaxed);
    }

    /// Copies the first values, as they were together at one moment.
    #[inline]
    pub(crate) fn copy(&self, reach: Reach, into: &mut [i64]) {
        let values = &self.flushed(reach)[..into.len()];
        let mut wait = None;
        loop {
            // ORDERING: Acquire; pairs with the Release in `write`.
            let before = self.sequence().load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                for (value, into) in values.iter().zip(into.iter_mut()) {
                    // ORDERING: Relaxed; counted only if the sequence stands.
                    *into = value.load(Ordering::Relaxed) as i64;
                }
                // ORDERING: Acquire; pairs with the Release fence in `write`: with a value of a section that began
                // meanwhile its odd number is seen.
                fence(Ordering::Acquire);
                // ORDERING: Relaxed; after the fence.
                if self.sequence().load(Ordering::Relaxed) == before {
                    return;
                }
            }
            wait.get_or_insert_with(Wait::new).wait();
        }
    }

    /// The flushed value now; for a look that need not fit another.
    pub(crate) fn peek(&self, reach: Reach, index: usize) -> i64 {
        // ORDERING: Relaxed; a look.
        self.flushed(reach)[index].load(Ordering::Relaxed) as i64
    }

    /// Puts the place `own` at the head of the list that begins at `head`, unless it is in one.
    pub(super) fn enlist(&self, own: u32, head: &mut u32) {
        // ORDERING: Relaxed, twice; the flush's own (I1).
        if self.words[NEXT].load(Ordering::Relaxed) == UNLISTED {
            self.words[NEXT].store(u64::from(*head) + 1, Ordering::Relaxed);
            *head = own;
        }
    }

    /// Takes the place out of its list; returns the next.
    pub(super) fn delist(&self) -> u32 {
        // ORDERING: Relaxed, twice, as above.
        let next = self.words[NEXT].load(Ordering::Relaxed);
        self.words[NEXT].store(UNLISTED, Ordering::Relaxed);
        (next - 1) as u32
    }

    pub(super) fn note_flush(&self, at: u64) {
        // ORDERING: Release; pairs with the Acquire in `flushed_at`: who sees that it was flushed sees the values.
        self.words[FLUSHED_AT].store(at + 1, Ordering::Release);
    }

    /// When the last flush of the subtree from here began, on the hierarchy's clock.
    pub(super) fn flushed_at(&self) -> Option<u64> {
        // ORDERING: Acquire; as above.
        self.words[FLUSHED_AT].load(Ordering::Acquire).checked_sub(1)
    }
}

/// Adds to a value that has one writer.
fn raise(value: &AtomicU64, delta: i64) {
    if delta != 0 {
        // ORDERING: Relaxed, twice; one writer, and who copies looks at the sequence (I1, E1).
        let before = value.load(Ordering::Relaxed);
        value.store(before.wrapping_add(delta as u64), Ordering::Relaxed);
    }
}
