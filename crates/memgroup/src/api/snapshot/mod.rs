//! Snapshot: a tree as one value. See [`guide::snapshot`](crate::guide::snapshot).

mod files;
#[cfg(feature = "serde")]
mod json;
mod reader;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub use files::{FILES, FileError, FileProblem, GroupFile, Limits};
pub use reader::SnapshotReader;

use crate::api::group::Overdraft;
use crate::base::id::GroupId;
#[cfg(feature = "serde")]
use crate::base::json::{id, unix_us, us};
use crate::control::share::FairShare;
use crate::counter::events::Events;
use crate::observe::pressure::Pressure;
use crate::observe::wait::report::Waiters;
use crate::reclaim::ShrinkerReport;
use crate::state::stats::Reach;
use crate::state::stats::builtin::MEMORY;
use crate::state::stats::stat::{Stat, StatKey, Subsystem};
use crate::state::stats::store::StatStore;
use crate::state::stats::update_tree::UpdateTree;
use crate::stats::copy;
use crate::stats::stock_stats::StockStats;
use crate::stock::drain;
use crate::tree::handle::Group;
use crate::tree::listing::Listed;
use crate::tree::node::Node;

/// A tree of groups, or a part of one, as it is now.
/// [`Hierarchy::snapshot`](crate::Hierarchy::snapshot) and [`Group::snapshot`] make it.
///
/// With the feature `serde` it can be serialised, and read back; the module's page has the names.
///
/// ```
/// # use memgroup::{Config, Hierarchy};
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let tenants = hierarchy.create("/tenants").unwrap();
/// let alice = tenants.create("alice").unwrap();
/// let charge = alice.try_charge(4096).unwrap();
/// let snapshot = hierarchy.snapshot();
/// let paths: Vec<_> = snapshot.groups.iter().map(|group| group.path.as_str()).collect();
/// assert_eq!(paths, ["/", "/tenants", "/tenants/alice"]);
/// assert_eq!(snapshot.group("/tenants").unwrap().usage_exact_bytes, 4096);
/// # drop(charge);
/// ```
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Snapshot {
    /// Time at which it was begun.
    #[cfg_attr(
        feature = "serde",
        serde(rename = "taken_unix_us", default = "json::epoch", with = "unix_us")
    )]
    pub taken: SystemTime,
    /// Time that it took.
    #[cfg_attr(feature = "serde", serde(rename = "took_us", default, with = "us"))]
    pub took: Duration,
    /// Number of groups of this part of the tree that are not in `groups`; 0 unless a
    /// [`SnapshotReader`] left some out.
    #[cfg_attr(feature = "serde", serde(default))]
    pub left_out: usize,
    /// The groups, each followed by all groups below it. Siblings are in the order of their names.
    /// Dying siblings come last, in the order of their removal.
    #[cfg_attr(feature = "serde", serde(deserialize_with = "json::groups"))]
    pub groups: Vec<GroupSnapshot>,
    /// All shrinkers of the hierarchy, also in a snapshot of a part of the tree.
    #[cfg_attr(feature = "serde", serde(default))]
    pub shrinkers: Vec<ShrinkerReport>,
}

