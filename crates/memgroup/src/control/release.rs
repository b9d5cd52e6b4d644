//! Release: returns the node of a removed group that holds nothing more, and a hierarchy with its
//! last group.

use std::sync::{Mutex, PoisonError};

use crate::base::id::NodeId;
use crate::observe::pressure;
use crate::reclaim::group;
use crate::stats::release;
use crate::tree::node::Node;
use crate::tree::shared::Shared;
use crate::tree::topology::Tree;

/// Hierarchies that nobody uses, ready for the next user. The one that has waited longest is
/// first.
pub(crate) static POOL: Mutex<Vec<&'static Shared>> = Mutex::new(Vec::new());

/// How many hierarchies of one shape wait in the pool for a user with the same configuration, and
/// keep up to 256 KiB of groups' memory each. If more wait, the next user gets one of them
/// whatever its configuration is, and those that arrive then keep no such memory.
pub(crate) const POOLED_MOST: usize = 8;

/// Returns whether more hierarchies like this one wait than may keep the memory of groups.
pub(crate) fn is_crowded(shared: &'static Shared) -> bool {
    let pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    pool.iter().filter(|pooled| pooled.shape == shared.shape).nth(POOLED_MOST).is_some()
}

/// Returns a reference from inside the tree. If it was the last one and the group was removed, the
/// group is released. The caller must not hold the tree lock.
pub(crate) fn unpin(node: &'static Node) {
    let (id, shared) = (node.id(), node.shared());
    if node.unpin_inner() && node.counter.is_offline_now() {
        shared.release_if_done(id);
    }
}

impl Shared {
    /// Releases a removed group that holds nothing and has no handle, and then the ancestors that
    /// it kept. Otherwise does nothing.
    pub(crate) fn release_if_done(&'static self, id: NodeId) {
        self.release_held(&mut self.tree.lock(), id);
    }

    /// Does the same for a caller that holds the tree lock.
    pub(crate) fn release_held(&'static self, tree: &mut Tree, id: NodeId) {
        let mut next = Some(id);
        while let Some(id) = next {
            let Some(node) = self.node(id) else { break };
            // The order matters. Outside the tree lock, the usage of a removed group only falls,
            // and a handle is made only from another handle or from a charge with bytes (`node`
            // I3). So a zero seen here stays zero.
            let is_done = || tree.is_dying(id) && node.counter.usage() == 0 && !node.is_pinned();
            // A drain pins the groups that are listed (`holders` I2).
            if !is_done()
                || !node.is_unlisted_for_good()
                || !is_done()
                || !release::move_to_ancestors(tree, node)
            {
                break;
            }
            pressure::release(node);
            next = tree.release(id);
            group::delist(node);
            node.leave();
            if let Some(parent) = next {
                self.made(parent).lose_child();
            }
        }
        if tree.retired && tree.in_use() == 0 && !cfg!(memgroup_loom) {
            tree.retired = false;
            POOL.lock().unwrap_or_else(PoisonError::into_inner).push(self);
        }
    }
}
