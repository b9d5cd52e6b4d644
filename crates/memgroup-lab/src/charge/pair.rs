//! The pair: one charge and its uncharge, by ours with and without the stock, and by the controls.
//!
//! Every variant is one [`Spec`]; each gets groups of its own, so that no variant warms another's lines. Threads "in
//! the same group" walk the same leaves, each from its own start; threads "in a group each" have leaves of
//! their own under one parent, so that they meet in the parent and the root only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memgroup::{Config, Group};
use memgroup_percpu::{PerCpu, SlotSource};

use super::control::{BarePairs, FlatAtomic, FlatPairs, MutexPairs, MutexTree};
use crate::Error;
use crate::harness::tree::{Tree, expect_bytes};
use crate::harness::window::Work;

/// Misses of a stock that has yet to be filled, in all slots that the threads use.
const GROWING_MISSES: u64 = 16;

/// Who keeps the account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Mechanism {
    /// Ours with the stock's cap at zero: every level, each time.
    NoStock,
    /// Ours.
    Stock,
    /// One shared counter for everybody.
    FlatAtomic,
    /// A tree behind a mutex.
    Mutex,
    /// Two bare compare-and-swaps on a word of one's own: what a stock that looks before it changes would take for a hit
    /// and its return. Ours changes by two additions.
    BareSwaps,
    /// Nobody: only what else the variant asks for is done.
    Nothing,
}

impl Mechanism {
    pub(super) const ALL: [Mechanism; 4] =
        [Mechanism::NoStock, Mechanism::Stock, Mechanism::FlatAtomic, Mechanism::Mutex];

    pub(super) fn name(self) -> &'static str {
        match self {
            Mechanism::NoStock => "no stock",
            Mechanism::Stock => "stock",
            Mechanism::FlatAtomic => "flat atomic",
            Mechanism::Mutex => "mutex tree",
            Mechanism::BareSwaps => "two bare compare-and-swaps",
            Mechanism::Nothing => "statistics alone",
        }
    }
}

/// How many threads, and where they charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Crowd {
    One,
    SameGroup,
    GroupEach,
}

impl Crowd {
    pub(super) const ALL: [Crowd; 3] = [Crowd::One, Crowd::SameGroup, Crowd::GroupEach];

    pub(super) fn name(self) -> &'static str {
        match self {
            Crowd::One => "one thread",
            Crowd::SameGroup => "same group",
            Crowd::GroupEach => "a group each",
        }
    }
}

/// One variant of the pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Spec {
    pub(super) mechanism: Mechanism,
    pub(super) crowd: Crowd,
    pub(super) depth: usize,
    /// Groups in turn, of each thread.
    pub(super) groups: usize,
    pub(super) bytes: u64,
    pub(super) statistics: bool,
    pub(super) root_accounted: bool,
}

impl Spec {
    /// Whether the variant can be built: the root has no sibling, and one shared counter knows no groups.
    pub(super) fn exists(&self, threads: usize) -> bool {
        let one_leaf = self.depth == 1 || self.mechanism == Mechanism::FlatAtomic;
        (self.crowd == Crowd::One || threads > 1)
            && (!one_leaf || (self.groups == 1 && self.crowd != Crowd::GroupEach))
            && (self.mechanism != Mechanism::Nothing || self.crowd != Crowd::GroupEach)
            && (self.mechanism != Mechanism::BareSwaps || (self.groups == 1 && self.crowd == Crowd::One))
    }

    /// Leaves of each thread, as indices, and how many there are in all.
    fn leaves(&self, threads: usize) -> (Vec<std::ops::Range<usize>>, usize) {
        let shared_by = |threads| (vec![0..self.groups; threads], self.groups);
        match self.crowd {
            Crowd::One => shared_by(1),
            Crowd::SameGroup => shared_by(threads),
            Crowd::GroupEach => {
                let of = |thread| thread * self.groups..(thread + 1) * self.groups;
                ((0..threads).map(of).collect(), threads * self.groups)
            }
        }
    }
}

/// A built variant; after its windows it is asked whether it was what its name says and its bytes add up, given the
/// pairs that were made.
pub(super) struct Built {
    pub(super) work: Arc<dyn Work>,
    pub(super) check: Box<dyn Fn(u64) -> Result<(), Error>>,
}

