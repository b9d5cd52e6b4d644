//! Lifecycle: groups come and go, their per-CPU memory with them.

pub(crate) mod create;
pub(crate) mod maintenance;
pub(crate) mod memory;
mod pace;
mod records;
pub(crate) mod remove;
pub(crate) mod residence;
