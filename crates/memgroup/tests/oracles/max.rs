//! `max`: memory that is held is refused beyond it, a cache is held at it.

use memgroup::{Charge, ChargeErrorKind};
use memgroup_percpu::pin_virtual;

use super::cache::{PAGE, Tenant};
use super::{MIB, group};

#[test]
fn refuses_charges_beyond_max_and_not_before() {
    for slots in [2, 128] {
        let (_hierarchy, tenant) = group(slots);
        assert_eq!(tenant.max(), None);
        tenant.set_max(30 * MIB).unwrap();
        let mut held: Vec<Charge> = Vec::new();
        let error = loop {
            let _pin = pin_virtual(held.len() % slots);
            match tenant.try_charge(PAGE) {
                Ok(page) => held.push(page),
                Err(error) => break error,
            }
        };
        assert_eq!((error.kind(), error.max()), (ChargeErrorKind::Refused, Some(30 * MIB)));
        assert_eq!((held.len() as u64 * PAGE, tenant.usage()), (30 * MIB, 30 * MIB), "to the byte");
        assert_eq!(
            (tenant.events().max, tenant.events().oom),
            (1, 1),
            "it was asked once, and nothing could be had"
        );
    }
}

#[test]
fn keeps_a_cache_at_max_without_refusals() {
    for slots in [2, 128] {
        let (_hierarchy, group) = group(slots);
        group.set_max(30 * MIB).unwrap();
        let tenant = Tenant::new(&group, "cache");
        for page in 0..50 * MIB / PAGE {
            let _pin = pin_virtual(page as usize % slots);
            // Charged outside the cache's lock, and marked before it is full.
            tenant.cache.push(tenant.group.try_charge(PAGE).unwrap());
            if page == 0 {
                tenant.shrinker.mark();
            }
            assert!(group.usage() <= 30 * MIB, "{} bytes", group.usage());
        }
        assert!(group.usage() >= 30 * MIB * 95 / 100, "{slots} slots: {} KiB", group.usage() >> 10);
        assert_eq!(group.usage_exact(), tenant.cache.len() as u64 * PAGE);
        let events = group.events();
        assert!(events.max > 0 && events.oom == 0, "{events:?}");
    }
}