impl Spec {
    pub(super) fn build(&self, threads: usize, slots: SlotSource) -> Result<Built, Error> {
        let statistics = Statistics::new(self.statistics, slots);
        let (bytes, (leaves, leaf_count)) = (self.bytes, self.leaves(threads));
        match self.mechanism {
            Mechanism::NoStock | Mechanism::Stock => {
                let tree = Arc::new(Tree::grow(self.config(slots), self.depth, leaf_count)?);
                let own = leaves.into_iter().map(|range| tree.leaves[range].to_vec()).collect();
                let work = Arc::new(GroupPairs { own, bytes, statistics });
                let (seen, spec) = (Arc::clone(&work), *self);
                let check = move |pairs| {
                    spec.check_stock(&tree, pairs)?;
                    spec.check_root(&tree)?;
                    seen.statistics.check(2 * pairs * bytes)?;
                    tree.check_empty()
                };
                Ok(Built { work, check: Box::new(check) })
            }
            Mechanism::FlatAtomic => {
                let work = Arc::new(FlatPairs { counter: FlatAtomic::new(), bytes, statistics });
                let seen = Arc::clone(&work);
                Ok(Built {
                    work,
                    check: Box::new(move |pairs| {
                        seen.statistics.check(2 * pairs * bytes)?;
                        empty("the flat counter", seen.counter.usage())
                    }),
                })
            }
            Mechanism::Mutex => {
                let tree = MutexTree::new(self.depth, leaf_count);
                let work = Arc::new(MutexPairs { tree, leaves, bytes, statistics });
                let seen = Arc::clone(&work);
                Ok(Built {
                    work,
                    check: Box::new(move |pairs| {
                        seen.statistics.check(2 * pairs * bytes)?;
                        empty("the mutex tree", seen.tree.usage())
                    }),
                })
            }
            Mechanism::BareSwaps => {
                let work = Arc::new(BarePairs { counter: FlatAtomic::new(), bytes });
                let seen = Arc::clone(&work);
                Ok(Built { work, check: Box::new(move |_| empty("the bare word", seen.counter.usage())) })
            }
            Mechanism::Nothing => {
                let work = Arc::new(StatisticsOnly { bytes, statistics });
                let seen = Arc::clone(&work);
                Ok(Built { work, check: Box::new(move |pairs| seen.statistics.check(2 * pairs * bytes)) })
            }
        }
    }

    /// Without stock there are no hits; with it every pair is a hit or a miss, nearly all hits where one group is charged.
    fn check_stock(&self, tree: &Tree, pairs: u64) -> Result<(), Error> {
        let stock = self.mechanism == Mechanism::Stock;
        let (hits, misses) = tree.check_stock(stock, self.mechanism.name())?;
        if stock && hits + misses != pairs {
            return Err(Error::Wrong(format!("{pairs} pairs are {hits} hits and {misses} misses")));
        }
        if stock && self.groups == 1 && misses > pairs / 100 + GROWING_MISSES {
            return Err(Error::Wrong(format!("the stock served {hits} of {pairs} pairs in one group only")));
        }
        Ok(())
    }

    /// A charge that is held counts in the root, or does not where the root is left unaccounted.
    fn check_root(&self, tree: &Tree) -> Result<(), Error> {
        let held = tree.leaves[0].try_charge(self.bytes).map_err(refused)?;
        let right = if self.root_accounted || self.depth == 1 { held.bytes() } else { 0 };
        expect_bytes(
            &tree.hierarchy.root(),
            "usage without stock",
            tree.hierarchy.root().usage_exact(),
            right,
        )
    }

    fn config(&self, slots: SlotSource) -> Config {
        let config = config(self.mechanism == Mechanism::Stock, self.depth, slots);
        config.account_root(self.root_accounted)
    }
}

/// Ours with or without the stock, for groups of `depth` counters; everything else at the engine's defaults.
pub(super) fn config(stock: bool, depth: usize, slots: SlotSource) -> Config {
    let config = Config::new().slots(slots).depth_max(depth as u32);
    if stock { config } else { config.stock_cap_bytes(0) }
}

fn empty(what: &str, usage: u64) -> Result<(), Error> {
    match usage {
        0 => Ok(()),
        left => Err(Error::Wrong(format!("{what} holds {left} bytes, none are charged"))),
    }
}

/// A charge below a limit that is far away was refused: something is wrong.
#[cold]
pub(super) fn refused(who: impl std::fmt::Display) -> Error {
    Error::Wrong(format!("{who} refused a charge far below its limit"))
}

/// A count per slot, moved at every charge and uncharge, as the kernel's mod_state is; or nothing.
pub(super) struct Statistics {
    counts: Option<PerCpu<AtomicU64>>,
    slots: SlotSource,
}

impl Statistics {
    fn new(wanted: bool, slots: SlotSource) -> Statistics {
        Statistics { counts: wanted.then(|| PerCpu::new(slots.slots())), slots }
    }

