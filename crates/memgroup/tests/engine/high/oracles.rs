//! The assertions of the kernel's own tests of `memory.high`, on pinned charges and caches.

use memgroup::{ChargeErrorKind, Config, Hierarchy, SlotSource};

use super::cache::{PAGE, Tenant};
use super::{MIB, group};

/// Within so many per cent of the sum of both.
fn is_close(a: u64, b: u64, per_cent: u64) -> bool {
    a.abs_diff(b) <= (a + b) * per_cent / 100
}

#[test]
fn holds_caches_to_high_but_not_pinned_bytes() {
    for slots in [2, 128] {
        let (_hierarchy, etl) = group(slots);
        assert_eq!(etl.high(), None);
        etl.set_high(30 * MIB).unwrap();
        assert_eq!(etl.high(), Some(30 * MIB));

        let pinned: Vec<_> = (0..31 * MIB / PAGE).map(|_| etl.try_charge(PAGE).unwrap()).collect();
        assert!(etl.usage_exact() == 31 * MIB && etl.events().high > 0, "{:?}", etl.events());
        drop(pinned);
        etl.drain();

        let before = etl.events();
        let tenant = Tenant::new(&etl, "cache");
        tenant.fill(1);
        for _ in 1..50 * MIB / PAGE {
            tenant.cache.push(tenant.group.try_charge(PAGE).unwrap());
        }
        assert!(is_close(etl.usage(), 30 * MIB, 5), "{slots} slots: {} KiB", etl.usage() >> 10);
        assert!(tenant.cache.len() as u64 * PAGE >= 28 * MIB, "no more is given back than is needed");
        let events = etl.events();
        assert!(events.high > before.high && events.max == 0 && events.oom == 0, "{events:?}");
        assert_eq!(tenant.group.events().high, 0, "the event is the responsible group's");
    }
}

#[test]
fn counts_a_charge_far_above_high_as_high_and_not_as_max() {
    let (_hierarchy, etl) = group(2);
    etl.set_high(30 * MIB).unwrap();
    etl.set_max(140 * MIB).unwrap();
    let whole = etl.try_charge(100 * MIB).unwrap();
    assert_eq!((etl.events().high, etl.events().max), (1, 0));
    drop(whole);
    etl.drain();

    // A charge that `max` refuses is its own event, and took nothing above `high`.
    let error = etl.try_charge(200 * MIB).unwrap_err();
    assert_eq!((error.kind(), error.max()), (ChargeErrorKind::Refused, Some(140 * MIB)));
    assert_eq!((etl.events().high, etl.events().max), (1, 1));
    assert_eq!(etl.owed(), 70 * MIB, "a refused charge owes nothing");
}

#[test]
fn a_lower_high_has_caches_give_back_at_once() {
    let (_hierarchy, etl) = group(2);
    let tenant = Tenant::new(&etl, "cache");
    tenant.fill(50 * MIB / PAGE);
    for high in [40 * MIB, MIB, 0] {
        etl.set_high(high).unwrap();
        assert!(etl.usage() <= high, "{} KiB", etl.usage() >> 10);
    }
    assert_eq!((tenant.cache.len(), etl.events().high, etl.events().max), (0, 0, 0));
}

#[test]
fn frees_bytes_above_an_ancestors_high_in_its_whole_subtree() {
    let (_hierarchy, etl) = group(2);
    let (idle, busy) = (Tenant::new(&etl, "idle"), Tenant::new(&etl, "busy"));
    idle.fill(25 * MIB / PAGE);
    etl.set_high(30 * MIB).unwrap();
    let pinned: Vec<_> = (0..20 * MIB / PAGE).map(|_| busy.group.try_charge(PAGE).unwrap()).collect();
    assert!(is_close(etl.usage(), 30 * MIB, 3), "{} KiB", etl.usage() >> 10);
    assert!(idle.cache.len() as u64 * PAGE >= 9 * MIB);
    assert_eq!((etl.events_local().high > 0, busy.group.events().high), (true, 0));
    assert_eq!(pinned.len() as u64 * PAGE, 20 * MIB);
    assert_eq!((busy.group.owed(), idle.group.owed()), (0, 0), "caches freed the bytes above");
}

#[test]
fn a_root_that_is_left_unaccounted_is_held_to_its_own_charges() {
    let slots = SlotSource::virtual_slots(2).unwrap();
    let hierarchy = Hierarchy::new(Config::with_slots(slots).account_root(false)).unwrap();
    let below = Tenant::new(&hierarchy.root(), "below");
    below.fill(100);
    hierarchy.root().set_high(10 * PAGE).unwrap();
    let own = hierarchy.root().try_charge(20 * PAGE).unwrap();
    assert_eq!(below.cache.len(), 100, "bytes below make no room there");
    assert_eq!((hierarchy.root().events().high, hierarchy.root().owed()), (1, 10 * PAGE));
    drop(own);
}
