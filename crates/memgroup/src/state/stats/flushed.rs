//! Flushed values: the statistics of one group in one subsystem, besides the additions that wait
//! on the slots.
//!
//! ```text
//!   sequence, flushed_at, next, zero_at    one word each
//!   changed    a bit for each statistic with a pending value that is not zero
//!   local[n]   flushed values of the group alone
//!   total[n]   flushed values of the group and of all groups below it, released ones included
//!   pending[n] values on their way up, while a flush runs
//!   base[n]    additions that found no record: one more slot, shared by all threads
//! ```
//!
//! All words lie together, so that a flush can prefetch their lines from one address. Words of a
//! group that was never flushed are zero, and lie in pages that the system has not backed.
//!
//! - I1. One thread at a time writes `local`, `total` and `pending`. A flush, a mover and a
//!   release do so with the lock of the update tree.
//! - I2. Outside of a piece of a flush `pending` is zero, and `total` is `local` plus the totals
//!   of all children, released ones included.
//! - E1. write → copy: a sequence lock. A copy has all values of a write or none. Loom:
//!   `copies_values_of_one_moment`.

use memgroup_sync::atomic::{AtomicU64, Ordering, fence};
use memgroup_sync::spin::Wait;

use crate::base::mutation::{self, Mutation};
use crate::state::stats::Reach;

/// Value of the word `next` in a group that is in no list.
const UNLISTED: u64 = 0;
/// Ends a list of places.
pub(crate) const END: u32 = u32::MAX;

// Positions of the words before the rows.
const SEQUENCE: usize = 0;
const FLUSHED_AT: usize = 1;
const NEXT: usize = 2;
/// The sequence number at which all values were zero.
const ZERO_AT: usize = 3;
const CHANGED: usize = 4;

// The rows of values.
const LOCAL: usize = 0;
const TOTAL: usize = 1;
const PENDING: usize = 2;
const BASE: usize = 3;
const ROWS: usize = 4;

/// The words of one group.
#[derive(Clone, Copy)]
pub(crate) struct FlushedStats {
    words: &'static [AtomicU64],
    stats: usize,
}

/// Position of a row.
fn row_at(row: usize, stats: usize) -> usize {
    CHANGED + stats.div_ceil(64) + row * stats
}

fn row_of(reach: Reach) -> usize {
    match reach {
        Reach::Local => LOCAL,
        Reach::Subtree => TOTAL,
    }
}

impl FlushedStats {
    /// The values of `stats` statistics in these words; `None` where there are no words.
    #[inline]
    pub(crate) fn of(words: &'static [AtomicU64], stats: usize) -> Option<FlushedStats> {
        (!words.is_empty()).then_some(FlushedStats { words, stats })
    }

    /// Returns the number of words for the values of `stats` statistics.
    pub(crate) const fn words(stats: usize) -> usize {
        CHANGED + stats.div_ceil(64) + ROWS * stats
    }

    fn sequence(&self) -> &AtomicU64 {
        &self.words[SEQUENCE]
    }

    fn changed(&self) -> &[AtomicU64] {
        &self.words[CHANGED..][..self.stats.div_ceil(64)]
    }

    fn row(&self, row: usize) -> &[AtomicU64] {
        &self.words[row_at(row, self.stats)..][..self.stats]
    }

    /// Adds to a base word.
    pub(crate) fn add_base(&self, index: usize, delta: i64) {
        // ORDERING: AcqRel; as an addition to a slot's word (`additive`).
        self.row(BASE)[index].fetch_add(delta as u64, Ordering::AcqRel);
    }

    /// Takes the base words to zero, by an RMW each as from a slot's words, the last first.
    pub(crate) fn take_base(&self, mut each: impl FnMut(usize, i64)) {
        for (index, word) in self.row(BASE).iter().enumerate().rev() {
            // ORDERING: AcqRel; as `additive::take`, for the same reasons.
            let value = word.swap(0, Ordering::AcqRel) as i64;
            if value != 0 {
                each(index, value);
            }
        }
    }

    /// A base word as it is now.
    pub(crate) fn peek_base(&self, index: usize) -> i64 {
        // ORDERING: Relaxed; compared with no other value.
        self.row(BASE)[index].load(Ordering::Relaxed) as i64
    }

