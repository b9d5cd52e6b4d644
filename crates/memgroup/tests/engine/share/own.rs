//! Charges of the group itself that gives shares.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use memgroup::{Charge, Group, Hierarchy, KillAnswer, KillRequest};

use super::cache::{MIB, Tenant, exact};

/// 90 MiB with shares, one child, and charges of the parent itself.
fn parent_with_child() -> (Hierarchy, Group, Group) {
    let hierarchy = exact();
    let parent = hierarchy.create("/parent").unwrap();
    parent.set_max(90 * MIB).unwrap();
    parent.set_share(8).unwrap();
    let child = parent.create("child").unwrap();
    (hierarchy, parent, child)
}

/// Charges single MiB until that is refused.
fn fill(group: &Group) -> Vec<Charge> {
    std::iter::from_fn(|| group.try_charge(MIB).ok()).collect()
}

#[test]
fn charges_of_the_parent_itself_are_those_of_one_more_child() {
    let (_hierarchy, parent, child) = parent_with_child();
    let own = fill(&parent);
    assert_eq!(own.len(), 80, "alone eight ninths");
    let error = parent.try_charge(MIB).unwrap_err();
    assert_eq!((error.path().as_deref(), error.reserved() >= 9 * MIB), (Some("/parent"), true), "{error}");
    assert_eq!(fill(&child).len(), 10, "a ninth was left free");
    drop(own);
    let _held = child.try_charge(40 * MIB).unwrap();
    // Its even share beside the child is 8/17 of 90 MiB, 42.35. Of the 50 that are free it may take
    // 8/9.
    assert_eq!(fill(&parent).len(), 44);
}

#[test]
fn bytes_that_the_parent_gave_back_are_not_its_own_any_more() {
    let (_hierarchy, parent, child) = parent_with_child();
    for _ in 0..3 {
        let own = fill(&parent);
        assert_eq!(own.len(), 80);
        drop(own);
        let _held = child.try_charge(75 * MIB).unwrap();
        assert!(parent.try_charge(13 * MIB).is_ok(), "within its even share");
    }
}

#[test]
fn shares_that_are_turned_on_find_the_bytes_of_the_parent_itself() {
    let (_hierarchy, parent, child) = parent_with_child();
    parent.set_share(None).unwrap();
    let _own = parent.try_charge(70 * MIB).unwrap();
    let _of_child = child.try_charge(5 * MIB).unwrap();
    parent.set_share(8).unwrap();
    // 70 are beyond its even share, and of the 15 that are free 8.75 are to stay.
    assert_eq!(fill(&parent).len(), 5);
}

#[test]
fn usage_is_right_while_threads_charge_the_parent_and_its_children() {
    let (hierarchy, parent, child) = parent_with_child();
    std::thread::scope(|threads| {
        for group in [&parent, &parent, &child, &child] {
            threads.spawn(move || {
                for bytes in (0..2000).map(|round| (1 + round % 7) * MIB) {
                    let held: Vec<_> = (0..8).filter_map(|_| group.try_charge(bytes).ok()).collect();
                    assert!(group.usage() >= held.iter().map(Charge::bytes).sum());
                }
            });
        }
    });
    assert_eq!(hierarchy.root().usage_exact(), 0);
    assert_eq!(fill(&parent).len(), 80, "as if nothing had been");
}

#[test]
fn above_its_share_the_parent_itself_takes_nothing_from_its_children() {
    let (_hierarchy, parent, child) = parent_with_child();
    let cache = Tenant::new(&parent, "cache");
    let stopped = Arc::new(AtomicBool::new(false));
    let its = Arc::clone(&stopped);
    let hook = child.set_kill_hook(move |_: &KillRequest<'_>| {
        its.store(true, Ordering::Relaxed);
        KillAnswer::Dying
    });
    let _held = child.try_charge(8 * MIB).unwrap();
    cache.fill(8 * MIB);
    let own = fill(&parent);
    // Of the 74 MiB that are free it may take 8/9.
    assert_eq!((own.len(), cache.usage(), stopped.load(Ordering::Relaxed)), (65, 8 * MIB, false));
    drop((own, hook.unwrap()));
}

#[test]
fn within_its_even_share_the_parent_itself_is_given_room() {
    let (_hierarchy, parent, _child) = parent_with_child();
    let cache = Tenant::new(&parent, "cache");
    cache.fill(75 * MIB);
    assert!(parent.try_charge(40 * MIB).is_ok());
    assert!((45 * MIB..=50 * MIB).contains(&cache.usage()), "{}", cache.usage());
}
