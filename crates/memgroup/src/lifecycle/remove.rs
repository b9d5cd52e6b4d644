//! Remove: a group goes offline; handles are given back; the last one takes the hierarchy with it.

use crate::base::error::GroupError;
use crate::base::id::NodeId;
use crate::base::mutation::{self, Mutation};
use crate::control::{aftermath, protection, waiters};
use crate::lifecycle::maintenance;
use crate::observe::wait;
use crate::stock::drain;
use crate::tree::handle::{Group, Hierarchy};
use crate::tree::node::Node;
use crate::tree::shared::Shared;
use crate::tree::topology::{ROOT, State, Tree};

impl Shared {
    /// Removes a group: at once if nothing is charged to it, else it is dying until the last byte is released.
    pub(crate) fn remove(&'static self, node: &'static Node) -> Result<(), GroupError> {
        let mut tree = self.tree.lock();
        tree.check_removal(node.id())?;
        take_offline(&mut tree, node);
        self.release_held(&mut tree, node.id());
        let due = maintenance::is_due(self, &tree);
        drop(tree);
        // Tasks are woken without the lock. The caller holds the node.
        waiters::removed(node);
        if due {
            maintenance::step(self);
        }
        Ok(())
    }

    /// Gives a handle back. With the last one every group is removed and the memory goes.
    pub(crate) fn let_go(&'static self) {
        if self.let_go_one() && !cfg!(memgroup_loom) && self.retire() {
            maintenance::at_the_end(self);
        }
    }

    /// Removes all groups, if no handle is left; whether it did.
    #[cold]
    fn retire(&'static self) -> bool {
        let mut tree = self.tree.lock();
        // A charge with bytes may have given out a new handle meanwhile: the end of that handle comes here again. Or another
        // retirement was faster: the hierarchy waits in the pool, or has a new user.
        if !self.is_without_handles() || tree.retired || tree.in_use() == 0 {
            return false;
        }
        tree.retired = true;
        let online: Vec<NodeId> = match tree.state(ROOT) {
            State::Online => tree.subtree(ROOT).collect(),
            State::Dying { .. } | State::Free => Vec::new(),
        };
        for &id in online.iter().rev() {
            take_offline(&mut tree, self.made(id));
            self.release_held(&mut tree, id);
        }
        // Futures hold handles, so no task waits here. Threads may, by the bytes of their charges.
        self.wait_queue().lock().end_all();
        true
    }
}

fn take_offline(tree: &mut Tree, node: &'static Node) {
    node.counter.mark_offline();
    wait::removed(node);
    if !mutation::active(Mutation::RemovalLeavesStocksOpen) {
        aftermath::retire(node);
        drain::wait_returned(node);
    }
    protection::clear(tree, node);
    tree.retire(node.id());
}

impl Drop for Group {
    fn drop(&mut self) {
        let (node, id, shared) = (self.node(), self.node().id(), self.node().shared());
        // With the handle gone the node may be another group's already; `release_if_done` decides under the tree lock.
        // The remover of this group held a handle too, so its offline mark precedes the last of these decrements.
        if node.unpin_inner() && node.counter.is_offline_now() {
            shared.release_if_done(id);
        }
        shared.let_go();
    }
}

impl Drop for Hierarchy {
    fn drop(&mut self) {
        self.shared().let_go();
    }
}
