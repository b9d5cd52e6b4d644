//! Oracles: assertions of the kernel's selftests of the memory controller, made about this engine.
//!
//! The assertions are rewritten, not copied. A process is a tenant, and anonymous memory is a
//! charge that is held. The page cache is a cache with a shrinker, and the hook of the victim
//! reports a kill. Where the kernel's figure has a tolerance and ours is exact, ours must be
//! exact.
//!
//! | kernel | here |
//! |---|---|
//! | `current_peak`, peak of several open files | `peak.rs`; readers in `tests/engine/peaks.rs` |
//! | `min`, `low` | `tests/engine/protect/tree.rs` |
//! | `high`, `high_sync` | `tests/engine/high/oracles.rs` |
//! | `max` | `max.rs` |
//! | `reclaim` | `reclaim.rs` |
//! | `oom_events`, `oom_group` of leaf and parent, with one that is never killed | `tests/engine/oom/oracles.rs` |
//! | `kmem_memcg_deletion` | `deletion.rs` |
//! | `kmem_dead_cgroups` | `dead.rs` |
//! | `percpu_basic` | `percpu.rs` |
#![cfg(not(memgroup_loom))]

#[path = "../engine/shrink/cache.rs"]
#[allow(dead_code, reason = "the tests of shrinkers use all of it")]
mod cache;
mod dead;
mod deletion;
mod max;
mod peak;
mod percpu;
mod reclaim;

use memgroup::{Config, Group, Hierarchy, SlotSource};

const MIB: u64 = 1 << 20;

/// A hierarchy of so many virtual slots, and a group in it.
fn group(slots: usize) -> (Hierarchy, Group) {
    let hierarchy = Hierarchy::new(Config::with_slots(SlotSource::virtual_slots(slots).unwrap())).unwrap();
    let group = hierarchy.create("/tenant").unwrap();
    (hierarchy, group)
}
