//! Listing: finds the groups of a snapshot, in bounded steps of the tree lock.
//!
//! ```text
//!   online groups: from the top, level by level, the children of each parent by name
//!   dying groups:  place by place
//! ```
//!
//! - I1. The listing holds each group that it finds. So neither its place nor those of the groups above it are given to others.
//! - I2. Nothing is allocated with the tree lock held, because an allocator that charges may need the lock.
//! - B1. A group that is created meanwhile may be missing, with all groups below it. One that is removed meanwhile is listed, as
//!   dying if its place is visited after the removal.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Instant;

use crate::base::id::NodeId;
use crate::tree::entries::Bounds;
use crate::tree::handle::Group;
use crate::tree::name::NAME_MAX;
use crate::tree::node::Node;
use crate::tree::topology::{State, Tree};

/// The most groups that are found, or searched for children, with the lock held once.
pub(crate) const GROUPS_A_STEP: usize = 32;

/// Places that are searched for dying groups with the lock held once.
pub(crate) const PLACES_A_STEP: u32 = 1024;

/// A group of the listing.
pub(crate) struct Listed {
    pub(crate) group: Group,
    /// Position of its parent in the listing; `None` for the first.
    pub(crate) parent: Option<usize>,
    /// When it was removed.
    pub(crate) removed: Option<Instant>,
    /// The bounds on the groups below it.
    pub(crate) bounds: Bounds,
    name: Range<usize>,
}

/// Groups of a subtree, each after its parent. Siblings are in the order of their names, dying ones last.
pub(crate) struct Listing {
    pub(crate) groups: Vec<Listed>,
    names: String,
}

/// The dying groups below `top`, in the order of their removal.
pub(crate) fn dying(top: &Group) -> Vec<(Group, Instant)> {
    let mut listing = Listing::begin(top);
    listing.find_dying(top.node());
    let found = listing.groups.into_iter().filter_map(|listed| Some((listed.group, listed.removed?)));
    let mut dying: Vec<_> = found.collect();
    dying.sort_by_key(|(group, removed)| (*removed, group.node().id().0));
    dying
}

/// The online children of `top`, by name.
pub(crate) fn children(top: &Group) -> Vec<Group> {
    let mut listing = Listing::begin(top);
    listing.find_online(1);
    listing.online().skip(1).collect()
}

impl Listing {
    /// Lists `top` and all groups below it.
    pub(crate) fn of(top: &Group) -> Listing {
        let mut listing = Listing::begin(top);
        listing.find_online(usize::MAX);
        let online = listing.groups.len();
        listing.find_dying(top.node());
        if listing.groups.len() > online {
            listing.place_dying(online);
        }
        listing.in_order()
    }

    /// `top` alone.
    fn begin(top: &Group) -> Listing {
        let names = top.name();
        let (group, name, bounds) = (top.clone(), 0..names.len(), top.bounds());
        let first = Listed { group, parent: None, removed: None, bounds, name };
        Listing { groups: vec![first], names }
    }

    /// The online groups of the listing, each after its parent.
    pub(crate) fn online(self) -> impl Iterator<Item = Group> {
        self.groups.into_iter().filter(|listed| listed.removed.is_none()).map(|listed| listed.group)
    }

    pub(crate) fn name(&self, listed: &Listed) -> &str {
        &self.names[listed.name.clone()]
    }

    /// Allocates memory for one more step.
    fn make_room(&mut self, groups: usize) {
        self.groups.reserve(groups);
        self.names.reserve(groups * NAME_MAX);
    }

    /// Adds a group, within the memory that was allocated before.
    fn push(
        &mut self,
        tree: &Tree,
        node: &'static Node,
        name: &str,
        parent: Option<usize>,
        removed: Option<Instant>,
    ) {
        let begin = self.names.len();
        self.names.push_str(name);
        let name = begin..self.names.len();
        let (group, bounds) = (Group::pinned(node), tree.bounds(node.id()));
        self.groups.push(Listed { group, parent, removed, bounds, name });
    }