/// One group of a [`Snapshot`].
#[derive(Clone, Debug)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default = "GroupSnapshot::empty")
)]
#[non_exhaustive]
pub struct GroupSnapshot {
    /// Its absolute path; the one it had, if it was removed.
    pub path: String,
    /// The last part of the path; empty for the root.
    pub name: String,
    /// Its id.
    #[cfg_attr(feature = "serde", serde(with = "id"))]
    pub id: GroupId,
    /// Levels below the root.
    pub depth: u32,
    /// Position of its parent in [`Snapshot::groups`]; `None` for the first, and where the parent
    /// was left out.
    pub parent: Option<usize>,
    /// Whether it has not been removed.
    pub online: bool,
    /// Age and bytes of a group that was removed; `None` for one that is online.
    pub dying: Option<Dead>,
    /// Number of online groups below it, on all levels.
    pub descendants: usize,
    /// Number of removed groups below it that still have bytes or handles.
    pub dying_descendants: usize,
    /// Its settings.
    pub limits: Limits,
    /// Its fair share of its parent; `None` where that gives none.
    pub fair_share: Option<FairShare>,
    /// Bytes charged to it and to the groups below it. Prepaid bytes are included, and those that
    /// an allocator holds back for its next blocks.
    pub usage_bytes: u64,
    /// The same without prepaid bytes and bytes held back, as [`Group::usage_exact`] returns it.
    /// Exact while no thread charges, drains or changes a limit.
    pub usage_exact_bytes: u64,
    /// The highest `usage_bytes` so far.
    pub peak_bytes: u64,
    /// Charges that this group itself refused, those of groups below it included.
    pub refusals: u64,
    /// Charges and bytes that forced charges took beyond its limit.
    pub overdraft: Overdraft,
    /// Bytes that its own charges took beyond a `high` and that no thread has paid for by waiting.
    pub owed_bytes: u64,
    /// The most bytes by which usage was above the limit of a dry run.
    pub over_bytes_max: u64,
    /// Share of the time for which threads in it and below it were stalled for memory.
    pub pressure: Pressure,
    /// Charges in it and below it that wait now.
    pub waiters: Waiters,
    /// Events of it and of the groups below it.
    pub events: Events,
    /// Events of it alone.
    pub events_local: Events,
    /// Figures of its own stocks.
    pub stock: StockStats,
    /// The statistics of all subsystems.
    statistics: Row,
}

/// Age and bytes of a group that was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Dead {
    /// Time since it was removed.
    #[cfg_attr(feature = "serde", serde(rename = "age_us", with = "us"))]
    pub age: Duration,
    /// Bytes that are still charged to it.
    pub usage_bytes: u64,
}

/// The statistics of one subsystem in one group of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct SubsystemSnapshot<'s> {
    /// Name of the subsystem.
    pub name: &'static str,
    /// Its statistics, in the order of the values.
    pub stats: &'static [Stat],
    /// Values of the group alone. Times are in microseconds.
    pub local: &'s [i64],
    /// Values with all groups below, removed ones included: those that the files show.
    pub hierarchical: &'s [i64],
}

/// The values of one subsystem in all groups of a snapshot. For each group its own values, then
/// those of its subtree.
#[derive(Debug)]
struct Table {
    subsystem: Subsystem,
    values: Vec<i64>,
    /// Whether it was read from a text.
    is_read: bool,
}

/// A group's row in the tables of its snapshot.
#[derive(Clone, Debug, Default)]
struct Row {
    tables: Arc<[Table]>,
    row: usize,
}

impl Row {
    fn of<'t>(&self, table: &'t Table) -> SubsystemSnapshot<'t> {
        let Subsystem { name, stats } = table.subsystem;
        let values = &table.values[self.row * 2 * stats.len()..][..2 * stats.len()];
        let (local, hierarchical) = values.split_at(stats.len());
        SubsystemSnapshot { name, stats, local, hierarchical }
    }
}

/// Reads the statistics of `nodes`, all of which are `top` or below it, parents first. With
/// `flush`, it flushes each subsystem first, and those that share one tree together.
fn read_statistics(top: &'static Node, flush: bool, nodes: &[&'static Node]) -> Vec<Table> {
    let mut flushed: Vec<&UpdateTree> = Vec::new();
    let read = |(subsystem, store): (Subsystem, &'static StatStore)| {
        let is_flushed = flushed.iter().any(|tree| std::ptr::eq(*tree, store.updates));
        let flush = (flush && !is_flushed).then_some(top);
        flushed.extend(flush.map(|_| store.updates));
        let mut values = copy::copy(store, flush, subsystem.stats.len(), nodes);
        subsystem.to_units(&mut values);
        Table { subsystem, values, is_read: false }
    };
    top.shared().statistics.registered().map(read).collect()
}

impl Snapshot {
    /// The group with this path. If dying groups have it too, the online one.
    #[must_use]
    pub fn group(&self, path: &str) -> Option<&GroupSnapshot> {
        let with_path = || self.groups.iter().filter(|group| group.path == path);
        with_path().find(|group| group.online).or_else(|| with_path().next())
    }

    /// The groups right below the one at this position, in their order; none if there is no such
    /// position.
    pub fn children(&self, number: usize) -> impl Iterator<Item = &GroupSnapshot> {
        let depth = self.groups.get(number).map(|group| group.depth);
        let after = self.groups.iter().skip(number.saturating_add(1));
        let below = after.take_while(move |group| depth.is_some_and(|depth| group.depth > depth));
        below.filter(move |group| group.parent == Some(number))
    }

