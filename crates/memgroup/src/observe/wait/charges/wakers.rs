//! Tasks that were settled and are untold: their wakers are called without a lock.

use memgroup_sync::{Mutex, MutexGuard};

use crate::observe::wait::charges::{ChargeQueue, Party};
use crate::observe::wait::order::NONE;
use crate::observe::wait::party::Wakers;

/// Tasks that are untold.
impl ChargeQueue {
    /// Whether there are any.
    pub(crate) fn has_untold(&self) -> bool {
        self.untold.0 != NONE
    }

    /// Takes the wakers of tasks that are untold. Where there are more, a reclaimer is to take them.
    pub(crate) fn take_wakers(&mut self) -> Wakers {
        let mut wakers = Wakers::new();
        while self.has_untold() && !wakers.is_full() {
            let place = self.untold.0;
            self.take_untold(place);
            wakers.push(std::mem::replace(&mut self.entry_mut(place).party, Party::told()));
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
        if self.has_untold() {
            self.notify_reclaimer();
        }
    }
}