    /// Finds the children of the first groups, so many.
    fn find_online(&mut self, parents: usize) {
        let shared = self.groups[0].group.node().shared();
        // The group that is searched for children, and the last child that was found.
        let (mut at, mut last) = (0, None);
        while at < self.groups.len().min(parents) {
            self.make_room(GROUPS_A_STEP);
            let tree = shared.tree.lock_behind();
            let mut left = GROUPS_A_STEP;
            while left > 0 && at < self.groups.len().min(parents) {
                let parent = self.groups[at].group.node().id();
                let name = last.map(|last: Range<usize>| &self.names[last]);
                let children = tree.children_after(parent, name).take(left);
                let before = self.groups.len();
                for (name, id) in children {
                    if let Some(node) = shared.node(id) {
                        self.push(&tree, node, name, Some(at), None);
                    }
                }
                let found = self.groups.len() - before;
                last = (found == left).then(|| self.groups[before + found - 1].name.clone());
                at += usize::from(last.is_none());
                left = left.saturating_sub(found + 1);
            }
        }
    }

    fn find_dying(&mut self, top: &'static Node) {
        let shared = top.shared();
        let mut from = 0;
        loop {
            self.make_room(PLACES_A_STEP as usize);
            let tree = shared.tree.lock_behind();
            if tree.in_use() == tree.online() || from >= tree.places() {
                break;
            }
            let to = tree.places().min(from + PLACES_A_STEP);
            for node in (from..to).filter_map(|place| shared.node(NodeId(place))) {
                if let State::Dying { since } = tree.state(node.id())
                    && node.is_within(top)
                {
                    self.push(&tree, node, tree.name(node.id()), None, Some(since));
                }
            }
            from = to;
        }
    }

    /// Completes the groups from position `online` on, which are dying: finds their parents, or the same group found before.
    fn place_dying(&mut self, online: usize) {
        let mut places: HashMap<u32, usize> = HashMap::with_capacity(self.groups.len());
        for (at, listed) in self.groups.iter().enumerate() {
            places.entry(listed.group.node().id().0).or_insert(at);
        }
        for at in online..self.groups.len() {
            let (node, removed) = (self.groups[at].group.node(), self.groups[at].removed);
            let first = places[&node.id().0];
            if first < at {
                // It was online when it was found first, and was removed since.
                self.groups[first].removed = removed;
            } else {
                self.groups[at].parent = node.parent().and_then(|parent| places.get(&parent.id().0).copied());
            }
        }
    }

    /// Sorts the groups so that each is followed by all groups below it. Groups without a listed parent are left out (B1).
    fn in_order(mut self) -> Listing {
        let mut first_child = vec![None; self.groups.len()];
        let mut next_sibling = vec![None; self.groups.len()];
        for (at, listed) in self.groups.iter().enumerate().rev() {
            if let Some(parent) = listed.parent {
                next_sibling[at] = first_child[parent].replace(at);
            }
        }
        let mut listed: Vec<Option<Listed>> = self.groups.drain(..).map(Some).collect();
        let mut ordered: Vec<Listed> = Vec::with_capacity(listed.len());
        let mut stack = vec![(0, None)];
        while let Some((at, parent)) = stack.pop() {
            if let Some(next) = next_sibling[at] {
                stack.push((next, parent));
            }
            let Some(group) = listed[at].take() else { continue };
            // A parent is removed after its children: one that looked online was removed after its place was visited.
            let removed = group.removed.or(parent.and_then(|parent: usize| ordered[parent].removed));
            ordered.push(Listed { parent, removed, ..group });
            if let Some(child) = first_child[at] {
                stack.push((child, Some(ordered.len() - 1)));
            }
        }
        Listing { groups: ordered, names: self.names }
    }
}