    /// The groups that were removed and still have bytes or handles.
    pub fn dying(&self) -> impl Iterator<Item = &GroupSnapshot> {
        self.groups.iter().filter(|group| !group.online)
    }
}

impl GroupSnapshot {
    /// Without its parent, and without the figures that include groups below it (`reader`).
    fn of(listed: &Listed, path: String, name: &str, statistics: Row) -> GroupSnapshot {
        let (group, node) = (&listed.group, listed.group.node());
        let usage_bytes = group.usage();
        let memory = statistics.of(&statistics.tables[MEMORY]).local;
        GroupSnapshot {
            path,
            name: name.to_owned(),
            id: group.id(),
            depth: node.depth(),
            parent: None,
            online: listed.removed.is_none(),
            dying: listed.removed.map(|removed| Dead { age: removed.elapsed(), usage_bytes }),
            descendants: 0,
            dying_descendants: 0,
            limits: Limits::of(group, listed.bounds),
            fair_share: group.fair_share(),
            usage_bytes,
            usage_exact_bytes: 0,
            peak_bytes: group.peak(),
            refusals: group.refusals(),
            overdraft: group.overdraft(),
            owed_bytes: group.owed(),
            over_bytes_max: group.over_bytes_max(),
            pressure: group.pressure(),
            waiters: Waiters::default(),
            // In this order, so that there are no more than in the subtree.
            events_local: group.events_local(),
            events: group.events(),
            stock: StockStats::of(memory, drain::prepaid(node)),
            statistics,
        }
    }

    /// Statistics of all subsystems, the built-in ones first.
    pub fn subsystems(&self) -> impl Iterator<Item = SubsystemSnapshot<'_>> {
        self.statistics.tables.iter().map(|table| self.statistics.of(table))
    }

    /// Statistics of the subsystem with this name.
    #[must_use]
    pub fn subsystem(&self, name: &str) -> Option<SubsystemSnapshot<'_>> {
        self.subsystems().find(|subsystem| subsystem.name == name)
    }

    /// Value of one statistic; `None` if its subsystem is not registered.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy, Reach, stats::io};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// hierarchy.io().add(&hierarchy.root(), io::RBYTES, 4096);
    /// let root = &hierarchy.snapshot().groups[0];
    /// assert_eq!(root.statistic(io::RBYTES, Reach::Subtree), Some(4096));
    /// ```
    #[must_use]
    pub fn statistic(&self, key: StatKey, reach: Reach) -> Option<i64> {
        let mut tables = self.statistics.tables.iter();
        let table = tables.find(|table| table.subsystem.name == key.subsystem())?;
        let subsystem = self.statistics.of(table);
        let at = match table.subsystem.identity() == key.identity() {
            true => key.index(),
            // What was read has no kinds, and may have another order or be of another version.
            false if table.is_read => {
                subsystem.stats.iter().position(|stat| stat.name() == key.stat().name())?
            }
            false => return None,
        };
        Some(match reach {
            Reach::Local => subsystem.local[at],
            Reach::Subtree => subsystem.hierarchical[at],
        })
    }

    /// Returns whether bytes of the group or of one below it are in use, so that
    /// `usage_exact_bytes` is not 0. It is the key `populated` of `cgroup.events`.
    #[must_use]
    pub fn is_populated(&self) -> bool {
        self.usage_exact_bytes > 0
    }
}

/// Snapshots.
impl Group {
    /// The group and all groups below it as they are now; see
    /// [`Hierarchy::snapshot`](crate::Hierarchy::snapshot).
    ///
    /// It costs a visit of each group in that part of the tree, dying ones included.
    pub fn snapshot(&self) -> Snapshot {
        let mut reader = SnapshotReader::of(self);
        let all: Vec<usize> = (0..reader.groups().len()).collect();
        reader.snapshot(&all, || ())
    }

    /// Finds the group and all groups below it, and leaves it to the caller which of them are
    /// read; see [`SnapshotReader`].
    pub fn snapshot_reader(&self) -> SnapshotReader {
        SnapshotReader::of(self)
    }
}
