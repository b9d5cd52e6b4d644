//! The cost of a walk for each shrinker that it visits, by what keeps shrinkers from going away
//! meanwhile.
//!
//! The kernel's walks tried one read-write lock at each group: 46.6 % of the cycles went to trying
//! it and 18.7 % to giving it back. A visit here is a call of `count` that answers at once that it
//! cannot tell, with all work to get there: finding the shrinker by its mark, protecting it,
//! calling it, letting it go.
//!
//! The controls are plain groups with plain lists of the same shrinkers. A pass visits each marked
//! shrinker of each group once, in order. Each thread begins in another part of the groups, so that
//! two meet as seldom as they can. There are no classes, no priorities and no growing: the schemes
//! differ in their protection alone.
//!
//! - I1. A shrinker that cannot tell ([`Count::Unknown`]) keeps its mark in the largest class, so
//!   each walk of the engine finds it again: at each of the [`PRIORITIES`] of a reclaim that finds
//!   nothing. A twin with callbacks that count checks that.
//! - I2. No shrinker is ever removed here, so no scheme waits; each pays what its readers cost,
//!   with the orderings it would need.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};

use memgroup::{Config, Count, GroupShrinker, Shrinker, ShrinkerConfig, SlotSource};
use memgroup_sync::CachePadded;
use memgroup_sync::hazard::{Domain, Place};

use super::{GROUPS, LOCK, SRCU, Srcu};
use crate::args::THREADS_MAX;
use crate::harness::cache::{counting, idle};
use crate::harness::prelude::*;

memgroup_sync::global! {
    static WALKS: Domain = Domain::new();
}

const ENGINE: &str = "the engine's whole walk";
const PINS: &str = "hazard records, plain walk";
/// The priorities of one reclaim, from the laziest to the most desperate.
const PRIORITIES: u64 = 13;
/// The shrinkers of one group, where there is one.
const IN_ONE: usize = 1_000;
/// About the most that a visit takes, to choose the length of a window.
const VISIT_NS: u64 = 75;

/// How many groups, with how many shrinkers each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    groups: usize,
    each: usize,
}

impl Shape {
    fn shrinkers(self) -> u64 {
        (self.groups * self.each) as u64
    }

    fn name(self) -> String {
        let [groups, each] = [self.groups, self.each].map(|number| count(number as u64));
        if self.groups == 1 {
            format!("{each} shrinkers in one group")
        } else {
            format!("{groups} groups with a shrinker each")
        }
    }
}

/// Groups of the engine with shrinkers that cannot tell. The shrinkers are dropped before the
/// groups.
struct Engine {
    _shrinkers: Vec<GroupShrinker>,
    fixture: Fixture,
    /// The visits of one reclaim.
    visits: u64,
}

impl Engine {
    /// Counts the visits of a reclaim in a twin with callbacks that count, then builds the groups
    /// with [`idle`] shrinkers.
    fn build(slots: SlotSource, shape: Shape) -> Result<Engine> {
        let calls = Arc::new(AtomicU64::new(0));
        Engine::of(slots, shape, || counting(&calls, Count::Unknown))?.reclaim()?;
        // ORDERING: Relaxed; the calls were made on this thread.
        let visits = calls.load(Ordering::Relaxed);
        expect("visits of a reclaim that finds nothing", visits, PRIORITIES * shape.shrinkers())?;
        Ok(Engine { visits, ..Engine::of(slots, shape, idle)? })
    }

    fn of<S: Shrinker>(slots: SlotSource, shape: Shape, make: impl Fn() -> S) -> Result<Engine> {
        let fixture = Fixture::flat(Config::with_slots(slots), shape.groups)?;
        let add = |group: &memgroup::Group| group.add_shrinker(ShrinkerConfig::new("idle"), make());
        let all = fixture.leaves.iter().flat_map(|group| (0..shape.each).map(move |_| group));
        let shrinkers: Vec<_> = all.map(add).collect::<Result<_, _>>().set_up("a shrinker")?;
        shrinkers.iter().for_each(GroupShrinker::mark);
        Ok(Engine { _shrinkers: shrinkers, fixture, visits: 0 })
    }

    /// One reclaim; shrinkers that cannot tell are asked for nothing.
    fn reclaim(&self) -> Result<()> {
        let reclaimed = self.fixture.parent.reclaim(u64::MAX, None);
        let asked = (reclaimed.bytes, reclaimed.scans);
        expect("bytes asked of shrinkers that cannot tell their size", asked, (0, 0))
    }

    fn visit(&self, visits: u64) -> Result<u64> {
        let mut done = 0;
        while done < visits {
            self.reclaim()?;
            done += self.visits;
        }
        Ok(done)
    }
}

