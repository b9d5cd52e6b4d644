//! Limits during reclaim: the credit counts against them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use memgroup::{Charge, ChargeErrorKind, Config, Group, Hierarchy, Scan, SlotSource};

use super::cache::{PAGE, Tenant, add, parent, plenty};

#[test]
fn does_not_credit_bytes_borrowed_from_the_reserve() {
    let (_hierarchy, tenants) = parent(2, 100);
    let _held = tenants.try_charge(100 * PAGE).unwrap();
    let helper = tenants.create("helper").unwrap();
    let lent = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&lent);
    let _shrinker = add(&tenants, "borrows", plenty, move |_| {
        if helper.try_charge(20 * PAGE).is_ok() {
            count.fetch_add(1, Ordering::Relaxed);
        }
        Scan::Freed { bytes: 0 }
    });
    let error = tenants.create("busy").unwrap().try_charge(10 * PAGE).unwrap_err();
    assert_eq!((error.usage(), error.max()), (100 * PAGE, Some(100 * PAGE)));
    assert!(lent.load(Ordering::Relaxed) > 0, "it did borrow");
    assert_eq!(tenants.usage_exact(), 100 * PAGE);
}

#[test]
fn refuses_when_a_callback_takes_as_much_as_it_gives() {
    let (_hierarchy, tenants) = parent(2, 100);
    let group = tenants.create("restless").unwrap();
    let held = Mutex::new(Some(group.try_charge(100 * PAGE).unwrap()));
    let _shrinker = add(&group, "restless", plenty, move |ask| {
        let mut held = held.lock().unwrap();
        drop(held.take());
        *held = ask.group().charge_forced(100 * PAGE).ok();
        Scan::Freed { bytes: 100 * PAGE }
    });
    let error = tenants.create("busy").unwrap().try_charge(10 * PAGE).unwrap_err();
    assert_eq!(error.kind(), ChargeErrorKind::Refused);
    assert_eq!(tenants.usage_exact(), 100 * PAGE);
}

#[test]
fn reaches_a_lowered_limit_before_it_charges() {
    let (_hierarchy, tenants) = parent(2, 100);
    let idle = Tenant::new(&tenants, "idle");
    idle.fill(100);
    tenants.set_max(50 * PAGE).unwrap();
    let busy = tenants.create("busy").unwrap();
    let charge = busy.try_charge(10 * PAGE).unwrap();
    assert!(tenants.usage() <= 50 * PAGE, "{} pages are charged", tenants.usage() / PAGE);
    assert!(idle.cache.len() <= 40);
    tenants.set_max(5 * PAGE).unwrap();
    assert!(busy.try_charge(PAGE).is_err(), "the charges are more than the limit");
    assert_eq!(idle.cache.len(), 0);
    drop(charge);
}

#[test]
fn refuses_a_group_that_a_callback_removed() {
    let (_hierarchy, tenants) = parent(2, 100);
    let tenant = Tenant::new(&tenants, "tenant");
    tenant.group.set_max(100 * PAGE).unwrap();
    let pages: Mutex<Vec<Charge>> =
        Mutex::new((0..100).map(|_| tenant.group.try_charge(PAGE).unwrap()).collect());
    let _shrinker = add(&tenant.group, "removes", plenty, move |ask| {
        pages.lock().unwrap().clear();
        let _ = ask.group().remove();
        Scan::Freed { bytes: 100 * PAGE }
    });
    let error = tenant.group.try_charge(10 * PAGE).unwrap_err();
    assert_eq!(error.kind(), ChargeErrorKind::Offline);
    assert_eq!(tenants.usage_exact(), 0);
}

#[test]
fn uncharges_the_credit_when_a_charge_moves() {
    for account_root in [true, false] {
        let config = Config::with_slots(SlotSource::virtual_slots(2).unwrap()).account_root(account_root);
        let hierarchy = Hierarchy::new(config).unwrap();
        let tenants = hierarchy.create("/tenants").unwrap();
        let (idle, source) = (Tenant::new(&tenants, "idle"), tenants.create("source").unwrap());
        idle.group.set_max(100 * PAGE).unwrap();
        idle.fill(100);
        let mut charge = source.try_charge(10 * PAGE).unwrap();
        charge.try_move_to(&idle.group).unwrap();
        assert!(idle.cache.len() <= 90);
        drop(charge);
        idle.cache.clear();
        assert_eq!((idle.group.usage_exact(), source.usage_exact()), (0, 0));
        assert_eq!((tenants.usage_exact(), hierarchy.root().usage_exact()), (0, 0), "{account_root}");
    }
}

