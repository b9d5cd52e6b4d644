//! Statistics: what is added arrives, exactly once, in the group and all above it; and nothing else is touched.
#![cfg(not(memgroup_loom))]

mod exact;
mod independence;
mod memory;
#[path = "../random/mod.rs"]
mod random;
mod reads;
mod registration;
mod scopes;
mod soak;

use memgroup::{Config, Freshness, Group, Hierarchy, Reach, SlotSource, Stat, Statistics, Subsystem};
use memgroup_percpu::pin_virtual;

const HITS: usize = 0;
const HELD: usize = 1;
const BUILT: usize = 2;

const CACHE: Subsystem =
    Subsystem { name: "cache", stats: &[Stat::count("hits"), Stat::gauge("held"), Stat::time("build_usec")] };

/// A hierarchy on so many virtual slots, with the subsystem `cache`.
fn house(slots: usize) -> (Hierarchy, Statistics) {
    house_of(Config::with_slots(SlotSource::virtual_slots(slots).unwrap()))
}

fn house_of(config: Config) -> (Hierarchy, Statistics) {
    let hierarchy = Hierarchy::new(config).unwrap();
    let cache = hierarchy.register(CACHE).unwrap();
    (hierarchy, cache)
}

fn fresh(statistics: &Statistics, group: &Group, stat: usize, reach: Reach) -> i64 {
    statistics.get(group, stat, reach, Freshness::Fresh)
}

fn subtree(statistics: &Statistics, group: &Group, stat: usize) -> i64 {
    fresh(statistics, group, stat, Reach::Subtree)
}

fn local(statistics: &Statistics, group: &Group, stat: usize) -> i64 {
    fresh(statistics, group, stat, Reach::Local)
}

/// Adds on the given slot.
fn add_on(slot: usize, statistics: &Statistics, group: &Group, stat: usize, delta: i64) {
    let _pin = pin_virtual(slot);
    statistics.add(group, stat, delta);
}

/// What a panic said.
fn panic_of(run: impl FnOnce()) -> String {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).expect_err("it panics");
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => (*panic.downcast::<&str>().expect("a panic says something")).to_owned(),
    }
}
