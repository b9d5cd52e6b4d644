//! Party: a thread or a task that waits; and the wakers of tasks, which are called without a lock.

use std::task::Waker;

use memgroup_sync::thread::Thread;

use crate::base::panic;

/// The party that waits.
pub(crate) enum Party {
    Thread(Thread),
    Task(Waker),
}

impl Party {
    /// The party of a task that was told: its waker was taken.
    pub(crate) fn told() -> Party {
        Party::Task(Waker::noop().clone())
    }
}

/// How many wakers a thread calls at most after one operation.
const WAKERS_MOST: usize = 16;

/// Wakers that a thread calls when it holds no lock.
#[must_use = "the tasks wait for their wakers"]
pub(crate) struct Wakers {
    wakers: [Option<Waker>; WAKERS_MOST],
    count: usize,
}

impl Wakers {
    pub(crate) fn new() -> Wakers {
        Wakers { wakers: [const { None }; WAKERS_MOST], count: 0 }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count == WAKERS_MOST
    }

    /// Adds the waker of a task. The caller has seen that there is a place.
    pub(crate) fn push(&mut self, party: Party) {
        if let Party::Task(waker) = party {
            self.wakers[self.count] = Some(waker);
            self.count += 1;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Calls them. A panic of one keeps no other from being called.
    pub(crate) fn call(self) {
        for waker in self.wakers.into_iter().flatten() {
            panic::caught(|| waker.wake());
        }
    }
}
