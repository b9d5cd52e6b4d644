//! Reader: the groups of a snapshot, of which a program reads those that it wants.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use crate::api::snapshot::{GroupSnapshot, Row, Snapshot, Table, read_statistics};
use crate::base::id::GroupId;
use crate::control::held_back;
use crate::observe::wait::report::{Waiters, copy};
use crate::reclaim::report;
use crate::stock::drain;
use crate::tree::handle::Group;
use crate::tree::listing::{GROUPS_A_STEP, Listing};
use crate::tree::topology::ROOT;

/// The groups of a part of the tree, whose figures are not read yet. [`Group::snapshot_reader`]
/// makes it.
///
/// A snapshot of every group takes memory for every group. With a reader, a program first compares
/// what a few loads give, such as the usage of each [group](SnapshotReader::groups). Then it reads
/// all figures of those that it chose, at once or in pieces.
///
/// The groups are numbered as [`Snapshot::groups`] would list them. The reader holds each of them,
/// so keep it for a short time: until it is dropped, a removed group stays dying.
///
/// ```
/// use memgroup::{Config, Hierarchy};
///
/// let hierarchy = Hierarchy::new(Config::new())?;
/// let _charges = [("/a", 10), ("/b", 4096), ("/c", 0)]
///     .map(|(path, bytes)| hierarchy.create(path).unwrap().try_charge(bytes).unwrap());
/// let mut reader = hierarchy.root().snapshot_reader();
/// let large: Vec<usize> = (0..).zip(reader.groups()).filter(|(_, group)| group.usage() >= 4096).map(|(at, _)| at).collect();
/// let snapshot = reader.snapshot(&large, || ());
/// let paths: Vec<_> = snapshot.groups.iter().map(|group| group.path.as_str()).collect();
/// assert_eq!((paths, snapshot.left_out), (vec!["/", "/b"], 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SnapshotReader {
    taken: SystemTime,
    began: Instant,
    top_path: String,
    listing: Listing,
    /// `None` before the first read.
    sums: Option<Sums>,
}

/// Figures that include those of all groups below, chosen or not.
struct Sums {
    below: Vec<Below>,
    /// By the position of each group in or below which a charge waits.
    waiters: HashMap<usize, Waiters>,
}

/// Sums over the groups below one.
#[derive(Clone, Copy, Default)]
struct Below {
    online: u32,
    dying: u32,
    /// Bytes that nothing uses, those of the group itself included: prepaid ones, and those that
    /// an allocator holds back.
    unused: u64,
}

impl SnapshotReader {
    pub(super) fn of(top: &Group) -> SnapshotReader {
        let (taken, began) = (SystemTime::now(), Instant::now());
        held_back::settle_removed(top.node().shared());
        SnapshotReader { taken, began, top_path: top.path(), listing: Listing::of(top), sums: None }
    }

