//! Lifecycle: groups come and go, their per-CPU memory with them.

pub(crate) mod create;
pub(crate) mod ended;
pub(crate) mod maintenance;
pub(crate) mod memory;
pub(crate) mod owned;
pub(crate) mod pace;
pub(crate) mod records;
pub(crate) mod remove;
