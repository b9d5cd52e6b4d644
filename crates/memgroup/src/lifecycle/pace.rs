//! Pace: how much of a pass of maintenance is done on end.
//!
//! - B1. A step looks at the clock before each group, page run and batch of freed blocks. After
//!   `STEP` it begins nothing more, but it does `PIECES_LEAST` of them: so a step gets somewhere
//!   also where its thread is interrupted. A chunk of nodes counts for all of them, and a run of
//!   pages for half, because their calls of the system take the longest. A look that finds nothing
//!   to do is no piece: on a slow machine such looks take longer than `STEP`. Calls of the
//!   allocator and of the system count.
//! - B2. A step waits for no flush and for no grace period.

use core::cell::Cell;
use core::time::Duration;
use std::time::Instant;

use crate::state::stats::update_tree::UpdateTree;
use crate::stats::flush::{self, FlushGuard};
use crate::tree::shared::Shared;

/// The time after which a step begins nothing more. The largest piece, the nodes of a chunk, fits
/// into the rest of the 50 us.
const STEP: Duration = Duration::from_micros(20);

/// A step does at least so many pieces of work (B1).
const PIECES_LEAST: u32 = 8;

/// A whole pass, of a caller that asked for it; or a step of one, on the time of a call that did
/// not.
pub(crate) struct Pace {
    until: Option<Instant>,
    /// Pieces of work that the step has begun.
    pieces: Cell<u32>,
}

impl Pace {
    pub(crate) fn whole() -> Pace {
        Pace { until: None, pieces: Cell::new(0) }
    }

    pub(crate) fn step(now: Instant) -> Pace {
        Pace { until: Some(now + STEP), pieces: Cell::new(0) }
    }

    /// The most pieces of work until the next look at the clock: in a step, and in a whole pass.
    pub(crate) fn at_once(&self, in_step: usize, in_pass: usize) -> usize {
        if self.until.is_some() { in_step } else { in_pass }
    }

    /// Whether a step begins another piece.
    pub(crate) fn goes_on(&self) -> bool {
        let is_late = |until| self.pieces.get() >= PIECES_LEAST && Instant::now() >= until;
        !self.until.is_some_and(is_late)
    }

    /// Counts a piece if the caller did one. Returns whether it did.
    pub(crate) fn counts(&self, did_one: bool) -> bool {
        self.counts_for(1, did_one)
    }

    /// Counts a chunk of nodes that went back to the system.
    pub(crate) fn counts_chunk(&self, did_one: bool) -> bool {
        self.counts_for(PIECES_LEAST, did_one)
    }

    /// Counts a run of pages that went back to the system.
    pub(crate) fn counts_pages(&self, did_one: bool) -> bool {
        self.counts_for(PIECES_LEAST / 2, did_one)
    }

    fn counts_for(&self, pieces: u32, did_one: bool) -> bool {
        self.pieces.set(self.pieces.get() + if did_one { pieces } else { 0 });
        did_one
    }

    /// The turn to flush. A step has it only if it is free. The caller holds no turn and not the
    /// tree lock.
    pub(crate) fn turn(&self, updates: &'static UpdateTree, shared: &'static Shared) -> Option<FlushGuard> {
        match self.until {
            None => Some(flush::lock(updates, shared)),
            Some(_) => flush::try_lock(updates, shared),
        }
    }

    /// Whether the pieces of flushes are over that run now. Between two pieces a flush refers to
    /// no node but its top, which is held. A whole pass waits for them.
    pub(crate) fn have_flushes_ended(&self, shared: &'static Shared) -> bool {
        shared.statistics.trees().all(|updates| self.turn(updates, shared).is_some())
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_is_late_does_its_least_pieces_and_no_more() {
        let late = Pace::step(Instant::now().checked_sub(STEP).unwrap());
        assert!((0..2 * PIECES_LEAST).all(|_| late.goes_on() && !late.counts(false)), "no piece was done");
        let pieces = (0..2 * PIECES_LEAST).filter(|_| late.goes_on() && late.counts(true));
        assert_eq!(pieces.count(), PIECES_LEAST as usize);
        let whole = Pace::whole();
        assert!((0..2 * PIECES_LEAST).all(|_| whole.counts(true) && whole.goes_on()));
    }
}