    /// The groups, by their positions.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = &Group> {
        self.listing.groups.iter().map(|listed| &listed.group)
    }

    /// Returns the position of the group above the one at `position`. It is lower than `position`;
    /// `None` for the first group.
    ///
    /// # Panics
    /// If there is no group at this position.
    #[must_use]
    pub fn parent(&self, position: usize) -> Option<usize> {
        self.listing.groups[position].parent
    }

    /// Returns whether the group at `position` was online when the groups were found.
    ///
    /// # Panics
    /// If there is no group at this position.
    #[must_use]
    pub fn is_online(&self, position: usize) -> bool {
        self.listing.groups[position].removed.is_none()
    }

    /// Reads the figures of some groups, and calls `rest` before each 32 of them, while no lock of
    /// the engine is held. A thread that should not keep a CPU for long sleeps there.
    ///
    /// The statistics are copied before the first call of `rest`, the other figures of 32 groups
    /// after each call. So the moments of two groups differ by the time in `rest`, which
    /// [`Snapshot::took`] includes. `rest` may charge, change groups, or take a snapshot.
    ///
    /// [`GroupSnapshot::parent`] is a position in the returned list, or `None` if the group above
    /// was not chosen. Counts of groups below, waiters and `usage_exact_bytes` include all
    /// groups. Statistics are flushed by the first call. Each call copies those of its groups,
    /// so that counts of a group are at least the sum of those below it.
    ///
    /// # Panics
    /// If `positions` are not in ascending order, or there is no group at one of them.
    pub fn read(&mut self, positions: &[usize], mut rest: impl FnMut()) -> Vec<GroupSnapshot> {
        assert!(
            positions.is_sorted_by(|one, next| one < next),
            "positions of groups are not in ascending order"
        );
        let nodes: Vec<_> = positions.iter().map(|&at| self.listing.groups[at].group.node()).collect();
        let top = self.listing.groups[0].group.node();
        let tables: Arc<[Table]> = read_statistics(top, self.sums.is_none(), &nodes).into();
        let mut groups: Vec<GroupSnapshot> = Vec::with_capacity(positions.len());
        // The chosen groups above the next one, the nearest last: positions in the listing and in
        // `groups`.
        let mut above: Vec<(usize, usize)> = Vec::new();
        for (row, &at) in positions.iter().enumerate() {
            if row.is_multiple_of(GROUPS_A_STEP) {
                rest();
            }
            let listed = &self.listing.groups[at];
            let depth = listed.group.node().depth();
            while above.last().is_some_and(|&(_, row)| groups[row].depth >= depth) {
                above.pop();
            }
            let parent = above.last().filter(|(at, _)| listed.parent == Some(*at)).map(|&(_, row)| row);
            above.push((at, row));
            let name = self.listing.name(listed);
            let path = match parent.map(|parent| groups[parent].path.as_str()) {
                None => self.path(at),
                Some("/") => format!("/{name}"),
                Some(above) => format!("{above}/{name}"),
            };
            let figures = Row { tables: Arc::clone(&tables), row };
            groups.push(GroupSnapshot { parent, ..GroupSnapshot::of(listed, path, name, figures) });
        }
        if self.sums.is_none() {
            self.sums = Some(Sums::of(&self.listing, positions, &groups));
        }
        for (group, at) in groups.iter_mut().zip(positions) {
            let Some(Sums { below, waiters }) = &self.sums else { continue };
            group.usage_exact_bytes = group.usage_bytes.saturating_sub(below[*at].unused);
            (group.descendants, group.dying_descendants) =
                (below[*at].online as usize, below[*at].dying as usize);
            group.waiters = waiters.get(at).copied().unwrap_or_default();
        }
        groups
    }

    /// Reads the figures of some groups as [`read`](SnapshotReader::read) does, and the reports of
    /// shrinkers.
    ///
    /// # Panics
    /// If `positions` are not in ascending order, or there is no group at one of them.
    pub fn snapshot(&mut self, positions: &[usize], rest: impl FnMut()) -> Snapshot {
        let groups = self.read(positions, rest);
        let left_out = self.listing.groups.len() - groups.len();
        let shrinkers = report::all(self.listing.groups[0].group.node().shared());
        Snapshot { taken: self.taken, took: self.began.elapsed(), left_out, groups, shrinkers }
    }

    /// The path of a group, from the names of those above it.
    fn path(&self, at: usize) -> String {
        let mut names = Vec::new();
        let mut level = at;
        while let Some(parent) = self.listing.groups[level].parent {
            names.push(self.listing.name(&self.listing.groups[level]));
            level = parent;
        }
        let mut path =
            if self.top_path == "/" && !names.is_empty() { String::new() } else { self.top_path.clone() };
        for name in names.into_iter().rev() {
            path.push('/');
            path.push_str(name);
        }
        path
    }
}

impl Sums {
    /// Adds up all groups of a listing. The figures of those at `positions` are read already.
    fn of(listing: &Listing, positions: &[usize], groups: &[GroupSnapshot]) -> Sums {
        let account_root = listing.groups[0].group.node().shared().config.account_root();
        let held_back = held_back::of_each(listing.groups.iter().map(|listed| listed.group.node()));
        let mut below = vec![Below::default(); listing.groups.len()];
        let mut read = positions.iter().zip(groups).peekable();
        for (at, listed) in listing.groups.iter().enumerate() {
            let known = read.next_if(|(position, _)| **position == at);
            let prepaid = match known {
                Some((_, group)) => group.stock.prepaid_bytes,
                None => drain::prepaid(listed.group.node()),
            };
            below[at].unused = prepaid + held_back[at];
        }
        let mut waits = waits(listing);
        let mut waiters = HashMap::new();
        for (at, listed) in listing.groups.iter().enumerate().rev() {
            let of_group = below[at];
            if let Some(own) = waits.remove(&listed.group.id()) {
                add(waiters.entry(at).or_default(), own);
            }
            let Some(parent) = listed.parent else { continue };
            if let Some(&sum) = waiters.get(&at) {
                add(waiters.entry(parent).or_default(), sum);
            }
            // A root that is not accounted counts its own charges alone.
            if account_root || listing.groups[parent].group.node().id() != ROOT {
                below[parent].unused += of_group.unused;
            }
            below[parent].online += of_group.online + u32::from(listed.removed.is_none());
            below[parent].dying += of_group.dying + u32::from(listed.removed.is_some());
        }
        Sums { below, waiters }
    }
}

/// The waits for memory in each group itself, of the whole hierarchy.
fn waits(listing: &Listing) -> HashMap<GroupId, Waiters> {
    let (mut waits, now) = (HashMap::new(), Instant::now());
    for (group, bytes, since) in copy(listing.groups[0].group.node().shared()) {
        let one = Waiters { now: 1, bytes, longest: now.saturating_duration_since(since) };
        add(waits.entry(group).or_default(), one);
    }
    waits
}

fn add(sum: &mut Waiters, other: Waiters) {
    sum.now += other.now;
    sum.bytes = sum.bytes.saturating_add(other.bytes);
    sum.longest = sum.longest.max(other.longest);
}

impl fmt::Debug for SnapshotReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = self.listing.groups.len();
        f.debug_struct("SnapshotReader")
            .field("top", &self.top_path)
            .field("groups", &groups)
            .finish_non_exhaustive()
    }
}
