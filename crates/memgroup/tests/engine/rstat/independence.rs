//! A flush of one subsystem, or of one subtree, leaves the others alone.

use memgroup::tuning::Tuning;
use memgroup::{Config, Freshness, Reach, SlotSource, Stat, Subsystem};

use super::{HITS, add_on, fixture, fixture_of, nth, subtree};

const OTHER: Subsystem = Subsystem { name: "other", stats: &[Stat::count("things")] };

#[test]
fn flushes_only_the_subsystem_that_is_read() {
    let (hierarchy, cache) = fixture(4);
    let other = hierarchy.register(OTHER).unwrap();
    let group = hierarchy.create("/group").unwrap();
    for slot in 0..4 {
        add_on(slot, &cache, &group, HITS, 1);
        add_on(slot, &other, &group, nth(&other, 0), 1);
    }
    assert_eq!(subtree(&cache, &hierarchy.root(), HITS), 4);
    assert_eq!(other.get(&group, nth(&other, 0), Reach::Subtree, Freshness::Flushed), 0, "not touched");
    assert_eq!(subtree(&other, &group, nth(&other, 0)), 4);
}

#[test]
fn flushes_all_subsystems_of_a_single_tree() {
    let slots = SlotSource::virtual_slots(4).unwrap();
    let (hierarchy, cache) = fixture_of(Config::with_slots(slots).separate_trees(false));
    let other = hierarchy.register(OTHER).unwrap();
    let group = hierarchy.create("/group").unwrap();
    for slot in 0..4 {
        add_on(slot, &cache, &group, HITS, 1);
        add_on(slot, &other, &group, nth(&other, 0), 1);
    }
    assert_eq!(subtree(&cache, &hierarchy.root(), HITS), 4);
    assert_eq!(
        other.get(&hierarchy.root(), nth(&other, 0), Reach::Subtree, Freshness::Flushed),
        4,
        "as Linux before 6.16"
    );
}

#[test]
fn flushes_only_the_subtree_that_is_read() {
    let (hierarchy, cache) = fixture(2);
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
fn reads_a_clean_group_without_children_without_a_flush() {
    let (hierarchy, cache) = fixture(2);
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
