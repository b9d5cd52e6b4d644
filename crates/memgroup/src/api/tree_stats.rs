//! TreeStats: the values of a whole subtree at one moment.

use crate::base::id::{GroupId, NodeId};
use crate::state::stats::stat::Subsystem;
use crate::state::stats::store::StatStore;
use crate::stats::flush::{self, FlushGuard, Freshness};
use crate::tree::listing::GROUPS_A_STEP;
use crate::tree::node::Node;
use crate::tree::topology::State;

/// Values of one subsystem in all groups of a subtree, as they were together at one moment.
///
/// [`Statistics::read_tree`](crate::Statistics::read_tree) fills it.
///
/// ```
/// # use memgroup::{Config, Freshness, Hierarchy, stats::io::RIOS, TreeStats};
/// # let hierarchy = Hierarchy::new(Config::new())?;
/// let parent = hierarchy.create("/parent")?;
/// let child = parent.create("child")?;
/// hierarchy.io().add(&parent, RIOS, 1);
/// hierarchy.io().add(&child, RIOS, 2);
/// let mut tree = TreeStats::new();
/// hierarchy.io().read_tree(&parent, Freshness::Fresh, &mut tree);
/// let rios = tree.iter().map(|group| (group.local[RIOS.index()], group.subtree[RIOS.index()]));
/// assert_eq!(rios.collect::<Vec<_>>(), [(1, 3), (2, 2)]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct TreeStats {
    groups: Vec<GroupId>,
    /// For each group its own values, then those of its subtree.
    values: Vec<i64>,
    stats: usize,
}

/// Values of one group in [`TreeStats`].
#[derive(Clone, Copy, Debug)]
pub struct GroupStats<'t> {
    /// Id of the group when the values were read. The group may have been removed since, and the id given to another.
    pub group: GroupId,
    /// Values of the group alone, in the order of [`StatKey::index`](crate::StatKey::index).
    pub local: &'t [i64],
    /// Values of the group and of all groups below it, removed ones included.
    pub subtree: &'t [i64],
}

impl TreeStats {
    /// Makes an empty one, without memory for values.
    pub fn new() -> TreeStats {
        TreeStats::default()
    }

    /// Number of groups in it.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Whether it was never filled.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// The groups, the top first and parents before their children. Siblings have no particular order.
    pub fn iter(&self) -> impl Iterator<Item = GroupStats<'_>> {
        let rows = self.values.chunks_exact(2 * self.stats.max(1));
        self.groups.iter().zip(rows).map(|(&group, row)| {
            let (local, subtree) = row.split_at(self.stats);
            GroupStats { group, local, subtree }
        })
    }

    pub(crate) fn fill(
        &mut self,
        subsystem: Subsystem,
        store: &'static StatStore,
        top: &'static Node,
        freshness: Freshness,
    ) {
        self.stats = subsystem.stats.len();
        loop {
            let guard = if freshness == Freshness::Fresh {
                flush::flush(store, top)
            } else {
                flush::refresh_as(store, top, freshness);
                flush::lock(store.updates, top.shared())
            };
            let Err(groups) = self.copy(&guard, store, top) else { break };
            drop(guard);
            // Allocated with no lock held, with spare room for groups that are created meanwhile.
            self.groups.clear();
            self.groups.reserve(groups + groups / 8 + 1);
            self.values.clear();
            self.values.reserve(self.groups.capacity() * 2 * self.stats);
        }
        subsystem.to_units(&mut self.values);
    }

    /// Copies the values, or returns the number of groups that need room.
    fn copy(
        &mut self,
        _guard: &FlushGuard,
        store: &'static StatStore,
        top: &'static Node,
    ) -> Result<(), usize> {
        self.groups.clear();
        let room = self.groups.capacity().min(self.values.capacity() / (2 * self.stats));
        let (mut groups, mut next) = (0, Some(top.id()));
        while next.is_some() {
            // In steps. With the turn no group is released meanwhile.
            let tree = top.shared().tree.lock_behind();
            for _ in 0..GROUPS_A_STEP {
                let Some(id) = next else { break };
                next = tree.after(id, top.id());
                let is_listed = id == top.id() || tree.state(id) == State::Online;
                let Some(node) = top.shared().node(id).filter(|_| is_listed) else { continue };
                groups += 1;
                if groups <= room {
                    self.groups.push(node.group_id());
                }
            }
        }
        if groups > room {
            return Err(groups);
        }
        self.values.resize(groups * 2 * self.stats, 0);
        let nodes = self.groups.iter().filter_map(|id| top.shared().node(NodeId(id.node())));
        for (node, row) in nodes.zip(self.values.chunks_exact_mut(2 * self.stats)) {
            node.entry(store).copy_both(row);
        }
        Ok(())
    }
}
