//! Tenants' connections under limits: charges, errors, transactions, and figures. One process has
//! one SQLite, so these tests share one hierarchy. Each creates groups of its own.

mod attribution;
mod blocks;
mod denial;
mod exhaustion;
mod gauges;
mod io;
mod io_oracle;
mod limits;
#[path = "../support/mod.rs"]
mod support;
mod transactions;
