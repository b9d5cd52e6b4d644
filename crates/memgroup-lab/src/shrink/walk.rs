//! The cost of a walk for each shrinker that it visits, by the way that keeps shrinkers from going away meanwhile.
//!
//! A visit is a call of `count` that answers at once that it cannot tell, with all work to get there: finding the shrinker by its
//! mark, protecting it, calling it, letting it go.
//!
//! The controls are plain groups with plain lists of the same shrinkers. A pass visits each marked shrinker of each group once, in order. Each
//! thread begins in another part of the groups, so that two meet as seldom as they can. There are no classes, no priorities and no growing: the
//! schemes differ in their protection alone.
//!
//! - I1. A shrinker that cannot tell ([`Count::Unknown`]) keeps its mark in the largest class, so each walk of the engine finds it again: at each
//!   of the [`PRIORITIES`] of a reclaim that finds nothing. A twin with callbacks that count checks that.
//! - I2. No shrinker is ever removed here, so no scheme waits; each pays the cost of its readers, with the orderings it would need.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, RwLock};

use memgroup::{
    Config, Count, GroupShrinker, Registration, Shrinker, ShrinkerConfig, ShrinkerSlot, SlotSource,
};
use memgroup_sync::CachePadded;
use memgroup_sync::hazard::{Domain, Place};

use super::{GROUPS, GROUPS_LATER};
use crate::args::THREADS_MAX;
use crate::harness::cache::{counting, idle};
use crate::harness::prelude::*;

memgroup_sync::global! {
    static WALKS: Domain = Domain::new();
}

const ENGINE: &str = "the engine's whole walk";
/// Priorities of one reclaim, from the laziest to the most desperate.
const PRIORITIES: u64 = 13;
/// Shrinkers in one group.
const IN_ONE: [usize; 3] = [64, 1_000, 4_000];
/// About the most that a visit takes, to choose the length of a window.
const VISIT_NS: u64 = 75;

/// How many groups with how many shrinkers each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    groups: usize,
    each: usize,
    /// All are slots of a single shrinker.
    is_one_shrinker: bool,
}

impl Shape {
    fn shrinkers(self) -> u64 {
        (self.groups * self.each) as u64
    }

    fn name(self) -> String {
        let [groups, each] = [self.groups, self.each].map(|number| count(number as u64));
        match (self.groups, self.is_one_shrinker) {
            (1, _) => format!("{each} shrinkers in one group"),
            (_, false) => format!("{groups} groups below one parent, each with a shrinker"),
            (_, true) => format!("{groups} groups below one parent, each with a slot of the same shrinker"),
        }
    }
}

/// Groups of the engine with shrinkers that cannot tell. Slots go before their shrinkers, and those before the groups.
struct Engine {
    _shrinkers: (Vec<ShrinkerSlot>, Vec<GroupShrinker>, Option<Registration>),
    fixture: Fixture,
    /// Visits of one reclaim.
    visits: u64,
}

impl Engine {
    /// Counts the visits of a reclaim in a twin with callbacks that count, then builds the groups with [`idle`] shrinkers.
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
        let config = || ShrinkerConfig::new("idle");
        let shared = shape.is_one_shrinker.then(|| fixture.hierarchy.add_shrinker(config(), make()));
        let shared: Option<Registration> = shared.transpose().set_up("a shrinker")?;
        let (mut slots, mut shrinkers) = (Vec::new(), Vec::new());
        for group in fixture.leaves.iter().flat_map(|group| (0..shape.each).map(move |_| group)) {
            match &shared {
                Some(shared) => slots.push(shared.attach(group, 0).set_up("a slot")?),
                None => shrinkers.push(group.add_shrinker(config(), make()).set_up("a shrinker")?),
            }
        }
        slots.iter().for_each(ShrinkerSlot::mark);
        shrinkers.iter().for_each(GroupShrinker::mark);
        Ok(Engine { _shrinkers: (slots, shrinkers, shared), fixture, visits: 0 })
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

/// The way that keeps a shrinker from going away while it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    /// None: the others are measured above it.
    Nothing,
    /// One read-write lock for all, tried at every group: the kernel up to 6.3.
    Lock,
    /// Two counters for each thread and a full barrier beside each, at every group: the seed.
    Srcu,
    /// A reference count in each shrinker, taken unless it is zero: the kernel from 6.7 on.
    Counts,
    /// The engine's own: a hazard record names the shrinker, one for each thread.
    Pins,
}

