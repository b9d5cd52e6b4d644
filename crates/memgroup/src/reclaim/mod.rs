//! Reclaim: shrinkers, and the walk that calls them. See
//! [`guide::reclaim`](crate::guide::reclaim).

mod backoff;
mod bitmap;
mod control;
pub(crate) mod credit;
mod due;
mod entry;
mod error;
pub(crate) mod group;
#[cfg(all(test, memgroup_loom))]
mod loom;
mod queue;
pub(crate) mod quiesce;
mod registration;
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

pub use control::Reclaimed;
pub(crate) use control::{ScanControl, ScanStats};
pub(crate) use credit::{Purpose, ReclaimCredit};
pub use error::{CallsError, ShrinkerError};
pub(crate) use registration::register;
pub use registration::{GroupShrinker, Registration, Removal, ShrinkerSlot};
pub use report::{AskError, ShrinkerReport};
pub(crate) use rounds::{is_any, reclaim, round};
pub use shrinker::{Ask, Count, Quarantine, Scan, Shrinker, ShrinkerConfig, ShrinkerId};
