//! Data: the tenants' TPC-H databases, and the statements that run on them.

pub(crate) mod files;
mod keys;
mod tpch;
pub(crate) mod workload;
