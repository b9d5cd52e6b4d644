//! Per-CPU memory of whole hierarchies: what is populated, what comes back, and what happens when the system refuses.
//!
//! What the engine says of itself is held against the system's own figures (`smaps`).
#![cfg(not(memgroup_loom))]

mod failures;
mod idle;
mod lifetime;
mod script;
mod sections;
mod settings;
#[cfg(target_os = "linux")]
mod smaps;

use std::sync::{Mutex, MutexGuard, PoisonError};

use memgroup::{Config, Group, Hierarchy, Maintenance, PerCpuStats, SlotSource};
use memgroup_percpu::pin_virtual;

/// Counters of a group; with the stock word a record has 392 bytes.
const COUNTERS: u32 = 48;

/// Holds off the other tests of this process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `test` in a process of its own, so that no other hierarchy's memory lies beside the one it is about.
fn in_its_own_process(path: &str, test: impl FnOnce()) {
    const MARK: &str = "MEMGROUP_TEST_ALONE";
    if std::env::var_os(MARK).is_some_and(|value| value == path) {
        return test();
    }
    let this = std::env::current_exe().expect("a test has a file");
    let output = std::process::Command::new(this)
        .args([path, "--exact", "--nocapture", "--test-threads=1"])
        .env(MARK, path)
        .output()
        .expect("a process can be started");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn config(slots: usize) -> Config {
    Config::with_slots(SlotSource::virtual_slots(slots).unwrap()).counters(COUNTERS)
}

/// A hierarchy in which threads ran on all slots.
fn used_on_all_slots(config: Config, slots: usize) -> Hierarchy {
    let hierarchy = Hierarchy::new(config).unwrap();
    for slot in 0..slots {
        let _pin = pin_virtual(slot);
        drop(hierarchy.root().try_charge(1).unwrap());
    }
    assert_eq!(hierarchy.percpu().slots, slots);
    hierarchy
}

/// All that can come back does.
fn maintain(hierarchy: &Hierarchy) -> PerCpuStats {
    while hierarchy.maintain(Maintenance::new().all().expedited()).more {}
    hierarchy.percpu()
}

/// What `populated_bytes` may be at the most when live records lie as densely as promised.
fn densely(stats: &PerCpuStats) -> u64 {
    stats.live_bytes * 11 / 10 + stats.page_bytes * stats.slots as u64 * stats.chunks as u64
}

/// A group with counts and charges of its own on every slot, of which `mark` is known.
struct Tenant {
    group: Group,
    mark: u64,
    slots: usize,
    charges: Vec<memgroup::Charge>,
}

impl Tenant {
    fn new(group: Group, mark: u64, slots: usize) -> Tenant {
        let mut tenant = Tenant { group, mark, slots, charges: Vec::new() };
        tenant.live();
        tenant
    }

    /// Counts and charges on each slot.
    fn live(&mut self) {
        for slot in 0..self.slots {
            let _pin = pin_virtual(slot);
            self.group.add(0, self.mark as i64);
            self.group.add(COUNTERS - 1, -1);
            drop(self.group.try_charge(700).unwrap());
            self.charges.push(self.group.try_charge(self.mark % 1000 + 1).unwrap());
        }
    }

    /// Nothing of it was lost.
    fn check(&self) {
        let rounds = self.charges.len() as i64;
        assert_eq!(self.group.sum(0), self.mark as i64 * rounds, "{:?}", self.group);
        assert_eq!(self.group.sum(COUNTERS - 1), -rounds, "{:?}", self.group);
        assert_eq!(self.group.sum(1), 0, "{:?}", self.group);
        let held: u64 = self.charges.iter().map(memgroup::Charge::bytes).sum();
        assert_eq!(self.group.usage_exact(), held, "{:?}", self.group);
        let stock = self.group.stock();
        assert_eq!(stock.hits + stock.misses, 2 * rounds as u64, "{:?} {stock:?}", self.group);
    }
}
