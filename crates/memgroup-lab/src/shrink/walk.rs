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

use memgroup::{Ask, Count, Scan, Shrinker, SlotSource};
use memgroup_sync::CachePadded;
use memgroup_sync::hazard::{Domain, Place};

use super::groups::{Groups, Registered, Srcu};
use super::{GROUPS, LOCK, SRCU};
use crate::args::THREADS_MAX;
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
}

/// A shrinker that cannot tell its size, and does something when it is asked.
struct Silent<F>(F);

impl<F: Fn() + Send + Sync + 'static> Shrinker for Silent<F> {
    fn count(&self, _token: u64) -> Count {
        (self.0)();
        Count::Unknown
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        Scan::Stopped { bytes: 0 }
    }
}

/// Groups of the engine with shrinkers that cannot tell. The shrinkers are dropped before the
/// groups.
struct Engine<F> {
    _shrinkers: Vec<Registered>,
    groups: Groups<Silent<F>>,
    shape: Shape,
}

impl<F: Fn() + Clone + Send + Sync + 'static> Engine<F> {
    fn build(slots: SlotSource, shape: Shape, asked: F) -> Result<Engine<F>> {
        let groups = Groups::build(slots, None, shape.groups, None)?;
        let all = (0..shape.groups).flat_map(|group| (0..shape.each).map(move |_| group));
        let add = |group| groups.register(group, &Arc::new(Silent(asked.clone()))).inspect(Registered::mark);
        let shrinkers = all.map(add).collect::<Result<Vec<_>>>()?;
        Ok(Engine { _shrinkers: shrinkers, groups, shape })
    }

    /// Reclaims until so many shrinkers were visited; how many were.
    fn visit(&self, visits: u64) -> Result<u64> {
        let mut done = 0;
        while done < visits {
            let reclaimed = self.groups.parent.reclaim(u64::MAX, None);
            let asked = (reclaimed.bytes, reclaimed.scans);
            expect("bytes asked of shrinkers that cannot tell their size", asked, (0, 0))?;
            done += PRIORITIES * self.shape.shrinkers();
        }
        Ok(done)
    }
}

/// Checks the visits of one reclaim by callbacks that count them (I1).
fn check_visits(slots: SlotSource, shape: Shape) -> Result<()> {
    let calls = Arc::<AtomicU64>::default();
    let own = Arc::clone(&calls);
    // ORDERING: Relaxed, both; the calls are made on this thread.
    let count = move || _ = own.fetch_add(1, Ordering::Relaxed);
    let right = Engine::build(slots, shape, count)?.visit(1)?;
    expect("visits of a reclaim that finds nothing", calls.load(Ordering::Relaxed), right)
}

/// What keeps a shrinker from going away while it is called: one pass of a thread over plain
/// groups, which returns how many shrinkers it called.
type Scheme = fn(&Plain, usize) -> u64;

const SCHEMES: [(&str, Scheme); 5] = [
    // Nothing: what the others are measured above.
    ("no protection, plain walk", |plain, thread| plain.in_turn(thread).map(PlainGroup::call_all).sum()),
    // One read-write lock for all, tried at every group: the kernel up to 6.3.
    (LOCK, |plain, thread| {
        let tried = |group: &PlainGroup| plain.lock.try_read().map_or(0, |_held| group.call_all());
        plain.in_turn(thread).map(tried).sum()
    }),
    // A read section of SRCU at every group: the seed.
    (SRCU, |plain, thread| {
        let section = |group: &PlainGroup| plain.srcu.section(thread, || group.call_all());
        plain.in_turn(thread).map(section).sum()
    }),
    // A reference count in each shrinker, taken unless it is zero: the kernel from 6.7 on.
    ("reference counts (control)", |plain, thread| {
        plain.in_turn(thread).map(|group| group.call_marked(Listed::call_counted)).sum()
    }),
    // What the engine has: a hazard record names the shrinker, one for each thread.
    (PINS, |plain, thread| {
        let mut lease = WALKS.lease();
        let mut pinned = |listed: &Listed| lease.pin(listed.place).map_or(0, |of| call(&**of));
        plain.in_turn(thread).map(|group| group.call_marked(&mut pinned)).sum()
    }),
];

