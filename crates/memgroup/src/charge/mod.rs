//! Charge: the fast path, the slow path, and the charge that a user holds.

pub(crate) mod batch;
pub(crate) mod block;
#[allow(clippy::module_inception)]
pub(crate) mod charge;
pub(crate) mod evict;
pub(crate) mod fast;
pub(crate) mod future;
#[cfg(all(test, memgroup_loom))]
mod held_back_loom;
#[cfg(all(test, memgroup_loom))]
pub(crate) mod loom;
pub(crate) mod miss;
pub(crate) mod reclaimer;
pub(crate) mod refill;
pub(crate) mod slow;
pub(crate) mod wait;
#[cfg(all(test, memgroup_loom))]
mod wait_loom;
