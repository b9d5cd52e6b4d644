//! TreeStats: the values of a whole subtree at one moment.

use memgroup_sync::grace;

use super::flush::{self, Freshness, Still};
use super::side::Reach;
use super::statistics::Statistics;
use super::store::Store;
use crate::group::GroupId;
use crate::node::Node;

/// The values of one subsystem in all groups of a subtree, as they were together at one moment; filled by
/// [`Statistics::read_tree`].
///
/// ```
/// # use memgroup::{Config, Freshness, Hierarchy, stats::io, TreeStats};
/// # let hierarchy = Hierarchy::new(Config::new())?;
/// let parent = hierarchy.create("/parent")?;
/// let child = parent.create("child")?;
/// let statistics = hierarchy.io();
/// statistics.add(&parent, io::RIOS, 1);
/// statistics.add(&child, io::RIOS, 2);
/// let mut tree = TreeStats::new();
/// statistics.read_tree(&parent, Freshness::Fresh, &mut tree);
/// let rios: Vec<_> = tree.iter().map(|group| (group.local[io::RIOS], group.subtree[io::RIOS])).collect();
/// assert_eq!(rios, [(1, 3), (2, 2)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct TreeStats {
    groups: Vec<GroupId>,
    /// For each group its own values, then those with what is below it.
    values: Vec<i64>,
    stats: usize,
}

/// The values of one group in [`TreeStats`].
#[derive(Clone, Copy, Debug)]
pub struct GroupStats<'t> {
    /// Whose they are: the group that had this id when the values were read. It may have been removed since, and the id given to
    /// another.
    pub group: GroupId,
    /// The group's own, by the numbers of the statistics.
    pub local: &'t [i64],
    /// With all that is and was below it.
    pub subtree: &'t [i64],
}

impl TreeStats {
    /// Without room.
    pub fn new() -> TreeStats {
        TreeStats::default()
    }

    /// How many groups it has the values of.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether it was never filled.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The groups, parents before their children, the top first; siblings in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = GroupStats<'_>> {
        let rows = self.values.chunks_exact(2 * self.stats.max(1));
        self.groups.iter().zip(rows).map(|(&group, row)| {
            let (local, subtree) = row.split_at(self.stats);
            GroupStats { group, local, subtree }
        })
    }

    pub(super) fn fill(
        &mut self,
        statistics: &Statistics,
        store: &'static Store,
        top: &'static Node,
        freshness: Freshness,
    ) {
        self.stats = statistics.stats().len();
        loop {
            let copied = match freshness {
                Freshness::Fresh => flush::flush(store, top, |still| self.copy(still, store, top)),
                Freshness::AtMost(_) | Freshness::Flushed => {
                    flush::refresh_as(store, top, freshness);
                    flush::hold_still(store, top.shared, |still| self.copy(still, store, top))
                }
            };
            let Err(groups) = copied else { break };
            // Room is made with nothing held, and with some to spare for groups that come meanwhile.
            self.groups.clear();
            self.groups.reserve(groups + groups / 8 + 1);
            self.values.clear();
            self.values.reserve(self.groups.capacity() * 2 * self.stats);
        }
        for row in self.values.chunks_exact_mut(self.stats) {
            statistics.to_units(row);
        }
    }

    /// Copies the values, or tells for how many groups there must be room.
    fn copy(&mut self, _still: &Still<'_>, store: &'static Store, top: &'static Node) -> Result<(), usize> {
        self.groups.clear();
        self.values.clear();
        let room = self.groups.capacity().min(self.values.capacity() / (2 * self.stats));
        let tree = top.shared.tree.lock();
        let groups = tree.subtree(top.id).take(room + 1).count();
        if groups > room {
            return Err(tree.subtree(top.id).count());
        }
        self.groups.extend(tree.subtree(top.id));
        drop(tree);
        for entry in self.groups.iter().filter_map(|&id| top.shared.node(id)).map(|node| node.entry(store)) {
            for reach in [Reach::Local, Reach::Subtree] {
                let at = self.values.len();
                self.values.resize(at + self.stats, 0);
                entry.side(&grace::enter()).copy(reach, &mut self.values[at..]);
            }
        }
        Ok(())
    }
}
