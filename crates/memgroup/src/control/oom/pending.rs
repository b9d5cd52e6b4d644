//! Pending kill: a kill from the choice of the victim to its end. The picture of its stages is in
//! `victims`.
//!
//! - I1. A pending kill ends when half of the victim's bytes are freed, when its user reports the
//!   end, or after ten patiences. It never ends during a call of its hook.
//! - I2. A group that was removed frees the rest as well, because no new work begins in it. So its
//!   kill stays until it is empty, or until the patience is over. Its
//!   [remaining](PendingKill::remaining) bytes count as bytes on their way.
//! - I3. A kill whose hook is withdrawn goes on by the same rules, as if its group were removed:
//!   work of the group may hold the bytes on another thread. It holds nothing. The group may be
//!   released and its node reused, which the kill sees by the group's id.

use crate::base::id::GroupId;
use crate::control::oom::report::{KillOutcome, Records};
use crate::control::oom::state;
use crate::tree::node::{Node, StockBypass};
use crate::tree::shared::Shared;

/// After this many patiences a victim that was skipped can be chosen again, and has its stock back:
/// it is not dying.
const PATIENCES_MOST: u64 = 10;

/// A kill that has not ended.
pub(crate) struct PendingKill {
    node: &'static Node,
    /// The group: the node may be another's by now (I3).
    group: GroupId,
    pub(crate) has_hook: bool,
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
    is_dead: bool,
    /// The end was reported: bytes that the group still has stay.
    is_done: bool,
    /// Until the end, freed bytes bypass the victim's stock: there they would hide from the check,
    /// and the victim could charge them again.
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
            group: node.group_id(),
            has_hook: true,
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

    /// The group's node, while it is that group's.
    pub(crate) fn node(&self) -> Option<&'static Node> {
        (self.node.group_id() == self.group).then_some(self.node)
    }

    /// Returns whether this is a kill of the node's group.
    pub(crate) fn is_of(&self, node: &'static Node) -> bool {
        self.node().is_some_and(|own| std::ptr::eq(own, node))
    }

    fn usage(&self) -> u64 {
        self.node().map_or(0, |node| node.counter.usage())
    }

    /// Returns whether the hook is in a call.
    pub(crate) fn in_call(&self) -> bool {
        matches!(self.stage, Stage::Asked | Stage::Overdue { in_call: true })
    }

    fn is_overdue(&self) -> bool {
        matches!(self.stage, Stage::Overdue { .. })
    }

    /// The user reported the end of the killed work.
    pub(crate) fn finish(&mut self) {
        (self.is_dead, self.is_done) = (true, true);
    }

    /// Bytes that the victim is still to free (I2, I3): of a victim that has its hook, after half
    /// of them were freed. Nothing after the patience.
    pub(crate) fn remaining(&self) -> u64 {
        let is_told = self.is_dead || (!self.has_hook && self.stage == Stage::Told);
        if is_told && !self.is_done && !self.is_overdue() { self.usage().min(self.size) } else { 0 }
    }

    /// The hook is withdrawn. Returns whether the kill goes on.
    pub(crate) fn lose_hook(&mut self) -> bool {
        self.has_hook = false;
        self.unwatch();
        self.stage != Stage::Queued && !self.is_done
    }

    /// The victim's hook is about to be called.
    pub(crate) fn begin_call(&mut self, record: u64) {
        (self.stage, self.since, self.record) = (Stage::Asked, self.node.shared().nanos(), record);
        self.bypass = Some(self.node.bypass_stock());
        state::watch(self.node, Some(self.threshold));
    }

    /// The victim's hook answered that the work was told to stop.
    pub(crate) fn told(&mut self) {
        self.stage = if self.is_overdue() { Stage::Overdue { in_call: false } } else { Stage::Told };
    }

    /// Returns whether no other victim may be chosen until it ends (`victims` I2).
    pub(crate) fn is_awaited(&self) -> bool {
        !self.is_dead && !self.is_overdue()
    }

    /// Returns whether its work was told to stop, and has not in time.
    pub(crate) fn is_late(&self) -> bool {
        !self.is_dead && self.is_overdue()
    }

    /// Compares the kill with the clock and with its victim's usage. Returns whether it is over.
    pub(crate) fn update(&mut self, clock: Clock, records: &mut Records) -> bool {
        let is_late = !clock.has_patience(self.since);
        if self.stage == Stage::Queued {
            // The thread that chose it has been in another hook of the set for so long.
            return is_late;
        }
        self.is_dead |= self.usage() <= self.threshold;
        if self.is_dead && self.bypass.is_some() {
            state::watch(self.node, None);
        }
        let becomes_overdue = is_late && !self.is_overdue();
        let outcome = match self.stage {
            _ if becomes_overdue && !self.is_dead => {
                self.node.oom().count_overdue();
                Some(KillOutcome::Overdue)
            }
            Stage::Told if self.is_dead => Some(KillOutcome::Died),
            _ => becomes_overdue.then_some(KillOutcome::Died),
        };
        if becomes_overdue {
            self.stage = Stage::Overdue { in_call: self.in_call() };
        }
        records.note(self.record, self.is_dead, outcome);
        let frees_on = self.remaining() > 0 && (!self.has_hook || self.node.counter.is_offline());
        !self.in_call() && (self.is_dead && !frees_on || clock.is_given_up(self.since))
    }

    /// Threads that uncharge the group check it no more.
    fn unwatch(&mut self) {
        if self.bypass.take().is_some() {
            state::watch(self.node, None);
        }
    }
}

impl Drop for PendingKill {
    fn drop(&mut self) {
        self.unwatch();
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

    /// Returns whether less than the patience has passed.
    fn has_patience(self, since: u64) -> bool {
        self.now.saturating_sub(since) < self.patience
    }

    /// Returns whether the victim is treated as one that won't die.
    fn is_given_up(self, since: u64) -> bool {
        self.now.saturating_sub(since) >= self.patience.saturating_mul(PATIENCES_MOST)
    }
}
