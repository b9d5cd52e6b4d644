//! The controls of a walk: plain groups with plain lists of the same shrinkers, and five ways to keep one from going while it is called.
//!
//! ```text
//!   group ─▶ a bit for each shrinker that is marked ─▶ the shrinker ─▶ count, through its vtable
//! ```
//!
//! A pass visits each marked shrinker of each group once, in order; each thread begins in another part of the groups, so that two meet as
//! seldom as they can. There are no classes, no priorities and no growing: what differs from one scheme to the next is its protection alone.
//!
//! - I1. A shrinker of a pass answers [`Count::Unknown`], so nothing is unmarked and each pass is like the one before.
//! - E1. Nothing is ever removed here, so no scheme waits for anybody; each pays what its readers pay, with the orderings it would need.

use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

use memgroup::{Count, Shrinker};
use memgroup_sync::CachePadded;
use memgroup_sync::hazard::{Domain, Place};

use super::house::{Idle, Shape};
use crate::Error;
use crate::args::THREADS_MAX;
use crate::harness::window::Work;

memgroup_sync::global! {
    static WALKS: Domain = Domain::new();
}

/// How a walk keeps a shrinker from going away while it is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    /// Not at all: what the others are measured above.
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

impl Scheme {
    pub(super) const ALL: [Scheme; 5] =
        [Scheme::Nothing, Scheme::Lock, Scheme::Srcu, Scheme::Counts, Scheme::Pins];

    pub(super) fn name(self) -> &'static str {
        match self {
            Scheme::Nothing => "no protection, plain walk",
            Scheme::Lock => "read-write lock (control)",
            Scheme::Srcu => "SRCU-like (control)",
            Scheme::Counts => "reference counts (control)",
            Scheme::Pins => "hazard records, plain walk",
        }
    }
}

/// A shrinker of a plain list.
struct Listed {
    references: AtomicUsize,
    shrinker: Box<dyn Shrinker>,
}

