//! Statistics: one subsystem of one hierarchy, as its users see it.

use core::fmt;
use core::time::Duration;

use memgroup_sync::grace;

use super::flush::{self, Freshness};
use super::side::Reach;
use super::stat::{RegisterError, Stat, StatKind, Subsystem};
use super::store::{Entry, Store};
use super::tree_stats::TreeStats;
use super::{text, update};
use crate::group::Group;
use crate::hierarchy::Hierarchy;
use crate::node::Node;
use crate::scope;
use crate::shared::Shared;

/// The most that one addition may change a statistic by, up or down: 256 TiB.
const DELTA_MAX: i64 = 1 << 48;

/// The statistics of one subsystem in all groups of a hierarchy.
///
/// A handle, `Send` and `Sync`; clones are the same statistics, and keep the hierarchy as any handle of it does. Made by
/// [`Hierarchy::register`], [`Hierarchy::memory`], [`Hierarchy::cpu`], [`Hierarchy::io`] and [`Hierarchy::statistics`].
///
/// ```
/// # use memgroup::{Config, Freshness, Hierarchy, Reach, Stat, Subsystem};
/// # let hierarchy = Hierarchy::new(Config::new())?;
/// let tenant = hierarchy.create("/tenant")?;
/// let cache = hierarchy.register(Subsystem { name: "cache", stats: const { &[Stat::count("hits")] } })?;
/// std::thread::scope(|threads| {
///     for _ in 0..4 {
///         threads.spawn(|| (0..1000).for_each(|_| cache.add(&tenant, 0, 1)));
///     }
/// });
/// assert_eq!(cache.get(&hierarchy.root(), 0, Reach::Subtree, Freshness::Fresh), 4000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Statistics {
    hierarchy: Hierarchy,
    store: &'static Store,
    /// The store's, where an addition finds it at once.
    number: usize,
    subsystem: Subsystem,
    has_times: bool,
}

impl Statistics {
    pub(crate) fn of(hierarchy: &Hierarchy, store: &'static Store) -> Statistics {
        let subsystem = store.subsystem();
        let has_times = subsystem.stats.iter().any(|stat| stat.kind() == StatKind::Time);
        Statistics { hierarchy: hierarchy.clone(), store, number: store.number, subsystem, has_times }
    }

    pub(crate) fn register(hierarchy: &Hierarchy, subsystem: Subsystem) -> Result<Statistics, RegisterError> {
        let shared = hierarchy.shared();
        shared.statistics.register(shared, subsystem).map(|store| Statistics::of(hierarchy, store))
    }

