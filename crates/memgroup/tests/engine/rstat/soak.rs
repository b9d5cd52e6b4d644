//! Soak: threads on virtual slots add, read, flush, create and remove at random while records move
//! and go.
//!
//! The oracles: a thread's next read contains its additions. A count never runs backwards, for any
//! reader. When all threads are at rest, every value is the sum of the additions to the group and
//! to all groups below it. That includes released ones, in both subsystems.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use memgroup::tuning::Tuning;
use memgroup::{
    Config, Freshness, Group, Hierarchy, Maintenance, Reach, SlotSource, Stat, StatKey, Statistics,
    Subsystem, stats,
};
use memgroup_percpu::pin_virtual;

use super::super::random::Random;
use super::{HELD, HITS, fixture_of, local, nth, subtree};

const WORKERS: u64 = 4;
const FAMILIES: usize = 3;
const LEAVES: usize = 3;
const STEPS: usize = if cfg!(memgroup_yields) {
    300
} else if cfg!(debug_assertions) {
    4_000
} else {
    30_000
};

/// Additions to one group, by any thread.
#[derive(Default)]
struct Ledger {
    hits: AtomicI64,
    held: AtomicI64,
    io: AtomicI64,
}

struct Family {
    parent: Group,
    leaves: Vec<Group>,
    /// Of the parent's own, of each leaf, and of all leaves that were removed.
    own: Ledger,
    ledgers: Vec<Ledger>,
    gone: Ledger,
}

struct Fixture {
    hierarchy: Hierarchy,
    cache: Statistics,
    io: Statistics,
    families: Vec<Family>,
    slots: usize,
    done: AtomicBool,
}

impl Fixture {
    fn new(slots: usize, separate: bool) -> Fixture {
        let config = Config::with_slots(SlotSource::virtual_slots(slots).unwrap())
            .separate_trees(separate)
            .demote_after(Some(Duration::ZERO));
        let (hierarchy, cache) = fixture_of(config);
        let families = (0..FAMILIES)
            .map(|n| {
                let parent = hierarchy.create(&format!("/family{n}")).unwrap();
                let leaves = (0..LEAVES).map(|n| parent.create(&format!("leaf{n}")).unwrap()).collect();
                let ledgers = (0..LEAVES).map(|_| Ledger::default()).collect();
                Family { parent, leaves, own: Ledger::default(), ledgers, gone: Ledger::default() }
            })
            .collect();
        let io = hierarchy.io();
        Fixture { hierarchy, cache, io, families, slots, done: AtomicBool::new(false) }
    }

    /// Adds to a group; `ledger` knows of it.
    fn add(&self, random: &mut Random, group: &Group, ledger: &Ledger) {
        let (hits, held, io) =
            (random.below(5) as i64, random.below(100) as i64 - 50, random.below(3) as i64);
        self.cache.add(group, HITS, hits);
        self.cache.add(group, HELD, held);
        self.io.add(group, stats::io::RBYTES, io);
        for (sum, value) in [(&ledger.hits, hits), (&ledger.held, held), (&ledger.io, io)] {
            sum.fetch_add(value, Ordering::Relaxed);
        }
    }

    fn work(&self, worker: u64) {
        let mut random = Random(0x9e37_79b9_97f4_a7c1 ^ worker << 17 | 1);
        for step in 0..STEPS {
            let _pin = step.is_multiple_of(32).then(|| pin_virtual(random.below(self.slots as u64) as usize));
            let family = &self.families[random.below(FAMILIES as u64) as usize];
            let leaf = random.below(LEAVES as u64) as usize;
            match random.below(40) {
                0..24 => self.add(&mut random, &family.leaves[leaf], &family.ledgers[leaf]),
                24..28 => self.add(&mut random, &family.parent, &family.own),
                28..31 => self.see_own_work(&mut random, family, leaf),
                31..34 => self.live_and_die(&mut random, family, worker, step),
                34..36 => self.cache.flush(&family.leaves[leaf]),
                36..38 => self.io.flush(&family.parent),
                _ => self.cache.flush(&self.hierarchy.root()),
            }
        }
    }

    /// Checks that the thread's next fresh read contains its additions, at any level.
    fn see_own_work(&self, random: &mut Random, family: &Family, leaf: usize) {
        let group = &family.leaves[leaf];
        let levels = [group.clone(), family.parent.clone(), self.hierarchy.root()];
        let level = &levels[random.below(3) as usize];
        let before = subtree(&self.cache, level, HITS);
        self.cache.add(group, HITS, 1000);
        let after = subtree(&self.cache, level, HITS);
        family.ledgers[leaf].hits.fetch_add(1000, Ordering::Relaxed);
        assert!(after >= before + 1000, "{before} and 1000 are not {after}: {level:?}");
    }

    /// A leaf that is created, used and removed; now and then its last byte outlives its last
    /// handle.
    fn live_and_die(&self, random: &mut Random, family: &Family, worker: u64, step: usize) {
        let group = family.parent.create(&format!("{worker}-{step}")).unwrap();
        let charge = group.try_charge(random.below(100)).unwrap();
        (0..random.below(4)).for_each(|_| self.add(random, &group, &family.gone));
        group.remove().unwrap();
        (0..random.below(2)).for_each(|_| self.add(random, &group, &family.gone));
        if random.below(2) == 0 {
            drop(group);
            drop(charge);
        }
    }

