//! What a visit takes that ends in no callback: of a cache of which, going by what it said last, nothing would be asked yet.
//!
//! - I1. Each reclaim passes each of the caches by at the eleven priorities from the first to the one at which another, small and cheap to have
//!   again, gives what is wanted. That is checked: none of the callbacks is called after the first reclaim, and that one gives each time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use memgroup::{
    Ask, Charge, Config, Count, Group, GroupShrinker, Hierarchy, Scan, Shrinker, ShrinkerConfig, SlotSource,
};

use crate::Error;
use crate::harness::Lab;
use crate::harness::report::{Check, params, ratio};
use crate::harness::table::{Table, count, spread};
use crate::harness::tree::child;
use crate::harness::window::{Plan, Variant, Work};

/// Priorities before the last two, at which everything is counted.
const PASSED: u64 = 11;

/// What each cache says it holds: among the largest, so that a walk comes by at each priority.
const HELD_BYTES: u64 = 64 << 20;

const PAGE: u64 = 4096;

const SHRINKERS: usize = 1_000;

/// Holds plenty that is dear: nothing of it is asked for before it is serious.
struct Dear(Arc<AtomicU64>);

impl Shrinker for Dear {
    fn count(&self, _token: u64) -> Count {
        // ORDERING: Relaxed; a number by itself.
        self.0.fetch_add(1, Ordering::Relaxed);
        Count::of(HELD_BYTES, 1)
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        Scan::Stopped { bytes: 0 }
    }
}

/// A page for each thread that asks.
struct Cheap(Mutex<Vec<Charge>>);

impl Shrinker for Cheap {
    fn count(&self, _token: u64) -> Count {
        Count::of(PAGE, 1)
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        let page = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Scan::Freed { bytes: page.map_or(0, |page| page.bytes()) }
    }
}

/// Parents, one for each thread, with a group of dear caches and one with a cheap cache below.
struct House {
    parents: Vec<Parent>,
    calls: Arc<AtomicU64>,
    _hierarchy: Hierarchy,
}

struct Parent {
    _shrinkers: Vec<GroupShrinker>,
    pages: Arc<Cheap>,
    _held: Charge,
    cheap: Group,
    parent: Group,
    expected: u64,
}

impl House {
    fn build(slots: SlotSource, shrinkers: usize, threads: usize) -> Result<House, Error> {
        let hierarchy = Hierarchy::new(Config::with_slots(slots));
        let hierarchy = hierarchy.map_err(|error| Error::setup("the hierarchy", error))?;
        let calls = Arc::new(AtomicU64::new(0));
        let parents = (0..threads)
            .map(|thread| Parent::build(&hierarchy, &format!("parent{thread}"), shrinkers, &calls))
            .collect::<Result<Vec<_>, _>>()?;
        let house = House { parents, calls, _hierarchy: hierarchy };
        house.parents.iter().try_for_each(Parent::reclaim)?;
        house.check()?;
        Ok(house)
    }

    /// Each was counted once, when nobody knew what it holds.
    fn check(&self) -> Result<(), Error> {
        let expected: u64 = self.parents.iter().map(|parent| parent.expected).sum();
        // ORDERING: Relaxed; a number by itself.
        match self.calls.load(Ordering::Relaxed) {
            calls if calls == expected => Ok(()),
            calls => Err(Error::Wrong(format!(
                "{calls} callbacks were called of {expected} caches, each was to be counted once and then passed by"
            ))),
        }
    }
}

