//! Duties: the work of reclaimers, and the reclaimers that there are.
//!
//! - I1. A queue is at most once among those that are due, at most once among those for later, and in at most one review.
//! - I2. A queue with a task is served: it is due, in a review or for later. A served queue holds its group.
//! - I3. A task that becomes the first of its queue makes that due, unless a reclaimer has tried to make room for it there, or found that it can
//!   make none.

use std::time::Instant;

use memgroup_sync::Mutex;
use memgroup_sync::thread::Thread;

use crate::base::mutation::{self, Mutation};
use crate::observe::wait::charges::places::take_roomier;
use crate::observe::wait::charges::{ChargeQueue, State};
use crate::observe::wait::order;

/// The next task of a reclaimer.
pub(crate) enum Duty {
    /// To review the queue with this number.
    Review(u32),
    /// To let go of the group of a queue that no task waits in.
    Release(u32),
    /// Nothing before this instant.
    Later(Instant),
    Nothing,
}

/// A reclaimer that is to be notified.
pub(super) struct Registered {
    number: u64,
    /// Its thread, since it first slept.
    thread: Option<Thread>,
    /// It sleeps, and was not notified. One that was woken by its time says so itself: else it would be notified in a shrinker's call.
    is_asleep: bool,
}

/// The work of reclaimers.
impl ChargeQueue {
    /// Adds a reclaimer, and returns its number.
    pub(crate) fn register(lock: &Mutex<ChargeQueue>) -> u64 {
        let mut spare = Vec::new();
        loop {
            let mut queues = lock.lock();
            take_roomier!(queues.reclaimers, spare);
            if queues.reclaimers.len() < queues.reclaimers.capacity() {
                let number = queues.next;
                queues.next += 1;
                queues.reclaimers.push(Registered { number, thread: None, is_asleep: false });
                return number;
            }
            let most = (2 * queues.reclaimers.len()).max(2);
            drop(queues);
            spare = Vec::with_capacity(most);
        }
    }

    /// Ends a reclaimer. Returns whether it was the last, and there is one no more: then the tasks in queues were told.
    pub(crate) fn unregister(&mut self, number: u64) -> bool {
        let Some(index) = self.reclaimers.iter().position(|one| one.number == number) else { return false };
        let one = self.reclaimers.swap_remove(index);
        if let Some(thread) = one.thread.filter(|_| one.is_asleep) {
            thread.unpark();
        }
        if !self.reclaimers.is_empty() {
            // It may have been told to do something.
            self.notify_reclaimer();
            return false;
        }
        self.each(|queues, place| {
            let entry = queues.entry(place);
            let is_told = !mutation::active(Mutation::LastReclaimerLeavesTasks);
            if is_told && entry.is_task() && entry.is_in_queue() {
                queues.settle(place, State::Deserted);
            }
        });
        true
    }

    /// Ends all reclaimers and all waits, when the hierarchy goes.
    pub(crate) fn end_all(&mut self) {
        while let Some(last) = self.reclaimers.last() {
            self.unregister(last.number);
        }
        self.each(|queues, place| {
            if queues.entry(place).state != State::Handed {
                queues.settle(place, State::Woken);
            }
        });
    }

    /// The reclaimer is awake. Whether it is to go on.
    pub(crate) fn begin_round(&mut self, number: u64) -> bool {
        let own = self.reclaimers.iter_mut().find(|one| one.number == number);
        own.map(|own| own.is_asleep = false).is_some()
    }

    pub(crate) fn has_reclaimer(&self) -> bool {
        !self.reclaimers.is_empty()
    }

    pub(super) fn notify_reclaimer(&mut self) {
        let Some(one) = self.reclaimers.iter_mut().find(|one| one.is_asleep) else { return };
        one.is_asleep = false;
        if let Some(thread) = &one.thread {
            thread.unpark();
        }
    }

    /// The reclaimer parks when it has let go of the lock.
    pub(crate) fn sleep(&mut self, number: u64, thread: Thread) -> Option<Thread> {
        let own = self.reclaimers.iter_mut().find(|one| one.number == number)?;
        own.is_asleep = true;
        own.thread.replace(thread)
    }

    /// Has the queue reviewed at once, if its first wait is a task for which no reclaimer has made room yet.
    pub(crate) fn review_first(&mut self, number: u32) {
        let queue = self.queue(number);
        if queue.tasks == 0 || queue.is_due || queue.is_in_review || queue.is_in_vain {
            return;
        }
        let first = order::first(self, queue.root).map(|first| self.entry(first));
        if first.is_some_and(|first| first.is_task() && !first.is_reviewed && first.state == State::Waiting) {
            self.make_due(number);
        }
    }

    /// Has a reclaimer look at the queue at once.
    pub(crate) fn make_due(&mut self, number: u32) {
        let queue = self.queue_mut(number);
        if queue.is_detached || queue.is_due || queue.is_in_review {
            return;
        }
        queue.is_due = true;
        if !std::mem::replace(&mut queue.is_served, true) {
            // Until a reclaimer lets go of it: `Duty::Release`.
            queue.at.pin_inner();
        }
        self.due.push_back(number);
        self.notify_reclaimer();
    }

    /// The next task of a reclaimer. A queue is reviewed by one at a time.
    pub(crate) fn next_duty(&mut self, now: Instant) -> Duty {
        loop {
            let number = match (self.due.pop_front(), self.later.front()) {
                (Some(number), _) => {
                    self.queue_mut(number).is_due = false;
                    number
                }
                (None, Some(&(when, number))) if when <= now => {
                    self.later.pop_front();
                    self.queue_mut(number).is_later = false;
                    number
                }
                (None, Some(&(when, _))) => return Duty::Later(when),
                (None, None) => return Duty::Nothing,
            };
            let queue = self.queue(number);
            if queue.is_detached {
                self.detach_if_idle(number);
            } else if queue.is_served && !queue.is_due && !queue.is_in_review {
                let is_idle = queue.tasks == 0 && (!queue.is_later || queue.at.counter.is_offline());
                self.queue_mut(number).is_in_review = true;
                if !self.due.is_empty() || !self.later.is_empty() || self.has_timed() {
                    // This reclaimer may be in foreign code for long. Another one is to look when the rest is due.
                    self.notify_reclaimer();
                }
                return if is_idle { Duty::Release(number) } else { Duty::Review(number) };
            }
        }
    }

    /// The review of a queue is over: it is reviewed again at `when`, or earlier if there is a reason, and a review is not in vain.
    pub(crate) fn end_review_of(&mut self, number: u32, when: Instant, is_in_vain: bool) {
        let queue = self.queue_mut(number);
        (queue.is_in_review, queue.is_in_vain) = (false, is_in_vain);
        if !std::mem::replace(&mut queue.is_later, true) {
            self.later.push_back((when, number));
        }
        self.review_first(number);
    }

    /// The reclaimer lets go of the group of a queue. If tasks have come meanwhile, it does not. Returns whether the queue had the group marked.
    pub(crate) fn end_service(&mut self, number: u32) -> Option<bool> {
        let has_reclaimer = self.has_reclaimer();
        let queue = self.queue_mut(number);
        queue.is_in_review = false;
        if queue.tasks > 0 && has_reclaimer {
            self.make_due(number);
            return None;
        }
        (queue.is_served, queue.is_in_vain) = (false, false);
        let was_marked = std::mem::replace(&mut queue.is_marked, false);
        self.detach_if_idle(number);
        Some(was_marked)
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests;
