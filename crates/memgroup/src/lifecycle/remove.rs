//! Remove: a group goes offline; handles are given back; the last one takes the hierarchy with it.

use memgroup_sync::MutexGuard;

use crate::base::error::GroupError;
use crate::base::id::NodeId;
use crate::base::mutation::{self, Mutation};
use crate::control::{aftermath, held_back, protection, waiters};
use crate::lifecycle::ended::Farewell;
use crate::lifecycle::{maintenance, records};
use crate::observe::wait;
use crate::stock::drain;
use crate::tree::handle::{Group, Hierarchy};
use crate::tree::node::Node;
use crate::tree::shared::Shared;
use crate::tree::topology::{ROOT, State, Tree};

impl Shared {
    /// Removes a group: at once if nothing is charged to it, else it is dying until the last byte
    /// is released.
    pub(crate) fn remove(&'static self, node: &'static Node) -> Result<(), GroupError> {
        let tree = self.tree.lock();
        tree.check_removal(node.id())?;
        self.remove_held(tree, node);
        Ok(())
    }

    /// Removes a group and all groups below it, the lowest first. The caller holds `top`.
    pub(crate) fn remove_all(&'static self, top: &'static Node) -> Result<(), GroupError> {
        let mut tree = self.tree.lock();
        tree.close(top.id())?;
        self.remove_closing(tree, top);
        Ok(())
    }

    /// Removes a group that is closing, and all groups below it. The lock is free between two of
    /// them, and callbacks run then.
    pub(crate) fn remove_closing(&'static self, tree: MutexGuard<'_, Tree>, top: &'static Node) {
        let mut held = Some(tree);
        loop {
            let mut tree = held.take().unwrap_or_else(|| self.tree.lock_behind());
            let Some(id) = tree.next_to_remove(top.id()) else { return };
            self.remove_held(tree, self.made(id));
        }
    }

    /// Removes a group without children, frees the tree lock, and tells the group's callbacks.
    fn remove_held(&'static self, mut tree: MutexGuard<'_, Tree>, node: &'static Node) {
        let farewell = take_offline(&mut tree, node);
        // A group below the one that the caller removes is held by nothing else.
        node.pin_inner();
        let due = maintenance::is_due(self, &tree);
        drop(tree);
        // Tasks are woken without the lock.
        waiters::removed(node);
        aftermath::unpin(node);
        if let Some(farewell) = farewell {
            farewell.tell();
        }
        if due {
            maintenance::step(self);
        }
    }

    /// Gives a handle back. With the last one every group is removed and the memory goes.
    pub(crate) fn let_go(&'static self) {
        if self.let_go_one()
            && !cfg!(memgroup_loom)
            && let Some(farewells) = self.retire()
        {
            farewells.into_iter().for_each(Farewell::tell);
            held_back::settle_removed(self);
            maintenance::at_the_end(self);
        }
    }

    /// Removes all groups, if no handle is left. Returns those with callbacks, if it did.
    #[cold]
    fn retire(&'static self) -> Option<Vec<Farewell>> {
        let mut tree = self.tree.lock();
        // A charge with bytes may have given out a new handle meanwhile: the end of that handle
        // comes here again. Or another retirement was faster: the hierarchy waits in the pool, or
        // has a new user.
        if !self.is_without_handles() || tree.retired || tree.in_use() == 0 {
            return None;
        }
        tree.retired = true;
        let online: Vec<NodeId> = match tree.state(ROOT) {
            State::Online => tree.subtree(ROOT).collect(),
            State::Closing | State::Dying { .. } | State::Free => Vec::new(),
        };
        let mut farewells = Vec::new();
        for &id in online.iter().rev() {
            farewells.extend(take_offline(&mut tree, self.made(id)));
            self.release_held(&mut tree, id);
        }
        // Futures hold handles, so no task waits here. Threads may, by the bytes of their charges.
        self.waits().reclaimers.end_all();
        self.wait_queue().lock().end_all();
        Some(farewells)
    }
}

/// Online or closing → dying. Returns the group's callbacks.
fn take_offline(tree: &mut Tree, node: &'static Node) -> Option<Farewell> {
    node.counter.mark_offline();
    wait::removed(node);
    if !mutation::active(Mutation::RemovalLeavesStocksOpen) {
        aftermath::retire(node);
        drain::wait_returned(node);
    }
    protection::clear(tree, node);
    // None is made from here on: the group is offline.
    let age = tree.retire(node.id(), records::has_record(node));
    Farewell::take(node, age)
}

impl Drop for Group {
    fn drop(&mut self) {
        let (node, id, shared) = (self.node(), self.node().id(), self.node().shared());
        // With the handle gone the node may be another group's already; `release_if_done` decides
        // under the tree lock. The remover of this group held a handle too, so its offline mark
        // precedes the last of these decrements.
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
