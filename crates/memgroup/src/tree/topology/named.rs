//! Named: the online children of a group by name, in a treap whose links are in the places.
//!
//! A treap is a search tree in which nothing ranks above what it hangs on. Ranks are random, so it
//! is about as deep as a balanced tree. An insertion splits what ranks lower, and a removal joins
//! what hung on the removed child. Neither allocates, and a name is stored once, in its place.
//!
//! - I1. Names that hang `BEFORE` a child come before its name, and those that hang `AFTER` it
//!   come after.
//! - I2. A rank depends on the place and on the tree's seed alone. A tenant chooses names, and can
//!   learn which places they get, but not the ranks. So no choice of names makes a treap deep.

use std::cmp::Ordering;
use std::hash::{BuildHasher, RandomState};
use std::mem;

use crate::base::id::{NodeId, TOP};
use crate::tree::topology::Tree;

/// A place and the position of one of its links.
type Link = (NodeId, usize);

const HIGHEST: usize = 0;
pub(super) const BEFORE: usize = 1;
pub(super) const AFTER: usize = 2;

/// A seed for the ranks of one tree.
pub(super) fn seed() -> u64 {
    // A model must do the same each time.
    if cfg!(memgroup_loom) { 1 } else { RandomState::new().hash_one(0) }
}

impl Tree {
    /// The finaliser of MurmurHash3.
    fn rank(&self, id: NodeId) -> u64 {
        let mut mixed = u64::from(id.0) ^ self.seed;
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        mixed ^ (mixed >> 33)
    }

    pub(super) fn linked(&self, (id, which): Link) -> NodeId {
        self.entry(id).links[which]
    }

    pub(super) fn set_link(&mut self, (id, which): Link, to: NodeId) {
        self.entry_mut(id).links[which] = to;
    }

    /// The order of a name and that of a child.
    fn compare(&self, name: &[u8], child: NodeId) -> Ordering {
        name.cmp(self.entry(child).name.as_bytes())
    }

    fn compare_children(&self, one: NodeId, other: NodeId) -> Ordering {
        self.compare(self.entry(one).name.as_bytes(), other)
    }

    /// The online child of this name.
    pub(crate) fn child(&self, parent: NodeId, name: &str) -> Option<NodeId> {
        let mut at = self.linked((parent, HIGHEST));
        while at != TOP {
            at = match self.compare(name.as_bytes(), at) {
                Ordering::Less => self.linked((at, BEFORE)),
                Ordering::Equal => return Some(at),
                Ordering::Greater => self.linked((at, AFTER)),
            };
        }
        None
    }

    /// The first online child whose name comes after this one; the first of all without one.
    fn child_after(&self, parent: NodeId, name: Option<&[u8]>) -> Option<NodeId> {
        let (mut at, mut found) = (self.linked((parent, HIGHEST)), None);
        while at != TOP {
            let is_after = name.is_none_or(|name| self.compare(name, at).is_lt());
            found = if is_after { Some(at) } else { found };
            at = self.linked((at, if is_after { BEFORE } else { AFTER }));
        }
        found
    }

    /// The online children that come after the one of this name, by name; all of them without one.
    pub(crate) fn children_after<'t>(
        &'t self,
        parent: NodeId,
        name: Option<&str>,
    ) -> impl Iterator<Item = (&'t str, NodeId)> + use<'t> {
        let next = move |&id: &NodeId| self.child_after(parent, Some(self.entry(id).name.as_bytes()));
        let first = self.child_after(parent, name.map(str::as_bytes));
        std::iter::successors(first, next).map(|id| (self.name(id), id))
    }

    /// Adds a child without links to those with a name. None of them has the same name.
    pub(super) fn name_child(&mut self, parent: NodeId, id: NodeId) {
        let (mut link, rank) = ((parent, HIGHEST), self.rank(id));
        let mut lower = self.linked(link);
        while lower != TOP && self.rank(lower) > rank {
            link = (lower, if self.compare_children(id, lower).is_lt() { BEFORE } else { AFTER });
            lower = self.linked(link);
        }
        self.set_link(link, id);
        // The children that rank lower hang on this one.
        let (mut before, mut after) = ((id, BEFORE), (id, AFTER));
        while lower != TOP {
            if self.compare_children(id, lower).is_lt() {
                self.set_link(mem::replace(&mut after, (lower, BEFORE)), lower);
                lower = self.linked(after);
            } else {
                self.set_link(mem::replace(&mut before, (lower, AFTER)), lower);
                lower = self.linked(before);
            }
        }
        self.set_link(before, TOP);
        self.set_link(after, TOP);
        self.entry_mut(parent).named += 1;
    }

    /// Takes a child from those with a name.
    pub(super) fn unname_child(&mut self, parent: NodeId, id: NodeId) {
        let mut link = (parent, HIGHEST);
        let mut at = self.linked(link);
        while at != id {
            link = (at, if self.compare_children(id, at).is_lt() { BEFORE } else { AFTER });
            at = self.linked(link);
        }
        let [_, mut before, mut after] = self.entry(id).links;
        while before != TOP && after != TOP {
            if self.rank(before) > self.rank(after) {
                self.set_link(link, before);
                link = (before, AFTER);
                before = self.linked(link);
            } else {
                self.set_link(link, after);
                link = (after, BEFORE);
                after = self.linked(link);
            }
        }
        self.set_link(link, if before == TOP { after } else { before });
        self.entry_mut(parent).named -= 1;
    }
}

#[cfg(all(test, not(memgroup_loom)))]
impl Tree {
    /// How many links lead from a group to the lowest of its children.
    pub(super) fn levels_of_names(&self, parent: NodeId) -> usize {
        let below = |tree: &Tree, ids: Vec<NodeId>| -> Vec<NodeId> {
            ids.into_iter()
                .flat_map(|id| [BEFORE, AFTER].map(|side| tree.linked((id, side))))
                .filter(|&id| id != TOP)
                .collect()
        };
        let highest = vec![self.linked((parent, HIGHEST))];
        std::iter::successors(Some(highest), |ids| Some(below(self, ids.clone())))
            .take_while(|ids| !ids.is_empty())
            .count()
    }
}
