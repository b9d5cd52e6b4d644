// The first definition of a link counts: here items of the crate, on other sites files.
#![doc = "[memgroup]: memgroup\n[`GroupPool`]: GroupPool\n[`Tenant`]: Tenant\n[`Query`]: Query\n"]
#![doc = "[`Tenant::begin`]: Tenant::begin\n[`Tenant::begin_when_room`]: Tenant::begin_when_room\n"]
#![doc = "[`Query::collect`]: Query::collect\n[`Query::end`]: Query::end\n[`EndedQuery`]: EndedQuery\n"]
#![doc = "[`GroupPool::uncharged`]: GroupPool::uncharged\n[`GroupTracer`]: GroupTracer\n[`charged_caches`]: charged_caches\n[`compact_views`]: compact_views\n[memgroup-alloc]: memgroup_alloc\n"]
#![doc = "[patience]: GroupPool::patience\n[reclaimer]: memgroup::Hierarchy::reclaimer\n"]
#![doc = "[set_min]: memgroup::Group::set_min\n[`fit_config`]: fit_config\n"]
#![doc = "[set_low]: memgroup::Group::set_low\n[set_share]: memgroup::Group::set_share\n"]
#![doc = include_str!("../README.md")]
//!
//! # Layers
//!
//! For readers of the source. A module imports only modules of earlier lines:
//!
//! - `consumers`: the figures of each consumer of a pool; `runs`: the queries that run beside each other, and their turn.
//! - `fit`: settings of a plan for a limit; `node`: methods of nodes; `views`: views without foreign bytes; `caches`: DataFusion's caches as shrinkers.
//! - `neighbours`: the queries that run now, and the one that gives memory; `place`: the group of allocations, in all tasks of a query.
//! - `patience`: the wait of a growth; `pool`: the pool of one query; `spill`: its files; `exec`: its figures in plans.
//! - `tenant`: tenants and their queries.

#![forbid(unsafe_code)]

mod caches;
mod consumers;
mod exec;
mod fit;
mod neighbours;
mod node;
mod patience;
mod place;
mod pool;
mod runs;
mod spill;
mod tenant;
mod views;

pub use caches::charged_caches;
pub use consumers::ConsumerReport;
pub use fit::fit_config;
pub use place::GroupTracer;
pub use pool::GroupPool;
pub use tenant::{EndedQuery, Query, Tenant};
pub use views::compact_views;
