//! Reclaim: shrinkers, and the walk that calls them. See [`guide::reclaim`](crate::guide::reclaim).

mod backoff;
mod bitmap;
pub(crate) mod credit;
mod due;
mod entry;
mod error;
pub(crate) mod group;
#[cfg(all(test, memgroup_loom))]
mod loom;
mod queue;
pub(crate) mod quiesce;
mod registry;
mod release;
pub(crate) mod report;
mod rounds;
mod scan;
mod shrinker;
mod slot;
#[cfg(all(test, not(memgroup_loom)))]
pub(crate) mod tests;
mod walk;

pub(crate) use credit::{Purpose, ReclaimCredit};
pub use error::{CallsError, ShrinkerError};
pub(crate) use registry::register;
pub use registry::{GroupShrinker, Registration, Removal, ShrinkerSlot};
pub use report::{AskError, ShrinkerId, ShrinkerReport};
pub use rounds::Reclaimed;
pub(crate) use rounds::{ScanControl, ScanStats, is_any, reclaim, round};
pub use shrinker::{Ask, Count, Quarantine, Scan, Shrinker, ShrinkerConfig};
