//! Listing: finds the groups of a snapshot, in bounded steps of the tree lock.
//!
//! ```text
//!   from the top, level by level, below each group:  online groups by name, then dying groups in the order of their removal
//! ```
//!
//! - I1. The listing holds each group that it finds. So neither its place nor those of the groups
//!   above it are given to others.
//! - I2. Nothing is allocated with the tree lock held, because an allocator that charges may need
//!   the lock.
//! - P1. A listing visits the groups that it lists, and no other: what is dying elsewhere costs it
//!   nothing.
//! - B1. A group that is created meanwhile may be missing, with all groups below it. One that is
//!   removed meanwhile is listed, as dying if its parent's dying groups are visited after the
//!   removal.
//! - B2. A group that is closing has no name and isn't dying yet, so it is not listed, nor is any
//!   group below it. That lasts from the beginning of `remove_all`, or of the last owner's drop,
//!   until the group itself is removed. A callback of `on_end` that runs between two of those
//!   removals finds the groups that are gone, and none of the rest.

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

/// Counts a visit of a group, in tests.
#[inline(always)]
fn visit() {
    #[cfg(all(test, not(memgroup_loom)))]
    tests::VISITS.set(tests::VISITS.get() + 1);
}

/// How far the search below one group has come.
enum Last {
    /// To the online child of this name; `None`: it begins.
    Online(Option<Range<usize>>),
    /// To this dying group; `None`: to the first one.
    Dying(Option<NodeId>),
    /// To the end.
    Done,
}

/// Groups of a subtree, each after its parent. Siblings are in the order of their names, dying
/// ones last.
pub(crate) struct Listing {
    pub(crate) groups: Vec<Listed>,
    names: String,
}

/// The dying groups below `top`, in the order of their removal. If any group of the hierarchy is
/// dying, it visits all groups below `top`.
pub(crate) fn dying(top: &Group) -> Vec<(Group, Instant)> {
    if !top.node().shared().tree.lock().has_dying() {
        return Vec::new();
    }
    let listing = Listing::of(top);
    let below = listing.groups.into_iter().skip(1);
    let mut dying: Vec<_> = below.filter_map(|listed| Some((listed.group, listed.removed?))).collect();
    dying.sort_by_key(|(group, removed)| (*removed, group.node().id().0));
    dying
}

/// The online children of `top`, by name.
pub(crate) fn children(top: &Group) -> Vec<Group> {
    let mut listing = Listing::begin(top);
    listing.find(1);
    listing.online().skip(1).collect()
}

