//! Create: hierarchies and groups.

use std::sync::PoisonError;

use memgroup_sync::depth;

use crate::base::error::GroupError;
use crate::base::id::{NodeId, TOP};
use crate::control::release::{POOL, POOLED_MOST};
use crate::control::{held_back, share};
use crate::lifecycle::{maintenance, memory};
use crate::state::config::{Config, ConfigError};
use crate::tree::handle::Group;
use crate::tree::name;
use crate::tree::node::Node;
use crate::tree::shared::Shared;
use crate::tree::topology::{ROOT, Tree};

/// A hierarchy of the pool may have no free store for subsystems. Such a one is reused only when
/// this many wait, because the subsystems of its next user may not fit its stores.
const FULL_ONES_KEPT: usize = 4;

/// The hierarchy of the pool to use again: one of the same configuration, or one of the same shape
/// if so many wait. One that has room for any subsystem comes first, and one of the full ones if
/// they pile up.
fn choose(pool: &[&'static Shared], config: &Config) -> Option<usize> {
    let shape = config.shape();
    let of_shape = || pool.iter().enumerate().filter(|(_, shared)| shared.shape == shape);
    let is_crowded = of_shape().count() >= POOLED_MOST;
    let same = || of_shape().filter(|(_, shared)| shared.config.given() == *config);
    let like = || of_shape().filter(|_| is_crowded);
    let has_room = |(_, shared): &(usize, &&Shared)| !shared.statistics.is_full();
    let with_room = same().find(has_room).or_else(|| like().find(has_room));
    let full = || same().nth(FULL_ONES_KEPT - 1).and_then(|_| same().next()).or_else(|| like().next());
    with_room.or_else(full).map(|(index, _)| index)
}

fn make_hierarchy(config: Config) -> Result<&'static Shared, ConfigError> {
    // Its memory is no tenant's, in whose scope ever it is made.
    let _inside = depth::enter();
    let shared: &'static Shared = memgroup_sync::keep(Box::new(Shared::new(config)?));
    // The parts that a charge may need, and may not allocate.
    let _ = (shared.shrinkers(), shared.waits(), shared.wait_queue());
    let _ = (shared.protected(), shared.victims(), shared.upkeep(), shared.injections());
    Ok(shared)
}

