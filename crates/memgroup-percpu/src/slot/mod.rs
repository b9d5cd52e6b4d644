//! Which slot am I on: the sources, how one is chosen, what it must show before.

mod cpus;
pub(crate) mod detect;
pub(crate) mod error;
pub(crate) mod number;
mod rseq;
#[cfg(not(memgroup_loom))]
mod selftest;
pub(crate) mod source;
mod spec;
