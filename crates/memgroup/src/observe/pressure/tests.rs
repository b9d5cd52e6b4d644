//! Tests that no stall is left behind.

use memgroup_percpu::SlotSource;

use crate::api::scope;
use crate::observe::pressure::record;
use crate::state::config::Config;
use crate::tree::handle::{Group, Hierarchy};

/// A hierarchy that no other test has used.
fn hierarchy(slots: usize) -> Hierarchy {
    Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(slots).unwrap())).unwrap()
}

fn counts(group: &Group) -> (u32, u32) {
    group.node().pressure().counts()
}

#[test]
fn counts_a_stall_at_each_level_once_for_all_guards() {
    let hierarchy = hierarchy(3);
    let (a, b) = (hierarchy.create("/a").unwrap(), hierarchy.create("/b").unwrap());
    let below = a.create("below").unwrap();
    let outer = below.stall();
    let inner = b.stall();
    let again = below.stall();
    let root = hierarchy.root();
    assert_eq!([&root, &a, &below, &b].map(counts), [(1, 0), (1, 0), (1, 1), (0, 0)]);
    // In any order: the last guard ends it.
    drop(outer);
    drop(again);
    assert_eq!([&root, &a, &below, &b].map(counts), [(1, 0), (1, 0), (1, 1), (0, 0)]);
    drop(inner);
    assert_eq!([&root, &a, &below, &b].map(counts), [(0, 0); 4]);
}

#[test]
fn ends_a_forgotten_stall_once_with_its_group() {
    let hierarchy = hierarchy(5);
    let parent = hierarchy.create("/parent").unwrap();
    let group = parent.create("group").unwrap();
    let place = group.id().node();
    std::mem::forget(group.stall());
    assert_eq!((counts(&parent), counts(&group)), ((1, 0), (1, 1)));
    group.remove().unwrap();
    assert_eq!(counts(&parent), (1, 0), "a handle holds it");
    drop(group);
    assert_eq!((counts(&parent), counts(&hierarchy.root())), ((0, 0), (0, 0)));
    let total = parent.pressure().some.total;
    let new = parent.create("group").unwrap();
    assert_eq!((new.id().node(), counts(&new), new.pressure()), (place, (0, 0), Default::default()));
    // The thread is not stalled any more: its next stall counts.
    let stalled = new.stall();
    assert_eq!((counts(&parent), counts(&new)), ((1, 0), (1, 1)));
    drop(stalled);
    assert_eq!((counts(&parent), counts(&new)), ((0, 0), (0, 0)));
    assert!(parent.pressure().some.total >= total);
}

#[test]
fn ignores_an_end_after_the_release() {
    let hierarchy = hierarchy(7);
    let parent = hierarchy.create("/parent").unwrap();
    let group = parent.create("group").unwrap();
    let (node, generation) = (group.node(), group.node().generation());
    crate::observe::pressure::stall::begin_at(node, None);
    group.remove().unwrap();
    drop(group);
    assert_eq!(counts(&parent), (0, 0));
    crate::observe::pressure::stall::end_at(node, generation, None);
    let new = parent.create("new").unwrap();
    assert!(std::ptr::eq(new.node(), node));
    let stalled = new.stall();
    crate::observe::pressure::stall::end_at(node, generation, None);
    assert_eq!((counts(&parent), counts(&new)), ((1, 0), (1, 1)), "of the new group's own stall");
    drop(stalled);
}

#[test]
fn ends_forgotten_stalls_and_scopes_with_the_thread() {
    let hierarchy = hierarchy(9);
    let group = hierarchy.create("/group").unwrap();
    for _ in 0..3 {
        std::thread::scope(|threads| {
            let forgets = || {
                std::mem::forget(scope::enter(&group));
                std::mem::forget(group.stall());
                assert_eq!(counts(&group), (1, 1));
                assert!(record::own().is_some());
            };
            threads.spawn(forgets).join().unwrap();
        });
        assert_eq!((counts(&group), counts(&hierarchy.root())), ((0, 0), (0, 0)));
        let _mine = group.stall();
        let before = group.pressure().full.total;
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(group.pressure().full.total >= before + 1000, "no thread is at work");
    }
}

#[test]
fn shows_no_pressure_when_it_is_switched_off() {
    let config = Config::with_slots(SlotSource::virtual_slots(11).unwrap()).pressure(false);
    let hierarchy = Hierarchy::new(config).unwrap();
    let group = hierarchy.create("/group").unwrap();
    let stalled = group.stall();
    assert_eq!(counts(&group), (0, 0));
    std::thread::sleep(std::time::Duration::from_millis(1));
    assert_eq!(group.pressure(), Default::default());
    drop(stalled);
    let trigger = group.add_pressure_trigger("some 1 500000".parse().unwrap());
    assert!(!trigger.wait(std::time::Instant::now()));
}