/// What keeps a shrinker from going away while it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    /// Nothing: what the others are measured above.
    Nothing,
    /// One read-write lock for all, tried at every group: the kernel up to 6.3.
    Lock,
    /// A read section of SRCU at every group: the seed.
    Srcu,
    /// A reference count in each shrinker, taken unless it is zero: the kernel from 6.7 on.
    Counts,
    /// What the engine has: a hazard record names the shrinker, one for each thread.
    Pins,
}

const SCHEMES: [(Scheme, &str); 5] = [
    (Scheme::Nothing, "no protection, plain walk"),
    (Scheme::Lock, LOCK),
    (Scheme::Srcu, SRCU),
    (Scheme::Counts, "reference counts (control)"),
    (Scheme::Pins, PINS),
];

/// A shrinker of a plain list.
struct Listed {
    references: AtomicUsize,
    shrinker: Box<dyn Shrinker>,
}

struct PlainGroup {
    marked: Box<[AtomicU64]>,
    listed: Box<[Listed]>,
    places: Box<[&'static Place<Box<dyn Shrinker>>]>,
}

impl PlainGroup {
    fn build(scheme: Scheme, shrinkers: usize) -> PlainGroup {
        let bits = |word: usize| u64::MAX >> (64 - (shrinkers - word * 64).min(64));
        let listed = |_| Listed { references: AtomicUsize::new(1), shrinker: Box::new(idle()) };
        // A place must never go while a thread could name it, so it is leaked.
        let place = |_| {
            let place: &Place<Box<dyn Shrinker>> = Box::leak(Box::new(Place::empty(&WALKS)));
            place.put(Box::new(Box::new(idle()) as Box<dyn Shrinker>));
            place
        };
        PlainGroup {
            marked: (0..shrinkers.div_ceil(64)).map(|word| AtomicU64::new(bits(word))).collect(),
            listed: (0..shrinkers).map(listed).collect(),
            places: (0..if scheme == Scheme::Pins { shrinkers } else { 0 }).map(place).collect(),
        }
    }

    /// The numbers of the marked shrinkers.
    #[inline(always)]
    fn marked(&self) -> impl Iterator<Item = usize> {
        self.marked.iter().enumerate().flat_map(|(word, bits)| {
            // ORDERING: Acquire; as the engine's walk reads a mark, for the stores before it.
            let mut bits = bits.load(Ordering::Acquire);
            std::iter::from_fn(move || {
                let index = (bits != 0).then(|| word * 64 + bits.trailing_zeros() as usize)?;
                bits &= bits - 1;
                Some(index)
            })
        })
    }
}

/// Plain groups under one scheme.
struct Plain {
    scheme: Scheme,
    groups: Vec<PlainGroup>,
    lock: CachePadded<RwLock<()>>,
    srcu: Srcu,
    threads: usize,
}

impl Plain {
    fn build(scheme: Scheme, shape: Shape, threads: usize) -> Plain {
        Plain {
            scheme,
            groups: (0..shape.groups).map(|_| PlainGroup::build(scheme, shape.each)).collect(),
            lock: CachePadded::new(RwLock::new(())),
            srcu: Srcu::new(THREADS_MAX),
            threads,
        }
    }

    /// One pass of a thread; how many shrinkers it called.
    fn pass(&self, thread: usize) -> u64 {
        let begin = self.groups.len() * (thread % self.threads) / self.threads;
        let (before, from_here) = self.groups.split_at(begin);
        let groups = from_here.iter().chain(before);
        match self.scheme {
            Scheme::Nothing => groups.map(call_all).sum(),
            Scheme::Lock => {
                groups.filter_map(|group| self.lock.try_read().ok().map(|_held| call_all(group))).sum()
            }
            Scheme::Srcu => groups.map(|group| self.srcu.section(thread, || call_all(group))).sum(),
            Scheme::Counts => groups.map(call_counted).sum(),
            Scheme::Pins => call_pinned(groups),
        }
    }

    fn visit(&self, thread: usize, visits: u64) -> Result<u64> {
        let mut done = 0;
        while done < visits {
            let called = self.pass(thread);
            let right = self.groups.iter().map(|group| group.listed.len() as u64).sum::<u64>();
            expect("shrinkers called in a pass", called, right)?;
            done += called;
        }
        Ok(done)
    }
}

/// Counts one shrinker; 1 if it answered as it should.
#[inline(always)]
fn call(shrinker: &dyn Shrinker) -> u64 {
    u64::from(shrinker.count(0) == Count::Unknown)
}

#[inline(always)]
fn call_all(group: &PlainGroup) -> u64 {
    group.marked().map(|at| call(&*group.listed[at].shrinker)).sum()
}

#[inline(always)]
fn call_counted(group: &PlainGroup) -> u64 {
    let counted = |at: usize| {
        let listed = &group.listed[at];
        let more = |references| (references > 0).then_some(references + 1);
        // ORDERING: Acquire, Relaxed; a walk that finds it registered sees the stores before that. Nothing
        // is read after a failure.
        listed.references.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).ok()?;
        let called = call(&*listed.shrinker);
        // ORDERING: Release; the thread that takes the last one away would free it after the calls.
        listed.references.fetch_sub(1, Ordering::Release);
        Some(called)
    };
    group.marked().filter_map(counted).sum()
}

