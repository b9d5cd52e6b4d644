//! The cost of a visit that ends in no callback: of a cache that, by its last answer, would be asked for nothing yet.
//!
//! - I1. Each reclaim passes each of the caches by at the eleven priorities from the first to the one at which another, small and cheap to have
//!   again, gives the wanted bytes. That is checked: no callback is called after the first reclaim, and the cheap cache gives each time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use memgroup::{
    Ask, Charge, Config, Count, Group, GroupShrinker, Hierarchy, Scan, Shrinker, ShrinkerConfig, SlotSource,
};

use crate::harness::cache::{PAGE, counting};
use crate::harness::prelude::*;

/// Priorities before the last two, at which everything is counted.
const PASSED: u64 = 11;
/// The size that each cache tells: among the largest, so that a walk comes by at each priority.
const HELD_BYTES: u64 = 64 << 20;
const SHRINKERS: usize = 1_000;

/// A page for each thread that asks.
#[derive(Default)]
struct Cheap(Mutex<Vec<Charge>>);

impl Shrinker for Cheap {
    fn count(&self, _token: u64) -> Count {
        Count::of(PAGE, 1)
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        Scan::Freed { bytes: lock(&self.0).pop().map_or(0, |page| page.bytes()) }
    }
}

/// Parents, one for each thread.
struct Parents {
    parents: Vec<Parent>,
    shrinkers: usize,
    /// Callbacks of expensive caches.
    calls: Arc<AtomicU64>,
    _hierarchy: Hierarchy,
}

/// A group with a group of expensive caches and one with a cheap cache below.
struct Parent {
    _shrinkers: Vec<GroupShrinker>,
    pages: Arc<Cheap>,
    _held: Charge,
    cheap: Group,
    parent: Group,
}

impl Parents {
    fn build(slots: SlotSource, shrinkers: usize, threads: usize) -> Result<Parents> {
        let (hierarchy, calls) = (hierarchy(Config::with_slots(slots))?, Arc::<AtomicU64>::default());
        let parents = (0..threads).map(|thread| {
            let parent = child(&hierarchy.root(), &format!("parent{thread}"))?;
            Parent::build(parent, shrinkers, &calls)
        });
        let parents = parents.collect::<Result<Vec<_>>>()?;
        let parents = Parents { parents, shrinkers, calls, _hierarchy: hierarchy };
        parents.parents.iter().try_for_each(Parent::reclaim)?;
        parents.check()?;
        Ok(parents)
    }

    /// Each was counted once, when its size was unknown.
    fn check(&self) -> Result<()> {
        // ORDERING: Relaxed; a number by itself.
        let calls = self.calls.load(Ordering::Relaxed);
        expect("calls of caches that are counted once", calls, (self.parents.len() * self.shrinkers) as u64)
    }

    fn pass_by(&self, thread: usize, visits: u64) -> Result<u64> {
        let (parent, mut done) = (&self.parents[thread % self.parents.len()], 0);
        while done < visits {
            parent.reclaim()?;
            done += self.shrinkers as u64 * PASSED;
        }
        self.check()?;
        Ok(done)
    }
}

impl Parent {
    fn build(parent: Group, shrinkers: usize, calls: &Arc<AtomicU64>) -> Result<Parent> {
        let (expensive, cheap) = (child(&parent, "expensive")?, child(&parent, "cheap")?);
        let held = expensive.try_charge(HELD_BYTES).set_up("a charge")?;
        let config = || ShrinkerConfig::new("expensive").cost(u32::MAX);
        // Each holds plenty that is expensive to have again: nothing of it is asked for before the last priorities.
        let answer = || counting(calls, Count::of(HELD_BYTES, 1));
        let made = (0..shrinkers).map(|_| expensive.add_shrinker(config(), answer()));
        let mut registered = made.collect::<Result<Vec<_>, _>>().set_up("a shrinker")?;
        let pages = Arc::new(Cheap::default());
        let config = ShrinkerConfig::new("cheap").cost(1);
        registered.push(cheap.add_shrinker(config, Arc::clone(&pages)).set_up("a shrinker")?);
        registered.iter().for_each(GroupShrinker::mark);
        Ok(Parent { _shrinkers: registered, pages, _held: held, cheap, parent })
    }

    /// Has the cheap one's page reclaimed, past all expensive caches.
    fn reclaim(&self) -> Result<()> {
        let page = self.cheap.try_charge(PAGE).set_up("a page")?;
        lock(&self.pages.0).push(page);
        let reclaimed = self.parent.reclaim(1, None);
        expect("bytes and scans of a reclaim of one page", (reclaimed.bytes, reclaimed.scans), (PAGE, 1))
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let threads = lab.args.threads();
    let shrinkers = if lab.args.tiny { 70 } else { SHRINKERS };
    let (parents, shown) = (Parents::build(lab.slots, shrinkers, threads)?, count(shrinkers as u64));
    let mut table = Table::new(
        format!(
            "{shown} caches in one group of which nothing is asked yet: ns of a thread for one passed by, median (min..p90)"
        ),
        ["", "1 thread", &format!("{threads} threads"), ""],
    );
    let Plan { rounds, window_us } = lab.effort.windows;
    let (plan, params) = (Plan { rounds: rounds.div_ceil(3), window_us }, json!({"each": shrinkers}));
    let work: &Work<'_> = &|thread, _, visits| parents.pass_by(thread, visits);
    let rows = [("the engine's whole walk", work)];
    let measured = lab.compare(&mut table, "passed by", params, threads, plan, &rows)?;
    table.note(
        "a visit that ends in no callback: nothing is announced and nothing is called, as long as nothing may be asked by the last answer",
    );
    lab.print(&table)?;
    let [one, all] = measured[0].map(|one| median(one.ns));
    lab.at_most("a visit that ends in no callback", one, 2.0, "ns");
    if threads > 1 {
        let name = "a visit that ends in no callback, all threads over 1";
        lab.at_most(name, ratio(all, one), 1.25, "x");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_each_cache_once_and_passes_it_by_then() {
        let parents = Parents::build(SlotSource::virtual_slots(2).unwrap(), 5, 2).unwrap();
        assert_eq!(parents.pass_by(0, 100).unwrap(), 110);
        assert_eq!(parents.pass_by(1, 1).unwrap(), 55);
        // ORDERING: Relaxed; the calls were made by this thread.
        assert_eq!(parents.calls.load(Ordering::Relaxed), 10);
    }
}