    /// Changes flushed values. A copy sees all that `change` does, or nothing of it.
    fn write(&self, change: impl FnOnce()) {
        // ORDERING: Relaxed; there is one writer (I1).
        let sequence = self.sequence().load(Ordering::Relaxed);
        if mutation::active(Mutation::CopyIsNotOfOneMoment) {
            return change();
        }
        // ORDERING: Relaxed, and the fence: a reader of a value that is stored below sees the odd
        // number (E1).
        self.sequence().store(sequence + 1, Ordering::Relaxed);
        // ORDERING: Release; pairs with the Acquire fence in `copy`.
        fence(Ordering::Release);
        change();
        // ORDERING: Release; pairs with the Acquire in `copy`: a reader of the even number sees the
        // values.
        self.sequence().store(sequence + 2, Ordering::Release);
    }

    /// Adds the changes of the group to its values and to the pending values of `parent`, and
    /// zeroes `deltas`. Whether any was not zero.
    pub(crate) fn apply(&self, deltas: &mut [i64], parent: Option<FlushedStats>) -> bool {
        if deltas.iter().all(|&delta| delta == 0) {
            return false;
        }
        self.write(|| {
            let values = self.row(LOCAL).iter().zip(self.row(TOTAL));
            for ((local, total), &delta) in values.zip(deltas.iter()).filter(|(_, delta)| **delta != 0) {
                add(local, delta);
                add(total, delta);
            }
        });
        if let Some(parent) = parent {
            parent.add_all_pending(deltas);
        }
        deltas.fill(0);
        true
    }

    /// As `add_pending` for each delta that is not zero, with one store for 64 bits of `changed`.
    fn add_all_pending(&self, deltas: &[i64]) {
        let blocks = deltas.chunks(64).zip(self.row(PENDING).chunks(64));
        for ((deltas, pending), changed) in blocks.zip(self.changed()) {
            let mut bits = 0;
            for (nth, (&delta, pending)) in deltas.iter().zip(pending).enumerate() {
                if delta != 0 {
                    add(pending, delta);
                    bits |= 1 << nth;
                }
            }
            // ORDERING: Relaxed, twice; the flush's own (I1).
            changed.store(changed.load(Ordering::Relaxed) | bits, Ordering::Relaxed);
        }
    }

    /// Prefetches the lines that `apply` writes.
    pub(crate) fn prefetch(&self) {
        let end = row_at(PENDING, self.stats);
        self.words[..end].iter().step_by(8).for_each(memgroup_percpu::prefetch);
    }

    /// Adds to a pending value. Called by the flush that writes the values (I1).
    fn add_pending(&self, index: usize, delta: i64) {
        add(&self.row(PENDING)[index], delta);
        let changed = &self.changed()[index / 64];
        // ORDERING: Relaxed, twice; the flush's own (I1).
        changed.store(changed.load(Ordering::Relaxed) | 1 << (index % 64), Ordering::Relaxed);
    }

    /// Calls `each` with the pending values that may not be zero, and their positions.
    #[inline(always)]
    fn each_pending(&self, mut each: impl FnMut(usize, &AtomicU64)) {
        let blocks = self.changed().iter().zip(self.row(PENDING).chunks(64));
        for (nth, (changed, pending)) in blocks.enumerate() {
            // ORDERING: Relaxed; the flush's own (I1).
            let mut bits = changed.load(Ordering::Relaxed);
            while bits != 0 {
                let index = bits.trailing_zeros() as usize;
                each(nth * 64 + index, &pending[index]);
                bits &= bits - 1;
            }
        }
    }

    /// Sets the pending values to zero.
    fn clear_pending(&self) {
        // ORDERING: Relaxed; the flush's own (I1).
        self.each_pending(|_, value| value.store(0, Ordering::Relaxed));
        // ORDERING: Relaxed, as above.
        self.changed().iter().for_each(|changed| changed.store(0, Ordering::Relaxed));
    }

    /// Moves the pending values to the group's totals and to the pending values of `parent`.
    pub(crate) fn propagate(&self, parent: Option<FlushedStats>) {
        let totals = self.row(TOTAL);
        self.write(|| self.each_pending(|index, value| add(&totals[index], read(value))));
        if let Some(parent) = parent {
            self.each_pending(|index, value| parent.add_pending(index, read(value)));
        }
        self.clear_pending();
    }

    /// Adds values that a group below left to the totals.
    pub(crate) fn add_to_totals(&self, values: &[(usize, i64)]) {
        let totals = self.row(TOTAL);
        self.write(|| values.iter().for_each(|&(index, value)| add(&totals[index], value)));
    }

