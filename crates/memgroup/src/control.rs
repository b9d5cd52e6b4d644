//! Control: what a group has besides usage and `max`. None of it is touched by a charge that the stock serves.

use crate::event;
use crate::label;
use crate::peak;

/// See the module.
pub(crate) struct Control {
    pub(crate) events: event::Counts,
    /// Those that are left hold the group, so a new one in the place has none.
    pub(crate) peak_readers: peak::Readers,
    pub(crate) labels: label::Labels,
}

impl Control {
    pub(crate) fn new() -> Control {
        Control {
            labels: label::Labels::new(),
            events: event::Counts::new(),
            peak_readers: peak::Readers::new(),
        }
    }

    /// For a new group in the place; the caller holds the tree lock.
    pub(crate) fn reset(&self) {
        self.events.reset();
        self.labels.reset();
    }
}
