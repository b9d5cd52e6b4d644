//! Statistics: the public handle on one subsystem of one hierarchy.

use core::fmt::{self, Write};
use core::time::Duration;

use crate::api::scope;
use crate::state::stats::Reach;
use crate::state::stats::builtin::io;
use crate::state::stats::stat::{RegisterError, Stat, StatKey, StatKind, Subsystem};
use crate::state::stats::store::{StatEntry, StatStore};
use crate::stats::flush::Freshness;
use crate::stats::{flush, register, update};
use crate::tree::handle::{Group, Hierarchy};
use crate::tree::node::Node;

/// The most that one addition may change a statistic by, up or down: 256 TiB.
const DELTA_MAX: i64 = 1 << 48;

/// Statistics of one subsystem in all groups of a hierarchy.
///
/// A handle, `Send` and `Sync`. Clones are the same statistics, and keep the hierarchy as any
/// handle of it does. Made by [`Hierarchy::register`], [`Hierarchy::memory`], [`Hierarchy::cpu`],
/// [`Hierarchy::io`] and [`Hierarchy::statistics`].
///
/// ```
/// # use memgroup::{Config, Freshness, Hierarchy, Reach, Stat, StatKey, Subsystem};
/// const CACHE: Subsystem = Subsystem { name: "cache", stats: &[Stat::count("hits")] };
/// const HITS: StatKey = CACHE.key("hits");
///
/// # let hierarchy = Hierarchy::new(Config::new())?;
/// let tenant = hierarchy.create("/tenant")?;
/// let cache = hierarchy.register(CACHE)?;
/// std::thread::scope(|threads| {
///     for _ in 0..4 {
///         threads.spawn(|| (0..1000).for_each(|_| cache.add(&tenant, HITS, 1)));
///     }
/// });
/// assert_eq!(cache.get(&hierarchy.root(), HITS, Reach::Subtree, Freshness::Fresh), 4000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Statistics {
    hierarchy: Hierarchy,
    store: &'static StatStore,
    // Copies of values of the store and the subsystem, where an addition finds them at once.
    number: usize,
    identity: u64,
    subsystem: Subsystem,
    has_times: bool,
}

impl Statistics {
    /// The statistics of a store that a registered subsystem has.
    pub(crate) fn of(hierarchy: &Hierarchy, store: &'static StatStore) -> Statistics {
        let subsystem =
            store.subsystem().expect("a subsystem is registered as long as its hierarchy has handles");
        let has_times = subsystem.stats.iter().any(|stat| stat.kind() == StatKind::Time);
        Statistics {
            hierarchy: hierarchy.clone(),
            store,
            number: store.number,
            identity: subsystem.identity(),
            subsystem,
            has_times,
        }
    }

    pub(crate) fn register(hierarchy: &Hierarchy, subsystem: Subsystem) -> Result<Statistics, RegisterError> {
        register::register(hierarchy.shared(), subsystem).map(|store| Statistics::of(hierarchy, store))
    }

