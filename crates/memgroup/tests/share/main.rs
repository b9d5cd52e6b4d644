//! Fair shares of a parent's room: the rule, the child that gives, and the work that is stopped.
#![cfg(not(memgroup_loom))]

mod beside;
#[path = "../protect/cache.rs"]
#[allow(dead_code, reason = "the tests of protection use the rest")]
mod cache;
mod giving;
mod nested;
mod own;
mod rule;
mod victims;
