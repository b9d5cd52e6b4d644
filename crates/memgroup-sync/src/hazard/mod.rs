#![doc = include_str!("../../docs/hazard.md")]

mod domain;
mod lease;
#[cfg(all(test, target_os = "linux", not(any(miri, memgroup_loom))))]
mod litmus;
#[cfg(all(test, memgroup_loom))]
mod loom;
mod occupant;
mod place;
mod record;
mod withdrawn;

pub use domain::Domain;
pub use lease::{Lease, Pinned};
pub use occupant::Occupant;
pub use place::Place;
pub use withdrawn::{WaitError, Withdrawn};
