//! The engine by its public surface, in one program: its tests share the process, as the tenants
//! of a host do. A test that reads a figure of the whole process, or takes something away from it,
//! has a program of its own.
//!
//! To run the tests of one file: `cargo test -p memgroup --test engine share::`.
#![cfg(not(memgroup_loom))]

mod bounds;
mod charges;
mod depth;
mod dry_run;
mod effort;
mod events;
mod future;
#[path = "../gauges/mod.rs"]
mod gauges;
mod groups;
mod high;
mod ledger;
mod moves;
mod oom;
mod parts;
mod peaks;
mod pressure;
mod protect;
mod quotas;
#[path = "../random/mod.rs"]
mod random;
mod requests;
mod rstat;
mod settings;
mod share;
mod shrink;
mod snapshot;
mod stress;
mod wait;
