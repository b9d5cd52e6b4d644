//! Protection: `min` and `low`. See [`guide::protect`](crate::guide::protect).

pub(crate) mod effective;
pub(crate) mod error;
#[cfg(all(test, memgroup_loom))]
mod loom;
mod reserve;
mod spare;
pub(crate) mod used;

pub use effective::Protection;
pub use error::ProtectionError;
pub(crate) use reserve::{left_free, seen_through};
pub(crate) use spare::Sparing;
pub(crate) use used::{is_recorded, usage_fell, usage_rose, usage_taken_back};
