// The first definition of a link counts: here items of the crate, on other sites files.
#![doc = "[memgroup]: memgroup\n[`GroupPool`]: GroupPool\n[`Tenant`]: Tenant\n[`Query`]: Query\n[`Tenant::begin`]: Tenant::begin\n[`Query::collect`]: Query::collect\n[`Group::set_share`]: memgroup::Group::set_share\n"]
#![doc = include_str!("../README.md")]
//!
//! # Layers
//!
//! For readers of the source. A module imports only modules of earlier lines:
//!
//! - `consumers`: the figures of each consumer of a pool; `fit`: settings of a plan for a limit.
//! - `pool`: the pool of one query.
//! - `tenant`: tenants and their queries.

#![forbid(unsafe_code)]

mod consumers;
mod fit;
mod pool;
mod tenant;

pub use consumers::ConsumerReport;
pub use pool::GroupPool;
pub use tenant::{Query, Tenant};
