//! Tally: the totals and averages of one group's stalls, as a value without a clock of its own.
//!
//! Two lines, `some` and `full`, are each on or off. A change is applied at a moment. The time
//! between two changes is all on or all off, and the next thread that looks adds it. So no timer
//! and no thread is needed.
//!
//! ```text
//!            at (folded until here)         last (changes until here)                 now
//!   ─────────┼──────── stalled so long: pending ─┼── on or off throughout ──────────────┼──
//! ```
//!
//! An average over T is the fraction of time that was stalled, weighted by exp(-age / T). The
//! kernel uses this formula for windows of 2 s; here windows have any length. It is exact for a
//! window in which the line was on, or off, throughout.
//!
//! - I1. Time does not run backwards here: a change with an earlier moment than the last one
//!   counts from the last one's.
//! - I2. `full` is on only where `some` is.
//! - B1. Changes within 100 ms are folded as one window, which does not record when the line was
//!   on. An average over T is off by at most 100 ms / 8 T, 0.13 points of a hundred for `avg10`.
//! - B2. A thread may lose its processor between reading the clock and the lock of this group. Its
//!   change then counts from the latest change before it (I1). So a group's total may be less than
//!   that of one below it, by as much as such threads were late.

use crate::observe::pressure::report::{Pressure, PressureLine};
use crate::state::stalls::TALLY_WORDS;

/// The time after which changes are folded into the averages.
const FOLD_NANOS: u64 = 100_000_000;

/// The spans of the averages, in nanoseconds.
const SPANS: [f64; 3] = [10e9, 60e9, 300e9];

/// One of the two lines.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    is_on: bool,
    /// Stalled since the averages were folded, until the last change.
    pending_nanos: u64,
    /// Stalled in all, until the last change.
    total_nanos: u64,
    /// The share of stalled time, from 0 to 1.
    averages: [f64; 3],
}

impl Line {
    fn of(is_on: bool, [pending_nanos, total_nanos, averages @ ..]: [u64; 5]) -> Line {
        Line { is_on, pending_nanos, total_nanos, averages: averages.map(f64::from_bits) }
    }

    fn words(&self) -> [u64; 5] {
        let [ten, sixty, three_hundred] = self.averages.map(f64::to_bits);
        [self.pending_nanos, self.total_nanos, ten, sixty, three_hundred]
    }

    /// Folds in a time of which the fraction `stalled` was stalled.
    fn fold(&mut self, kept: [f64; 3], stalled: f64) {
        for (average, kept) in self.averages.iter_mut().zip(kept) {
            *average = *average * kept + stalled * (1.0 - kept);
        }
    }

    fn report(&self) -> PressureLine {
        let [avg10, avg60, avg300] = self.averages.map(|average| average * 100.0);
        PressureLine { avg10, avg60, avg300, total: self.total_nanos / 1000 }
    }
}

/// Both lines of one group.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    some: Line,
    full: Line,
    at: u64,
    last: u64,
}

/// The lines as they are at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) now: u64,
    pub(crate) some: Progress,
    pub(crate) full: Progress,
}

/// One line at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) is_on: bool,
    pub(crate) total_nanos: u64,
}

/// The fraction of an average that is left after so long without a stall.
fn kept_after(nanos: u64) -> [f64; 3] {
    SPANS.map(|span| (-(nanos as f64) / span).exp())
}

impl Tally {
    /// The tally of these words; all zero is a new one.
    pub(crate) fn of(words: [u64; TALLY_WORDS]) -> Tally {
        let [on, at, last, some @ .., _, _, _, _, _] = words;
        let full = std::array::from_fn(|nth| words[8 + nth]);
        Tally { some: Line::of(on & 1 != 0, some), full: Line::of(on & 2 != 0, full), at, last }
    }

    /// Its words.
    pub(crate) fn words(&self) -> [u64; TALLY_WORDS] {
        let mut words = [0; TALLY_WORDS];
        words[0] = u64::from(self.some.is_on) | u64::from(self.full.is_on) << 1;
        (words[1], words[2]) = (self.at, self.last);
        words[3..8].copy_from_slice(&self.some.words());
        words[8..].copy_from_slice(&self.full.words());
        words
    }

    /// Sets the lines from `now` on.
    pub(crate) fn change(&mut self, now: u64, some: bool, full: bool) {
        self.advance(now);
        (self.some.is_on, self.full.is_on) = (some, some && full);
    }

    /// Adds the time until `now`.
    fn advance(&mut self, now: u64) {
        let now = now.max(self.last);
        if now - self.at >= FOLD_NANOS {
            self.fold(now);
        }
        let passed = now - self.last;
        for line in [&mut self.some, &mut self.full] {
            let stalled = if line.is_on { passed } else { 0 };
            line.total_nanos += stalled;
            line.pending_nanos += stalled;
        }
        self.last = now;
        if self.at == now {
            (self.some.pending_nanos, self.full.pending_nanos) = (0, 0);
        }
    }

    /// Folds the time until `now` into the averages: the time up to the last change, then the time
    /// since.
    fn fold(&mut self, now: u64) {
        let window = self.last - self.at;
        if window > 0 {
            let kept = kept_after(window);
            for line in [&mut self.some, &mut self.full] {
                line.fold(kept, line.pending_nanos as f64 / window as f64);
            }
        }
        let kept = kept_after(now - self.last);
        for line in [&mut self.some, &mut self.full] {
            line.fold(kept, f64::from(u8::from(line.is_on)));
        }
        self.at = now;
    }

    /// The report at `now`, with the stall that is on.
    pub(crate) fn report(&self, now: u64) -> Pressure {
        let mut then = *self;
        then.advance(now);
        then.fold(then.last);
        Pressure { some: then.some.report(), full: then.full.report() }
    }

    /// The totals at `now`.
    pub(crate) fn seen(&self, now: u64) -> Seen {
        let now = now.max(self.last);
        let progress = |line: &Line| {
            let since = if line.is_on { now - self.last } else { 0 };
            Progress { is_on: line.is_on, total_nanos: line.total_nanos + since }
        };
        Seen { now, some: progress(&self.some), full: progress(&self.full) }
    }
}

#[cfg(all(test, not(memgroup_loom)))]
#[path = "tally/tests.rs"]
mod tests;
