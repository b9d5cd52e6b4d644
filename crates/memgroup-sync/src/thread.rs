//! Threads: `std::thread`, or `loom::thread` under `cfg(memgroup_loom)`.
//!
//! The library code of memgroup starts no thread that outlives a call; [`spawn`] is here for tests and models.

#[cfg(not(memgroup_loom))]
pub use std::thread::{JoinHandle, spawn, yield_now};

#[cfg(memgroup_loom)]
pub use loom::thread::{JoinHandle, spawn, yield_now};
