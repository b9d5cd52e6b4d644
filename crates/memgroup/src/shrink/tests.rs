//! Tests of what stays of groups and shrinkers that are gone: nothing.

use memgroup_percpu::SlotSource;

use super::room::CLASSES;
use super::roster::{self, Standing};
use super::{Ask, Count, Scan, Shrinker, ShrinkerConfig};
use crate::config::Config;
use crate::group::Group;
use crate::hierarchy::Hierarchy;

struct Empty;

impl Shrinker for Empty {
    fn count(&self, _token: u64) -> Count {
        Count::Empty
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        Scan::Freed { bytes: 0 }
    }
}

/// One that no other test has had: nobody else's groups have numbers in it.
fn hierarchy(slots: usize) -> Hierarchy {
    Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(slots).unwrap())).unwrap()
}

fn is_any_marked(group: &Group) -> bool {
    (0..CLASSES).any(|class| group.node().roster().unwrap().is_any(class))
}

#[test]
fn a_group_that_is_released_leaves_no_mark_among_its_parents_kin() {
    let hierarchy = hierarchy(11);
    let parent = hierarchy.create("/parent").unwrap();
    let registration = hierarchy.add_shrinker(ShrinkerConfig::new("empty"), Empty).unwrap();
    for class in 0..CLASSES {
        let group = parent.create("group").unwrap();
        let seat = registration.seat(&group, 0).unwrap();
        drop(seat);
        assert_eq!(group.node().listing.number(), Some(0), "the number of the one before is used again");
        // As a walk does that comes too late.
        roster::mark(group.node(), 0, class);
        assert!(is_any_marked(&parent) && is_any_marked(&hierarchy.root()));
        group.remove().unwrap();
        drop(group);
        assert!(!is_any_marked(&parent) && !is_any_marked(&hierarchy.root()), "class {class}");
    }
}

#[test]
fn a_number_among_the_kin_is_of_the_group_that_has_it_now() {
    let hierarchy = hierarchy(13);
    let [one, other] = ["/one", "/other"].map(|path| hierarchy.create(path).unwrap());
    let registration = hierarchy.add_shrinker(ShrinkerConfig::new("empty"), Empty).unwrap();
    let first = one.create("first").unwrap();
    drop(registration.seat(&first, 0).unwrap());
    let number = first.node().listing.number().unwrap();
    let id = one.node().roster().unwrap().kin.get(number).unwrap();
    let kin = |above: &Group| roster::kin_at(above.node(), number, id).map(|(node, _)| node.id);
    assert_eq!(kin(&one), Some(first.id()));
    let place = first.id();
    first.remove().unwrap();
    drop(first);
    assert_eq!(kin(&one), None, "it is released");
    let second = other.create("second").unwrap();
    drop(registration.seat(&second, 0).unwrap());
    assert_eq!((second.id(), second.node().listing.number()), (place, Some(number)));
    assert_eq!((kin(&one), kin(&other)), (None, Some(place)));
}

#[test]
fn a_hierarchy_is_kept_by_its_shrinkers_and_retired_with_the_last() {
    let hierarchy = hierarchy(17);
    let shared = hierarchy.root().node().shared;
    let registration = hierarchy.add_shrinker(ShrinkerConfig::new("empty"), Empty).unwrap();
    drop(hierarchy);
    assert!(shared.shrinkers.is_any());
    assert_eq!(shared.tree.lock().in_use(), 1, "the root");
    registration.remove().unwrap();
    assert!(!shared.shrinkers.is_any());
    assert_eq!(shared.tree.lock().in_use(), 0);
}
