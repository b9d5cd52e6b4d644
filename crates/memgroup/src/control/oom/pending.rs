//! Pending kill: a kill from the choice of the victim to its end. The picture of its stages is in `victims`.
//!
//! - I1. A pending kill ends when half of the victim's bytes are freed, when its user reports the end, or after ten patiences. It never ends during
//!   a call of its hook.

use crate::control::oom::report::{KillOutcome, Records};
use crate::control::oom::state;
use crate::tree::node::{Node, StockBypass};
use crate::tree::shared::Shared;

/// After so many patiences a victim that was skipped can be chosen again, and has its stock back: it is not dying.
const PATIENCES_MOST: u64 = 10;

/// A kill that has not ended.
pub(crate) struct PendingKill {
    pub(crate) node: &'static Node,
    pub(crate) stage: Stage,
    /// The number of the set that the victim was chosen in.
    pub(crate) set: u64,
    /// When the victim was chosen or its hook called, on the hierarchy's clock.
    pub(crate) since: u64,
    /// The number of its record, once its hook was called.
    pub(crate) record: u64,
    /// Bytes that the victim could free.
    pub(crate) size: u64,
    /// The usage at which half of them are freed.
    threshold: u64,
    /// Half of the bytes were freed, or the end was reported.
    pub(crate) is_dead: bool,
    /// Until the end, freed bytes bypass the victim's stock: there they would hide from the check, and the victim could charge them again.
    bypass: Option<StockBypass>,
}

/// How far a pending kill is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its hook is called after others of its set.
    Queued,
    /// Its hook is in a call.
    Asked,
    /// Its work was told to stop.
    Told,
    /// The kill has taken longer than the patience, and its group is skipped until it ends.
    Overdue { in_call: bool },
}

impl PendingKill {
    /// A kill of a victim that has `usage` bytes, of which it could free `size`.
    pub(crate) fn queued(node: &'static Node, set: u64, since: u64, usage: u64, size: u64) -> PendingKill {
        PendingKill {
            node,
            stage: Stage::Queued,
            set,
            since,
            record: u64::MAX,
            size,
            threshold: usage - (size - size / 2),
            is_dead: false,
            bypass: None,
        }
    }

    /// The victim's hook is about to be called.
    pub(crate) fn begin_call(&mut self, record: u64) {
        (self.stage, self.since, self.record) = (Stage::Asked, self.node.shared().nanos(), record);
        self.bypass = Some(self.node.bypass_stock());
        state::watch(self.node, Some(self.threshold));
    }

    /// The victim's hook answered that the work was told to stop.
    pub(crate) fn told(&mut self) {
        self.stage = match self.stage {
            Stage::Overdue { .. } => Stage::Overdue { in_call: false },
            Stage::Queued | Stage::Asked | Stage::Told => Stage::Told,
        };
    }

    /// Whether no other victim may be chosen until it ends (`victims` I2).
    pub(crate) fn is_awaited(&self) -> bool {
        !self.is_dead && !matches!(self.stage, Stage::Overdue { .. })
    }

    /// Compares the kill with the clock and with its victim's usage. Returns whether it is over.
    pub(crate) fn update(&mut self, clock: Clock, records: &mut Records) -> bool {
        let passed = clock.now.saturating_sub(self.since);
        let is_late = passed >= clock.patience;
        if self.stage == Stage::Queued {
            // The thread that chose it has been in another hook of the set for so long.
            return is_late;
        }
        self.is_dead |= self.node.counter.usage() <= self.threshold;
        if self.is_dead {
            state::watch(self.node, None);
        }
        let is_overdue = is_late && matches!(self.stage, Stage::Asked | Stage::Told);
        let outcome = match self.stage {
            _ if is_overdue && !self.is_dead => {
                self.node.oom().count_overdue();
                Some(KillOutcome::Overdue)
            }
            Stage::Told if self.is_dead => Some(KillOutcome::Died),
            _ => is_overdue.then_some(KillOutcome::Died),
        };
        if is_overdue {
            self.stage = Stage::Overdue { in_call: self.stage == Stage::Asked };
        }
        records.note(self.record, self.is_dead, outcome);
        let in_call = matches!(self.stage, Stage::Asked | Stage::Overdue { in_call: true });
        let is_given_up = passed >= clock.patience.saturating_mul(PATIENCES_MOST);
        !in_call && (self.is_dead || is_given_up)
    }
}

impl Drop for PendingKill {
    fn drop(&mut self) {
        state::watch(self.node, None);
    }
}

/// The time now, and the patience.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) now: u64,
    patience: u64,
}

impl Clock {
    pub(crate) fn of(shared: &'static Shared) -> Clock {
        let patience = shared.config.kill_patience.as_nanos();
        Clock { now: shared.nanos(), patience: u64::try_from(patience).unwrap_or(u64::MAX) }
    }
}
