// The first definition of a link counts: here items of the crate, on other sites files.
#![doc = include_str!("links.md")]
#![doc = include_str!("../README.md")]
#![doc = include_str!("../docs/details.md")]
//!
//! # Layers
//!
//! For readers of the source. A module imports only modules of earlier lines:
//!
//! - `consumers`: the figures of each consumer of a pool; `runs`: the queries that run at the same
//!   time, and their turn.
//! - `fit`: settings of a plan for a limit; `views`: views without foreign bytes; `caches`:
//!   DataFusion's caches as shrinkers.
//! - `neighbours`: the running queries, and the one that frees memory; `place`: the group of
//!   allocations, in all tasks of a query.
//! - `patience`: the wait of a growth; `pool`: the pool of one query; `rows`: the rows that it
//!   returns; `spill`: its files; `exec`: its figures in plans.
//! - `tenant`: tenants and their queries.

#![forbid(unsafe_code)]

mod caches;
mod consumers;
mod exec;
mod fit;
mod neighbours;
mod patience;
mod place;
mod pool;
mod rows;
mod runs;
mod spill;
mod tenant;
mod views;

pub use caches::charged_caches;
pub use consumers::ConsumerReport;
pub use fit::fit_config;
pub use place::GroupTracer;
pub use pool::GroupPool;
pub use rows::Rows;
pub use tenant::{EndedQuery, Query, RowStream, Tenant};
pub use views::compact_views;
