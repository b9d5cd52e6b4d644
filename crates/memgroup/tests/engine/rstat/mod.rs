//! Statistics: each addition reaches the group and all groups above it exactly once, and nothing
//! else changes.

mod exact;
mod independence;
mod memory;
mod reads;
mod registration;
mod scopes;
mod soak;

use memgroup::{
    Config, Freshness, Group, Hierarchy, Reach, SlotSource, Stat, StatKey, Statistics, Subsystem,
};
use memgroup_percpu::pin_virtual;

const CACHE: Subsystem =
    Subsystem { name: "cache", stats: &[Stat::count("hits"), Stat::gauge("held"), Stat::time("build_usec")] };
const HITS: StatKey = CACHE.key("hits");
const HELD: StatKey = CACHE.key("held");
const BUILT: StatKey = CACHE.key("build_usec");

/// A hierarchy on so many virtual slots, with the subsystem `cache`.
fn fixture(slots: usize) -> (Hierarchy, Statistics) {
    fixture_of(Config::with_slots(SlotSource::virtual_slots(slots).unwrap()))
}

fn fixture_of(config: Config) -> (Hierarchy, Statistics) {
    let hierarchy = Hierarchy::new(config).unwrap();
    let cache = hierarchy.register(CACHE).unwrap();
    (hierarchy, cache)
}

fn fresh(statistics: &Statistics, group: &Group, key: StatKey, reach: Reach) -> i64 {
    statistics.get(group, key, reach, Freshness::Fresh)
}

fn subtree(statistics: &Statistics, group: &Group, key: StatKey) -> i64 {
    fresh(statistics, group, key, Reach::Subtree)
}

fn local(statistics: &Statistics, group: &Group, key: StatKey) -> i64 {
    fresh(statistics, group, key, Reach::Local)
}

/// The key of the statistic at this position.
fn nth(statistics: &Statistics, index: usize) -> StatKey {
    statistics.keys().nth(index).unwrap()
}

/// Adds on the given slot.
fn add_on(slot: usize, statistics: &Statistics, group: &Group, key: StatKey, delta: i64) {
    let _pin = pin_virtual(slot);
    statistics.add(group, key, delta);
}

/// The message of a panic.
fn panic_of(run: impl FnOnce()) -> String {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).expect_err("it panics");
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => (*panic.downcast::<&str>().expect("a panic says something")).to_owned(),
    }
}
