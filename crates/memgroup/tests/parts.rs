//! Parts: charges that a caller keeps as two numbers, and wrong numbers.
#![cfg(not(memgroup_loom))]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use memgroup::{Charge, Config, Group, Hierarchy, SlotSource};

fn hierarchy(slots: usize) -> Hierarchy {
    Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(slots).unwrap())).unwrap()
}

/// The panic's text.
fn panic_of(call: impl FnOnce() -> Charge) -> String {
    let payload = catch_unwind(AssertUnwindSafe(|| drop(call()))).unwrap_err();
    payload.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn parts_are_put_together_again() {
    let h = hierarchy(2);
    let a = h.create("/a").unwrap();
    let (id, bytes) = a.try_charge(4096).unwrap().into_parts();
    assert_eq!((id, bytes, a.usage_exact()), (a.id(), 4096, 4096));
    let mut whole = h.charge_from_parts(id, bytes).unwrap();
    whole.shrink(96);
    let (id, bytes) = whole.into_parts();
    h.uncharge(id, bytes).unwrap();
    assert_eq!(a.usage_exact(), 0);
    let (id, bytes) = a.try_charge(0).unwrap().into_parts();
    drop(h.charge_from_parts(id, bytes).unwrap());
    h.uncharge(id, bytes).unwrap();
    a.remove().unwrap();
    drop(a);
    assert_eq!(h.groups().len(), 1);
    assert!(h.charge_from_parts(id, 0).is_err());
}

#[test]
fn a_handle_uncharges_parts_also_after_its_group_was_removed() {
    for cap in [0, 256 << 10] {
        let source = SlotSource::virtual_slots(2).unwrap();
        let h = Hierarchy::new(Config::with_slots(source).stock_cap_bytes(cap)).unwrap();
        let a = h.create("/a").unwrap();
        let (_, bytes) = a.try_charge(4096).unwrap().into_parts();
        let (_, none) = a.try_charge(0).unwrap().into_parts();
        a.uncharge_parts(96);
        a.uncharge_parts(none);
        assert_eq!((a.usage_exact(), h.root().usage_exact()), (4000, 4000));
        a.remove().unwrap();
        a.uncharge_parts(bytes - 96);
        assert_eq!((a.usage_exact(), h.root().usage_exact(), h.dying().len()), (0, 0, 0));
        let id = a.id();
        drop(a);
        assert!(h.group(id).is_none(), "nothing holds the group any more");
    }
}

#[test]
fn refuses_to_uncharge_bytes_a_second_time() {
    for cap in [0, 256 << 10] {
        let source = SlotSource::virtual_slots(2).unwrap();
        let h = Hierarchy::new(Config::with_slots(source).stock_cap_bytes(cap)).unwrap();
        let (a, b) = (h.create("/a").unwrap(), h.create("/b").unwrap());
        let of_others = b.try_charge(100_000).unwrap();
        let (id, bytes) = a.try_charge(4096).unwrap().into_parts();
        h.uncharge(id, bytes).unwrap();
        let before = (a.usage(), a.stock().prepaid_bytes, h.root().usage());
        for _ in 0..10 {
            let error = h.uncharge(id, bytes).unwrap_err();
            assert_eq!((error.id, error.bytes, error.held_bytes), (id, 4096, Some(0)));
            let text = error.to_string();
            assert!(text.contains(&id.to_string()) && text.contains("the group holds 0 bytes"), "{text}");
            assert!(text.contains("Charge::into_parts"), "it says how to put it right: {text}");
        }
        let after = (a.usage_exact(), h.root().usage_exact());
        assert_eq!(after, (0, 100_000), "before it was {before:?}");
        assert!(a.try_charge(4096).is_ok());
        a.remove().unwrap();
        drop(of_others);
        assert_eq!(h.root().usage_exact(), 0);
    }
}

#[test]
fn refuses_more_bytes_than_the_group_holds() {
    let h = hierarchy(2);
    let a = h.create("/a").unwrap();
    for bytes in [1, 4096, 3 << 20] {
        let (id, bytes) = a.try_charge(bytes).unwrap().into_parts();
        let error = h.uncharge(id, bytes + 1).unwrap_err();
        assert_eq!(error.held_bytes, Some(bytes));
        assert_eq!(h.uncharge(id, u64::MAX).unwrap_err().held_bytes, Some(bytes));
        assert_eq!(a.usage_exact(), bytes, "nothing was uncharged");
        h.uncharge(id, bytes).unwrap();
    }
    assert_eq!(a.usage_exact(), 0);
}

#[test]
fn takes_no_bytes_of_the_groups_below() {
    let h = hierarchy(2);
    let above = h.create("/above").unwrap();
    let (below, dying) = (above.create("below").unwrap(), above.create("dying").unwrap());
    let of_below = below.try_charge(1 << 20).unwrap();
    let of_dying = dying.try_charge(1 << 20).unwrap();
    dying.remove().unwrap();
    drop(dying);
    let (id, bytes) = above.try_charge(4096).unwrap().into_parts();
    assert_eq!(h.uncharge(id, bytes + 1).unwrap_err().held_bytes, Some(4096));
    h.uncharge(id, bytes).unwrap();
    assert_eq!(h.uncharge(id, bytes).unwrap_err().held_bytes, Some(0));
    assert_eq!(above.usage_exact(), 2 << 20);
    drop((of_below, of_dying));
    assert_eq!(above.usage_exact(), 0);
}

/// Threads charge `groups` and give the parts back, while another asks for bytes that no group has.
fn exchange(h: &Hierarchy, groups: &[Group]) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let turns = |group: &Group, seed: u64| {
            for turn in 0..5_000 {
                let (id, bytes) = group.try_charge((seed * turn) % 9_000 + 1).unwrap().into_parts();
                h.uncharge(id, bytes).expect("the group holds them");
            }
        };
        let workers: Vec<_> = (1..5)
            .flat_map(|seed| groups.iter().map(move |group| (group, seed)))
            .map(|(group, seed)| scope.spawn(move || turns(group, seed)))
            .collect();
        let wrong = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for group in groups {
                    assert!(h.uncharge(group.id(), 1 << 40).is_err());
                }
            }
        });
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        done.store(true, Ordering::Relaxed);
        wrong.join().unwrap();
    });
}