const LOCK: &str = "read-write lock (control)";
const PINS: &str = "hazard records, plain walk";
const SCHEMES: [(Scheme, &str); 5] = [
    (Scheme::Nothing, "no protection, plain walk"),
    (Scheme::Lock, LOCK),
    (Scheme::Srcu, "SRCU-like (control)"),
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
    listed: Box<[&'static Listed]>,
    places: Box<[&'static Place<Box<dyn Shrinker>>]>,
}

impl PlainGroup {
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

/// A thread's entries into walks and its exits, for each of two epochs.
#[derive(Default)]
struct Inside {
    entered: [AtomicU64; 2],
    left: [AtomicU64; 2],
}

/// Plain groups under one scheme.
struct Plain {
    scheme: Scheme,
    groups: Vec<PlainGroup>,
    lock: CachePadded<RwLock<()>>,
    epoch: CachePadded<AtomicUsize>,
    inside: Box<[CachePadded<Inside>]>,
    threads: usize,
}

impl Plain {
    fn build(scheme: Scheme, shape: Shape, threads: usize) -> Plain {
        let shared = shape.is_one_shrinker.then(|| Plain::shrinker(scheme));
        let group = |_| {
            let made = (0..shape.each).map(|_| shared.unwrap_or_else(|| Plain::shrinker(scheme)));
            let (listed, places): (Vec<_>, Vec<_>) = made.unzip();
            let bits = |word: usize| u64::MAX >> (64 - (shape.each - word * 64).min(64));
            let marked = (0..shape.each.div_ceil(64)).map(|word| AtomicU64::new(bits(word))).collect();
            PlainGroup { marked, listed: listed.into(), places: places.into() }
        };
        Plain {
            scheme,
            groups: (0..shape.groups).map(group).collect(),
            lock: CachePadded::new(RwLock::new(())),
            epoch: CachePadded::new(AtomicUsize::new(0)),
            inside: (0..THREADS_MAX).map(|_| CachePadded::default()).collect(),
            threads,
        }
    }

    /// Kept for ever: a place must not go while a thread could name it.
    fn shrinker(scheme: Scheme) -> (&'static Listed, &'static Place<Box<dyn Shrinker>>) {
        let place = Place::empty(&WALKS);
        if scheme == Scheme::Pins {
            place.put(Box::new(Box::new(idle()) as Box<dyn Shrinker>));
        }
        let listed = Listed { references: AtomicUsize::new(1), shrinker: Box::new(idle()) };
        (Box::leak(Box::new(listed)), Box::leak(Box::new(place)))
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
            Scheme::Srcu => groups.map(|group| self.in_epoch(thread, || call_all(group))).sum(),
            Scheme::Counts => groups.map(call_counted).sum(),
            Scheme::Pins => call_pinned(groups),
        }
    }

    fn in_epoch(&self, thread: usize, walk: impl FnOnce() -> u64) -> u64 {
        let inside = &self.inside[thread];
        let add = |counter: &AtomicU64| {
            // ORDERING: Relaxed, all: a thread's own counters. The fences below order them as SRCU's do: the section reads after the entry is
            // seen, and before the exit is.
            counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        };
        // ORDERING: as above.
        let epoch = self.epoch.load(Ordering::Relaxed) & 1;
        add(&inside.entered[epoch]);
        fence(Ordering::SeqCst);
        let called = walk();
        fence(Ordering::SeqCst);
        add(&inside.left[epoch]);
        called
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
        let listed = group.listed[at];
        let more = |references| (references > 0).then_some(references + 1);
        // ORDERING: Acquire, Relaxed; a walk that finds it registered sees the stores before that. Nothing is read after a failure.
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
    let [few, many] = lab.args.groups.map_or([GROUPS, GROUPS_LATER], |groups| [groups; 2]);
    let fewer = |number: usize| if lab.args.tiny { number.min(70) } else { number };
    let storm = |(groups, each, is_one_shrinker)| Shape { groups: fewer(groups), each, is_one_shrinker };
    let mut shapes = [(few, 1, false), (many, 1, false), (many, 1, true)].map(storm).to_vec();
    shapes.extend(IN_ONE.map(|each| storm((1, fewer(each), false))));
    shapes.dedup();
    shapes.into_iter().try_for_each(|shape| measure(lab, shape))
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
    let mut table = Table::new(title, ["how it is kept", "1 thread", &format!("{threads} threads"), ""]);
    let params = json!({"groups": shape.groups, "each": shape.each, "one shrinker": shape.is_one_shrinker});
    let measured = lab.compare(&mut table, "visit", params, threads, plan, &rows)?;
    let ns: BTreeMap<&str, [Option<f64>; 2]> =
        rows.iter().zip(&measured).map(|((name, _), both)| (*name, both.map(|one| median(one.ns)))).collect();
    if let Some(floor) = ns[rows[0].0][0] {
        let over = rows[1..].iter().filter_map(|(name, _)| Some((name, ns[name][0]? - floor)));
        let over: Vec<String> = over.map(|(name, ns)| format!("{name} {}", figure(ns))).collect();
        table.note(format!("ns over no protection, 1 thread: {}", over.join("; ")));
    }
    lab.print(&table)?;
    let ([one, all], are_many) = (ns[ENGINE], threads > 1);
    let [groups, each] = [shape.groups, shape.each].map(|number| count(number as u64));
    if shape.groups == 1 {
        lab.at_most(format!("a visit with a call of count, {each} shrinkers in one group"), one, 2.0, "ns");
    }
    if are_many && shape.groups == 1 {
        let name = format!("a visit, {each} shrinkers in one group, all threads over 1");
        lab.at_most(name, ratio(all, one), 1.25, "x");
    } else if are_many && !shape.is_one_shrinker {
        lab.at_most(format!("a visit, {groups} groups, all threads over 1"), ratio(all, one), 1.25, "x");
        for (all, of) in [(all, "the engine"), (ns[PINS][1], "hazard records")] {
            let name = format!("read-write lock over {of}, {groups} groups, all threads");
            lab.at_least(name, ratio(ns[LOCK][1], all), 10.0, "x");
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
                let shape = Shape { groups, each, is_one_shrinker: false };
                let plain = Plain::build(scheme, shape, 2);
                assert_eq!([0, 1].map(|thread| plain.pass(thread)), [(groups * each) as u64; 2], "{name}");
            }
        }
    }

    #[test]
    fn passes_by_a_group_whose_lock_is_taken() {
        let plain = Plain::build(Scheme::Lock, Shape { groups: 3, each: 1, is_one_shrinker: false }, 1);
        let held = plain.lock.write().unwrap();
        assert_eq!(plain.pass(0), 0);
        drop(held);
        assert_eq!(plain.pass(0), 3);
    }

    #[test]
    fn visits_each_shrinker_at_each_priority_when_nothing_is_found() {
        let slots = SlotSource::virtual_slots(2).unwrap();
        for is_one_shrinker in [false, true] {
            let shape = Shape { groups: 5, each: 3, is_one_shrinker };
            assert_eq!(Engine::build(slots, shape).unwrap().visit(1).unwrap(), 13 * 15);
        }
    }
}
