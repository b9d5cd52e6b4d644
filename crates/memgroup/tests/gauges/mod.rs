//! Subsystems of as many gauges as a test wants, and reads of one group.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use memgroup::{Freshness, Group, Hierarchy, Reach, Stat, StatKey, Statistics, Subsystem};

/// The subsystem `gauges` of so many levels, the same one for each call with this number.
pub(crate) fn gauges(count: usize) -> Subsystem {
    static MADE: Mutex<BTreeMap<usize, &'static [Stat]>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let make = || -> &'static [Stat] {
        let names = (0..count).map(|number| &*format!("gauge{number}").leak());
        names.map(Stat::gauge).collect::<Vec<_>>().leak()
    };
    Subsystem { name: "gauges", stats: made.entry(count).or_insert_with(make) }
}

/// Registers so many levels, or finds them registered.
pub(crate) fn register(hierarchy: &Hierarchy, count: usize) -> Statistics {
    hierarchy.register(gauges(count)).expect("there is a place for one more subsystem")
}

/// The key of the level with this position.
pub(crate) fn nth(gauges: &Statistics, gauge: usize) -> StatKey {
    gauges.keys().nth(gauge).expect("there is such a level")
}

/// The group's own value, with all that was added before.
pub(crate) fn own(gauges: &Statistics, group: &Group, gauge: usize) -> i64 {
    gauges.get(group, nth(gauges, gauge), Reach::Local, Freshness::Fresh)
}
