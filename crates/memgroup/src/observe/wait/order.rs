//! Order: a search tree of waits within the places that they have, without memory of its own.
//!
//! It is a treap: sorted by key, and a heap by a number that is drawn from the place. So it is balanced whatever the order of
//! arrivals, and each operation takes O(log n) steps. Each node knows the least bytes that a wait below it asks for. So the first wait that fits
//! into the room is found in O(log n) too, however many come before it that do not fit.
//!
//! Each node knows the one above. So a removal begins at the wait, not at the root, and looks at a few others on the average: the rest of a large tree
//! is in no cache.

/// No place.
pub(crate) const NONE: u32 = u32::MAX;

/// The links of one wait in a tree.
#[derive(Clone, Copy)]
pub(crate) struct Links {
    pub(crate) key: u64,
    /// The bytes for which the wait looks now; `u64::MAX` if it is not to be found.
    asks: u64,
    /// The least bytes asked for in the subtree.
    least: u64,
    left: u32,
    right: u32,
    above: u32,
}

impl Links {
    pub(crate) fn new(key: u64, asks: u64) -> Links {
        Links { key, asks, least: asks, left: NONE, right: NONE, above: NONE }
    }

    /// Out of the tree, a wait is in a list by the same words: the one before it, and the next.
    pub(crate) fn link(&mut self, before: u32, next: u32) {
        (self.left, self.right) = (before, next);
    }

    pub(crate) fn linked(&self) -> (u32, u32) {
        (self.left, self.right)
    }

    pub(crate) fn set_before(&mut self, before: u32) {
        self.left = before;
    }

    pub(crate) fn set_next(&mut self, next: u32) {
        self.right = next;
    }
}

/// The places in which waits are.
pub(crate) trait Places {
    fn links(&self, place: u32) -> &Links;
    fn links_mut(&mut self, place: u32) -> &mut Links;
}

/// The number by which the tree is a heap. Different for different places.
fn rank(place: u32) -> u32 {
    let mut mixed = place.wrapping_mul(0x9e37_79b1);
    mixed ^= mixed >> 15;
    mixed = mixed.wrapping_mul(0x85eb_ca77);
    mixed ^ mixed >> 13
}

fn least(places: &impl Places, root: u32) -> u64 {
    if root == NONE { u64::MAX } else { places.links(root).least }
}

/// Puts a subtree below `above`, or nothing.
fn set_below(places: &mut impl Places, above: u32, is_left: bool, below: u32) {
    let links = places.links_mut(above);
    *(if is_left { &mut links.left } else { &mut links.right }) = below;
    set_above(places, below, above);
}

fn set_above(places: &mut impl Places, below: u32, above: u32) {
    if below != NONE {
        places.links_mut(below).above = above;
    }
}

/// Computes the least bytes of all subtrees from `place` up to the first in which they stay. Whether those of the tree changed.
fn update_up(places: &mut impl Places, mut place: u32) -> bool {
    while place != NONE {
        if !update(places, place) {
            return false;
        }
        place = places.links(place).above;
    }
    true
}

/// Computes the least bytes of a subtree from those below. Whether they changed.
fn update(places: &mut impl Places, root: u32) -> bool {
    let Links { asks, left, right, .. } = *places.links(root);
    let all = asks.min(least(places, left)).min(least(places, right));
    std::mem::replace(&mut places.links_mut(root).least, all) != all
}

/// The least bytes asked for in a tree.
pub(crate) fn least_of(places: &impl Places, root: u32) -> u64 {
    least(places, root)
}

/// The first wait of a tree.
pub(crate) fn first(places: &impl Places, root: u32) -> Option<u32> {
    let down = |&place: &u32| Some(places.links(place).left).filter(|&left| left != NONE);
    std::iter::successors(Some(root).filter(|&root| root != NONE), down).last()
}

/// The first wait behind `after` that asks for at most `room` bytes.
pub(crate) fn first_fit(places: &impl Places, root: u32, after: Option<u64>, room: u64) -> Option<u32> {
    if root == NONE || places.links(root).least > room {
        return None;
    }
    let Links { key, asks, left, right, .. } = *places.links(root);
    if after.is_none_or(|after| key > after) {
        if let Some(found) = first_fit(places, left, after, room) {
            return Some(found);
        }
        if asks <= room {
            return Some(root);
        }
    }
    first_fit(places, right, after, room)
}

/// Adds a wait with new links, and returns the root.
#[must_use]
pub(crate) fn insert(places: &mut impl Places, root: u32, place: u32) -> u32 {
    let Links { key, asks, .. } = *places.links(place);
    if root == NONE || rank(place) > rank(root) {
        let (left, right) = split(places, root, key);
        set_below(places, place, true, left);
        set_below(places, place, false, right);
        update(places, place);
        return place;
    }
    let links = places.links_mut(root);
    links.least = links.least.min(asks);
    let (is_left, left, right) = (key < links.key, links.left, links.right);
    let below = insert(places, if is_left { left } else { right }, place);
    set_below(places, root, is_left, below);
    root
}

