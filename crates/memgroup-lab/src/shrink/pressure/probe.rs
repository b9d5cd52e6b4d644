//! Tells a thread whether its charge had shrinkers make room: a shrinker that holds nothing, and sees each walk come by.
//!
//! - I1. It cannot tell what it holds, so it keeps its mark in the largest class: a walk from its group calls it before any cache, and never asks it
//!   for anything.

use std::cell::Cell;

use memgroup::{Ask, Count, Scan, Shrinker};

pub(super) struct Probe;

std::thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// Times that walks of this thread came by.
pub(super) fn calls() -> u64 {
    CALLS.get()
}

impl Shrinker for Probe {
    fn count(&self, _token: u64) -> Count {
        CALLS.set(CALLS.get() + 1);
        Count::Unknown
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        Scan::Stopped { bytes: 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use memgroup::{Config, Hierarchy, ShrinkerConfig, SlotSource};

    use super::super::super::cache::{PAGE, Pages};
    use super::*;

    #[test]
    fn a_charge_that_makes_room_comes_by_and_no_other_does() {
        let slots = SlotSource::virtual_slots(2).unwrap();
        let hierarchy = Hierarchy::new(Config::with_slots(slots)).unwrap();
        let group = hierarchy.create("/group").unwrap();
        group.set_max(64 * PAGE).unwrap();
        let pages = Arc::new(Pages::default());
        let registered = group.add_shrinker(ShrinkerConfig::new("pages"), Arc::clone(&pages)).unwrap();
        let probe = group.add_shrinker(ShrinkerConfig::new("probe"), Probe).unwrap();
        probe.mark();
        for _ in 0..64 {
            if pages.push(group.try_charge(PAGE).unwrap()) {
                registered.mark();
            }
        }
        assert_eq!(calls(), 0, "there was room");
        let charge = group.try_charge(PAGE).unwrap();
        assert!(calls() > 0, "room was made");
        drop(charge);
        pages.clear();
    }
}
