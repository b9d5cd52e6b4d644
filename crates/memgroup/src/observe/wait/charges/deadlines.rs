//! Deadlines: the tasks that wait until an instant, in its order. A reclaimer sleeps until the
//! first, and ends the waits of those that are late.

use std::time::{Duration, Instant};

use crate::base::deadline::Deadline;
use crate::base::mutation::{self, Mutation};
use crate::observe::wait::charges::{ChargeQueue, State};

/// How many waits are ended with one hold of the lock.
const LATE_MOST: usize = 16;

/// Deadlines of tasks.
impl ChargeQueue {
    /// Has a reclaimer end the wait at `deadline`, if it has one.
    pub(crate) fn set_deadline(&mut self, number: u64, until: Option<Instant>) {
        let deadline = self.nanos(Deadline::from(until).instant_or_far());
        self.take_timed(number);
        if until.is_some() {
            self.timed.insert((deadline, number));
        }
        let entry = self.entry_mut(number);
        (entry.deadline, entry.is_timed) = (deadline, until.is_some());
        let shared = entry.node.shared();
        if self.timed.first() == Some(&(deadline, number)) {
            // It must sleep for a shorter time.
            shared.waits().reclaimers.wake_one();
        }
    }

    pub(super) fn take_timed(&mut self, number: u64) {
        let entry = self.entry_mut(number);
        if std::mem::replace(&mut entry.is_timed, false) {
            let deadline = entry.deadline;
            self.timed.remove(&(deadline, number));
        }
    }

    /// Returns the first deadline.
    pub(crate) fn first_deadline(&self) -> Option<Instant> {
        self.timed.first().map(|&(nanos, _)| self.began + Duration::from_nanos(nanos))
    }

    /// Ends the waits with a deadline that has passed, or some of them. A charge that was handed
    /// over stays.
    pub(crate) fn end_late(&mut self, now: Instant) {
        let now = self.nanos(now);
        for _ in 0..LATE_MOST {
            let Some(&(_, number)) = self.timed.first().filter(|&&(deadline, _)| deadline <= now) else {
                return;
            };
            self.take_timed(number);
            if self.entry(number).is_in_queue() || mutation::active(Mutation::LateTaskLosesItsCharge) {
                self.settle(number, State::Late);
            }
        }
    }
}
