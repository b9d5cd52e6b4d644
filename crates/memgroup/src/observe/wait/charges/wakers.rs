//! Wakers of tasks that were settled, and that are called without a lock.

use std::task::Waker;

use memgroup_sync::{Mutex, MutexGuard};

use crate::base::panic;
use crate::observe::wait::charges::{ChargeQueue, Party};
use crate::observe::wait::order::NONE;

/// How many wakers a thread calls at most after one operation.
const WAKERS_MOST: usize = 16;

/// Wakers that a thread calls when it holds no lock.
#[must_use = "the tasks wait for their wakers"]
pub(crate) struct Wakers {
    wakers: [Option<Waker>; WAKERS_MOST],
    count: usize,
}

impl Wakers {
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

/// Tasks that are untold.
impl ChargeQueue {
    /// Takes the wakers of tasks that are untold. Where there are more, a reclaimer is to take them.
    pub(crate) fn take_wakers(&mut self) -> Wakers {
        let mut wakers = Wakers { wakers: [const { None }; WAKERS_MOST], count: 0 };
        while self.untold.0 != NONE && wakers.count < WAKERS_MOST {
            let place = self.untold.0;
            self.take_untold(place);
            let party = std::mem::replace(&mut self.entry_mut(place).party, Party::told());
            if let Party::Task(waker) = party {
                wakers.wakers[wakers.count] = Some(waker);
                wakers.count += 1;
            }
        }
        self.leave_untold();
        wakers
    }

    /// Tells all tasks that are untold: those of a call which may end many waits. The caller holds no other lock.
    pub(crate) fn tell_all<'a>(mut queues: MutexGuard<'a, ChargeQueue>, lock: &'a Mutex<ChargeQueue>) {
        loop {
            let wakers = queues.take_wakers();
            drop(queues);
            if wakers.is_empty() {
                return;
            }
            wakers.call();
            queues = lock.lock();
        }
    }

    /// Has a reclaimer tell the tasks that are untold: the caller may call no user code.
    pub(crate) fn leave_untold(&mut self) {
        if self.untold.0 != NONE {
            self.notify_reclaimer();
        }
    }
}
