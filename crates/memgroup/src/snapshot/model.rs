//! Model: a tree of groups as it is now, for every reader.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::limits::Limits;
use super::listing::{Listed, Listing};
use super::tables::{self, SubsystemSnapshot, Table};
use crate::event::Events;
use crate::group::{Group, GroupId, Overdraft};
use crate::hierarchy::Hierarchy;
use crate::pressure::Pressure;
use crate::rstat::Reach;
use crate::shrink::{ShrinkerReport, report};
use crate::stock::{StockStats, drain};
use crate::tree::ROOT;
use crate::wait::{self, Waiters};

/// A tree of groups, or a part of one, as it is now: made by [`Hierarchy::snapshot`] and [`Group::snapshot`].
///
/// With the feature `serde` it can be serialised: see the module's page for the names.
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
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Snapshot {
    /// When it was begun.
    #[cfg_attr(feature = "serde", serde(rename = "taken_unix_us", serialize_with = "super::json::unix_us"))]
    pub taken: SystemTime,
    /// How long it took.
    #[cfg_attr(feature = "serde", serde(rename = "took_us", serialize_with = "super::json::us"))]
    pub took: Duration,
    /// The groups, each with all that is below it right behind it; siblings by name, those that are dying last, the longest removed first.
    pub groups: Vec<GroupSnapshot>,
    /// All shrinkers of the hierarchy, whatever part of the tree this is.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::json::shrinkers"))]
    pub shrinkers: Vec<ShrinkerReport>,
}

/// One group of a [`Snapshot`].
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct GroupSnapshot {
    /// Its absolute path; the one it had, if it was removed.
    pub path: String,
    /// The last part of the path; empty for the root.
    pub name: String,
    /// Its id.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::json::id"))]
    pub id: GroupId,
    /// Levels below the root.
    pub depth: u32,
    /// The number of its parent in [`Snapshot::groups`]; `None` for the first.
    pub parent: Option<usize>,
    /// Whether it has not been removed.
    pub online: bool,
    /// What a group that was removed still has; `None` for one that is online.
    pub dying: Option<Dead>,
    /// Online groups below it, on all levels.
    pub descendants: usize,
    /// Groups below it that were removed and still hold bytes or have handles.
    pub dying_descendants: usize,
    /// What is set of it.
    pub limits: Limits,
    /// Bytes charged to it and to what is below it, with what is prepaid there.
    pub usage_bytes: u64,
    /// The same without what is prepaid; exact when nobody charges.
    pub usage_exact_bytes: u64,
    /// The highest `usage_bytes` so far.
    pub peak_bytes: u64,
    /// Charges that this group itself refused, whoever asked.
    pub refusals: u64,
    /// What forced charges took beyond its limit.
    pub overdraft: Overdraft,
    /// Bytes that its own charges took beyond a `high`, and that it has not paid for.
    pub owed_bytes: u64,
    /// The most bytes by which usage was above a limit that only measures.
    pub over_bytes_max: u64,
    /// Bytes that are charged to it under its labels.
    #[cfg_attr(feature = "serde", serde(rename = "label_bytes", serialize_with = "super::json::labels"))]
    pub labels: Vec<(String, u64)>,
    /// How much of the time threads in it and below it were stalled for memory.
    pub pressure: Pressure,
    /// Who waits in it and below it now.
    pub waiters: Waiters,
    /// What happened to it and to what is below it.
    pub events: Events,
    /// What happened to it alone.
    pub events_local: Events,
    /// What its own stocks did so far and hold now.
    pub stock: StockStats,
    /// The statistics of all subsystems.
    #[cfg_attr(feature = "serde", serde(serialize_with = "super::json::statistics"))]
    statistics: Row,
}

/// What is left of a group that was removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Dead {
    /// How long ago it was removed.
    #[cfg_attr(feature = "serde", serde(rename = "age_us", serialize_with = "super::json::us"))]
    pub age: Duration,
    /// Bytes that are still charged to it.
    pub usage_bytes: u64,
}

