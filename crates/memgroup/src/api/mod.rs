//! Api: the public handles.

pub mod block;
pub(crate) mod bounds;
pub(crate) mod group;
pub(crate) mod hierarchy;
pub(crate) mod peak;
pub mod raw;
pub mod scope;
#[cfg(feature = "serde")]
pub(crate) mod settings;
pub(crate) mod snapshot;
pub(crate) mod statistics;
