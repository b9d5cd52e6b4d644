//! Deletion under load: the parent's usage is the charged bytes.

use memgroup::{Charge, Freshness, Reach, stats};
use memgroup_percpu::pin_virtual;

use super::cache::{PAGE, Tenant};
use super::group;

const GROUPS: usize = 100;
const SLOTS: usize = 8;

/// Groups are created, used by two threads for each slot, and removed with their charges.
#[test]
fn sums_usage_of_a_hundred_used_and_removed_groups() {
    let (hierarchy, parent) = group(SLOTS);
    let tenants: Vec<Tenant> = (0..GROUPS).map(|number| Tenant::new(&parent, &format!("{number}"))).collect();
    let work = |thread: usize| -> Vec<Charge> {
        let mut held = Vec::new();
        for (number, tenant) in tenants.iter().enumerate() {
            let _pin = pin_virtual((thread + number) % SLOTS);
            for page in 0..20 {
                let charge = tenant.group.try_charge(PAGE + page).unwrap();
                match page % 4 {
                    0 => tenant.cache.push(tenant.group.try_charge(PAGE).unwrap()),
                    1 => held.push(charge),
                    _ => drop(charge),
                }
                hierarchy.io().add(&tenant.group, stats::io::RBYTES, 1);
            }
            tenant.shrinker.mark();
        }
        held
    };
    let held: Vec<Vec<Charge>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2 * SLOTS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let charged = |held: &[Vec<Charge>]| {
        let cached: usize = tenants.iter().map(|tenant| tenant.cache.len()).sum();
        held.iter().flatten().map(Charge::bytes).sum::<u64>() + cached as u64 * PAGE
    };
    assert_eq!(parent.usage_exact(), charged(&held), "before the removals");
    std::thread::scope(|scope| {
        for half in tenants.chunks(GROUPS / 2) {
            scope.spawn(move || half.iter().for_each(|tenant| tenant.group.remove().unwrap()));
        }
    });
    assert_eq!(parent.usage_exact(), charged(&held), "after them");
    parent.drain();
    assert_eq!(parent.usage(), charged(&held), "with nothing prepaid");
    parent.reclaim(u64::MAX, None);
    assert_eq!(parent.usage(), held.iter().flatten().map(Charge::bytes).sum::<u64>());
    drop(held);
    drop(tenants);
    assert_eq!((parent.usage(), hierarchy.root().usage(), hierarchy.dying().len()), (0, 0, 0));
    let read = hierarchy.io().get(&parent, stats::io::RBYTES, Reach::Subtree, Freshness::Fresh);
    assert_eq!(read, (GROUPS * 2 * SLOTS * 20) as i64, "their additions are their parent's");
}
