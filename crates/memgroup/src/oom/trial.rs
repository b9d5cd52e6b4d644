//! Trial: a kill that is on, from being chosen to its end. The picture is in `victims`.
//!
//! - I1. A trial ends when half of what was there is gone, or it is said to be done, or ten times the patience is over; never while its hook is in a call.

use super::report::KillOutcome;
use super::settings;
use super::victims::{List, Seat};
use crate::node::Diverted;
use crate::shared::Shared;

/// After so many times the patience a victim that was passed over can be chosen again, and has its stock back: it is not dying.
const PATIENCES_MOST: u64 = 10;

/// A kill that is on.
pub(super) struct Trial {
    pub(super) stage: Stage,
    /// The set that it was chosen in.
    pub(super) set: u64,
    /// When it was chosen or called, on the hierarchy's clock.
    pub(super) since: u64,
    /// Its record, once it was called.
    pub(super) record: u64,
    /// Bytes that it could free.
    pub(super) size: u64,
    /// With this usage half of them are gone.
    pub(super) threshold: u64,
    pub(super) has_fallen: bool,
    /// Until it has ended, what it frees does not stay in its stock: half of it gone could not be seen, and be charged again.
    pub(super) diverted: Option<Diverted>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// It will be called after others of its set.
    Queued,
    /// Its hook is called.
    Asked,
    /// It is to stop.
    Told,
    /// It took too long, and is passed over until it ends.
    Overdue { in_call: bool },
}

impl Trial {
    pub(super) fn queued(set: u64, since: u64, seat: &Seat) -> Trial {
        let size = seat.size();
        Trial {
            stage: Stage::Queued,
            set,
            since,
            record: u64::MAX,
            size,
            threshold: seat.usage - (size - size / 2),
            has_fallen: false,
            diverted: None,
        }
    }

    /// Whether others wait for its end (I2).
    pub(super) fn is_awaited(&self) -> bool {
        !self.has_fallen && !matches!(self.stage, Stage::Overdue { .. })
    }
}

/// What trials are measured by.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    pub(super) now: u64,
    patience: u64,
}

impl Clock {
    pub(super) fn of(shared: &'static Shared) -> Clock {
        let patience = shared.config.kill_patience.as_nanos();
        Clock { now: shared.nanos(), patience: u64::try_from(patience).unwrap_or(u64::MAX) }
    }
}

impl List {
    pub(super) fn settle_all(&mut self, clock: Clock) {
        // A trial that ends is replaced by the last one, which was looked at.
        for index in (0..self.on.len()).rev() {
            self.settle_one(self.on[index], clock);
            if self.trial(self.on[index]).is_none() {
                self.on.swap_remove(index);
            }
        }
    }

    pub(super) fn settle(&mut self, at: usize, clock: Clock) {
        self.settle_one(at, clock);
        if self.trial(at).is_none() {
            self.leave(at);
        }
    }

    pub(super) fn leave(&mut self, at: usize) {
        if let Some(index) = self.on.iter().position(|&other| other == at) {
            self.on.swap_remove(index);
        }
    }

    /// Ends a trial that is over, or passes it over. It stays in the list of trials.
    pub(super) fn settle_one(&mut self, at: usize, clock: Clock) {
        let Some(seat) = &mut self.seats[at] else { return };
        let (node, Some(trial)) = (seat.node, &mut seat.trial) else { return };
        let is_late = clock.now.saturating_sub(trial.since) >= clock.patience;
        if trial.stage == Stage::Queued {
            // Who was to call it is in another hook for so long.
            if is_late {
                seat.trial = None;
            }
            return;
        }
        let record = self.ring.of(trial.record);
        if !trial.has_fallen && node.counter.usage() <= trial.threshold {
            trial.has_fallen = true;
            settings::watch(node, None);
        }
        let mut outcome = None;
        if trial.has_fallen && trial.stage == Stage::Told {
            outcome = Some(KillOutcome::Died);
        } else if is_late && let Stage::Asked | Stage::Told = trial.stage {
            trial.stage = Stage::Overdue { in_call: trial.stage == Stage::Asked };
            if trial.has_fallen {
                outcome = Some(KillOutcome::Died);
            } else {
                node.control.oom.count_overdue();
                outcome = Some(KillOutcome::Overdue);
            }
        }
        if let Some(record) = record {
            if trial.has_fallen {
                record.fell();
            }
            if let Some(outcome) = outcome {
                record.end(outcome);
            }
        }
        let is_given_up =
            clock.now.saturating_sub(trial.since) >= clock.patience.saturating_mul(PATIENCES_MOST);
        if (trial.has_fallen || is_given_up)
            && matches!(trial.stage, Stage::Told | Stage::Overdue { in_call: false })
        {
            settings::watch(node, None);
            seat.trial = None;
        }
    }

    /// It is said that what was told to stop has ended; whether there was a trial that has begun.
    pub(super) fn done(&mut self, at: usize) -> bool {
        let Some(seat) = &mut self.seats[at] else { return false };
        let (node, Some(trial)) = (seat.node, &mut seat.trial) else { return false };
        if trial.stage == Stage::Queued {
            return false;
        }
        trial.has_fallen = true;
        settings::watch(node, None);
        if let Some(record) = self.ring.of(trial.record) {
            record.fell();
            if trial.stage == Stage::Told {
                record.end(KillOutcome::Died);
            }
        }
        true
    }

    pub(super) fn end_trial(&mut self, at: usize) {
        if let Some(seat) = &mut self.seats[at]
            && seat.trial.take().is_some()
        {
            settings::watch(seat.node, None);
            self.leave(at);
        }
    }
}
