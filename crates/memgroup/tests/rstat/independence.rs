//! Who flushes one subsystem, or one subtree, leaves the others alone.

use memgroup::{Config, Freshness, Reach, SlotSource, Stat, Subsystem};

use crate::{HITS, add_on, house, house_of, subtree};

const OTHER: Subsystem = Subsystem { name: "other", stats: &[Stat::count("things")] };

#[test]
fn a_read_of_one_subsystem_flushes_no_other() {
    let (hierarchy, cache) = house(4);
    let other = hierarchy.register(OTHER).unwrap();
    let group = hierarchy.create("/group").unwrap();
    for slot in 0..4 {
        add_on(slot, &cache, &group, HITS, 1);
        add_on(slot, &other, &group, 0, 1);
    }
    assert_eq!(subtree(&cache, &hierarchy.root(), HITS), 4);
    assert_eq!(other.get(&group, 0, Reach::Subtree, Freshness::Flushed), 0, "not touched");
    assert_eq!(subtree(&other, &group, 0), 4);
}

#[test]
fn with_a_single_tree_a_read_of_one_flushes_all() {
    let slots = SlotSource::virtual_slots(4).unwrap();
    let (hierarchy, cache) = house_of(Config::with_slots(slots).separate_trees(false));
    let other = hierarchy.register(OTHER).unwrap();
    let group = hierarchy.create("/group").unwrap();
    for slot in 0..4 {
        add_on(slot, &cache, &group, HITS, 1);
        add_on(slot, &other, &group, 0, 1);
    }
    assert_eq!(subtree(&cache, &hierarchy.root(), HITS), 4);
    assert_eq!(
        other.get(&hierarchy.root(), 0, Reach::Subtree, Freshness::Flushed),
        4,
        "as Linux before 6.16"
    );
}

#[test]
fn a_read_of_one_subtree_leaves_the_others_to_their_readers() {
    let (hierarchy, cache) = house(2);
    let at = |group: &memgroup::Group, freshness| cache.get(group, HITS, Reach::Subtree, freshness);
    let (left, right) = (hierarchy.create("/left").unwrap(), hierarchy.create("/right").unwrap());
    // As many that the bits of several words and chunks are mixed.
    let leaves: Vec<_> = (0..5000)
        .map(|n| (if n % 2 == 0 { &left } else { &right }).create(&format!("leaf{n}")).unwrap())
        .collect();
    for (n, leaf) in leaves.iter().enumerate() {
        add_on(n / 2 % 2, &cache, leaf, HITS, 1);
    }
    assert_eq!(at(&left, Freshness::Fresh), 2500);
    assert_eq!(at(&right, Freshness::Flushed), 0);
    assert_eq!(at(&hierarchy.root(), Freshness::Flushed), 2500);
    assert_eq!(at(&leaves[1], Freshness::Fresh), 1, "one leaf by itself");
    assert_eq!((at(&leaves[3], Freshness::Flushed), at(&right, Freshness::Flushed)), (0, 1));
    assert_eq!(at(&right, Freshness::Fresh), 2500);
    assert_eq!(at(&hierarchy.root(), Freshness::Flushed), 5000);
}

#[test]
fn a_group_whose_children_are_gone_is_read_without_a_flush_whatever_changed_elsewhere() {
    let (hierarchy, cache) = house(2);
    let [group, other] = ["/group", "/other"].map(|path| hierarchy.create(path).unwrap());
    for _ in 0..3 {
        let child = group.create("child").unwrap();
        add_on(1, &cache, &child, HITS, 1);
        child.remove().unwrap();
    }
    assert_eq!(subtree(&cache, &hierarchy.root(), HITS), 3);
    add_on(0, &cache, &other, HITS, 1);
    let flushes = cache.flushes();
    assert_eq!((subtree(&cache, &group, HITS), cache.flushes()), (3, flushes), "nothing of it has changed");
    let child = group.create("child").unwrap();
    assert_eq!(
        (subtree(&cache, &group, HITS), cache.flushes()),
        (3, flushes + 1),
        "a child may have changed"
    );
    add_on(0, &cache, &child, HITS, 1);
    assert_eq!(subtree(&cache, &group, HITS), 4);
}
