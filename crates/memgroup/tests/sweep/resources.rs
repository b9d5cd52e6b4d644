//! What the engine asks the system for: address space for per-CPU memory, pages behind it, their
//! return, and chunks of nodes. The N-th request is refused, in a process of its own, because
//! memory that a process has had is used again.

use std::time::Duration;

use memgroup::tuning::{PageSize, Tuning};
use memgroup::{
    Config, Freshness, Group, GroupError, Hierarchy, Maintenance, Reach, SlotSource, Stat, Subsystem,
};
use memgroup_percpu::{Call, inject, pin_virtual};
use memgroup_sync::inject as chunks;
use xtask::sweep::{Run, sweep_in_children};

use crate::assert_nothing_is_left;

const SLOTS: usize = 2;
/// More than a chunk of nodes.
const GROUPS: usize = 80;

const SUBSYSTEM: Subsystem =
    Subsystem { name: "swept", stats: &[Stat::count("rows"), Stat::gauge("open"), Stat::gauge("cached")] };

/// A group with bytes and a statistic on each slot, of which the exact sums are known.
struct Tenant {
    group: Group,
    charges: Vec<memgroup::Charge>,
    rows: i64,
}

impl Tenant {
    /// Charges and counts on each slot. A charge needs no memory: it never fails for want of some.
    fn live(&mut self, swept: Option<&memgroup::Statistics>) {
        for slot in 0..SLOTS {
            let _pin = pin_virtual(slot);
            drop(self.group.try_charge(700).unwrap());
            self.charges.push(self.group.try_charge(100).unwrap());
            if let Some(swept) = swept {
                swept.add(&self.group, swept.keys().next().unwrap(), 5);
                self.rows += 5;
            }
        }
        let held: u64 = self.charges.iter().map(memgroup::Charge::bytes).sum();
        assert_eq!(self.group.usage_exact(), held, "{}", self.group.path());
        if let Some(swept) = swept {
            let key = swept.keys().next().unwrap();
            assert_eq!(swept.get(&self.group, key, Reach::Local, Freshness::Fresh), self.rows);
        }
    }
}

/// Makes a hierarchy with groups, subsystems and charges, has all per-CPU memory given back and
/// fetched again, and removes the groups. Each call works, or fails with the error that it
/// declares. Returns the hierarchy, if there was memory for one, and how many calls failed.
fn life(page: PageSize) -> (Option<Hierarchy>, u64) {
    let config = Config::with_slots(SlotSource::virtual_slots(SLOTS).unwrap())
        .page_size(page)
        .demote_after(Some(Duration::ZERO))
        .float(0, Duration::ZERO);
    let hierarchy = match Hierarchy::new(config) {
        Ok(hierarchy) => hierarchy,
        Err(error) => {
            assert!(error.to_string().starts_with("make the hierarchy: "), "{error}");
            return (None, 1);
        }
    };
    let mut failed = 0;
    let swept = match hierarchy.register(SUBSYSTEM) {
        Ok(swept) => Some(swept),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("swept") && text.contains("the system has no memory"), "{error}");
            failed += 1;
            None
        }
    };
    let mut tenants = Vec::new();
    for number in 0..GROUPS {
        match hierarchy.create(&format!("/{number}")) {
            Ok(group) => tenants.push(Tenant { group, charges: Vec::new(), rows: 0 }),
            Err(GroupError::OutOfMemory { path, bytes }) => {
                assert!(path == format!("/{number}") && bytes > 0, "{path} {bytes}");
                assert!(hierarchy.lookup(&path).is_err(), "nothing of it is there");
                failed += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    tenants.iter_mut().for_each(|tenant| tenant.live(swept.as_ref()));
    hierarchy.maintain(Maintenance::new().all().expedited());
    // All of them are cold, and come back.
    tenants.iter_mut().for_each(|tenant| tenant.live(swept.as_ref()));
    let sum: u64 = tenants.iter().flat_map(|tenant| &tenant.charges).map(memgroup::Charge::bytes).sum();
    assert_eq!(hierarchy.root().usage_exact(), sum);
    for tenant in tenants {
        drop(tenant.charges);
        tenant.group.remove().unwrap();
    }
    if let Some(swept) = &swept {
        let key = swept.keys().next().unwrap();
        let rows = swept.get(&hierarchy.root(), key, Reach::Subtree, Freshness::Fresh);
        assert!(rows > 0 && rows % (5 * SLOTS as i64) == 0, "{rows}");
    }
    hierarchy.maintain(Maintenance::new().all().expedited());
    (Some(hierarchy), failed)
}

/// Runs the life under refusals, and another one without. `may_fail`: whether a refusal may reach
/// a caller at all.
fn survives<G>(
    run: Run,
    page: PageSize,
    refuse: impl FnOnce(Run) -> G,
    requests: impl FnOnce(&G) -> u64,
) -> u64 {
    let guard = refuse(run);
    let (hierarchy, failed) = life(page);
    let made = requests(&guard);
    drop(guard);
    assert!(failed == 0 || run.refuses_any_of(made), "{failed} calls failed, and no request was refused");
    if let Some(hierarchy) = hierarchy {
        assert_nothing_is_left(&hierarchy);
        // Memory is there again.
        let group = hierarchy.create("/after").unwrap();
        let mut tenant = Tenant { group, charges: Vec::new(), rows: 0 };
        tenant.live(Some(&hierarchy.register(SUBSYSTEM).unwrap()));
        tenant.charges.clear();
        hierarchy.maintain(Maintenance::new().all().expedited());
        tenant.live(None);
        assert!(tenant.group.stock().hits > 0 || page != PageSize::of_system(), "it has a stock");
    }
    let (hierarchy, failed) = life(page);
    assert!(hierarchy.is_some() && failed == 0, "{failed} calls failed with all memory there");
    made
}

fn call(test: &str, call: Call, page: PageSize) {
    sweep_in_children(test, |run| {
        survives(run, page, |run| inject::fail_at(call, run.refused()), inject::Guard::requests)
    });
}

#[test]
fn sweep_mappings() {
    call("resources::sweep_mappings", Call::Map, PageSize::of_system());
}

#[test]
fn sweep_pages_that_are_given_back() {
    call("resources::sweep_pages_that_are_given_back", Call::Discard, PageSize::of_system());
}

#[test]
fn sweep_chunks_of_nodes() {
    let (test, page) = ("resources::sweep_chunks_of_nodes", PageSize::of_system());
    sweep_in_children(test, |run| {
        survives(run, page, |run| chunks::refuse_chunks_at(run.refused()), chunks::Guard::requests)
    });
}
