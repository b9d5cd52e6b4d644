//! Closure: for as long as it lasts, no group of a subtree has a stock.
//!
//! Every word of the subtree is set to CLOSED, also those that are empty and those no thread ever touched, and every
//! PENDING section that began before is waited for. From then until the closure is dropped the usage of each counter
//! in the subtree is made of live charges, charges in flight and uncharges in flight, and of nothing else: this is the instant
//! that the refusal guarantee (G1) speaks of. A refill that meets CLOSED goes straight to the counters, a batch is exact.
//!
//! - I1. One closure at a time in a hierarchy, under its tree lock; none outlives it.
//! - P1. The wait is for threads between two of their instructions, which hold no lock and call nobody.

use super::drain;
use crate::node::Node;
use crate::overrun;
use crate::tree::Tree;

/// A subtree without stocks.
pub(crate) struct Closure<'t> {
    tree: &'t Tree,
    top: Option<&'static Node>,
}

impl<'t> Closure<'t> {
    /// Closes nothing yet. The borrow of the tree is the proof of its lock.
    pub(crate) fn new(tree: &'t Tree) -> Closure<'t> {
        Closure { tree, top: None }
    }

    /// Closes the subtree of `top`, which is an ancestor of what is closed already.
    pub(crate) fn extend(&mut self, top: &'static Node) {
        self.top = Some(top);
        for node in self.nodes() {
            drain::close(node);
        }
        for node in self.nodes() {
            drain::wait_settled(node);
        }
    }

    /// Whether the subtree of `node`, which is on the path of the same charge, is closed.
    pub(crate) fn covers(&self, node: &Node) -> bool {
        self.top.is_some_and(|top| self.tree.depth(node.id) >= self.tree.depth(top.id))
    }

    fn nodes(&self) -> impl Iterator<Item = &'static Node> + use<'t> {
        let top = self.top;
        let tree = self.tree;
        top.into_iter().flat_map(move |top| top.shared.counted_in(tree, top))
    }
}

impl Drop for Closure<'_> {
    fn drop(&mut self) {
        self.nodes().for_each(overrun::open);
    }
}