    /// The subsystem's name.
    pub fn name(&self) -> &'static str {
        self.subsystem.name
    }

    /// Its statistics, in the order of their numbers.
    pub fn stats(&self) -> &'static [Stat] {
        self.subsystem.stats
    }

    /// The number of the statistic with this name.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.stats().iter().position(|stat| stat.name() == name)
    }

    fn shared(&self) -> &'static Shared {
        self.hierarchy.shared()
    }

    #[inline(always)]
    fn entry(&self, group: &Group) -> (&'static Node, &'static Entry) {
        let node = group.node();
        match node.stats[self.number].get() {
            Some(entry) if std::ptr::eq(entry.store, self.store) => (node, entry),
            _ => foreign(self, group),
        }
    }

    /// Adds `delta` to a statistic of `group`; all groups above it see it too.
    ///
    /// One atomic addition in this thread's slot, whatever other threads do, and the first time since the last flush a mark. Never
    /// waits, never allocates, makes no system call; may be called inside an allocator. (The kernel backs a page of per-CPU memory
    /// when it is first written to.) A [`Time`](StatKind::Time) is fed in nanoseconds: [`add_time`](Self::add_time) takes a duration. A
    /// removed group that somebody has a handle on still counts.
    ///
    /// What is added before a [`Fresh`](Freshness::Fresh) read, by this thread or by one whose work it has seen, is in what that reads.
    ///
    /// # Panics
    /// When there is no such statistic, when `delta` is below zero and the statistic only grows, when it is more than 2^48 up or down, and
    /// when the group is of another hierarchy; nothing is added then. When one slot's changes since the last flush fall below -2^61 or rise to
    /// 2^63: those are lost, and the next addition says so. What flushes have added up is not checked: it wraps beyond ±2^63.
    #[inline]
    pub fn add(&self, group: &Group, stat: usize, delta: i64) {
        let (node, entry) = self.entry(group);
        self.check(stat, delta);
        update::add_to(entry, node, stat, delta);
    }

    /// Adds to a statistic of the group in force on this thread ([`scope`]); `false` if none is, or it is another hierarchy's.
    ///
    /// # Panics
    /// As [`add`](Self::add).
    #[inline]
    pub fn add_current(&self, stat: usize, delta: i64) -> bool {
        let Some(node) = scope::node().filter(|node| std::ptr::eq(node.shared, self.shared())) else {
            return false;
        };
        self.check(stat, delta);
        update::add(node, self.number, stat, delta);
        true
    }

    /// Adds `time` to a [`Time`](StatKind::Time) of `group`.
    ///
    /// # Panics
    /// As [`add`](Self::add), where the statistic is no time, and for more than three days at once.
    #[inline]
    pub fn add_time(&self, group: &Group, stat: usize, time: Duration) {
        let is_time = self.stats().get(stat).is_none_or(|stat| stat.kind() == StatKind::Time);
        assert!(is_time, "failed to add {time:?} to statistic {stat} of {}: it is not a time", self.name());
        self.add(group, stat, i64::try_from(time.as_nanos()).unwrap_or(i64::MAX));
    }

    #[inline(always)]
    fn check(&self, stat: usize, delta: i64) {
        let allowed = match self.subsystem.stats.get(stat) {
            _ if (DELTA_MAX + 1..).contains(&delta) => false,
            Some(stat) => delta >= 0 || stat.kind() == StatKind::Gauge && delta >= -DELTA_MAX,
            None => false,
        };
        if !allowed {
            self.refuse(stat, delta);
        }
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, stat: usize, delta: i64) -> ! {
        let (name, stats) = (self.name(), self.stats().len());
        let Some(stat) = self.stats().get(stat) else {
            panic!("{name} has {stats} statistics, none of number {stat}");
        };
        let stat_name = stat.name();
        if delta < 0 && stat.kind() != StatKind::Gauge {
            panic!("failed to add {delta} to {stat_name} of {name}: it only grows");
        }
        panic!(
            "failed to add {delta} to {stat_name} of {name}: one addition is 2^48 at the most, up or down"
        );
    }

    /// Flushes the subtree of `group`: what was added in it before the call arrives in every group above. Other subsystems are left
    /// alone. Threads that ask for the same share one flush.
    ///
    /// # Panics
    /// When the group is of another hierarchy.
    pub fn flush(&self, group: &Group) {
        let (node, _) = self.entry(group);
        flush::refresh(self.store, node);
    }

    /// Reads the first values of `group` into `values`, as they were together at one moment. Allocates nothing; where nothing was
    /// added since the last flush it is a copy.
    ///
    /// Counts and times of a group never run backwards from one read to the next, whatever is flushed, moved or removed meanwhile.
    ///
    /// ```
    /// # use memgroup::{Config, Freshness, Hierarchy, Reach, stats};
    /// # let hierarchy = Hierarchy::new(Config::new())?;
    /// let tenant = hierarchy.create("/tenant")?;
    /// let io = hierarchy.io();
    /// io.add(&tenant, stats::io::RBYTES, 4096);
    /// let mut values = [0; stats::io::RBYTES + 1];
    /// io.read(&tenant, Reach::Local, Freshness::Fresh, &mut values);
    /// assert_eq!(values, [4096]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// When there is room for more values than there are statistics, and when the group is of another hierarchy.
    #[inline]
    pub fn read(&self, group: &Group, reach: Reach, freshness: Freshness, values: &mut [i64]) {
        let (node, entry) = self.entry(group);
        let stats = self.stats().len();
        assert!(
            values.len() <= stats,
            "failed to read {} values of {}: it has {stats}",
            values.len(),
            self.name()
        );
        flush::refresh_as(self.store, node, freshness);
        entry.side(&grace::enter()).copy(reach, values);
        self.to_units(values);
    }

    /// Times are kept in nanoseconds and read in microseconds.
    #[inline]
    pub(super) fn to_units(&self, values: &mut [i64]) {
        if !self.has_times {
            return;
        }
        for (value, stat) in values.iter_mut().zip(self.stats()) {
            if stat.kind() == StatKind::Time {
                *value /= 1000;
            }
        }
    }

    /// One value of `group`.
    ///
    /// # Panics
    /// When there is no such statistic, and when the group is of another hierarchy.
    pub fn get(&self, group: &Group, stat: usize, reach: Reach, freshness: Freshness) -> i64 {
        let (node, entry) = self.entry(group);
        self.check(stat, 0);
        flush::refresh_as(self.store, node, freshness);
        let mut value = [entry.side(&grace::enter()).peek(reach, stat)];
        if self.stats()[stat].kind() == StatKind::Time {
            value[0] /= 1000;
        }
        value[0]
    }

    /// Reads the values of `group` and of all online groups below it, as they were together at one moment: there each group's subtree
    /// is the sum of its own values, those of its children, and those of groups that were removed. (Times are rounded down one by one,
    /// and may miss a microsecond for each group.) `into` keeps its room from one read
    /// to the next, and where that suffices nothing is allocated.
    ///
    /// # Panics
    /// When the group is of another hierarchy.
    pub fn read_tree(&self, group: &Group, freshness: Freshness, into: &mut TreeStats) {
        let (node, _) = self.entry(group);
        into.fill(self, self.store, node, freshness);
    }

    /// The values of `group` with everything below it, as lines of text: `key value` for each statistic, or for `io` one line of
    /// `key=value`, as cgroup v2's files have them.
    ///
    /// ```
    /// # use memgroup::{Config, Freshness, Hierarchy, stats};
    /// # let hierarchy = Hierarchy::new(Config::new())?;
    /// let tenant = hierarchy.create("/tenant")?;
    /// hierarchy.io().add(&tenant, stats::io::RBYTES, 4096);
    /// let text = hierarchy.io().text(&tenant, Freshness::Fresh);
    /// assert_eq!(text, "all rbytes=4096 wbytes=0 rios=0 wios=0 syncs=0\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// When the group is of another hierarchy.
    pub fn text(&self, group: &Group, freshness: Freshness) -> String {
        let mut values = vec![0; self.stats().len()];
        self.read(group, Reach::Subtree, freshness, &mut values);
        text::render(self.number, self.stats(), &values)
    }

    /// What the statistics take, in bytes.
    pub fn footprint(&self) -> Footprint {
        Footprint {
            slot_bytes: self.store.records.record_bytes(),
            marks_bytes: self.store.updates.marks.bytes(),
            group_bytes: self.store.group_bytes(),
            groups: self.store.sides(),
        }
    }

    /// How many flushes there were, of whatever part of the tree; with a single tree, of all its subsystems. Not from zero where a hierarchy that is
    /// gone was used again: compare it with itself.
    pub fn flushes(&self) -> u64 {
        self.store.updates.flushes()
    }

    /// Whether this is one of the built-in subsystems.
    pub fn is_builtin(&self) -> bool {
        self.number < super::builtin::ALL.len()
    }
}

/// What the statistics of one subsystem take, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Of one group on one slot: the words that are added to. Taken with the group's first addition, and given back.
    pub slot_bytes: usize,
    /// Of all groups on all slots, those that never ran included: what tells that they have changed. Subsystems that share one tree
    /// share it.
    pub marks_bytes: usize,
    /// Of one group, whatever the number of slots: its flushed values. Given back as records are: a place that is free keeps them for
    /// its next group until maintenance comes by.
    pub group_bytes: usize,
    /// So many groups, and free places, have them now.
    pub groups: usize,
}

#[cold]
fn foreign(statistics: &Statistics, group: &Group) -> ! {
    panic!(
        "failed to find {} of the group {}: the statistics are those of another hierarchy",
        statistics.name(),
        group.path()
    )
}

impl Clone for Statistics {
    fn clone(&self) -> Statistics {
        Statistics { hierarchy: self.hierarchy.clone(), ..*self }
    }
}

impl fmt::Debug for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Statistics").field("subsystem", &self.subsystem).finish_non_exhaustive()
    }
}