struct Group {
    marked: Box<[AtomicU64]>,
    listed: Box<[&'static Listed]>,
    places: Box<[&'static Place<Box<dyn Shrinker>>]>,
}

impl Group {
    /// The numbers of what is marked.
    #[inline(always)]
    fn marked(&self) -> impl Iterator<Item = usize> {
        self.marked.iter().enumerate().flat_map(|(word, bits)| {
            // ORDERING: Acquire; as the engine's walk reads a mark, for what was stored before it.
            let mut bits = bits.load(Ordering::Acquire);
            std::iter::from_fn(move || {
                let index = (bits != 0).then(|| word * 64 + bits.trailing_zeros() as usize)?;
                bits &= bits - 1;
                Some(index)
            })
        })
    }
}

/// Where a thread says that it is in a walk: entries and leavings, for each of two epochs.
#[derive(Default)]
struct Inside {
    entered: [AtomicU64; 2],
    left: [AtomicU64; 2],
}

/// Plain groups under one scheme.
pub(super) struct Plain {
    scheme: Scheme,
    groups: Vec<Group>,
    lock: CachePadded<RwLock<()>>,
    epoch: CachePadded<AtomicUsize>,
    inside: Box<[CachePadded<Inside>]>,
    threads: usize,
}

impl Plain {
    pub(super) fn build(scheme: Scheme, shape: Shape, threads: usize) -> Plain {
        let shared = shape.is_one_shrinker.then(|| Plain::shrinker(scheme));
        let groups = (0..shape.groups)
            .map(|_| {
                let made = (0..shape.each).map(|_| shared.unwrap_or_else(|| Plain::shrinker(scheme)));
                let (listed, places): (Vec<_>, Vec<_>) = made.unzip();
                let words = shape.each.div_ceil(64);
                let bits = |word: usize| u64::MAX >> (64 - (shape.each - word * 64).min(64));
                Group {
                    marked: (0..words).map(|word| AtomicU64::new(bits(word))).collect(),
                    listed: listed.into(),
                    places: places.into(),
                }
            })
            .collect();
        Plain {
            scheme,
            groups,
            lock: CachePadded::new(RwLock::new(())),
            epoch: CachePadded::new(AtomicUsize::new(0)),
            inside: (0..THREADS_MAX).map(|_| CachePadded::default()).collect(),
            threads,
        }
    }

    /// Kept for ever: a place must not go while anybody could name it.
    fn shrinker(scheme: Scheme) -> (&'static Listed, &'static Place<Box<dyn Shrinker>>) {
        let place = Place::empty(&WALKS);
        if scheme == Scheme::Pins {
            place.put(Box::new(Box::new(Idle) as Box<dyn Shrinker>));
        }
        let listed = Listed { references: AtomicUsize::new(1), shrinker: Box::new(Idle) };
        (Box::leak(Box::new(listed)), Box::leak(Box::new(place)))
    }

    /// One pass of a thread; how many shrinkers it called.
    fn pass(&self, thread: usize) -> u64 {
        let begin = self.groups.len() * (thread % self.threads) / self.threads;
        let (before, from_here) = self.groups.split_at(begin);
        let groups = from_here.iter().chain(before);
        match self.scheme {
            Scheme::Nothing => groups.map(Plain::call_all).sum(),
            Scheme::Lock => groups
                .filter_map(|group| {
                    let _held = self.lock.try_read().ok()?;
                    Some(Plain::call_all(group))
                })
                .sum(),
            Scheme::Srcu => groups.map(|group| self.in_epoch(thread, || Plain::call_all(group))).sum(),
            Scheme::Counts => groups.map(Plain::call_counted).sum(),
            Scheme::Pins => Plain::call_pinned(groups),
        }
    }

    #[inline(always)]
    fn call_all(group: &Group) -> u64 {
        group.marked().map(|at| call(&*group.listed[at].shrinker)).sum()
    }

    fn in_epoch(&self, thread: usize, walk: impl FnOnce() -> u64) -> u64 {
        // ORDERING: Relaxed, all: a thread's own counters, and the fences below order them as SRCU's do: what is read in the section is
        // read after the entry is seen, and before the leaving is.
        let epoch = self.epoch.load(Ordering::Relaxed) & 1;
        let inside = &self.inside[thread];
        // ORDERING: as above.
        inside.entered[epoch].store(inside.entered[epoch].load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let called = walk();
        fence(Ordering::SeqCst);
        // ORDERING: as above.
        inside.left[epoch].store(inside.left[epoch].load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        called
    }

    #[inline(always)]
    fn call_counted(group: &Group) -> u64 {
        let counted = |at: usize| {
            let listed = group.listed[at];
            let more = |references| (references > 0).then_some(references + 1);
            // ORDERING: Acquire, Relaxed; who finds it registered sees what was stored before that. Nothing is read after a failure.
            listed.references.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).ok()?;
            let called = call(&*listed.shrinker);
            // ORDERING: Release; whoever takes the last one away would free it after the calls.
            listed.references.fetch_sub(1, Ordering::Release);
            Some(called)
        };
        group.marked().filter_map(counted).sum()
    }

    #[inline(always)]
    fn call_pinned<'g>(groups: impl Iterator<Item = &'g Group>) -> u64 {
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
}

/// Counts one shrinker; 1 if it answered as it should.
#[inline(always)]
fn call(shrinker: &dyn Shrinker) -> u64 {
    u64::from(shrinker.count(0) == Count::Unknown)
}

impl Work for Plain {
    fn batch(&self, thread: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
        let mut done = 0;
        while done < count {
            let called = self.pass(thread);
            let right = self.groups.iter().map(|group| group.listed.len() as u64).sum::<u64>();
            if called != right {
                return Err(Error::Wrong(format!(
                    "{}: a pass called {called} shrinkers, {right} are marked",
                    self.scheme.name()
                )));
            }
            done += called;
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scheme_visits_each_shrinker_once_a_pass() {
        for scheme in Scheme::ALL {
            for (groups, each) in [(1, 1), (1, 64), (1, 65), (1, 200), (7, 3)] {
                let shape = Shape { groups, each, is_one_shrinker: false };
                let plain = Plain::build(scheme, shape, 2);
                assert_eq!(
                    [0, 1].map(|thread| plain.pass(thread)),
                    [(groups * each) as u64; 2],
                    "{scheme:?}"
                );
            }
        }
    }

    #[test]
    fn a_group_whose_lock_is_taken_is_passed_by() {
        let plain = Plain::build(Scheme::Lock, Shape { groups: 3, each: 1, is_one_shrinker: false }, 1);
        let held = plain.lock.write().unwrap();
        assert_eq!(plain.pass(0), 0);
        drop(held);
        assert_eq!(plain.pass(0), 3);
    }
}
