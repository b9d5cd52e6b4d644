//! Order: a search tree of waits within the places that they have, without memory of its own.
//!
//! It is a treap: sorted by key, and a heap by a number that is drawn from the place. So it is balanced whatever the order of
//! arrivals, and each operation takes O(log n) steps. Each node knows the least bytes that a wait below it asks for. So the first wait that fits
//! into the room is found in O(log n) too, however many come before it that do not fit.

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
}

impl Links {
    pub(crate) fn new(key: u64, asks: u64) -> Links {
        Links { key, asks, least: asks, left: NONE, right: NONE }
    }

    /// Out of the tree, a wait is in a list by the same words: the one before it, and the next.
    pub(crate) fn link(&mut self, before: u32, next: u32) {
        (self.left, self.right) = (before, next);
    }

    pub(crate) fn linked(&self) -> (u32, u32) {
        (self.left, self.right)
    }

    fn set_below(&mut self, is_left: bool, below: u32) {
        *(if is_left { &mut self.left } else { &mut self.right }) = below;
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
        let links = places.links_mut(place);
        (links.left, links.right) = (left, right);
        update(places, place);
        return place;
    }
    let links = places.links_mut(root);
    links.least = links.least.min(asks);
    let (is_left, left, right) = (key < links.key, links.left, links.right);
    let below = insert(places, if is_left { left } else { right }, place);
    places.links_mut(root).set_below(is_left, below);
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
        places.links_mut(root).right = before;
        (root, behind)
    } else {
        let (before, behind) = split(places, left, key);
        places.links_mut(root).left = behind;
        (before, root)
    };
    update(places, root);
    parts
}

/// Removes the wait with this key, and returns the root.
#[must_use]
pub(crate) fn remove(places: &mut impl Places, root: u32, key: u64) -> u32 {
    remove_below(places, root, key).0
}

/// The root, and whether the least bytes below it changed. Where they did not, the other waits there are not looked at.
fn remove_below(places: &mut impl Places, root: u32, key: u64) -> (u32, bool) {
    debug_assert!(root != NONE, "the wait is in the tree");
    let Links { key: here, left, right, .. } = *places.links(root);
    if here == key {
        return (merge(places, left, right), true);
    }
    let child = if key < here { left } else { right };
    let (below, has_changed) = remove_below(places, child, key);
    // Most levels stay as they are, and are not written.
    if below != child {
        places.links_mut(root).set_below(key < here, below);
    }
    (root, has_changed && update(places, root))
}

/// Joins two trees, of which all waits of the first come before those of the other.
fn merge(places: &mut impl Places, before: u32, behind: u32) -> u32 {
    if before == NONE || behind == NONE {
        return if before == NONE { behind } else { before };
    }
    if rank(before) > rank(behind) {
        let right = places.links(before).right;
        places.links_mut(before).right = merge(places, right, behind);
        update(places, before);
        before
    } else {
        let left = places.links(behind).left;
        places.links_mut(behind).left = merge(places, before, left);
        update(places, behind);
        behind
    }
}

/// The wait with this key asks for other bytes. Whether the least bytes of the tree changed.
pub(crate) fn set_asks(places: &mut impl Places, root: u32, key: u64, asks: u64) -> bool {
    let Links { key: here, left, right, .. } = *places.links(root);
    if key == here {
        places.links_mut(root).asks = asks;
        return update(places, root);
    }
    set_asks(places, if key < here { left } else { right }, key, asks) && update(places, root)
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

    #[test]
    fn is_balanced_when_waits_come_and_go_in_order() {
        let mut model = Model((0..100_000).map(|key| Links::new(key, 1)).collect());
        let mut root = (0..100_000).fold(NONE, |root, place| insert(&mut model, root, place));
        assert!(depth(&model, root) < 64, "{}", depth(&model, root));
        for key in 0..50_000 {
            root = remove(&mut model, root, key);
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
                    (0, Some(_)) => {
                        root = remove(&mut model, root, u64::from(number));
                        sorted.remove(&u64::from(number));
                    }
                    (1, Some(_)) => {
                        set_asks(&mut model, root, u64::from(number), bytes);
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
                prop_assert_eq!(first(&model, root), sorted.values().next().copied());
                let asked = sorted.values().map(|place| model.links(*place).asks).min();
                prop_assert_eq!(least_of(&model, root), asked.unwrap_or(u64::MAX));
            }
        }
    }
}
