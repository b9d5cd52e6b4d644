//! Duties: the work of reclaimers on queues.
//!
//! - I1. A queue is at most once among those that are due, at most once among those for later, and
//!   in at most one review. A list may name a queue that is no longer there, or not due any more.
//! - I2. A queue with a task is served: it is due, in a review or for later. A served queue holds
//!   its group.
//! - I3. A task that becomes the first of its queue makes that due, unless a reclaimer has tried
//!   to make room for it there, or found that it can make none.

use std::time::Instant;

use crate::base::mutation::{self, Mutation};
use crate::observe::wait::charges::{ChargeQueue, State};
use crate::tree::node::Node;

/// What reclaimers do for a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Service {
    Unserved,
    /// It is reviewed at once.
    Due,
    InReview,
    /// It is reviewed again later, or at once if another task becomes the first.
    Later,
    /// It is reviewed later, because the last review found that a reclaimer can make no room.
    InVain,
}

/// The next task of a reclaimer.
pub(crate) enum Duty {
    /// To review the queue of this group.
    Review(&'static Node),
    /// To let go of this group, at which no task waits.
    Release(&'static Node),
    /// Nothing before this instant.
    Later(Instant),
    Nothing,
}

/// The work of reclaimers.
impl ChargeQueue {
    /// No reclaimer is left: ends the waits of all tasks in queues.
    pub(crate) fn desert_tasks(&mut self) {
        if !mutation::active(Mutation::LastReclaimerLeavesTasks) {
            self.settle_all(State::Deserted, |entry| entry.is_task() && entry.is_in_queue());
        }
    }

    /// Has the queue reviewed at once, if its first wait is a task for which no reclaimer has made
    /// room yet.
    pub(crate) fn review_first(&mut self, at: &'static Node) {
        let Some(queue) = self.queues.get(&at.id()).filter(|queue| queue.tasks > 0) else { return };
        if !matches!(queue.service, Service::Unserved | Service::Later) {
            return;
        }
        let first = self.next(at, None).map(|(_, number, _)| self.entry(number));
        if first.is_some_and(|first| first.is_task() && !first.is_reviewed && first.state == State::Waiting) {
            self.make_due(at);
        }
    }

    /// Has a reclaimer look at once at the queue of a group that was removed, and let go of it.
    pub(crate) fn hurry(&mut self, at: &'static Node) {
        if self.queue_mut(at).is_some_and(|queue| matches!(queue.service, Service::Later | Service::InVain)) {
            self.make_due(at);
        }
    }

    fn make_due(&mut self, at: &'static Node) {
        let Some(queue) = self.queue_mut(at) else { return };
        if std::mem::replace(&mut queue.service, Service::Due) == Service::Unserved {
            // Until a reclaimer lets go of it: `Duty::Release`.
            at.pin_inner();
        }
        self.due.push_back(at.id());
        at.shared().waits().reclaimers.wake_one();
    }

    /// Returns the next task of a reclaimer. A queue is reviewed by one at a time.
    pub(crate) fn next_duty(&mut self, now: Instant) -> Duty {
        loop {
            let (id, is_due) = match (self.due.pop_front(), self.later.front()) {
                (Some(id), _) => (id, true),
                (None, Some(&(when, id))) if when <= now => {
                    self.later.pop_front();
                    (id, false)
                }
                (None, Some(&(when, _))) => return Duty::Later(when),
                (None, None) => return Duty::Nothing,
            };
            let Some(queue) = self.queues.get_mut(&id) else { continue };
            queue.is_later &= is_due;
            match queue.service {
                Service::Due if is_due => {}
                Service::Later | Service::InVain if !is_due => {}
                _ => continue,
            }
            queue.service = Service::InReview;
            let (at, offline) = (queue.at, queue.at.counter.is_offline());
            let is_idle = queue.tasks == 0 && (!queue.is_later || offline);
            if !(self.due.is_empty() && self.later.is_empty() && self.timed.is_empty()) {
                // This reclaimer may be in foreign code for long. Another one looks after the rest.
                at.shared().waits().reclaimers.wake_one();
            }
            return if is_idle { Duty::Release(at) } else { Duty::Review(at) };
        }
    }

    /// Notes that the queue of a group in review holds the mark of the group. Returns whether it
    /// did.
    pub(crate) fn set_marked(&mut self, at: &'static Node) -> bool {
        self.queue_mut(at).is_some_and(|queue| std::mem::replace(&mut queue.is_marked, true))
    }

    /// The review of a queue is over: it is reviewed again at `when`, or earlier if there is a
    /// reason, and a review is not in vain.
    pub(crate) fn end_review_of(&mut self, at: &'static Node, when: Instant, is_in_vain: bool) {
        let Some(queue) = self.queue_mut(at) else { return };
        queue.service = if is_in_vain { Service::InVain } else { Service::Later };
        if !std::mem::replace(&mut queue.is_later, true) {
            self.later.push_back((when, at.id()));
        }
        self.review_first(at);
    }

    /// The reclaimer lets go of a group. If tasks have come and there is a reclaimer, it does not.
    /// Returns whether the queue had the group marked.
    pub(crate) fn end_service(&mut self, at: &'static Node) -> Option<bool> {
        let has_reclaimer = at.shared().waits().reclaimers.is_any();
        let queue = self.queue_mut(at)?;
        if queue.tasks > 0 && has_reclaimer {
            self.make_due(at);
            return None;
        }
        queue.service = Service::Unserved;
        let was_marked = std::mem::replace(&mut queue.is_marked, false);
        self.drop_if_idle(at);
        Some(was_marked)
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests;
