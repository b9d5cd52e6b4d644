// The first definition of a link counts: here the page below or the crate, on other sites the file.
#![doc = "[Details]: #details\n[memgroup]: memgroup\n\n"]
#![doc = include_str!("../README.md")]
#![doc = include_str!("../docs/details.md")]
//!
//! # Layers
//!
//! For readers of the source. A module imports only modules of earlier lines, or earlier in its own line:
//!
//! - `mutation`, `uri`: deliberate faults for the models; parameters of database names.
//! - `account`, `allocation_error`, `block`, `freed`: the group that pays, failed allocations, the layout of a block, bytes freed by a call.
//! - `kill_target`: connections that can be stopped.
//! - `alloc`: SQLite's allocator.
//! - `pcache`: SQLite's page cache, and its shrinkers.
//! - `vfs`: reads, writes and syncs.
//! - `install`: puts the three under SQLite.
//! - `error`, `rollback`, `gauges`, `kill`: parts of a connection.
//! - `tenant`, `throttle`, `run`: the connection.

mod account;
mod alloc;
mod allocation_error;
mod block;
mod error;
mod freed;
mod gauges;
mod install;
mod kill;
mod kill_target;
mod mutation;
mod pcache;
mod rollback;
mod run;
mod tenant;
mod throttle;
mod uri;
mod vfs;

pub use rusqlite;

pub use allocation_error::AllocationError;
pub use error::{Killed, OutOfMemory, TenantError};
pub use gauges::MemoryKinds;
pub use install::{InstallError, Installed, install, install_with, installed};
pub use tenant::{TenantConnection, Throttling};

/// The programs on the project's first page compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct FirstPage;
