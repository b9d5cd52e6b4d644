//! Party: a thread or a task that waits; and the wakers of tasks, which are called without a lock.
//!
//! - I1. A thread is unparked under the lock of its wait, because that runs no user's code. The
//!   waker of a task is moved to a queue there, and is called, cloned and dropped without a lock.
//! - I2. The queue has memory for the waker of each task that may be notified, so that a notice
//!   allocates nothing: it is reserved when the waker comes.

use std::array;
use std::collections::VecDeque;
use std::task::Waker;

use memgroup_sync::thread::Thread;

use crate::base::panic;

/// The party that waits.
pub(crate) enum Party {
    Thread(Thread),
    Task(Waker),
}

impl Party {
    /// A task without a waker: it was notified, or is being polled.
    pub(crate) fn awake() -> Party {
        Party::Task(Waker::noop().clone())
    }

    pub(crate) fn is_task(&self) -> bool {
        matches!(self, Party::Task(_))
    }

    /// Returns whether it is a task that `waker` wakes.
    pub(crate) fn is_woken_by(&self, waker: &Waker) -> bool {
        matches!(self, Party::Task(own) if own.will_wake(waker))
    }
}

/// How many wakers a thread calls at most after one operation.
const WAKERS_MOST: usize = 16;

/// Wakers that a thread calls when it holds no lock.
#[must_use = "the tasks wait for their wakers"]
pub(crate) struct Wakers([Option<Waker>; WAKERS_MOST]);

impl Wakers {
    pub(crate) fn is_empty(&self) -> bool {
        self.0[0].is_none()
    }

    /// Calls them. A panic of one keeps no other from being called.
    pub(crate) fn call(self) {
        for waker in self.0.into_iter().flatten() {
            panic::caught(|| waker.wake());
        }
    }
}

/// The wakers of tasks that were notified.
pub(crate) struct WakeQueue(VecDeque<Waker>);

impl WakeQueue {
    pub(crate) const fn new() -> WakeQueue {
        WakeQueue(VecDeque::new())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Makes sure that there is memory for the wakers of all `tasks` (I2).
    pub(crate) fn reserve(&mut self, tasks: usize) {
        self.0.reserve(tasks);
    }

    /// Wakes a thread, or takes the waker of a task.
    pub(crate) fn notify(&mut self, party: &mut Party) {
        match party {
            Party::Thread(thread) => thread.unpark(),
            // It was notified already, or has a waker that does nothing.
            Party::Task(waker) if waker.will_wake(Waker::noop()) => {}
            Party::Task(waker) => self.0.push_back(std::mem::replace(waker, Waker::noop().clone())),
        }
    }

    /// Takes as many wakers as a thread calls at a time.
    pub(crate) fn take(&mut self) -> Wakers {
        Wakers(array::from_fn(|_| self.0.pop_front()))
    }
}
