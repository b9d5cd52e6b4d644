//! Control: what a group has besides usage and `max`. None of it is touched by a charge that the stock serves.

use crate::event;
use crate::wait;

/// See the module.
pub(crate) struct Control {
    pub(crate) events: event::Counts,
    pub(crate) waiting: wait::Waiting,
}

impl Control {
    pub(crate) fn new() -> Control {
        Control { events: event::Counts::new(), waiting: wait::Waiting::new() }
    }

    /// For a new group in the place; the caller holds the tree lock.
    pub(crate) fn reset(&self) {
        self.events.reset();
        self.waiting.reset();
    }
}
