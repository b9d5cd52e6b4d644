//! Deadlines: the tasks that wait until an instant, in its order. A reclaimer sleeps until the first, and ends the waits of those that are late.

use std::time::Instant;

use crate::base::deadline::Deadline;
use crate::base::mutation::{self, Mutation};
use crate::observe::wait::charges::places::CHUNK;
use crate::observe::wait::charges::{ChargeQueue, State};
use crate::observe::wait::order::{self, Links, NONE, Places};

/// How many waits are ended with one hold of the lock.
const LATE_MOST: usize = 16;

/// The links of the order of deadlines.
struct Times<'q>(&'q mut ChargeQueue);

impl Places for Times<'_> {
    fn links(&self, place: u32) -> &Links {
        &self.0.chunks[place as usize / CHUNK].times[place as usize % CHUNK]
    }

    fn links_mut(&mut self, place: u32) -> &mut Links {
        &mut self.0.chunks[place as usize / CHUNK].times[place as usize % CHUNK]
    }
}

/// Deadlines of tasks.
impl ChargeQueue {
    /// Has a reclaimer end the wait at `deadline`, if it has one.
    pub(crate) fn set_deadline(&mut self, place: u32, until: Option<Instant>) {
        self.take_timed(place);
        let deadline = self.nanos(Deadline::from(until).instant_or_far());
        let entry = self.entry_mut(place);
        (entry.deadline, entry.is_timed) = (deadline, until.is_some());
        if until.is_none() {
            return;
        }
        let (root, mut times) = (self.timed, Times(self));
        *times.links_mut(place) = Links::new(deadline, 0);
        let root = order::insert(&mut times, root, place);
        let is_first = order::first(&times, root) == Some(place);
        self.timed = root;
        if is_first {
            // It is to sleep for a shorter time.
            self.notify_reclaimer();
        }
    }

    pub(super) fn take_timed(&mut self, place: u32) {
        if std::mem::replace(&mut self.entry_mut(place).is_timed, false) {
            let root = self.timed;
            self.timed = order::remove(&mut Times(self), root, place);
        }
    }

    pub(super) fn has_timed(&self) -> bool {
        self.timed != NONE
    }

    /// The first deadline.
    pub(crate) fn first_deadline(&mut self) -> Option<Instant> {
        let root = self.timed;
        let first = order::first(&Times(self), root)?;
        Some(self.deadline(first))
    }

    /// Ends the waits with a deadline that has passed, or some of them. A charge that was handed over stays.
    pub(crate) fn end_late(&mut self, now: Instant) {
        for _ in 0..LATE_MOST {
            if self.first_deadline().is_none_or(|first| first > now) {
                return;
            }
            let root = self.timed;
            let Some(place) = order::first(&Times(self), root) else { return };
            self.take_timed(place);
            if self.entry(place).is_in_queue() || mutation::active(Mutation::LateTaskLosesItsCharge) {
                self.settle(place, State::Late);
            }
        }
    }
}