/// Splits a tree into the waits before `key` and those behind.
fn split(places: &mut impl Places, root: u32, key: u64) -> (u32, u32) {
    if root == NONE {
        return (NONE, NONE);
    }
    let Links { key: here, left, right, .. } = *places.links(root);
    let parts = if here < key {
        let (before, behind) = split(places, right, key);
        set_below(places, root, false, before);
        (root, behind)
    } else {
        let (before, behind) = split(places, left, key);
        set_below(places, root, true, behind);
        (before, root)
    };
    update(places, root);
    parts
}

/// Removes a wait, and returns the root.
#[must_use]
pub(crate) fn remove(places: &mut impl Places, root: u32, place: u32) -> u32 {
    let Links { left, right, above, .. } = *places.links(place);
    let below = merge(places, left, right);
    if above == NONE {
        set_above(places, below, NONE);
        return below;
    }
    let is_left = places.links(above).left == place;
    set_below(places, above, is_left, below);
    update_up(places, above);
    root
}

/// Joins two trees, of which all waits of the first come before those of the other.
fn merge(places: &mut impl Places, before: u32, behind: u32) -> u32 {
    if before == NONE || behind == NONE {
        return if before == NONE { behind } else { before };
    }
    let (root, is_left) = if rank(before) > rank(behind) { (before, false) } else { (behind, true) };
    let Links { left, right, .. } = *places.links(root);
    let below = if is_left { merge(places, before, left) } else { merge(places, right, behind) };
    set_below(places, root, is_left, below);
    update(places, root);
    root
}

/// A wait asks for other bytes. Whether the least bytes of its tree changed.
pub(crate) fn set_asks(places: &mut impl Places, place: u32, asks: u64) -> bool {
    places.links_mut(place).asks = asks;
    update_up(places, place)
}

#[cfg(all(test, not(memgroup_loom)))]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use crate::observe::wait::order::*;

    struct Model(Vec<Links>);

    impl Places for Model {
        fn links(&self, place: u32) -> &Links {
            &self.0[place as usize]
        }

        fn links_mut(&mut self, place: u32) -> &mut Links {
            &mut self.0[place as usize]
        }
    }

    fn depth(model: &Model, root: u32) -> u32 {
        if root == NONE {
            return 0;
        }
        let links = model.links(root);
        1 + depth(model, links.left).max(depth(model, links.right))
    }

    /// Each node knows the one above.
    fn check_above(model: &Model, root: u32, above: u32) {
        if root != NONE {
            let links = *model.links(root);
            assert_eq!(links.above, above);
            check_above(model, links.left, root);
            check_above(model, links.right, root);
        }
    }

    #[test]
    fn is_balanced_when_waits_come_and_go_in_order() {
        let mut model = Model((0..100_000).map(|key| Links::new(key, 1)).collect());
        let mut root = (0..100_000).fold(NONE, |root, place| insert(&mut model, root, place));
        assert!(depth(&model, root) < 64, "{}", depth(&model, root));
        for key in 0..50_000 {
            root = remove(&mut model, root, key as u32);
        }
        assert!(depth(&model, root) < 64 && first(&model, root) == Some(50_000));
    }

    proptest! {
        #[test]
        fn agrees_with_a_sorted_map(steps in prop::collection::vec((0_u32..40, 0_u64..20, 0_u8..4), 1..200)) {
            let mut model = Model(Vec::new());
            let (mut root, mut sorted) = (NONE, BTreeMap::<u64, u32>::new());
            for (number, bytes, kind) in steps {
                let known = sorted.get(&u64::from(number)).copied();
                match (kind, known) {
                    (0, Some(place)) => {
                        root = remove(&mut model, root, place);
                        sorted.remove(&u64::from(number));
                    }
                    (1, Some(place)) => {
                        let before = least_of(&model, root);
                        let has_changed = set_asks(&mut model, place, bytes);
                        prop_assert_eq!(has_changed, before != least_of(&model, root));
                    }
                    (2, _) => {
                        let (after, room) = (Some(u64::from(number)), bytes);
                        let fits = |place: &u32| model.links(*place).asks <= room;
                        let expected = sorted.range(u64::from(number) + 1..).map(|(_, place)| *place).find(fits);
                        prop_assert_eq!(first_fit(&model, root, after, room), expected);
                    }
                    (_, None) => {
                        let place = model.0.len() as u32;
                        model.0.push(Links::new(u64::from(number), bytes));
                        root = insert(&mut model, root, place);
                        sorted.insert(u64::from(number), place);
                    }
                    _ => {}
                }
                check_above(&model, root, NONE);
                prop_assert_eq!(first(&model, root), sorted.values().next().copied());
                let asked = sorted.values().map(|place| model.links(*place).asks).min();
                prop_assert_eq!(least_of(&model, root), asked.unwrap_or(u64::MAX));
            }
        }
    }
}
