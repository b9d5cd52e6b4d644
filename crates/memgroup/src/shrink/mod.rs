#![doc = include_str!("../../docs/shrink.md")]

mod call;
mod cell;
mod entry;
mod error;
pub(crate) mod keep;
#[cfg(all(test, memgroup_loom))]
mod loom;
mod queue;
pub(crate) mod quiesce;
pub(crate) mod reclaim;
mod registry;
pub(crate) mod report;
mod room;
pub(crate) mod roster;
mod seat;
mod share;
mod shrinker;
#[cfg(all(test, not(memgroup_loom)))]
mod tests;
mod visit;
mod walk;

pub(crate) use registry::{Registry, register};
pub(crate) use seat::leave;

pub use error::{CallsError, RemoveError, ShrinkerError};
pub use reclaim::Reclaimed;
pub use registry::{GroupShrinker, Registration, Removal, Seat};
pub use report::{AskError, ShrinkerId, ShrinkerReport};
pub use shrinker::{Ask, Count, Quarantine, Scan, Shrinker, ShrinkerConfig};