/// A shrinker of a plain list.
struct Listed {
    references: AtomicUsize,
    shrinker: Box<dyn Shrinker>,
    place: &'static Place<Box<dyn Shrinker>>,
}

impl Listed {
    fn new() -> Listed {
        let new = || -> Box<dyn Shrinker> { Box::new(Silent(|| ())) };
        // A place must never go while a thread could name it, so it is leaked.
        let place: &Place<Box<dyn Shrinker>> = Box::leak(Box::new(Place::empty(&WALKS)));
        place.put(Box::new(new()));
        Listed { references: AtomicUsize::new(1), shrinker: new(), place }
    }

    /// Calls the shrinker with its reference counted, unless there is none left.
    #[inline(always)]
    fn call_counted(&self) -> u64 {
        let more = |references| (references > 0).then_some(references + 1);
        // ORDERING: Acquire, Relaxed; a walk that finds it registered sees the stores before that.
        // Nothing is read after a failure.
        if self.references.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_err() {
            return 0;
        }
        let called = call(&*self.shrinker);
        // ORDERING: Release; the thread that takes the last one away would free it after the calls.
        self.references.fetch_sub(1, Ordering::Release);
        called
    }
}

/// Counts one shrinker; 1 if it answered as it should.
#[inline(always)]
fn call(shrinker: &dyn Shrinker) -> u64 {
    u64::from(shrinker.count(0) == Count::Unknown)
}

struct PlainGroup {
    marks: Box<[AtomicU64]>,
    listed: Box<[Listed]>,
}

impl PlainGroup {
    fn build(shrinkers: usize) -> PlainGroup {
        let bits = |word: usize| AtomicU64::new(u64::MAX >> (64 - (shrinkers - word * 64).min(64)));
        let marks = (0..shrinkers.div_ceil(64)).map(bits).collect();
        PlainGroup { marks, listed: (0..shrinkers).map(|_| Listed::new()).collect() }
    }

    #[inline(always)]
    fn call_all(&self) -> u64 {
        self.call_marked(|listed| call(&*listed.shrinker))
    }

    /// Calls the marked shrinkers in a way; how many answered.
    #[inline(always)]
    fn call_marked(&self, mut call: impl FnMut(&Listed) -> u64) -> u64 {
        let mut called = 0;
        for (word, marks) in self.marks.iter().enumerate() {
            // ORDERING: Acquire; as the engine's walk reads a mark, for the stores before it.
            let mut bits = marks.load(Ordering::Acquire);
            while bits != 0 {
                called += call(&self.listed[word * 64 + bits.trailing_zeros() as usize]);
                bits &= bits - 1;
            }
        }
        called
    }
}

/// Plain groups, and what the schemes need.
struct Plain {
    shape: Shape,
    groups: Vec<PlainGroup>,
    lock: CachePadded<RwLock<()>>,
    srcu: Srcu,
    threads: usize,
}

impl Plain {
    fn build(shape: Shape, threads: usize) -> Plain {
        let groups = (0..shape.groups).map(|_| PlainGroup::build(shape.each)).collect();
        let (lock, srcu) = (CachePadded::new(RwLock::new(())), Srcu::new(THREADS_MAX));
        Plain { shape, groups, lock, srcu, threads }
    }

    /// All groups in the order of a thread's pass.
    fn in_turn(&self, thread: usize) -> impl Iterator<Item = &PlainGroup> {
        let begin = self.groups.len() * (thread % self.threads) / self.threads;
        let (before, from_here) = self.groups.split_at(begin);
        from_here.iter().chain(before)
    }