impl Listing {
    /// Lists `top` and all groups below it.
    pub(crate) fn of(top: &Group) -> Listing {
        let mut listing = Listing::begin(top);
        listing.find(usize::MAX);
        // Last, so that no group is online in the listing below a top that is not.
        if let State::Dying { since } = top.node().shared().tree.lock_behind().state(top.node().id()) {
            listing.groups[0].removed = Some(since);
        }
        if listing.groups.iter().any(|listed| listed.removed.is_some()) {
            listing.join_twice_found();
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
        visit();
        let begin = self.names.len();
        self.names.push_str(name);
        let name = begin..self.names.len();
        let (group, bounds) = (Group::pinned(node), tree.bounds(node.id()));
        self.groups.push(Listed { group, parent, removed, bounds, name });
    }

    /// Finds the groups right below the first `parents` groups.
    fn find(&mut self, parents: usize) {
        let shared = self.groups[0].group.node().shared();
        let (mut at, mut last) = (0, Last::Online(None));
        while at < self.groups.len().min(parents) {
            self.make_room(GROUPS_A_STEP);
            let tree = shared.tree.lock_behind();
            let mut left = GROUPS_A_STEP;
            while left > 0 && at < self.groups.len().min(parents) {
                let before = self.groups.len();
                last = match last {
                    Last::Online(name) => self.find_online(&tree, at, name, left),
                    Last::Dying(id) => self.find_dying(&tree, at, id, left),
                    Last::Done => unreachable!("the next group is searched"),
                };
                left -= self.groups.len() - before;
                if let Last::Done = last {
                    visit();
                    (at, last) = (at + 1, Last::Online(None));
                    left = left.saturating_sub(1);
                }
            }
        }
    }

    /// Finds up to `most` online children of the group at position `at`, which come after the one
    /// of this name.
    fn find_online(&mut self, tree: &Tree, at: usize, last: Option<Range<usize>>, most: usize) -> Last {
        let (shared, parent) = (self.groups[0].group.node().shared(), self.groups[at].group.node().id());
        let before = self.groups.len();
        let name = last.map(|last| &self.names[last]);
        for (name, id) in tree.children_after(parent, name).take(most) {
            self.push(tree, shared.made(id), name, Some(at), None);
        }
        if self.groups.len() - before < most {
            return Last::Dying(None);
        }
        Last::Online(self.groups.last().map(|listed| listed.name.clone()))
    }

    /// Finds up to `most` dying groups right below the group at position `at`, which were removed
    /// after the last one.
    fn find_dying(&mut self, tree: &Tree, at: usize, last: Option<NodeId>, most: usize) -> Last {
        let (shared, parent) = (self.groups[0].group.node().shared(), self.groups[at].group.node().id());
        let mut found = (0, last);
        for id in tree.dying_after(parent, last).take(most) {
            if let State::Dying { since } = tree.state(id) {
                self.push(tree, shared.made(id), tree.name(id), Some(at), Some(since));
            }
            found = (found.0 + 1, Some(id));
        }
        if found.0 < most { Last::Done } else { Last::Dying(found.1) }
    }

    /// A group that was online when it was found first, and was removed since, may have been found
    /// again: it is listed once, as dying. So are the groups below it.
    fn join_twice_found(&mut self) {
        let mut places: HashMap<u32, usize> = HashMap::with_capacity(self.groups.len());
        for at in 0..self.groups.len() {
            let first = *places.entry(self.groups[at].group.node().id().0).or_insert(at);
            // A second finding, and what was found below it, has no listed parent.
            if first < at {
                self.groups[first].removed = self.groups[at].removed;
                self.groups[at].parent = None;
            }
        }
    }

    /// Sorts the groups so that each is followed by all groups below it. Groups without a listed
    /// parent are left out (B1).
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
            // A parent is removed after its children: one that looked online was removed after its
            // place was visited.
            let removed = group.removed.or(parent.and_then(|parent: usize| ordered[parent].removed));
            ordered.push(Listed { parent, removed, ..group });
            if let Some(child) = first_child[at] {
                stack.push((child, Some(ordered.len() - 1)));
            }
        }
        Listing { groups: ordered, names: self.names }
    }
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use std::cell::Cell;

    use crate::{Config, Group, Hierarchy};

    std::thread_local! {
        /// Groups that listings of this thread have found or searched.
        pub(super) static VISITS: Cell<usize> = const { Cell::new(0) };
    }

    fn visits<T>(question: impl FnOnce() -> T) -> (T, usize) {
        VISITS.set(0);
        let answer = question();
        (answer, VISITS.get())
    }

    /// A hierarchy with a small subtree that has prepaid bytes, and many groups beside it, of
    /// which some are dying.
    fn small_beside_many() -> (Hierarchy, Group, Vec<crate::Charge>) {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let small = hierarchy.create("/small").unwrap();
        let below = small.create("below").unwrap();
        drop(below.try_charge(1000).unwrap());
        let many = hierarchy.create("/many").unwrap();
        let charges = (0..1000).map(|number| {
            let group = many.create(&format!("{number}")).unwrap();
            let charge = group.try_charge(1).unwrap();
            if number % 10 == 0 {
                group.remove().unwrap();
            }
            charge
        });
        let charges = charges.collect();
        (hierarchy, small, charges)
    }

    #[test]
    fn a_question_visits_its_own_subtree_while_groups_are_dying_elsewhere() {
        let (hierarchy, small, _charges) = small_beside_many();
        assert!(small.usage() > 0, "bytes are prepaid below it, which only a visit tells");
        assert_eq!(hierarchy.dying().len(), 100);
        // Two groups are found or given, and both are searched.
        assert_eq!(visits(|| small.usage_exact()), (0, 3));
        let (events, visited) = visits(|| small.read_file("cgroup.events").unwrap());
        assert_eq!((events.lines().next(), visited), (Some("populated 0"), 3));
        assert_eq!(visits(|| small.snapshot().groups.len()), (2, 3));
        assert_eq!(visits(|| small.read_file("cgroup.stat").unwrap()).1, 3);
        // The question about all groups does visit all.
        let (all, visited) = visits(|| hierarchy.snapshot());
        assert_eq!((all.groups.len(), all.dying().count(), visited), (1004, 100, 2 * 1004 - 1));
    }

    #[test]
    fn no_group_is_visited_for_dying_ones_where_there_are_none() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let _group = hierarchy.create("/group").unwrap();
        assert_eq!(visits(|| hierarchy.dying().len()), (0, 0));
    }

    #[test]
    fn dying_siblings_are_listed_in_the_order_of_their_removal() {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let parent = hierarchy.create("/parent").unwrap();
        let of = |number: u32| {
            let group = parent.create(&format!("{number:03}")).unwrap();
            (group.try_charge(1).unwrap(), group)
        };
        let mut groups: Vec<_> = (0..100).map(of).collect();
        let order: Vec<u32> = (0..100).map(|nth| nth * 37 % 100).collect();
        order.iter().for_each(|&number| groups[number as usize].1.remove().unwrap());
        let names = || parent.snapshot().dying().map(|group| group.name.clone()).collect::<Vec<_>>();
        let expected = |order: &[u32]| order.iter().map(|number| format!("{number:03}")).collect::<Vec<_>>();
        assert_eq!(names(), expected(&order));
        // The first, the last and some between them are released.
        let (gone, left): (Vec<u32>, Vec<u32>) =
            order.iter().partition(|&&number| number % 3 == 0 || number == order[99]);
        for number in gone {
            let new = of(number);
            drop(std::mem::replace(&mut groups[number as usize], new));
        }
        assert_eq!(names(), expected(&left));
        drop(groups);
        assert_eq!((names().len(), parent.usage_exact()), (0, 0));
    }
}
