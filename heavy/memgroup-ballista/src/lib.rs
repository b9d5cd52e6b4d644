// The first definition of a link counts: here items of the crate, on other sites files.
#![doc = "[memgroup]: memgroup\n[memgroup-datafusion]: memgroup_datafusion\n[`TreeSpec`]: memgroup::TreeSpec\n[`TenantOptions`]: TenantOptions\n[`Tenants`]: Tenants\n[`Tenants::with_default`]: Tenants::with_default\n[`tenant_executor`]: tenant_executor\n[compact_views]: memgroup_datafusion::compact_views\n[`tenant_scheduler`]: tenant_scheduler\n[`ClusterUsage`]: ClusterUsage\n[`ClusterUsage::collect`]: ClusterUsage::collect\n"]
#![doc = include_str!("../README.md")]
//!
//! # Layers
//!
//! For readers of the source. A module imports only modules of earlier lines, or earlier in its own
//! line:
//!
//! - `options`, `error`: the tenant in the configuration; errors.
//! - `tenants`: the pool of one session; the groups and runtimes of an executor.
//! - `fit`, `connections`: tasks that fit their memory; connections to other executors.
//! - `flight`, `cluster`: figures of an executor and how they are sent, and figures of all
//!   executors.
//! - `executor`: the settings of Ballista's processes.

#![forbid(unsafe_code)]

mod cluster;
mod connections;
mod error;
mod executor;
mod fit;
mod flight;
mod options;
mod tenants;

pub use cluster::{Answer, ClusterUsage, Executor, ask};
pub use error::TenantError;
pub use executor::{tenant_executor, tenant_scheduler};
pub use flight::{ExecutorUsage, TenantUsage};
pub use options::{TENANT_KEY, TenantOptions, with_tenant_options};
pub use tenants::{SessionPool, TENANTS, Tenants, read_tree};
