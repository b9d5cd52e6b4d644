//! Quotas: tenants that keep within their parts of a limit, which leave nothing over, are never
//! refused by other tenants' doings.
//!
//! The contrapositive of G1 with real threads, at several levels together: each tenant's bytes and
//! the bytes that it asks for stay within its quota, and the quotas together are the limit above.
//! So every refusal is wrong. Run it with `--cfg memgroup_yields`, too.

use std::sync::atomic::{AtomicBool, Ordering};

use memgroup::{Charge, Config, Group, Hierarchy, SlotSource};
use memgroup_percpu::pin_virtual;

use super::random::Random;

const TENANTS: usize = 3;
const QUOTA: u64 = 96 << 10;
const LIMIT: u64 = TENANTS as u64 * QUOTA;
const STEPS: usize = if cfg!(memgroup_emulated) {
    200
} else if cfg!(debug_assertions) {
    3_000
} else {
    20_000
};

/// One tenant: a group with a limit of its quota, and groups below it.
struct Tenant {
    random: Random,
    slots: usize,
    group: Group,
    leaves: Vec<Group>,
    charges: Vec<Charge>,
}

impl Tenant {
    fn new(number: usize, slots: usize, parent: &Group) -> Tenant {
        let group = parent.create(&format!("tenant{number}")).unwrap();
        group.set_max(QUOTA).unwrap();
        let deep = (0..3).fold(group.clone(), |at, _| at.create("below").unwrap());
        let leaves = vec![group.clone(), deep, group.create("flat").unwrap()];
        Tenant { random: Random(number as u64 + 1), slots, group, leaves, charges: Vec::new() }
    }

    /// A number of bytes that the quota has room for, now and then all of them.
    fn bytes(&mut self) -> u64 {
        let free = QUOTA - self.charges.iter().map(Charge::bytes).sum::<u64>();
        if self.random.below(4) == 0 { free } else { self.random.bytes(17).min(free) }
    }

    fn pick(&mut self) -> Option<Charge> {
        let at = self.random.below(self.charges.len().max(1) as u64) as usize;
        (at < self.charges.len()).then(|| self.charges.swap_remove(at))
    }

    fn step(&mut self) {
        let _pin = pin_virtual(self.random.below(self.slots as u64) as usize);
        let leaf = self.leaves[self.random.below(self.leaves.len() as u64) as usize].clone();
        let bytes = self.bytes();
        match self.random.below(100) {
            0..45 => self.charges.push(leaf.try_charge(bytes).expect("it is within the quota")),
            45..75 => drop(self.pick()),
            75..82 => {
                if let Some(mut charge) = self.pick() {
                    charge.try_grow(bytes).expect("it is within the quota");
                    charge.shrink(self.random.below(charge.bytes() + 1));
                    self.charges.push(charge);
                }
            }
            82..92 => {
                if let Some(mut charge) = self.pick() {
                    charge.try_move_to(&leaf).expect("the quota has it already");
                    self.charges.push(charge);
                }
            }
            92..96 => {
                let child = leaf.create("guest").unwrap();
                let charge = child.try_charge(bytes).expect("it is within the quota");
                if self.random.below(2) == 0 {
                    drop(charge);
                    child.remove().unwrap();
                } else {
                    child.remove().unwrap();
                }
            }
            _ => _ = leaf.drain(),
        }
    }
}

/// Asks for one byte more than there can be, drains, and fills a group beside the tenants with
/// idle stock.
fn disturb(parent: &Group, slots: usize, done: &AtomicBool) -> u64 {
    let (mut random, mut refused) = (Random(0x5eed), 0);
    // ORDERING: Relaxed; the end of the test.
    while !done.load(Ordering::Relaxed) {
        let _pin = pin_virtual(random.below(slots as u64) as usize);
        match random.below(3) {
            0 => _ = parent.drain(),
            1 => refused += u64::from(parent.try_charge(LIMIT + 1).is_err()),
            _ => {
                // Of no tenant: it may be refused, and it is charged at no level of theirs.
                let beside = parent.parent().unwrap().create("beside").unwrap();
                (0..4).for_each(|_| drop(beside.try_charge(random.bytes(14))));
                beside.remove().unwrap();
            }
        }
        std::thread::yield_now();
    }
    refused
}

fn keep_within_quotas(slots: usize, account_root: bool) {
    let source = SlotSource::virtual_slots(slots).unwrap();
    let config = Config::with_slots(source).stock_budget_bytes(256 << 10).account_root(account_root);
    let hierarchy = Hierarchy::new(config).unwrap();
    let parent = hierarchy.create("/all").unwrap().create("tenants").unwrap();
    parent.set_max(LIMIT + 1).unwrap();
    let held = parent.try_charge(1).unwrap();
    let done = AtomicBool::new(false);
    let tenants: Vec<_> = (0..TENANTS).map(|number| Tenant::new(number, slots, &parent)).collect();
    let groups: Vec<_> = tenants.iter().map(|tenant| tenant.group.clone()).collect();
    std::thread::scope(|scope| {
        let disturber = scope.spawn(|| disturb(&parent, slots, &done));
        let workers =
            tenants.into_iter().map(|mut tenant| scope.spawn(move || (0..STEPS).for_each(|_| tenant.step())));
        let workers: Vec<_> = workers.collect();
        let ends: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        // ORDERING: Relaxed; as above.
        done.store(true, Ordering::Relaxed);
        assert!(disturber.join().unwrap() > 0, "nothing was refused");
        ends.into_iter().for_each(|end| end.unwrap());
    });
    assert!(groups.iter().all(|group| group.refusals() == 0));
    drop(held);
    hierarchy.root().drain();
    assert_eq!((parent.usage(), parent.stock().prepaid_bytes), (0, 0));
    assert!(hierarchy.dying().is_empty());
}

#[test]
fn on_2_slots() {
    keep_within_quotas(2, true);
}

#[test]
fn on_8_slots_with_no_account_of_the_root() {
    keep_within_quotas(8, false);
}

#[test]
fn on_128_slots() {
    keep_within_quotas(128, true);
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn on_512_slots() {
    keep_within_quotas(512, true);
}