    /// Counts never run backwards, and values that are read together fit together.
    fn watch(&self) {
        let mut seen = [0; FAMILIES + 1];
        while !self.done.load(Ordering::Relaxed) {
            for (n, family) in self.families.iter().enumerate() {
                let freshness = [Freshness::Fresh, Freshness::Flushed][n % 2];
                let now = self.cache.get(&family.parent, HITS, Reach::Subtree, freshness);
                assert!(now >= seen[n], "family {n} ran from {} back to {now}", seen[n]);
                seen[n] = now;
            }
            let snapshot = self.hierarchy.snapshot();
            let hits = |at: usize| snapshot.groups[at].statistic(HITS, Reach::Subtree).unwrap();
            let root = hits(0);
            assert!(root >= seen[FAMILIES], "the root ran from {} back to {root}", seen[FAMILIES]);
            seen[FAMILIES] = root;
            let families: i64 =
                (0..snapshot.groups.len()).filter(|&at| snapshot.groups[at].depth == 1).map(hits).sum();
            assert!(root >= families, "the root's {root} are less than the {families} of the families");
        }
    }

    fn maintain(&self) {
        while !self.done.load(Ordering::Relaxed) {
            self.hierarchy.maintain(Maintenance::new().expedited());
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn run(&self) {
        thread::scope(|scope| {
            let others = [scope.spawn(|| self.watch()), scope.spawn(|| self.maintain())];
            let workers: Vec<_> = (0..WORKERS).map(|worker| scope.spawn(move || self.work(worker))).collect();
            let ended: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
            self.done.store(true, Ordering::Relaxed);
            for ended in ended.into_iter().chain(others.map(thread::ScopedJoinHandle::join)) {
                if let Err(panic) = ended {
                    std::panic::resume_unwind(panic);
                }
            }
        });
    }

    fn check(&self) {
        let read =
            |ledger: &Ledger| [&ledger.hits, &ledger.held, &ledger.io].map(|sum| sum.load(Ordering::Relaxed));
        let mut all = [0; 3];
        for family in &self.families {
            let mut sum = [0; 3];
            for (leaf, ledger) in family.leaves.iter().zip(&family.ledgers) {
                assert_eq!(self.values(leaf, local), read(ledger), "{leaf:?}");
            }
            for ledger in family.ledgers.iter().chain([&family.own, &family.gone]) {
                for (sum, value) in sum.iter_mut().zip(read(ledger)) {
                    *sum += value;
                }
            }
            assert_eq!(self.values(&family.parent, local), read(&family.own));
            assert_eq!(self.values(&family.parent, subtree), sum, "{:?}", family.parent);
            for (all, value) in all.iter_mut().zip(sum) {
                *all += value;
            }
        }
        assert_eq!(self.values(&self.hierarchy.root(), subtree), all);
        assert_eq!(self.hierarchy.groups().len(), 1 + FAMILIES * (1 + LEAVES));
        assert!(self.hierarchy.dying().is_empty());
    }

    fn values(&self, group: &Group, reach: fn(&Statistics, &Group, StatKey) -> i64) -> [i64; 3] {
        [
            reach(&self.cache, group, HITS),
            reach(&self.cache, group, HELD),
            reach(&self.io, group, stats::io::RBYTES),
        ]
    }
}

/// Groups come and go while another thread repeats `beside` with a wide subsystem, which takes its
/// time. When both are at rest all places are free, without another flush. A group without bytes
/// keeps its place until its release is finished, and is in no list.
fn come_and_go(beside: impl Fn(&Hierarchy, &Statistics) + Sync) {
    const ROUNDS: u32 = if cfg!(memgroup_yields) { 1_000 } else { 20_000 };
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap())
        .groups_max(ROUNDS + 1)
        .demote_after(Some(Duration::ZERO))
        .maintain_on_removal(false);
    let hierarchy = Hierarchy::new(config).unwrap();
    let stats: Vec<_> = (0..60).map(|n| Stat::count(format!("s{n}").leak())).collect();
    let wide = hierarchy.register(Subsystem { name: "wide", stats: stats.leak() }).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                wide.add(&hierarchy.root(), nth(&wide, 0), 1);
                beside(&hierarchy, &wide);
            }
        });
        for round in 0..ROUNDS {
            let group = hierarchy.create(&format!("/{round}")).unwrap();
            hierarchy.io().add(&group, stats::io::RBYTES, 1);
            group.remove().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    let places = (0..=ROUNDS).take_while(|n| hierarchy.create(&format!("/{n}")).is_ok()).count();
    assert_eq!(places, ROUNDS as usize);
    assert_eq!(subtree(&hierarchy.io(), &hierarchy.root(), nth(&hierarchy.io(), 0)), i64::from(ROUNDS));
}

#[test]
fn finishes_releases_deferred_by_a_flush() {
    come_and_go(|hierarchy, wide| wide.flush(&hierarchy.root()));
}

#[test]
fn finishes_releases_deferred_by_maintenance() {
    come_and_go(|hierarchy, _| _ = hierarchy.maintain(Maintenance::new().expedited()));
}

fn soak(slots: usize, separate: bool) {
    let fixture = Fixture::new(slots, separate);
    fixture.run();
    fixture.check();
}

#[test]
fn counts_everything_once_on_2_slots() {
    soak(2, true);
}

#[test]
fn counts_everything_once_on_8_slots() {
    soak(8, true);
}

#[test]
fn counts_everything_once_on_128_slots() {
    soak(128, true);
}

#[test]
fn counts_everything_once_on_512_slots() {
    soak(512, true);
}

#[test]
fn counts_everything_once_in_a_single_tree() {
    soak(8, false);
}
