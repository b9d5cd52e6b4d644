//! The online children of one group, in steps with a bounded hold of the tree lock.
//!
//! - B1. A group that is created or removed between two steps may be left out or not. One that is
//!   online from the first step to the last comes once.

use crate::tree::name::NAME_MAX;
use crate::tree::node::Node;
use crate::tree::topology::Tree;

/// Children of one step.
pub(crate) const STEP: usize = 128;

/// A walk over the children of one group, by name.
pub(crate) struct ChildSteps {
    parent: &'static Node,
    /// The name of the last one, and its length; 0 before the first.
    last: ([u8; NAME_MAX], usize),
}

impl ChildSteps {
    pub(crate) fn of(parent: &'static Node) -> ChildSteps {
        // Nothing is allocated for names: a charge that only counts takes such steps, too.
        ChildSteps { parent, last: ([0; NAME_MAX], 0) }
    }

    /// Calls `visit` for the next children. Returns whether there may be more.
    pub(crate) fn step(&mut self, tree: &Tree, mut visit: impl FnMut(&'static Node)) -> bool {
        let ChildSteps { parent, last: (last, length) } = self;
        let after = str::from_utf8(&last[..*length]).ok().filter(|last| !last.is_empty());
        let (mut count, mut end) = (0, "");
        for (name, id) in tree.children_after(parent.id(), after).take(STEP) {
            visit(parent.shared().made(id));
            (count, end) = (count + 1, name);
        }
        last[..end.len()].copy_from_slice(end.as_bytes());
        *length = end.len();
        count == STEP
    }
}
