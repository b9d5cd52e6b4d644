//! Parts: charges that a caller keeps as two numbers, and wrong numbers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use memgroup::{Charge, Config, Group, Hierarchy, SlotSource, block, raw, scope};

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
        raw::uncharge(&a, 96);
        raw::uncharge(&a, none);
        assert_eq!((a.usage_exact(), h.root().usage_exact()), (4000, 4000));
        a.remove().unwrap();
        raw::uncharge(&a, bytes - 96);
        assert_eq!((a.usage_exact(), h.root().usage_exact(), h.dying().len()), (0, 0, 0));
        let id = a.id();
        drop(a);
        assert!(h.group(id).is_none(), "nothing holds the group any more");
    }
}

/// Takes `bytes` back twice in each of the ways that do not check them, while other tenants charge
/// and uncharge.
fn break_the_contract(h: &Hierarchy, group: &Group, bytes: u64) {
    let parts = || group.try_charge(bytes).unwrap().into_parts();
    let owner = {
        let _scope = scope::enter(group);
        block::current().unwrap()
    };
    let (id, _) = parts();
    drop(raw::charge_of_node(h, id.node(), bytes));
    drop(raw::charge_of_node(h, id.node(), bytes));
    parts();
    raw::uncharge(group, bytes);
    raw::uncharge(group, bytes);
    let (id, _) = parts();
    let both = [h.charge_from_parts(id, bytes), h.charge_from_parts(id, bytes)];
    drop(both);
    owner.charge(bytes, 0).unwrap();
    owner.uncharge(bytes);
    owner.uncharge(bytes);
    owner.uncharge_inside(bytes);
}

#[test]
fn wrong_numbers_of_one_tenant_panic_in_no_call_of_another() {
    for (cap, slots) in [(0, 2), (256 << 10, 2), (256 << 10, 1)] {
        let source = SlotSource::virtual_slots(slots).unwrap();
        let config = Config::with_slots(source).stock_cap_bytes(cap).stock_budget_bytes(8192);
        let h = Hierarchy::new(config).unwrap();
        let tenants = h.create("/tenants").unwrap();
        let (wrong, innocent) = (tenants.create("wrong").unwrap(), tenants.create("innocent").unwrap());
        let request = innocent.create("request").unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let innocents = [&innocent, &request].map(|group| {
                let is_over = &is_over;
                threads.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        let held: Vec<_> = (1..20).map(|n| group.try_charge(n * 100).unwrap()).collect();
                        drop(held);
                        group.drain();
                    }
                })
            });
            for round in 0..2_000 {
                break_the_contract(&h, &wrong, 1 + round % 5_000);
            }
            is_over.store(true, Ordering::Relaxed);
            innocents.into_iter().for_each(|thread| thread.join().unwrap());
        });
        // Marks and limits are as they were, and groups go as ever.
        assert!(wrong.is_online() && innocent.is_online());
        tenants.set_max(1 << 20).unwrap();
        assert!(innocent.try_charge(2 << 20).is_err());
        drop(innocent.try_charge(4096).unwrap());
        h.root().drain();
        assert_eq!((innocent.usage(), request.usage()), (0, 0));
        request.remove().unwrap();
        wrong.remove().unwrap();
        innocent.remove().unwrap();
        drop((wrong, request, innocent));
        tenants.remove().unwrap();
        drop(tenants);
        assert_eq!(h.groups().len(), 1);
    }
}

#[test]
fn absurd_numbers_of_many_threads_leave_a_counter_that_refuses() {
    let h = hierarchy(2);
    let group = h.create("/group").unwrap();
    group.set_max(1 << 20).unwrap();
    for _ in 0..200 {
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| raw::uncharge(&group, (1 << 48) - 1));
            }
        });
        assert_eq!((group.usage(), h.root().usage()), (0, 0));
        assert!(group.try_charge(2 << 20).is_err());
    }
    drop(group.try_charge(4096).unwrap());
    let text = panic_of(|| raw::charge_of_node(&h, group.id().node(), 1 << 41));
    assert!(text.contains("into_parts"), "{text}");
    for absurd in [1 << 41, u64::MAX] {
        let error = h.uncharge(group.id(), absurd).unwrap_err();
        assert_eq!((error.id, error.bytes), (group.id(), absurd));
        assert_eq!(h.charge_from_parts(group.id(), absurd).unwrap_err(), error);
        assert!(error.to_string().contains("Charge::into_parts"), "it says how to put it right: {error}");
    }
    assert_eq!(group.usage_exact(), 0);
}

#[test]
fn says_that_the_group_of_a_node_is_gone() {
    let h = hierarchy(1);
    let a = h.create("/a").unwrap();
    let (id, bytes) = a.try_charge(100).unwrap().into_parts();
    drop(raw::charge_of_node(&h, id.node(), bytes));
    a.remove().unwrap();
    drop(a);
    let text = panic_of(|| raw::charge_of_node(&h, id.node(), bytes));
    assert!(text.contains("its group is gone") && text.contains("100 bytes"), "{text}");
    let text = panic_of(|| raw::charge_of_node(&h, 7000, bytes));
    assert!(text.contains("never had it"), "{text}");
    let text = h.uncharge(id, bytes).unwrap_err().to_string();
    assert!(text.contains("has no group with that id") && text.contains(&id.to_string()), "{text}");
}