    #[inline]
    pub(super) fn count(&self, bytes: u64) {
        if let Some(counts) = &self.counts {
            // ORDERING: Relaxed; a statistic orders nothing.
            counts.get(self.slots.current()).fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

impl Statistics {
    /// The counts of all slots are what the pairs added, or there are none.
    fn check(&self, right: u64) -> Result<(), Error> {
        let Some(counts) = &self.counts else { return Ok(()) };
        // ORDERING: Relaxed; the windows are over.
        let sum: u64 = counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        if sum == right {
            return Ok(());
        }
        Err(Error::Wrong(format!("the statistics of the pairs are {sum} bytes, {right} were counted")))
    }
}

struct StatisticsOnly {
    bytes: u64,
    statistics: Statistics,
}

impl Work for StatisticsOnly {
    fn batch(&self, _: usize, _: &mut usize, count: u64) -> Result<u64, Error> {
        for _ in 0..count {
            self.statistics.count(self.bytes);
            self.statistics.count(self.bytes);
        }
        Ok(count)
    }
}

/// Pairs on groups, each thread's in turn.
pub(super) struct GroupPairs {
    own: Vec<Vec<Group>>,
    bytes: u64,
    statistics: Statistics,
}

impl GroupPairs {
    /// Pairs without statistics; `own` holds each thread's groups.
    pub(super) fn new(own: Vec<Vec<Group>>, bytes: u64, slots: SlotSource) -> GroupPairs {
        GroupPairs { own, bytes, statistics: Statistics::new(false, slots) }
    }
}

impl GroupPairs {
    /// The pairs, with `note` after each half.
    #[inline(always)]
    fn pairs(&self, thread: usize, cursor: &mut usize, count: u64, note: impl Fn()) -> Result<u64, Error> {
        let groups = &self.own[thread][..];
        // In a register: a store of the loop's own would be waited for by the addition after it.
        let mut at = *cursor;
        for _ in 0..count {
            let charge = groups[at].try_charge(self.bytes).map_err(refused)?;
            note();
            drop(charge);
            note();
            at = if at + 1 == groups.len() { 0 } else { at + 1 };
        }
        *cursor = at;
        Ok(count)
    }
}

impl Work for GroupPairs {
    fn batch(&self, thread: usize, cursor: &mut usize, count: u64) -> Result<u64, Error> {
        if self.statistics.counts.is_none() {
            self.pairs(thread, cursor, count, || ())
        } else {
            self.pairs(thread, cursor, count, || self.statistics.count(self.bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: Spec = Spec {
        mechanism: Mechanism::Stock,
        crowd: Crowd::GroupEach,
        depth: 3,
        groups: 4,
        bytes: 64,
        statistics: false,
        root_accounted: true,
    };

    #[test]
    fn threads_in_a_group_each_share_no_leaf() {
        assert_eq!(SPEC.leaves(2), (vec![0..4, 4..8], 8));
        assert_eq!(Spec { crowd: Crowd::SameGroup, ..SPEC }.leaves(2), (vec![0..4, 0..4], 4));
        assert_eq!(Spec { crowd: Crowd::One, ..SPEC }.leaves(2), (vec![0..4; 1], 4));
    }

    #[test]
    fn the_root_and_the_flat_counter_have_no_siblings() {
        assert!(!Spec { depth: 1, ..SPEC }.exists(2));
        assert!(!Spec { mechanism: Mechanism::FlatAtomic, groups: 1, ..SPEC }.exists(2));
        assert!(Spec { depth: 1, groups: 1, crowd: Crowd::SameGroup, ..SPEC }.exists(2));
        assert!(!Spec { crowd: Crowd::SameGroup, ..SPEC }.exists(1));
    }

    #[test]
    fn every_mechanism_leaves_nothing_charged() {
        for mechanism in Mechanism::ALL {
            let groups = if mechanism == Mechanism::FlatAtomic { 1 } else { 4 };
            let spec = Spec { mechanism, groups, crowd: Crowd::SameGroup, statistics: true, ..SPEC };
            let built = spec.build(2, SlotSource::detect()).unwrap();
            assert_eq!(built.work.batch(1, &mut 0, 100).unwrap(), 100);
            (built.check)(100).unwrap();
        }
    }

    /// The check of what was built for `built` pairs, had it been named `named`.
    fn check_as(built: Spec, named: Spec) -> Result<(), Error> {
        let tree = Tree::grow(built.config(SlotSource::detect()), built.depth, 1).unwrap();
        for _ in 0..1000 {
            drop(tree.leaves[0].try_charge(built.bytes).unwrap());
        }
        named.check_stock(&tree, 1000).and_then(|()| named.check_root(&tree))
    }

    #[test]
    fn a_variant_that_is_not_what_its_name_says_is_a_wrong_result() {
        let stock = Spec { groups: 1, ..SPEC };
        let no_stock = Spec { mechanism: Mechanism::NoStock, ..stock };
        let unaccounted = Spec { root_accounted: false, ..stock };
        for (built, named) in
            [(stock, no_stock), (no_stock, stock), (stock, unaccounted), (unaccounted, stock)]
        {
            assert!(matches!(check_as(built, named), Err(Error::Wrong(_))), "{built:?} as {named:?}");
            check_as(built, built).unwrap();
        }
    }

    #[test]
    fn pairs_that_were_not_counted_are_a_wrong_result() {
        for mechanism in [Mechanism::Stock, Mechanism::FlatAtomic, Mechanism::Mutex, Mechanism::Nothing] {
            let spec = Spec { mechanism, groups: 1, crowd: Crowd::One, statistics: true, ..SPEC };
            let built = spec.build(1, SlotSource::detect()).unwrap();
            built.work.batch(0, &mut 0, 100).unwrap();
            assert!(matches!((built.check)(101), Err(Error::Wrong(_))), "{mechanism:?}");
        }
        let uncounted = Statistics::new(true, SlotSource::detect());
        assert!(matches!(uncounted.check(64), Err(Error::Wrong(_))));
    }
}
