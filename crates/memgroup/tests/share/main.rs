//! Fair shares of a parent's room: what a child may charge, which one gives, which one is stopped, and which one is refused.
#![cfg(not(memgroup_loom))]

#[path = "../protect/cache.rs"]
#[allow(dead_code, reason = "the tests of protection use the rest")]
mod cache;
mod giving;
mod rule;
mod victims;