impl Parent {
    fn build(
        hierarchy: &Hierarchy,
        name: &str,
        shrinkers: usize,
        calls: &Arc<AtomicU64>,
    ) -> Result<Parent, Error> {
        let parent = child(&hierarchy.root(), name)?;
        let (dear, cheap) = (child(&parent, "dear")?, child(&parent, "cheap")?);
        let held = dear.try_charge(HELD_BYTES).map_err(|error| Error::setup("a charge", error))?;
        let refused = |error| Error::setup("a shrinker", error);
        let config = || ShrinkerConfig::new("dear").cost(u32::MAX);
        let made = (0..shrinkers).map(|_| dear.add_shrinker(config(), Dear(Arc::clone(calls))));
        let mut registered = made.collect::<Result<Vec<_>, _>>().map_err(refused)?;
        let pages = Arc::new(Cheap(Mutex::default()));
        let config = ShrinkerConfig::new("cheap").cost(1);
        registered.push(cheap.add_shrinker(config, Arc::clone(&pages)).map_err(refused)?);
        registered.iter().for_each(GroupShrinker::mark);
        let expected = shrinkers as u64;
        Ok(Parent { _shrinkers: registered, pages, _held: held, cheap, parent, expected })
    }

    /// Has the cheap one's page reclaimed, past all that are dear.
    fn reclaim(&self) -> Result<(), Error> {
        let page = self.cheap.try_charge(PAGE).map_err(|error| Error::setup("a page", error))?;
        self.pages.0.lock().unwrap_or_else(PoisonError::into_inner).push(page);
        let reclaimed = self.parent.reclaim(1, None);
        if (reclaimed.bytes, reclaimed.scans) == (PAGE, 1) {
            return Ok(());
        }
        Err(Error::Wrong(format!("a page was to be reclaimed from one cache: {reclaimed:?}")))
    }
}

impl Work for House {
    fn batch(&self, thread: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
        let mut done = 0;
        let parent = &self.parents[thread % self.parents.len()];
        while done < count {
            parent.reclaim()?;
            done += parent.expected * PASSED;
        }
        self.check()?;
        Ok(done)
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<(), Error> {
    let threads = lab.args.threads();
    let shrinkers = if lab.args.tiny { 70 } else { SHRINKERS };
    let house: Arc<dyn Work> = Arc::new(House::build(lab.slots, shrinkers, threads)?);
    let variants: Vec<Variant> =
        [1, threads].into_iter().map(|threads| Variant::of(Arc::clone(&house), threads)).collect();
    let plan = Plan { rounds: lab.effort.rounds.div_ceil(3), window_us: lab.effort.window_us };
    let measured = lab.interleave_by(plan, &variants)?;
    let mut table = Table::new(
        format!(
            "{} caches in one group of which nothing is asked yet: ns of a thread for one passed by, median (min..p90)",
            count(shrinkers as u64)
        ),
        ["", "1 thread", &format!("{threads} threads")],
    );
    table.row(vec!["the engine's walk".to_owned(), spread(measured[0].ns), spread(measured[1].ns)]);
    table.note(
        "a visit that ends in no callback: nothing is announced and nothing is called, as long as what it said last lets nothing be asked",
    );
    lab.print(&table)?;
    let clock = lab.clock;
    for (threads, one) in [1, threads].into_iter().zip(&measured) {
        let what = params([("threads", threads.into()), ("each", shrinkers.into())]);
        lab.report.add_time(&clock, "the engine's whole walk", what, "passed by", one.ns);
    }
    let [one, all] = [0, 1].map(|index: usize| measured[index].ns.map(|ns| ns.median));
    let checks = &mut lab.report.checks;
    checks.push(Check::at_most("a visit that ends in no callback", one, 2.0, "ns"));
    if threads > 1 {
        let name = "a visit that ends in no callback, all threads over 1";
        checks.push(Check::at_most(name, ratio(all, one), 1.25, "x"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_of_which_nothing_is_asked_yet_are_counted_once_and_passed_by_from_then_on() {
        let house = House::build(SlotSource::virtual_slots(2).unwrap(), 5, 2).unwrap();
        assert_eq!(house.batch(0, &mut 0, 100).unwrap(), 110);
        assert_eq!(house.batch(1, &mut 0, 1).unwrap(), 55);
        // ORDERING: Relaxed; the calls were made by this thread.
        assert_eq!(house.calls.load(Ordering::Relaxed), 10);
    }
}