    fn visit(&self, pass: Scheme, thread: usize, visits: u64) -> Result<u64> {
        let mut done = 0;
        while done < visits {
            let called = pass(self, thread);
            expect("shrinkers called in a pass", called, self.shape.shrinkers())?;
            done += called;
        }
        Ok(done)
    }
}

pub(super) fn run(lab: &mut Lab<'_>) -> Result<()> {
    let (groups, each) = lab.pick((70, 70), (GROUPS, IN_ONE), (GROUPS, IN_ONE));
    measure(lab, Shape { groups, each: 1 }, &format!("{} groups", count(groups as u64)))?;
    measure(lab, Shape { groups: 1, each }, &format!("{} shrinkers in a group", count(each as u64)))
}

fn measure(lab: &mut Lab<'_>, shape: Shape, name: &str) -> Result<()> {
    let (threads, slots) = (lab.args.threads(), lab.slots);
    check_visits(slots, shape)?;
    let (engine, plain) = (Engine::build(slots, shape, || ())?, Plain::build(shape, threads));
    let (engine, plain, params) = (&engine, &plain, json!({"groups": shape.groups, "each": shape.each}));
    let cases = SCHEMES.into_iter().flat_map(|(by, pass)| {
        let visit = move |thread: usize, _: &mut usize, visits| plain.visit(pass, thread, visits);
        Case::scaled(threads, "visit", by, &params, visit)
    });
    let whole = |_: usize, _: &mut usize, visits| engine.visit(visits);
    let cases = cases.chain(Case::scaled(threads, "visit", ENGINE, &params, whole)).collect();
    // A window has several reclaims, so that those of two threads end together.
    let reclaim_us = PRIORITIES * shape.shrinkers() * VISIT_NS / 1000;
    let Plan { rounds, window_us } = lab.effort.windows;
    let plan = Plan { rounds: rounds.div_ceil(3), window_us: window_us.max(reclaim_us * 2) };
    let title = format!("{name}: a thread's time for a shrinker visited");
    let found = lab.measure([&title, "by: what protects the shrinkers"], plan, cases, [], |_, _, _| [])?;
    let [[one, all], [_, lock], [_, pins]] = [ENGINE, LOCK, PINS].map(|by| found.scale(threads, "visit", by));
    let is_one = shape.groups == 1;
    if is_one {
        lab.at_most(format!("a visit, {name}"), one, 2.0, "ns");
    }
    if threads > 1 {
        lab.at_most(format!("a visit, {name}, all threads over 1"), ratio(all, one), 1.25, "x");
    }
    if threads > 1 && !is_one {
        for (of, what) in [(all, "the engine's walk"), (pins, "hazard records")] {
            lab.at_least(format!("a visit, all threads: the lock over {what}"), ratio(lock, of), 10.0, "x");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visits_each_shrinker_once_a_pass_in_each_scheme() {
        for (name, pass) in SCHEMES {
            for (groups, each) in [(1, 1), (1, 64), (1, 65), (1, 200), (7, 3)] {
                let shape = Shape { groups, each };
                let plain = Plain::build(shape, 2);
                assert_eq!([0, 1].map(|thread| pass(&plain, thread)), [(groups * each) as u64; 2], "{name}");
            }
        }
    }

    #[test]
    fn passes_by_a_group_whose_lock_is_taken() {
        let (plain, (_, pass)) = (Plain::build(Shape { groups: 3, each: 1 }, 1), SCHEMES[1]);
        let held = plain.lock.write().unwrap();
        assert_eq!(pass(&plain, 0), 0);
        drop(held);
        assert_eq!(pass(&plain, 0), 3);
    }

    #[test]
    fn visits_each_shrinker_at_each_priority_when_nothing_is_found() {
        let slots = SlotSource::virtual_slots(2).unwrap();
        let shape = Shape { groups: 5, each: 3 };
        check_visits(slots, shape).unwrap();
        assert_eq!(Engine::build(slots, shape, || ()).unwrap().visit(1).unwrap(), 13 * 15);
    }
}
