//! Control: what a group has besides usage and `max`. None of it is touched by a charge that the stock serves.

use crate::event;
use crate::oom;

/// See the module.
pub(crate) struct Control {
    pub(crate) events: event::Counts,
    pub(crate) oom: oom::Candidacy,
}

impl Control {
    pub(crate) fn new() -> Control {
        Control { events: event::Counts::new(), oom: oom::Candidacy::new() }
    }

    /// For a new group in the place; the caller holds the tree lock.
    pub(crate) fn reset(&self) {
        self.events.reset();
        self.oom.reset();
    }
}
