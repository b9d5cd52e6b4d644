//! Numbers of the built-in subsystems' statistics. How statistics work is in
//! [`guide::statistics`](crate::guide::statistics).

pub(crate) mod copy;
pub(crate) mod flush;
#[cfg(all(test, memgroup_loom))]
mod loom;
pub(crate) mod moves;
pub(crate) mod register;
pub(crate) mod release;
pub(crate) mod stock_stats;
pub(crate) mod update;

pub use crate::state::stats::builtin::{cpu, io, memory};
