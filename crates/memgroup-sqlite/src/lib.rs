// The first definition of a link counts: here the page below or the crate, on other sites the file.
#![doc = include_str!("links.md")]
#![doc = include_str!("../README.md")]
#![doc = include_str!("../docs/details.md")]
//!
//! # Safety
//!
//! No sequence of calls of safe functions, on any threads, makes this crate corrupt memory. That
//! rests on:
//!
//! - SQLite's promises: it resizes and frees each block only through the table that made it, and
//!   frees it once. It calls the methods of one page cache from one thread at a time, and uses an
//!   open file from one thread at a time.
//! - The installation: the tables are replaced before SQLite is initialised, while no other thread
//!   exists ([`install`]) or no other thread uses SQLite ([`install_unchecked`]). So each block
//!   that SQLite frees through this crate has this crate's header.
//! - The engine: a group with charged bytes keeps its number, so the owner in a header is the group
//!   that was charged.
//! - Lists of connections: another thread interrupts a connection under the list's lock, and a
//!   connection leaves the list before it is closed. A connection that was forgotten
//!   ([`std::mem::forget`]) is never closed, so its entry stays valid.
//! - Borrowing: a closure gets `&Connection` for any lifetime. It can neither close the connection
//!   nor keep a statement of it.
//! - No panic crosses C: methods that SQLite calls return an error, or abort the process where an
//!   invariant of the engine is broken.
//!
//! `unsafe` code of the application must observe the following, in addition to rusqlite's own
//! requirements. After the installation it must leave `SQLITE_CONFIG_MALLOC` and
//! `SQLITE_CONFIG_PCACHE2` as they are, and must call `sqlite3_shutdown` only while no connection
//! is open. A VFS that was the default at the installation must stay in memory. A child of `fork`
//! must use SQLite as SQLite allows, which excludes connections of the parent.
//!
//! # Layers
//!
//! For readers of the source. A module imports only modules of earlier lines, or earlier in its own
//! line:
//!
//! - `mutation`, `uri`, `threads`: deliberate faults for the models; parameters of database names;
//!   the proof that a process has one thread.
//! - `account`, `allocation_error`, `block`: the group that pays, failed allocations, the layout of
//!   a block and bytes freed by a call.
//! - `kill_target`: connections that can be stopped.
//! - `alloc`: SQLite's allocator.
//! - `pcache`: SQLite's page cache, and its shrinkers.
//! - `vfs`: reads, writes and syncs.
//! - `install`: puts the three under SQLite.
//! - `error`, `rollback`, `gauges`, `kill`: parts of a connection.
//! - `tenant`, `run`: the connection.

mod account;
mod alloc;
mod allocation_error;
mod block;
mod error;
mod gauges;
mod install;
mod kill;
mod kill_target;
mod mutation;
mod pcache;
mod rollback;
mod run;
mod tenant;
mod threads;
mod uri;
mod vfs;

pub use rusqlite;

pub use allocation_error::AllocationError;
pub use error::{Killed, OutOfMemory, TenantError};
pub use gauges::MemoryKinds;
pub use install::{InstallError, Installed, install, install_unchecked, install_with, installed};
pub use tenant::{TenantConnection, Throttling};

/// The programs on the project's first page compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct FirstPage;
