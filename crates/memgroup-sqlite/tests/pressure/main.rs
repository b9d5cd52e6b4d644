//! Tenants that compete for memory: kills, throttles, and retries until a deadline. These tests
//! share one hierarchy.

mod kill;
mod kill_ends;
mod retry;
#[path = "../support/mod.rs"]
mod support;
mod throttle;
