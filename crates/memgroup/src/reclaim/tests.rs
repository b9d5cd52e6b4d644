//! Tests of removed groups and shrinkers: they leave nothing.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use memgroup_percpu::SlotSource;
use memgroup_sync::atomic::Ordering;

use crate::charge::charge::Charge;
use crate::reclaim::bitmap::CLASSES;
use crate::reclaim::due::UNKNOWN_CLASS;
use crate::reclaim::{Ask, Count, Scan, Shrinker, ShrinkerConfig, group};
use crate::state::config::Config;
use crate::tree::handle::{Group, Hierarchy};

pub(crate) struct Empty;

impl Shrinker for Empty {
    fn count(&self, _token: u64) -> Count {
        Count::Empty
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        Scan::Freed { bytes: 0 }
    }
}

/// A hierarchy that no other test has had: no other groups have numbers in it.
fn hierarchy(slots: usize) -> Hierarchy {
    Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(slots).unwrap())).unwrap()
}

fn is_any_marked(group: &Group) -> bool {
    (0..CLASSES).any(|class| group.node().shrinkers().unwrap().is_any(class))
}

fn number(group: &Group) -> u32 {
    // ORDERING: Relaxed; the test has one thread.
    group.node().shrinkers().unwrap().number.load(Ordering::Relaxed)
}

#[test]
fn leaves_no_mark_in_the_parent_when_a_group_is_released() {
    let hierarchy = hierarchy(11);
    let parent = hierarchy.create("/parent").unwrap();
    let registration = hierarchy.add_shrinker(ShrinkerConfig::new("empty"), Empty).unwrap();
    for class in 0..CLASSES {
        let group = parent.create("group").unwrap();
        drop(registration.attach(&group, 0).unwrap());
        assert_eq!(number(&group), 0, "the number of the one before is used again");
        // As a walk does that is late.
        group::mark(group.node(), 0, class);
        assert!(is_any_marked(&parent) && is_any_marked(&hierarchy.root()));
        group.remove().unwrap();
        drop(group);
        assert!(!is_any_marked(&parent) && !is_any_marked(&hierarchy.root()), "class {class}");
    }
}

#[test]
fn finds_a_child_only_by_the_number_that_it_has_now() {
    let hierarchy = hierarchy(13);
    let [one, other] = ["/one", "/other"].map(|path| hierarchy.create(path).unwrap());
    let registration = hierarchy.add_shrinker(ShrinkerConfig::new("empty"), Empty).unwrap();
    let first = one.create("first").unwrap();
    drop(registration.attach(&first, 0).unwrap());
    let reused = number(&first);
    let id = one.node().shrinkers().unwrap().children.get(reused).unwrap();
    let child = |above: &Group| group::child_at(above.node(), reused, id).map(|(node, ..)| node.id());
    assert_eq!(child(&one), Some(first.node().id()));
    let place = first.node().id();
    first.remove().unwrap();
    drop(first);
    assert_eq!(child(&one), None, "it is released");
    let second = other.create("second").unwrap();
    drop(registration.attach(&second, 0).unwrap());
    assert_eq!((second.node().id(), number(&second)), (place, reused));
    assert_eq!((child(&one), child(&other)), (None, Some(place)));
}

#[test]
fn keeps_the_hierarchy_until_the_last_shrinker_is_removed() {
    let hierarchy = hierarchy(17);
    let shared = hierarchy.root().node().shared();
    let registration = hierarchy.add_shrinker(ShrinkerConfig::new("empty"), Empty).unwrap();
    drop(hierarchy);
    assert!(shared.shrinkers().is_any());
    assert_eq!(shared.tree.lock().in_use(), 1, "the root");
    registration.remove().unwrap();
    assert!(!shared.shrinkers().is_any());
    assert_eq!(shared.tree.lock().in_use(), 0);
}

const PAGE: u64 = 4096;

struct Pages(Arc<Mutex<Vec<Charge>>>);

impl Shrinker for Pages {
    fn count(&self, _token: u64) -> Count {
        let pages = self.0.lock().unwrap().len() as u64;
        Count::of(pages * PAGE, pages)
    }

    fn scan(&self, _ask: &Ask<'_>) -> Scan {
        let page = self.0.lock().unwrap().pop();
        Scan::Freed { bytes: page.map_or(0, |page| page.bytes()) }
    }
}

#[test]
fn a_charge_waits_for_a_thread_that_moves_a_mark() {
    let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).stock_budget_bytes(0);
    let hierarchy = Hierarchy::new(config.reclaim_patience(Duration::from_secs(3600))).unwrap();
    let parent = hierarchy.create("/parent").unwrap();
    let [cached, busy] = ["cached", "busy"].map(|name| parent.create(name).unwrap());
    parent.set_max(10 * PAGE).unwrap();
    let pages = Arc::new(Mutex::new(Vec::new()));
    let registration =
        hierarchy.add_shrinker(ShrinkerConfig::new("pages"), Pages(Arc::clone(&pages))).unwrap();
    let _slot = registration.attach(&cached, 0).unwrap();
    pages.lock().unwrap().extend((0..10).map(|_| cached.try_charge(PAGE).unwrap()));

    // As a thread that found the cache empty and lost its CPU before its second count. Meanwhile
    // others filled the cache, and relied on the mark that it took.
    let node = cached.node();
    let moving = node.shared().shrinkers().begin_mark_move();
    (0..CLASSES).for_each(|class| group::unmark(node, 0, class));
    std::thread::scope(|threads| {
        let charge = threads.spawn(|| busy.try_charge(PAGE));
        // ORDERING: Relaxed; a number by itself.
        let rounds = || parent.node().shrinkers().unwrap().rounds.load(Ordering::Relaxed);
        while rounds() < 400 && !charge.is_finished() {
            std::thread::yield_now();
        }
        group::mark(node, 0, UNKNOWN_CLASS);
        drop(moving);
        assert!(charge.join().unwrap().is_ok(), "the cache was full all the time");
    });
}