#[inline(always)]
fn call_pinned<'g>(groups: impl Iterator<Item = &'g PlainGroup>) -> u64 {
    let (mut lease, mut called) = (WALKS.lease(), 0);
    for group in groups {
        for at in group.marked() {
            if let Some(shrinker) = lease.pin(group.places[at]) {
                called += call(&**shrinker);
            }
        }
    }
    called
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let (groups, each) = lab.pick((70, 70), (GROUPS, IN_ONE), (GROUPS, IN_ONE));
    [Shape { groups, each: 1 }, Shape { groups: 1, each }]
        .into_iter()
        .try_for_each(|shape| measure(lab, shape))
}

fn measure(lab: &mut Lab<'_>, shape: Shape) -> Result<()> {
    let threads = lab.args.threads();
    let engine = Engine::build(lab.slots, shape)?;
    let plain = SCHEMES.map(|(scheme, name)| (name, Plain::build(scheme, shape, threads)));
    let plain = plain
        .each_ref()
        .map(|(name, plain)| (*name, move |thread, _: &mut usize, visits| plain.visit(thread, visits)));
    let whole = |_, _: &mut usize, visits| engine.visit(visits);
    let mut rows: Vec<(&str, &Work<'_>)> = plain.iter().map(|(name, work)| (*name, work as _)).collect();
    rows.push((ENGINE, &whole));
    // A window has several reclaims, so that those of two threads end together.
    let reclaim_us = PRIORITIES * shape.shrinkers() * VISIT_NS / 1000;
    let Plan { rounds, window_us } = lab.effort.windows;
    let plan = Plan { rounds: rounds.div_ceil(3), window_us: window_us.max(reclaim_us * 2) };
    let title = format!("{}: ns of a thread for a shrinker visited, median (min..p90)", shape.name());
    let mut table = Table::new(title, ["what protects it", "1 thread", &format!("{threads} threads"), ""]);
    let params = json!({"groups": shape.groups, "each": shape.each});
    let measured = lab.compare(&mut table, "visit", params, threads, plan, &rows)?;
    let ns = |name: &str| {
        let row = rows.iter().position(|row| row.0 == name).expect("each scheme has a row");
        measured[row].map(|one| median(one.ns))
    };
    lab.print(&table)?;
    let (one, all) = (ns(ENGINE)[0], ns(ENGINE)[1]);
    let [groups, each] = [shape.groups, shape.each].map(|number| count(number as u64));
    let name =
        if shape.groups == 1 { format!("{each} shrinkers in a group") } else { format!("{groups} groups") };
    if shape.groups == 1 {
        lab.at_most(format!("a visit, {name}"), one, 2.0, "ns");
    }
    if threads > 1 {
        lab.at_most(format!("a visit, {name}, all threads over 1"), ratio(all, one), 1.25, "x");
    }
    if threads > 1 && shape.groups > 1 {
        for (of, what) in [(ENGINE, "the engine's walk"), (PINS, "hazard records")] {
            let gain = ratio(ns(LOCK)[1], ns(of)[1]);
            lab.at_least(format!("a visit, all threads: the lock over {what}"), gain, 10.0, "x");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visits_each_shrinker_once_a_pass_in_each_scheme() {
        for (scheme, name) in SCHEMES {
            for (groups, each) in [(1, 1), (1, 64), (1, 65), (1, 200), (7, 3)] {
                let shape = Shape { groups, each };
                let plain = Plain::build(scheme, shape, 2);
                assert_eq!([0, 1].map(|thread| plain.pass(thread)), [(groups * each) as u64; 2], "{name}");
            }
        }
    }

    #[test]
    fn passes_by_a_group_whose_lock_is_taken() {
        let plain = Plain::build(Scheme::Lock, Shape { groups: 3, each: 1 }, 1);
        let held = plain.lock.write().unwrap();
        assert_eq!(plain.pass(0), 0);
        drop(held);
        assert_eq!(plain.pass(0), 3);
    }

    #[test]
    fn visits_each_shrinker_at_each_priority_when_nothing_is_found() {
        let slots = SlotSource::virtual_slots(2).unwrap();
        let shape = Shape { groups: 5, each: 3 };
        assert_eq!(Engine::build(slots, shape).unwrap().visit(1).unwrap(), 13 * 15);
    }
}
