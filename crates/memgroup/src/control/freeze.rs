//! Freeze: no group of a subtree has a stock, for as long as a charge decides on its refusal.
//!
//! Every word of the subtree is set to CLOSED: also empty words, and words that no thread ever used. Then every PENDING section is waited for that
//! began before. From then until the freeze ends, the usage of each counter in the subtree consists of live charges, charges under way and
//! uncharges under way. This is the instant of the refusal guarantee (G1). A refill that meets CLOSED goes to the counters, and a batch is exact.
//!
//! - I1. One freeze at a time in a hierarchy, under its tree lock, which it never outlives.
//! - P1. It waits for threads between two of their instructions, which hold no lock and call no user code.

use crate::control::aftermath;
use crate::stock::{drain, open};
use crate::tree::node::Node;
use crate::tree::topology::Tree;

/// Closes the stocks of every group that counts in `top`, and waits for batches under way.
pub(crate) fn freeze(tree: &Tree, top: &'static Node) {
    top.shared().counted_in(tree, top).for_each(|node| _ = aftermath::close(node));
    top.shared().counted_in(tree, top).for_each(drain::wait_settled);
}

/// A subtree without stocks.
pub(crate) struct FrozenSubtree<'t> {
    tree: &'t Tree,
    top: Option<&'static Node>,
}

impl<'t> FrozenSubtree<'t> {
    /// An empty subtree. The borrow of the tree is the proof of its lock.
    pub(crate) fn new(tree: &'t Tree) -> FrozenSubtree<'t> {
        FrozenSubtree { tree, top: None }
    }

    /// Freezes the subtree of `top`, which contains the one that is frozen already.
    pub(crate) fn extend(&mut self, top: &'static Node) {
        self.top = Some(top);
        freeze(self.tree, top);
    }

    /// Whether the subtree of `node` is frozen. `node` is on the path of the same charge.
    pub(crate) fn covers(&self, node: &Node) -> bool {
        self.top.is_some_and(|top| self.tree.depth(node.id()) >= self.tree.depth(top.id()))
    }
}

impl Drop for FrozenSubtree<'_> {
    fn drop(&mut self) {
        if let Some(top) = self.top {
            top.shared().counted_in(self.tree, top).for_each(open::open);
        }
    }
}
