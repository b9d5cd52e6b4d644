#![doc = include_str!("../../docs/rstat.md")]

pub(crate) mod builtin;
pub(crate) mod flush;
#[cfg(all(test, memgroup_loom))]
mod loom;
pub(crate) mod moves;
pub(crate) mod registry;
pub(crate) mod settle;
pub(crate) mod side;
mod stat;
mod statistics;
mod store;
pub(crate) mod text;
mod tree_stats;
pub(crate) mod update;
mod updates;

pub use flush::Freshness;
pub use side::Reach;
pub use stat::{RegisterError, Stat, StatKind, Subsystem};
pub use statistics::{Footprint, Statistics};
pub use tree_stats::{GroupStats, TreeStats};

pub(crate) use store::{Entry, Store};

/// The most subsystems of one hierarchy, the three built-in ones included.
pub const SUBSYSTEMS_MAX: usize = 8;