#[test]
fn raises_no_peak_for_a_refused_charge() {
    let (_hierarchy, tenants) = parent(2, 100);
    let _held = tenants.create("held").unwrap().try_charge(99 * PAGE).unwrap();
    let idle = Tenant::new(&tenants, "idle");
    idle.fill(1);
    let busy = tenants.create("busy").unwrap();
    assert!(busy.try_charge(50 * PAGE).is_err());
    assert_eq!((busy.peak(), idle.cache.len()), (0, 0));
}

/// A full group in a full group, each with a cache of its own: `(outer, inner, caches)`.
fn two_levels(hierarchy: &Hierarchy) -> (Group, Group, [Tenant; 2]) {
    let outer = hierarchy.create("/outer").unwrap();
    outer.set_max(300 * PAGE).unwrap();
    let inner = outer.create("inner").unwrap();
    inner.set_max(100 * PAGE).unwrap();
    let (near, far) = (Tenant::new(&inner, "near"), Tenant::new(&outer, "far"));
    near.fill(90);
    far.fill(210);
    (outer, inner, [near, far])
}

#[test]
fn reclaims_at_the_level_above_too() {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(2).unwrap())).unwrap();
    let (outer, inner, [_near, _far]) = two_levels(&hierarchy);
    let charge = inner.create("busy").unwrap().try_charge(50 * PAGE).unwrap();
    assert!(inner.usage() <= inner.max().unwrap() && outer.usage() <= outer.max().unwrap());
    assert_eq!((inner.refusals(), outer.refusals()), (0, 0));
    drop(charge);
}

#[test]
fn reclaims_at_a_level_below_that_fills_up_meanwhile() {
    let (_hierarchy, tenants) = parent(2, 300);
    let idle = Tenant::new(&tenants, "idle");
    idle.fill(100);
    let inner = tenants.create("inner").unwrap();
    inner.set_max(100 * PAGE).unwrap();
    let near = Arc::new(Tenant::new(&inner, "near"));
    let _held = tenants.create("held").unwrap().try_charge(200 * PAGE).unwrap();
    let (fills, pages) = (Arc::clone(&near), Mutex::new(Vec::new()));
    let taken = idle.cache.clone();
    // While room is made above, the group below is filled.
    let _shrinker = add(&tenants, "fills", plenty, move |_| {
        taken.clear();
        let mut pages = pages.lock().unwrap();
        if pages.is_empty() {
            pages.push(());
            (0..100).for_each(|_| fills.cache.push(fills.group.charge_forced(PAGE).unwrap()));
            fills.shrinker.mark();
        }
        Scan::Stopped { bytes: 0 }
    });
    let _charge = inner.create("busy").unwrap().try_charge(50 * PAGE).unwrap();
    assert!(near.cache.len() <= 50);
    assert!(inner.usage() <= inner.max().unwrap() && tenants.usage() <= tenants.max().unwrap());
}

#[test]
fn gives_a_callback_the_reserve_without_marks() {
    let (hierarchy, tenants) = parent(2, 100);
    let idle = Tenant::new(&tenants, "idle");
    idle.fill(100);
    let elsewhere = hierarchy.create("/elsewhere").unwrap();
    elsewhere.set_max(PAGE).unwrap();
    let _full = elsewhere.try_charge(PAGE).unwrap();
    let (lent, cache) = (Arc::new(Mutex::new(None)), idle.cache.clone());
    let log = Arc::clone(&lent);
    let _shrinker = add(&tenants, "needs a little elsewhere", plenty, move |_| {
        log.lock().unwrap().get_or_insert(elsewhere.try_charge(PAGE).is_ok());
        cache.clear();
        Scan::Freed { bytes: 0 }
    });
    let _charge = tenants.create("busy").unwrap().try_charge(10 * PAGE).unwrap();
    assert_eq!(*lent.lock().unwrap(), Some(true));
}
