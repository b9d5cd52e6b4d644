#![doc = include_str!("../../docs/snapshot.md")]

mod files;
#[cfg(feature = "serde")]
mod json;
mod limits;
mod listing;
mod model;
mod tables;
mod write;

pub use files::FILES;
pub use limits::Limits;
pub use model::{Dead, GroupSnapshot, Snapshot};
pub use tables::SubsystemSnapshot;
pub use write::FileError;
