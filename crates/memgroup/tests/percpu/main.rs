//! Per-CPU memory of whole hierarchies: populated bytes, returned bytes, and refusals of the
//! system.
//!
//! The engine's figures are compared with the system's own (`smaps`).
#![cfg(not(memgroup_loom))]

mod failures;
#[path = "../gauges/mod.rs"]
mod gauges;
mod idle;
mod lifetime;
#[cfg(target_os = "linux")]
mod pool;
#[cfg(target_os = "linux")]
mod refused;
mod script;
mod sections;
mod settings;
mod slots;
#[cfg(target_os = "linux")]
mod smaps;

use std::sync::{Mutex, MutexGuard, PoisonError};

use memgroup::tuning::PageSize;
use memgroup::{
    Config, Freshness, Group, Hierarchy, Maintenance, PerCpuStats, Reach, SlotSource, Statistics,
};
use memgroup_percpu::pin_virtual;

/// Levels that the tests add to in their groups.
const GAUGES: usize = 48;
/// Bytes of a group on one slot: the stock word, which stays where it is, and the record of the
/// levels. One that is charged a few times has no record of the built-in statistics.
const STOCK_BYTES: u64 = 8;
const GAUGES_BYTES: u64 = 8 * GAUGES as u64;
/// Of one that is charged, and of one that is added to as well.
const CHARGED_BYTES: u64 = STOCK_BYTES;
const TENANT_BYTES: u64 = CHARGED_BYTES + GAUGES_BYTES;

/// Places whose stock words go back to the system together, and the bytes of those words on one
/// slot with the shift to the next slot.
const PLACES_A_BLOCK: u64 = 512;
const BLOCK_BYTES: u64 = PLACES_A_BLOCK * STOCK_BYTES + 128;

/// The most that one addition may change a level by.
const DELTA_MAX: i64 = 1 << 48;

/// So many of those fit between two flushes, in each direction: one more leaves the range, and the
/// next addition finds that.
const RANGE_DELTAS: i64 = (1 << 61) / DELTA_MAX - 1;

/// Holds off the other tests of this process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `test` in a process of its own, so that the process has no memory of other hierarchies.
fn in_its_own_process(path: &str, test: impl FnOnce()) {
    const MARK: &str = "MEMGROUP_TEST_ALONE";
    if std::env::var_os(MARK).is_some_and(|value| value == path) {
        return test();
    }
    if cfg!(memgroup_emulated) {
        return println!("skipped: an emulated program cannot start itself");
    }
    let this = std::env::current_exe().expect("a test has a file");
    let output = std::process::Command::new(this)
        .args([path, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"])
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
    Config::with_slots(SlotSource::virtual_slots(slots).unwrap())
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

/// Creates and removes a group until `is_enough`: on a busy machine removals leave some of their
/// steps to later calls.
fn go_on(hierarchy: &Hierarchy, is_enough: impl Fn(&PerCpuStats) -> bool) {
    for _ in 0..100_000 {
        if is_enough(&hierarchy.percpu()) {
            return;
        }
        hierarchy.create("/go-on").unwrap().remove().unwrap();
        std::thread::yield_now();
    }
    panic!("100,000 more calls return nothing: {:?}", hierarchy.percpu());
}

/// The most `populated_bytes` when the live records of the levels lie as densely as promised, in
/// one chunk, and the stock words of so many places stay.
fn densely(stats: &PerCpuStats, places: u64) -> u64 {
    stats.live_bytes * 11 / 10 + stats.page_bytes * stats.slots as u64 + words_bytes(places, stats.slots)
}

/// The most bytes that the system backs for the stock words of so many places.
fn words_bytes(places: u64, slots: usize) -> u64 {
    let page = PageSize::of_system().bytes() as u64;
    places.div_ceil(PLACES_A_BLOCK) * (slots as u64 * BLOCK_BYTES).next_multiple_of(page)
}

/// The levels that tests of this process add to.
fn levels(hierarchy: &Hierarchy) -> Statistics {
    gauges::register(hierarchy, GAUGES)
}

/// The message of the panic of `act`.
fn panic_of(act: impl FnOnce()) -> String {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).expect_err("a panic");
    *panic.downcast::<String>().expect("it says something")
}

/// A group with charges and levels of its own on every slot, of which `mark` is known.
struct Tenant {
    group: Group,
    levels: Statistics,
    mark: u64,
    slots: usize,
    charges: Vec<memgroup::Charge>,
}

impl Tenant {
    fn new(levels: &Statistics, group: Group, mark: u64, slots: usize) -> Tenant {
        let mut tenant = Tenant { group, levels: levels.clone(), mark, slots, charges: Vec::new() };
        tenant.live();
        tenant
    }

    /// Adds and charges on each slot.
    fn live(&mut self) {
        for slot in 0..self.slots {
            let _pin = pin_virtual(slot);
            self.levels.add(&self.group, gauges::nth(&self.levels, 0), self.mark as i64);
            self.levels.add(&self.group, gauges::nth(&self.levels, GAUGES - 1), -1);
            drop(self.group.try_charge(700).unwrap());
            self.charges.push(self.group.try_charge(self.mark % 1000 + 1).unwrap());
        }
    }

    /// All levels, flushed.
    fn values(&self, reach: Reach) -> [i64; GAUGES] {
        let mut values = [0; GAUGES];
        self.levels.read(&self.group, reach, Freshness::Fresh, &mut values);
        values
    }

    /// Nothing of it was lost.
    fn check(&self) {
        let rounds = self.charges.len() as i64;
        let mut added = [0; GAUGES];
        (added[0], added[GAUGES - 1]) = (self.mark as i64 * rounds, -rounds);
        assert_eq!(self.values(Reach::Local), added, "{:?}", self.group);
        let held: u64 = self.charges.iter().map(memgroup::Charge::bytes).sum();
        assert_eq!(self.group.usage_exact(), held, "{:?}", self.group);
        let stock = self.group.stock();
        assert_eq!(stock.hits + stock.misses, 2 * rounds as u64, "{:?} {stock:?}", self.group);
    }
}