    /// Name of the subsystem.
    pub fn name(&self) -> &'static str {
        self.subsystem.name
    }

    /// Statistics of the subsystem, in the order of their values.
    pub fn stats(&self) -> &'static [Stat] {
        self.subsystem.stats
    }

    /// Keys of all statistics, in the order of their values.
    pub fn keys(&self) -> impl Iterator<Item = StatKey> + use<> {
        let (subsystem, identity) = (self.subsystem, self.identity);
        (0..subsystem.stats.len()).map(move |index| subsystem.key_at(index, identity))
    }

    /// Key of the statistic with this name.
    pub fn key(&self, name: &str) -> Option<StatKey> {
        self.keys().find(|key| key.stat().name() == name)
    }

    #[inline(always)]
    fn entry(&self, group: &Group) -> (&'static Node, &'static StatEntry) {
        let node = group.node();
        match node.stat_entry(self.number) {
            Some(entry) if entry.is_of(self.store) => (node, entry),
            _ => foreign(self, group),
        }
    }

    /// Adds `delta` to a statistic of `group`, and so to those of all groups above it.
    ///
    /// One atomic addition on this thread's slot. The first addition of a slot after a flush also
    /// marks the group. An addition never waits and never calls the global allocator, so an
    /// allocator may call it. It makes no system call, except that a thread's first
    /// one registers the thread. (The kernel backs a page of per-CPU memory at the first write to
    /// it.) A [`Time`](StatKind::Time) is added in nanoseconds; [`add_time`](Self::add_time)
    /// takes a duration. A removed group counts as long as it has a handle.
    ///
    /// A [`Fresh`](Freshness::Fresh) read contains all additions that this thread made before, and
    /// those of other threads that it knows of.
    ///
    /// # Panics
    /// When the key belongs to another subsystem, when the group is of another hierarchy, when
    /// `delta` is more than 2^48 up or down, and when `delta` is negative although the
    /// statistic only grows. Nothing is added then.
    ///
    /// When one slot's changes since the last flush fall below -2^61 or rise to 2^63: those are
    /// lost, and the next addition panics. Sums of flushes are not checked; they wrap beyond
    /// ±2^63.
    #[inline]
    pub fn add(&self, group: &Group, key: StatKey, delta: i64) {
        let (node, entry) = self.entry(group);
        self.check(key, delta);
        update::add_to(entry, node, key.index(), delta);
    }

    /// Adds to a statistic of the current group of this thread ([`scope`]). `false` if there is
    /// none, or it is of another hierarchy.
    ///
    /// # Panics
    /// As [`add`](Self::add).
    #[inline]
    pub fn add_current(&self, key: StatKey, delta: i64) -> bool {
        let shared = self.hierarchy.shared();
        let Some(node) = scope::node().filter(|node| std::ptr::eq(node.shared(), shared)) else {
            return false;
        };
        self.check(key, delta);
        update::add(node, self.number, key.index(), delta);
        true
    }

    /// Adds `time` to a [`Time`](StatKind::Time) of `group`.
    ///
    /// # Panics
    /// As [`add`](Self::add); also when the statistic is no time, and for more than three days at
    /// once.
    #[inline]
    pub fn add_time(&self, group: &Group, key: StatKey, time: Duration) {
        let is_time = key.stat().kind() == StatKind::Time;
        assert!(
            is_time,
            "failed to add {time:?} to {} of {}: it is not a time",
            key.stat().name(),
            key.subsystem()
        );
        self.add(group, key, i64::try_from(time.as_nanos()).unwrap_or(i64::MAX));
    }

    #[inline(always)]
    fn check(&self, key: StatKey, delta: i64) {
        let least = if key.kind() == StatKind::Gauge { -DELTA_MAX } else { 0 };
        if key.identity() != self.identity || !(least..=DELTA_MAX).contains(&delta) {
            // Its parts, because an address of the key would keep all of it in memory.
            self.refuse(key.identity(), key.subsystem(), key.definition(), delta);
        }
    }

    #[cold]
    #[inline(never)]
    fn refuse(&self, identity: u64, owner: &str, stat: &Stat, delta: i64) -> ! {
        let (kind, stat, name) = (stat.kind(), stat.name(), self.name());
        if identity != self.identity {
            let other = if owner == name { ", which is defined otherwise here" } else { "" };
            panic!(
                "failed to use the key {stat} of the subsystem {owner} with the statistics of {name}{other}"
            );
        }
        if delta < 0 && kind != StatKind::Gauge {
            panic!("failed to add {delta} to {stat} of {name}: it only grows");
        }
        panic!("failed to add {delta} to {stat} of {name}: one addition is 2^48 at the most, up or down");
    }

    /// Flushes the subtree of `group`: all additions there before the call reach the groups above.
    ///
    /// Other subsystems are not flushed. Threads that ask for the same share one flush.
    ///
    /// # Panics
    /// When the group is of another hierarchy.
    pub fn flush(&self, group: &Group) {
        let (node, _) = self.entry(group);
        flush::refresh(self.store, node);
    }

    /// Reads the first values of `group` into `values`, as they were together at one moment.
    ///
    /// It allocates nothing. Where nothing was added since the last flush it is a copy. Counts and
    /// times of a group never run backwards from one read to the next.
    ///
    /// ```
    /// # use memgroup::{Config, Freshness, Hierarchy, Reach, stats::io};
    /// # let hierarchy = Hierarchy::new(Config::new())?;
    /// let tenant = hierarchy.create("/tenant")?;
    /// hierarchy.io().add(&tenant, io::RBYTES, 4096);
    /// let mut values = [0; io::RBYTES.index() + 1];
    /// hierarchy.io().read(&tenant, Reach::Local, Freshness::Fresh, &mut values);
    /// assert_eq!(values[io::RBYTES.index()], 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// When `values` is longer than there are statistics, and when the group is of another
    /// hierarchy.
    #[inline]
    pub fn read(&self, group: &Group, reach: Reach, freshness: Freshness, values: &mut [i64]) {
        let (node, entry) = self.entry(group);
        let (count, stats) = (values.len(), self.stats().len());
        assert!(count <= stats, "failed to read {count} values of {}: it has {stats}", self.name());
        flush::refresh_as(self.store, node, freshness);
        entry.flushed().copy(reach, values);
        if self.has_times {
            self.subsystem.to_units(values);
        }
    }

    /// Reads one value of `group`.
    ///
    /// # Panics
    /// When the key belongs to another subsystem, and when the group is of another hierarchy.
    pub fn get(&self, group: &Group, key: StatKey, reach: Reach, freshness: Freshness) -> i64 {
        let (node, entry) = self.entry(group);
        self.check(key, 0);
        flush::refresh_as(self.store, node, freshness);
        let value = entry.flushed().peek(reach, key.index());
        if key.stat().kind() == StatKind::Time { value / 1000 } else { value }
    }

    /// The values of the subtree of `group` as text, in the form of cgroup v2's files. Each
    /// statistic is a line `key value`; `io` is one line of `key=value`.
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
        text(self.subsystem, &values)
    }

    /// Memory that the statistics take.
    pub fn footprint(&self) -> Footprint {
        Footprint {
            slot_bytes: self.store.records.record_bytes(),
            marks_bytes: self.store.updates.marks.bytes(),
            group_bytes: self.store.group_bytes(),
            groups: self.hierarchy.shared().tree.lock().with_records(),
        }
    }

    /// Number of flushes of any part of the tree; with a single tree, of all subsystems.
    ///
    /// It does not begin at zero where the memory of an earlier hierarchy is used again, so
    /// compare it with itself.
    pub fn flushes(&self) -> u64 {
        self.store.updates.flushes()
    }
}

