//! The life of groups: settings, statistics, events, triggers, snapshots, owners, removal with
//! bytes, maintenance.

use std::sync::{Arc, Mutex};

use memgroup::{Charge, Freshness, Group, Hierarchy, Maintenance, PressureTrigger, Reach};

use crate::{Book, PAGE, hierarchy};

/// All steps of a group's life but its charges. Returns the paths of those that ended.
fn settle(hierarchy: &Hierarchy, group: &Group) -> Arc<Mutex<Vec<u64>>> {
    let io = hierarchy.io();
    let key = io.key("read_bytes").or_else(|| io.keys().next()).expect("it has statistics");
    io.add(group, key, 7);
    assert_eq!(io.get(group, key, Reach::Local, Freshness::Fresh), 7);
    group.set_max(1 << 30).unwrap();
    group.set_high(1 << 29).unwrap();
    group.set_low(PAGE).unwrap();
    let ended = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&ended);
    group.on_end(move |record| told.lock().unwrap().push(record.usage_bytes)).unwrap();
    ended
}

/// A snapshot holds what the groups hold.
fn check_snapshot(hierarchy: &Hierarchy, path: &str, bytes: u64) {
    let snapshot = hierarchy.snapshot();
    let group = snapshot.groups.iter().find(|group| group.path == path).expect("it is there");
    assert_eq!(group.usage_exact_bytes, bytes);
}

#[test]
fn sweep_lives_of_groups() {
    xtask::sweep::sweep("lives of groups", |run| {
        let mut book = Book::open(hierarchy(), run);
        let hierarchy = book.hierarchy.clone();
        for round in 0..3 {
            let parent = hierarchy.create("/parent").unwrap();
            let child = hierarchy.get_or_create("/parent/child").unwrap();
            let ended = settle(&hierarchy, &child);
            let trigger = "some 150000 1000000".parse::<PressureTrigger>().unwrap();
            let trigger = child.add_pressure_trigger(trigger);
            let events = child.events();
            let kept = book.note(child.try_charge(3 * PAGE));
            let bytes = kept.as_ref().map_or(0, Charge::bytes);
            check_snapshot(&hierarchy, "/parent/child", bytes);
            let owned = parent.create_owned(&format!("request-{round}")).unwrap();
            let beyond = book.note(owned.try_charge(PAGE));
            let left = beyond.as_ref().map_or(0, Charge::bytes);
            // It ends with its owner, and its bytes stay counted above.
            drop(owned);
            assert_eq!(parent.usage_exact(), bytes + left);
            assert_eq!(hierarchy.dying().iter().map(|dying| dying.usage_bytes).sum::<u64>(), left);
            drop(beyond);
            assert_eq!(events, child.events(), "a refusal by injection is no event of a limit");
            drop(trigger);
            child.remove().unwrap();
            assert_eq!(*ended.lock().unwrap(), [bytes]);
            assert_eq!((child.usage_exact(), parent.usage_exact()), (bytes, bytes));
            let again = hierarchy.create("/parent/child").unwrap();
            // Bytes of a removed group can move to one that is there.
            let moved = kept.map(|mut charge| {
                let outcome = charge.try_move_to(&again);
                _ = book.note(outcome);
                charge
            });
            assert_eq!(parent.usage_exact(), bytes);
            drop(moved);
            drop((child, again));
            parent.remove_all().unwrap();
            drop(parent);
            hierarchy.maintain(Maintenance::new().all().expedited());
            assert_eq!(hierarchy.snapshot().groups.len(), 1, "all of them are gone");
        }
        drop(hierarchy);
        book.close()
    });
}