impl Shared {
    /// A hierarchy with an online root and one handle, from the pool or new. `config` is checked.
    pub(crate) fn obtain(config: Config) -> Result<&'static Shared, ConfigError> {
        let pooled = if cfg!(memgroup_loom) {
            None
        } else {
            let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
            choose(&pool, &config).map(|index| pool.remove(index))
        };
        let shared = match pooled {
            Some(shared) => {
                shared.take_over(&config);
                shared.belong_here();
                shared
            }
            None => make_hierarchy(config)?,
        };
        // Held before the tree lock is free again: a retirement that comes late must see that the
        // hierarchy has a user.
        shared.hold();
        let mut tree = shared.tree.lock();
        // Before the root is online: a hierarchy in the pool has no group, so a retirement that
        // comes late finds nothing to remove there.
        if !shared.make_place(&tree, ROOT) {
            shared.let_go_one();
            POOL.lock().unwrap_or_else(PoisonError::into_inner).push(shared);
            return Err(ConfigError::no_nodes());
        }
        tree.begin_root();
        begin(shared.root(), None, TOP, 0);
        drop(tree);
        Ok(shared)
    }

    /// Makes a child of `parent`, with one handle on it.
    pub(crate) fn create(
        &'static self,
        parent: &'static Node,
        name: &str,
    ) -> Result<&'static Node, GroupError> {
        self.create_by(|tree| self.create_held(tree, parent.id(), name))
    }

    /// Creates a group under the tree lock.
    pub(crate) fn create_by(
        &'static self,
        mut create: impl FnMut(&mut Tree) -> Result<&'static Node, GroupError>,
    ) -> Result<&'static Node, GroupError> {
        let mut tree = self.tree.lock();
        let mut created = create(&mut tree);
        drop(tree);
        if let Err(GroupError::TooMany { .. } | GroupError::TooManyDescendants { .. }) = created {
            // Removed groups may keep their places for bytes that an allocator holds back.
            held_back::settle_removed(self);
            created = create(&mut self.tree.lock());
        }
        self.go_on();
        created
    }

    /// Goes on with a pass of maintenance that was begun by a removal.
    fn go_on(&'static self) {
        if maintenance::is_under_way(self) {
            maintenance::step(self);
        }
    }

    /// Creates a group as `create` does, by path.
    pub(crate) fn create_path(&'static self, path: &str) -> Result<&'static Node, GroupError> {
        let (parent, name) = split(path)?;
        self.create_by(|tree| {
            let parent = tree.lookup(parent)?;
            self.create_held(tree, parent, name)
        })
    }

    /// Creates the group `missing`, which a look for `path` did not find.
    pub(crate) fn create_missing(&'static self, path: &str, missing: &str) -> Result<(), GroupError> {
        name::check_path(path)?;
        match self.create_path(missing) {
            Ok(node) => drop(Group::adopted(node)),
            // Others may create and remove at the same time: the next look tells.
            Err(GroupError::Exists { .. } | GroupError::NotFound { .. } | GroupError::Offline { .. }) => (),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub(crate) fn create_held(
        &'static self,
        tree: &mut Tree,
        parent: NodeId,
        name: &str,
    ) -> Result<&'static Node, GroupError> {
        let id = tree.create(parent, name)?;
        if !self.make_place(tree, id) {
            let (path, bytes) = (tree.path(id), memory::stock_bytes(self) + size_of::<Node>() as u64);
            tree.retire(id, false);
            tree.release(id);
            return Err(GroupError::OutOfMemory { path, bytes });
        }
        let (node, above) = (self.made(id), self.made(parent));
        let up = Some(above).filter(|_| parent != ROOT || self.config.account_root());
        begin(node, up, parent, tree.depth(id));
        above.gain_child();
        share::created(tree, node);
        node.pin();
        Ok(node)
    }
}

/// Parent and name of the path of a group to create.
pub(crate) fn split(path: &str) -> Result<(&str, &str), GroupError> {
    if path == "/" {
        return Err(GroupError::IsRoot);
    }
    let wrong = |reason| GroupError::InvalidPath { path: path.to_owned(), reason };
    match path.rsplit_once('/') {
        None => Err(wrong("it does not begin with a slash")),
        Some(("/", _)) => Err(wrong("it has an empty name in it")),
        Some(("", name)) => Ok(("/", name)),
        Some(parts) => Ok(parts),
    }
}

/// The node becomes a new group. The caller holds the tree lock and the node is free.
fn begin(node: &'static Node, up: Option<&'static Node>, parent: NodeId, depth: u32) {
    node.adopt(up, parent, depth);
    node.entries().for_each(|entry| entry.store().prepare(entry));
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use memgroup_percpu::SlotSource;
    use memgroup_sync::inject;

    use super::*;

    /// A configuration whose shape no other test of this program has, so that none takes its
    /// hierarchy from the pool.
    fn config() -> Config {
        Config::with_slots(SlotSource::virtual_slots(1).unwrap()).groups_max(77_777)
    }

    fn pooled() -> Vec<&'static Shared> {
        let pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        pool.iter().copied().filter(|shared| shared.shape == config().shape()).collect()
    }

    /// A handle given out by a charge with bytes may be dropped after the hierarchy went to the
    /// pool: that drop retires the hierarchy once more.
    fn retire_late(shared: &'static Shared) {
        shared.hold();
        shared.let_go();
    }

    #[test]
    fn a_hierarchy_without_a_root_bears_a_late_retirement_and_is_used_again() {
        for _ in 0..2 {
            // The system refuses the nodes, for a new hierarchy and then for the same one again.
            let refused = inject::refuse_chunks();
            let error = Shared::obtain(config()).err().expect("there are no nodes");
            assert_eq!(error, ConfigError::no_nodes());
            drop(refused);
            let [shared] = pooled()[..] else { panic!("it waits in the pool once") };
            assert_eq!(shared.tree.lock().in_use(), 0);
            retire_late(shared);
            assert_eq!(pooled().len(), 1, "and not twice");
        }
        let [shared] = pooled()[..] else { panic!("it waits in the pool once") };
        retire_late(shared);
        assert!(std::ptr::eq(Shared::obtain(config()).expect("all memory is there"), shared));
        assert!(pooled().is_empty());
        shared.create(shared.root(), "group").expect("the root is online");
        shared.let_go();
    }
}