/// A group's row in the tables of its snapshot.
#[derive(Clone, Debug)]
pub(super) struct Row {
    tables: Arc<[Table]>,
    row: usize,
}

impl Row {
    pub(super) fn subsystems(&self) -> impl Iterator<Item = SubsystemSnapshot<'_>> {
        self.tables.iter().map(|table| table.of(self.row))
    }
}

impl Snapshot {
    /// The group with this path; the online one, if others with it are dying.
    #[must_use]
    pub fn group(&self, path: &str) -> Option<&GroupSnapshot> {
        let with_path = || self.groups.iter().filter(|group| group.path == path);
        with_path().find(|group| group.online).or_else(|| with_path().next())
    }

    /// The groups right below the one of this number, in their order; none if there is no such number.
    pub fn children(&self, number: usize) -> impl Iterator<Item = &GroupSnapshot> {
        let size =
            |at: usize| self.groups.get(at).map(|group| 1 + group.descendants + group.dying_descendants);
        let end = number.saturating_add(size(number).unwrap_or(0));
        let first = Some(number.saturating_add(1)).filter(move |&at| at < end);
        let next = move |&at: &usize| size(at).map(|size| at + size).filter(|&next| next < end);
        std::iter::successors(first, next).filter_map(|at| self.groups.get(at))
    }

    /// The groups that were removed and still hold bytes or have handles.
    pub fn dying(&self) -> impl Iterator<Item = &GroupSnapshot> {
        self.groups.iter().filter(|group| !group.online)
    }

    fn of(top: &Group) -> Snapshot {
        let (taken, began) = (SystemTime::now(), Instant::now());
        let top_path = top.path();
        let listing = Listing::of(top);
        let tables: Arc<[Table]> = tables::read(top.node(), &listing.groups).into();
        let mut groups: Vec<GroupSnapshot> = Vec::with_capacity(listing.groups.len());
        for (row, listed) in listing.groups.iter().enumerate() {
            let name = listing.name(listed);
            let path = match listed.parent.map(|parent| groups[parent].path.as_str()) {
                None => top_path.clone(),
                Some("/") => format!("/{name}"),
                Some(above) => format!("{above}/{name}"),
            };
            groups.push(GroupSnapshot::of(listed, path, name, Row { tables: Arc::clone(&tables), row }));
        }
        find_waiters(&mut groups, &listing);
        add_up(&mut groups, top.node().shared.config.account_root);
        let shrinkers = report::all(top.node().shared);
        Snapshot { taken, took: began.elapsed(), groups, shrinkers }
    }
}

/// Who waits in each group and below it: one look at all waits.
fn find_waiters(groups: &mut [GroupSnapshot], listing: &Listing) {
    let shared = listing.groups[0].group.node().shared;
    for (group, listed) in groups.iter_mut().zip(&listing.groups) {
        group.waiters.now = wait::report::unlisted(listed.group.node());
    }
    let waits = wait::report::copy(shared);
    if waits.is_empty() {
        return;
    }
    let now = Instant::now();
    let rows: HashMap<GroupId, usize> = groups.iter().map(|group| group.id).zip(0..).collect();
    for (group, bytes, since) in waits {
        let mut level = rows.get(&group).copied();
        while let Some(row) = level {
            let waiters = &mut groups[row].waiters;
            waiters.now += 1;
            waiters.bytes = waiters.bytes.saturating_add(bytes);
            waiters.longest = waiters.longest.max(now.saturating_duration_since(since));
            level = groups[row].parent;
        }
    }
}