/// Memory that the statistics of one subsystem take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// Bytes of one group on one slot. They are taken with the group's first addition, and given
    /// back.
    pub slot_bytes: usize,
    /// Bytes of the marks of all groups on all slots, unused ones included. Subsystems that share
    /// one tree share them.
    pub marks_bytes: usize,
    /// Bytes of one group's flushed values, for any number of slots. The system backs them when
    /// the group's statistics are first flushed.
    pub group_bytes: usize,
    /// Number of groups, and of free places that have kept their memory for their next group.
    pub groups: usize,
}

/// The values of a subsystem in the form of cgroup v2's files: nested for `io`, flat for all
/// others.
pub(crate) fn text(subsystem: Subsystem, values: &[i64]) -> String {
    let is_nested = subsystem.name == io::SUBSYSTEM.name;
    // Stands for a device's numbers: a process has no devices of its own.
    let mut text = String::from(if is_nested { "all" } else { "" });
    for (stat, value) in subsystem.stats.iter().zip(values) {
        // Writing to a string does not fail.
        let _ = if is_nested {
            write!(text, " {}={value}", stat.name())
        } else {
            writeln!(text, "{} {value}", stat.name())
        };
    }
    text + if is_nested { "\n" } else { "" }
}

#[cold]
fn foreign(statistics: &Statistics, group: &Group) -> ! {
    let (name, path) = (statistics.name(), group.path());
    panic!("failed to find {name} of the group {path}: the statistics are those of another hierarchy")
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
