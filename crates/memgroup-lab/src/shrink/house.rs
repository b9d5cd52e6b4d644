//! Groups below a parent with shrinkers that answer at once, for walks of the real engine.
//!
//! - I1. A shrinker that cannot tell ([`Count::Unknown`]) keeps its mark in the largest class, so each walk finds it again: at each of the
//!   [`PRIORITIES`] of a reclaim that finds nothing. That is checked with a house of callbacks that count.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::{
    Ask, Config, Count, Group, GroupShrinker, Hierarchy, Reclaimed, Registration, Scan, Seat, Shrinker,
    ShrinkerConfig, SlotSource,
};

use crate::Error;
use crate::harness::tree::child;
use crate::harness::window::Work;

/// Priorities of one reclaim, from the laziest to the most desperate.
pub(super) const PRIORITIES: u64 = 13;

/// How many groups with how many shrinkers each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) groups: usize,
    pub(super) each: usize,
    /// All are seats of a single shrinker.
    pub(super) is_one_shrinker: bool,
}

impl Shape {
    pub(super) fn shrinkers(self) -> u64 {
        (self.groups * self.each) as u64
    }
}

/// A shrinker that cannot tell.
pub(super) struct Idle;

impl Shrinker for Idle {
    fn count(&self, _token: u64) -> Count {
        Count::Unknown
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        Scan::Stopped { bytes: 0 }
    }
}

/// The same, and counts the calls.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicU64>);

impl Shrinker for Counting {
    fn count(&self, _token: u64) -> Count {
        // ORDERING: Relaxed; a number by itself.
        self.0.fetch_add(1, Ordering::Relaxed);
        Count::Unknown
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        Scan::Stopped { bytes: 0 }
    }
}

/// A parent, and the groups below it. Seats go before their shrinkers, and those before the groups.
pub(super) struct House {
    _seats: Vec<Seat>,
    _shrinkers: Vec<GroupShrinker>,
    _shared: Option<Registration>,
    _groups: Vec<Group>,
    pub(super) parent: Group,
    _hierarchy: Hierarchy,
    /// Shrinkers that one reclaim visits, each as often as it does.
    visits: u64,
}

impl House {
    /// Builds a house of [`Idle`] shrinkers, having counted the visits of a reclaim in one that is the same otherwise.
    pub(super) fn build(slots: SlotSource, shape: Shape) -> Result<House, Error> {
        let counting = Counting::default();
        let counted = House::of(slots, shape, || counting.clone())?;
        expect_nothing(counted.parent.reclaim(u64::MAX, None))?;
        // ORDERING: Relaxed; the calls were made on this thread.
        let visits = counting.0.load(Ordering::Relaxed);
        if visits != PRIORITIES * shape.shrinkers() {
            return Err(Error::Wrong(format!(
                "a reclaim that finds nothing visited {visits} of {} shrinkers, each was to be visited {PRIORITIES} times",
                shape.shrinkers()
            )));
        }
        Ok(House { visits, ..House::of(slots, shape, || Idle)? })
    }

    fn of<S: Shrinker>(slots: SlotSource, shape: Shape, make: impl Fn() -> S) -> Result<House, Error> {
        let config = Config::with_slots(slots).groups_max(shape.groups as u32 + 3);
        let hierarchy = Hierarchy::new(config).map_err(|error| Error::setup("the hierarchy", error))?;
        let parent = child(&hierarchy.root(), "parent")?;
        let groups =
            (0..shape.groups).map(|at| child(&parent, &format!("g{at}"))).collect::<Result<Vec<_>, _>>()?;
        let refused = |error| Error::setup("a shrinker", error);
        let config = || ShrinkerConfig::new("idle");
        let (mut seats, mut shrinkers, mut shared) = (Vec::new(), Vec::new(), None);
        if shape.is_one_shrinker {
            let registration = hierarchy.add_shrinker(config(), make()).map_err(refused)?;
            for group in &groups {
                let more = (0..shape.each).map(|_| registration.seat(group, 0));
                seats.extend(more.collect::<Result<Vec<_>, _>>().map_err(refused)?);
            }
            shared = Some(registration);
        } else {
            for group in &groups {
                let more = (0..shape.each).map(|_| group.add_shrinker(config(), make()));
                shrinkers.extend(more.collect::<Result<Vec<_>, _>>().map_err(refused)?);
            }
        }
        seats.iter().for_each(Seat::mark);
        shrinkers.iter().for_each(GroupShrinker::mark);
        Ok(House {
            _seats: seats,
            _shrinkers: shrinkers,
            _shared: shared,
            _groups: groups,
            parent,
            _hierarchy: hierarchy,
            visits: 0,
        })
    }
}

/// Shrinkers that cannot tell are asked for nothing.
fn expect_nothing(reclaimed: Reclaimed) -> Result<(), Error> {
    if (reclaimed.bytes, reclaimed.scans, reclaimed.busy) == (0, 0, 0) {
        return Ok(());
    }
    Err(Error::Wrong(format!(
        "shrinkers that could not tell what they hold were asked for it: {reclaimed:?}"
    )))
}

impl Work for House {
    fn batch(&self, _: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
        let mut done = 0;
        while done < count {
            expect_nothing(self.parent.reclaim(u64::MAX, None))?;
            done += self.visits;
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reclaim_that_finds_nothing_visits_each_shrinker_at_each_priority() {
        let slots = SlotSource::virtual_slots(2).unwrap();
        for is_one_shrinker in [false, true] {
            let shape = Shape { groups: 5, each: 3, is_one_shrinker };
            let house = House::build(slots, shape).unwrap();
            assert_eq!(house.batch(0, &mut 0, 1).unwrap(), 13 * 15);
        }
    }
}