/// Counts what is below each group, and takes what is prepaid there off its usage.
fn add_up(groups: &mut [GroupSnapshot], account_root: bool) {
    let mut prepaid: Vec<u64> = groups.iter().map(|group| group.stock.prepaid_bytes).collect();
    for at in (0..groups.len()).rev() {
        let group = &mut groups[at];
        group.usage_exact_bytes = group.usage_bytes.saturating_sub(prepaid[at]);
        let (online, dying) = (group.descendants, group.dying_descendants);
        let (is_online, Some(parent)) = (group.online, group.parent) else { continue };
        // A root that is not accounted counts for itself alone.
        if account_root || groups[parent].id != ROOT {
            prepaid[parent] += prepaid[at];
        }
        groups[parent].descendants += online + usize::from(is_online);
        groups[parent].dying_descendants += dying + usize::from(!is_online);
    }
}

impl GroupSnapshot {
    /// Without what `add_up` sees to.
    fn of(listed: &Listed, path: String, name: &str, statistics: Row) -> GroupSnapshot {
        let (group, node) = (&listed.group, listed.group.node());
        let usage_bytes = group.usage();
        let prepaid_bytes = drain::prepaid(node);
        let stock = statistics.tables.iter().find_map(|table| table.stock(statistics.row, prepaid_bytes));
        GroupSnapshot {
            path,
            name: name.to_owned(),
            id: group.id(),
            depth: node.depth(),
            parent: listed.parent,
            online: listed.removed.is_none(),
            dying: listed.removed.map(|removed| Dead { age: removed.elapsed(), usage_bytes }),
            descendants: 0,
            dying_descendants: 0,
            limits: Limits::of(group),
            usage_bytes,
            usage_exact_bytes: 0,
            peak_bytes: group.peak(),
            refusals: group.refusals(),
            overdraft: group.overdraft(),
            owed_bytes: group.owed(),
            over_bytes_max: group.over_bytes_max(),
            labels: group.labels(),
            pressure: group.pressure(),
            waiters: Waiters::default(),
            events: group.events(),
            events_local: group.events_local(),
            stock: stock.unwrap_or(StockStats { prepaid_bytes, ..StockStats::default() }),
            statistics,
        }
    }

    /// The statistics of all subsystems, the built-in ones first.
    pub fn subsystems(&self) -> impl Iterator<Item = SubsystemSnapshot<'_>> {
        self.statistics.subsystems()
    }

    /// Those of the subsystem with this name.
    #[must_use]
    pub fn subsystem(&self, name: &str) -> Option<SubsystemSnapshot<'_>> {
        self.subsystems().find(|subsystem| subsystem.name == name)
    }

    /// One statistic by its names; `None` if there is none.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy, Reach, stats};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// hierarchy.io().add(&hierarchy.root(), stats::io::RBYTES, 4096);
    /// let root = &hierarchy.snapshot().groups[0];
    /// assert_eq!(root.statistic("io", "rbytes", Reach::Subtree), Some(4096));
    /// ```
    #[must_use]
    pub fn statistic(&self, subsystem: &str, stat: &str, reach: Reach) -> Option<i64> {
        let subsystem = self.subsystem(subsystem)?;
        let at = subsystem.stats.iter().position(|other| other.name() == stat)?;
        Some(match reach {
            Reach::Local => subsystem.local[at],
            Reach::Subtree => subsystem.hierarchical[at],
        })
    }

    /// Whether anybody holds memory of the group or of one below it; what is prepaid is held by nobody. What `cgroup.events` says of
    /// processes.
    #[must_use]
    pub fn is_populated(&self) -> bool {
        self.usage_exact_bytes > 0
    }
}

impl Hierarchy {
    /// The whole tree as it is now, dying groups included: what every reader shows.
    ///
    /// For a thread that may allocate: it takes the tree lock for short steps, and flushes each subsystem's statistics once. Nothing is asked of
    /// shrinkers. How consistent it is stands on the module's page: statistics of one subsystem are of one moment, figures of one
    /// group of nearly one, and two groups' of moments up to [`Snapshot::took`] apart.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.root())
    }
}

impl Group {
    /// The group and all that is below it as it is now; see [`Hierarchy::snapshot`]. It costs what that part of the tree takes, and where any group is
    /// dying a look at each place of the hierarchy.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(self)
    }
}