    /// Returns whether all values are zero and no flush began at the group.
    pub(crate) fn is_reset(&self) -> bool {
        // ORDERING: Relaxed, both; a flush that wrote them was seen to be over, or there was none.
        let sequence = self.sequence().load(Ordering::Relaxed);
        sequence == self.words[ZERO_AT].load(Ordering::Relaxed) && self.flushed_at().is_none()
    }

    /// Sets all values to zero, when the place becomes free. The base words are zero already.
    pub(crate) fn reset(&self) {
        // ORDERING: Relaxed, here and below; a free place has no reader and no writer.
        if self.sequence().load(Ordering::Relaxed) != self.words[ZERO_AT].load(Ordering::Relaxed) {
            self.write(|| {
                self.row(LOCAL)
                    .iter()
                    .chain(self.row(TOTAL))
                    .for_each(|value| value.store(0, Ordering::Relaxed));
            });
            self.words[ZERO_AT].store(self.sequence().load(Ordering::Relaxed), Ordering::Relaxed);
        }
        // A page that was never written to stays so.
        if self.flushed_at().is_some() {
            // ORDERING: Relaxed, as above.
            self.words[FLUSHED_AT].store(0, Ordering::Relaxed);
        }
    }

    /// Copies the first values as they were together at one moment.
    #[inline]
    pub(crate) fn copy(&self, reach: Reach, into: &mut [i64]) {
        let values = &self.row(row_of(reach))[..into.len()];
        let mut wait = None;
        loop {
            // ORDERING: Acquire; pairs with the Release in `write`.
            let before = self.sequence().load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                for (value, into) in values.iter().zip(into.iter_mut()) {
                    // ORDERING: Relaxed; valid only if the sequence number stays the same.
                    *into = value.load(Ordering::Relaxed) as i64;
                }
                // ORDERING: Acquire; pairs with the Release fence in `write`: a copy with a value
                // of a write that began meanwhile sees its odd number.
                fence(Ordering::Acquire);
                // ORDERING: Relaxed; after the fence.
                if self.sequence().load(Ordering::Relaxed) == before {
                    return;
                }
            }
            wait.get_or_insert_with(Wait::new).wait();
        }
    }

    /// A flushed value as it is now.
    pub(crate) fn peek(&self, reach: Reach, index: usize) -> i64 {
        // ORDERING: Relaxed; compared with no other value.
        self.row(row_of(reach))[index].load(Ordering::Relaxed) as i64
    }

    /// Puts the place `own` at the head of a list, unless it is in one.
    pub(crate) fn enlist(&self, own: u32, head: &mut u32) {
        // ORDERING: Relaxed, twice; the flush's own (I1).
        if self.words[NEXT].load(Ordering::Relaxed) == UNLISTED {
            self.words[NEXT].store(u64::from(*head) + 1, Ordering::Relaxed);
            *head = own;
        }
    }

    /// Takes the place out of its list and returns the next one.
    pub(crate) fn delist(&self) -> u32 {
        // ORDERING: Relaxed, twice, as above.
        let next = self.words[NEXT].load(Ordering::Relaxed);
        self.words[NEXT].store(UNLISTED, Ordering::Relaxed);
        (next - 1) as u32
    }

    /// Notes when a flush of the subtree began. One that began later may have ended before,
    /// between two of its pieces.
    pub(crate) fn note_flush(&self, at: u64) {
        // ORDERING: Relaxed; one thread at a time notes (I1).
        let at = self.words[FLUSHED_AT].load(Ordering::Relaxed).max(at + 1);
        // ORDERING: Release; pairs with the Acquire in `flushed_at`: a reader of the time sees the
        // values.
        self.words[FLUSHED_AT].store(at, Ordering::Release);
    }

    /// The latest beginning of a flush that started from this group and has ended, on the
    /// hierarchy's clock.
    pub(crate) fn flushed_at(&self) -> Option<u64> {
        // ORDERING: Acquire; as above.
        self.words[FLUSHED_AT].load(Ordering::Acquire).checked_sub(1)
    }
}

/// A value that this thread alone writes.
fn read(value: &AtomicU64) -> i64 {
    // ORDERING: Relaxed; the flush's own (I1).
    value.load(Ordering::Relaxed) as i64
}

/// Adds to a value that has one writer.
fn add(value: &AtomicU64, delta: i64) {
    if delta != 0 {
        // ORDERING: Relaxed, twice; one writer, and a copy checks the sequence number (I1, E1).
        let before = value.load(Ordering::Relaxed);
        value.store(before.wrapping_add(delta as u64), Ordering::Relaxed);
    }
}
