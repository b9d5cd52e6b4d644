//! Control: what a group has besides usage and `max`. None of it is touched by a charge that the stock serves.

use memgroup_sync::CachePadded;

use crate::event;
use crate::pressure;

/// See the module.
pub(crate) struct Control {
    pub(crate) events: event::Counts,
    // In lines of its own: its lock is taken whenever a stall begins or ends below.
    pub(crate) pressure: CachePadded<pressure::Meter>,
}

impl Control {
    pub(crate) fn new() -> Control {
        Control { events: event::Counts::new(), pressure: CachePadded::new(pressure::Meter::new()) }
    }

    /// For a new group in the place; the caller holds the tree lock.
    pub(crate) fn reset(&self) {
        self.events.reset();
        self.pressure.reset();
    }
}
