//! Pending kill: a kill from the choice of the victim to its end. The picture of its stages is in `victims`.
//!
//! - I1. A pending kill ends when half of the victim's bytes are freed, when its user reports the end, or after ten patiences. It never ends during
//!   a call of its hook.
//! - I2. A group that was removed frees the rest as well, because no new work begins in it. So its kill stays until it is empty, or until the patience is
//!   over. Its [remaining](PendingKill::remaining) bytes count as bytes on their way.
//! - I3. A kill whose hook is withdrawn goes on as a [`Claim`], by the same rules. It holds nothing: the group may be released and its node reused, which the
//!   claim sees by the group's id.

use crate::base::id::GroupId;
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
    /// The end was reported: bytes that the group still has stay.
    is_done: bool,
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
            is_done: false,
            bypass: None,
        }
    }

    /// The user reported the end of the killed work.
    pub(crate) fn finish(&mut self) {
        (self.is_dead, self.is_done) = (true, true);
    }

    /// Bytes that the victim is still to free, after half of them were freed (I2). Nothing after the patience.
    pub(crate) fn remaining(&self) -> u64 {
        let is_awaited = self.is_dead && !self.is_done && !matches!(self.stage, Stage::Overdue { .. });
        if is_awaited { self.node.counter.usage().min(self.size) } else { 0 }
    }

    /// The claim that is left when the hook is withdrawn. `None` if nothing is on its way.
    pub(crate) fn into_claim(self) -> Option<Claim> {
        let is_told = matches!(self.stage, Stage::Told | Stage::Overdue { in_call: false });
        (is_told && !self.is_done).then(|| {
            let &PendingKill { node, since, record, size, threshold, is_dead, .. } = &self;
            Claim { node, group: node.group_id(), since, record, size, threshold, is_dead, is_late: false }
        })
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
        let is_late = !clock.has_patience(self.since);
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
        let is_given_up = clock.is_given_up(self.since);
        let frees_on = self.remaining() > 0 && !is_late && self.node.counter.is_offline();
        !in_call && (self.is_dead && !frees_on || is_given_up)
    }
}

impl Drop for PendingKill {
    fn drop(&mut self) {
        state::watch(self.node, None);
    }
}

/// The bytes of a group whose hook was withdrawn after it agreed to stop. Its work may still hold them on another thread.
pub(crate) struct Claim {
    node: &'static Node,
    /// The group: the node may be another's by now.
    group: GroupId,
    since: u64,
    record: u64,
    size: u64,
    threshold: u64,
    /// Half of the bytes were freed.
    is_dead: bool,
    /// It has taken longer than the patience.
    pub(crate) is_late: bool,
}

impl Claim {
    /// For a group whose hook was withdrawn while it was in a call, which then answered that it told `size` bytes of work to stop. The caller holds the group.
    pub(crate) fn of(node: &'static Node, since: u64, record: u64, size: u64) -> Claim {
        let threshold = node.counter.usage().saturating_sub(size - size / 2);
        Claim { node, group: node.group_id(), since, record, size, threshold, is_dead: false, is_late: false }
    }

    /// The group's node, while it is that group's.
    pub(crate) fn node(&self) -> Option<&'static Node> {
        (self.node.group_id() == self.group).then_some(self.node)
    }

    /// Bytes that are still on their way.
    pub(crate) fn remaining(&self) -> u64 {
        self.node().filter(|_| !self.is_late).map_or(0, |node| node.counter.usage().min(self.size))
    }

    /// Whether no other victim may be chosen until half of the bytes are freed (`victims` I2).
    pub(crate) fn is_awaited(&self) -> bool {
        !self.is_dead && !self.is_late
    }

    /// Compares the claim with the clock and with the group's usage. Returns whether it is over.
    pub(crate) fn update(&mut self, clock: Clock, records: &mut Records) -> bool {
        let left = self.node().map_or(0, |node| node.counter.usage());
        self.is_dead |= left <= self.threshold;
        let is_late = !clock.has_patience(self.since);
        let outcome =
            if self.is_dead { Some(KillOutcome::Died) } else { is_late.then_some(KillOutcome::Overdue) };
        records.note(self.record, self.is_dead, outcome);
        self.is_late |= is_late;
        left == 0 || self.is_dead && self.is_late || clock.is_given_up(self.since)
    }

    /// The end was reported, or other work has the group now.
    pub(crate) fn finish(&self, records: &mut Records) {
        records.note(self.record, true, Some(KillOutcome::Died));
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
        let patience = shared.config.kill_patience().as_nanos();
        Clock { now: shared.nanos(), patience: u64::try_from(patience).unwrap_or(u64::MAX) }
    }

    #[cfg(all(test, not(memgroup_loom)))]
    pub(crate) fn at(now: u64, patience: std::time::Duration) -> Clock {
        Clock { now, patience: patience.as_nanos() as u64 }
    }

    /// Whether less than the patience has passed.
    fn has_patience(self, since: u64) -> bool {
        self.now.saturating_sub(since) < self.patience
    }

    /// Returns whether the victim is treated as one that won't die.
    fn is_given_up(self, since: u64) -> bool {
        self.now.saturating_sub(since) >= self.patience.saturating_mul(PATIENCES_MOST)
    }
}