#[test]
fn refuses_no_bytes_that_are_held_beside_other_charges() {
    let h = hierarchy(4);
    let above = h.create("/above").unwrap();
    let below = above.create("below").unwrap();
    exchange(&h, &[above.clone(), below.clone()]);
    assert_eq!((above.usage_exact(), below.usage_exact()), (0, 0));
}

#[test]
fn hangs_at_no_removal_after_charges_of_bytes_that_are_not_held() {
    let config = Config::with_slots(SlotSource::virtual_slots(1).unwrap()).stock_budget_bytes(8192);
    let h = Hierarchy::new(config).unwrap();
    let a = h.create("/a").unwrap();
    let forged = || drop(h.charge_from_parts(a.id(), 4096).unwrap());
    let panics = (0..10).filter(|_| catch_unwind(AssertUnwindSafe(forged)).is_err());
    assert!(panics.count() > 0, "these bytes are not checked");
    let _ = catch_unwind(AssertUnwindSafe(|| a.drain()));
    assert!(catch_unwind(AssertUnwindSafe(|| a.remove())).is_ok());
}

#[test]
fn says_that_the_group_of_a_node_is_gone() {
    let h = hierarchy(1);
    let a = h.create("/a").unwrap();
    let (id, bytes) = a.try_charge(100).unwrap().into_parts();
    drop(h.charge_of_node(id.node(), bytes));
    a.remove().unwrap();
    drop(a);
    let text = panic_of(|| h.charge_of_node(id.node(), bytes));
    assert!(text.contains("its group is gone") && text.contains("100 bytes"), "{text}");
    let text = panic_of(|| h.charge_of_node(7000, bytes));
    assert!(text.contains("never had it"), "{text}");
    let text = h.uncharge(id, bytes).unwrap_err().to_string();
    assert!(text.contains("the group is gone") && text.contains(&id.to_string()), "{text}");
}
