#![doc = include_str!("../../docs/protect.md")]

pub(crate) mod effective;
mod error;
mod group;
#[cfg(all(test, memgroup_loom))]
mod loom;
mod protected;
mod reserve;
mod spare;
mod used;

pub(crate) use protected::Protected;
pub(crate) use reserve::{LARGEST_RESERVE, left_free, seen_through};
pub(crate) use spare::Sparing;
pub(crate) use used::{Used, clear, usage_changed};

pub use effective::Protection;
pub use error::ProtectionError;
