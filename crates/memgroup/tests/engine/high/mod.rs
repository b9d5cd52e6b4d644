//! High: a soft limit is held by reclaim, then by a delay, and never by a refusal.

mod debts;
mod hostile;
mod load;
mod oracles;
mod throttle;

use std::time::{Duration, Instant};

use memgroup::{Charge, Config, Group, Hierarchy, SlotSource};

use super::shrink::cache;

const MIB: u64 = 1 << 20;

/// A hierarchy of so many virtual slots, and a group in it.
fn group(slots: usize) -> (Hierarchy, Group) {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(slots).unwrap())).unwrap();
    let group = hierarchy.create("/etl").unwrap();
    (hierarchy, group)
}

/// A group that is above its `high` of 1,000 MiB by so many MiB of pinned bytes. It owes nothing,
/// because they were charged before the limit was set.
fn above(mib: u64) -> (Hierarchy, Group, Charge) {
    let (hierarchy, group) = group(2);
    let pinned = group.try_charge((1000 + mib) * MIB).unwrap();
    group.set_high(1000 * MIB).unwrap();
    assert_eq!(group.owed(), 0);
    (hierarchy, group, pinned)
}

/// Waits for a state that must come. A state that does not come within a minute never will.
fn until(state: &str, mut is_there: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_there() {
        assert!(began.elapsed() < Duration::from_secs(60), "for a minute it is not so that {state}");
        std::thread::yield_now();
    }
}
