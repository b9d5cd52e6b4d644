//! The online children of one group, in steps with a bounded hold of the tree lock.
//!
//! - B1. A group that is created or removed between two steps may be left out or not. One that is online from the first step to the last comes once.

use crate::tree::name::NAME_MAX;
use crate::tree::node::Node;
use crate::tree::topology::Tree;

/// Children of one step.
const STEP: usize = 128;

/// A walk over the children of one group, by name.
pub(crate) struct ChildSteps {
    parent: &'static Node,
    /// The name of the last one; empty before the first.
    last: String,
}

impl ChildSteps {
    pub(crate) fn of(parent: &'static Node) -> ChildSteps {
        // With the tree lock held nothing is allocated for names: an allocator that charges may need it.
        ChildSteps { parent, last: String::with_capacity(NAME_MAX) }
    }

    /// Calls `visit` for the next children. Returns whether there may be more.
    pub(crate) fn step(&mut self, tree: &Tree, mut visit: impl FnMut(&'static Node)) -> bool {
        let ChildSteps { parent, last } = self;
        let after = Some(last.as_str()).filter(|last| !last.is_empty());
        let (mut count, mut end) = (0, None);
        for (name, id) in tree.children_after(parent.id(), after).take(STEP) {
            visit(parent.shared().made(id));
            (count, end) = (count + 1, Some(name));
        }
        last.clear();
        last.push_str(end.unwrap_or_default());
        count == STEP
    }
}
