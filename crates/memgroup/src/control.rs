//! Control: what a group has besides usage and `max`. None of it is touched by a charge that the stock serves.

use memgroup_sync::CachePadded;

use crate::{deny, event, high, label, oom, peak, pressure, protect, wait};

/// See the module.
pub(crate) struct Control {
    pub(crate) events: event::Counts,
    pub(crate) denial: deny::Odds,
    pub(crate) high: high::Owing,
    pub(crate) waiting: wait::Waiting,
    pub(crate) used: protect::Used,
    pub(crate) oom: oom::Candidacy,
    /// Those that are left hold the group, so a new one in the place has none.
    pub(crate) peak_readers: peak::Readers,
    pub(crate) labels: label::Labels,
    // In lines of its own: its lock is taken whenever a stall begins or ends below.
    pub(crate) pressure: CachePadded<pressure::Meter>,
}

impl Control {
    pub(crate) fn new() -> Control {
        Control {
            events: event::Counts::new(),
            denial: deny::Odds::new(),
            high: high::Owing::new(),
            waiting: wait::Waiting::new(),
            used: protect::Used::new(),
            oom: oom::Candidacy::new(),
            peak_readers: peak::Readers::new(),
            labels: label::Labels::new(),
            pressure: CachePadded::new(pressure::Meter::new()),
        }
    }

    /// For a new group in the place; the caller holds the tree lock.
    pub(crate) fn reset(&self) {
        self.events.reset();
        self.high.reset();
        self.waiting.reset();
        self.used.reset();
        self.oom.reset();
        self.labels.reset();
        self.pressure.reset();
    }
}
