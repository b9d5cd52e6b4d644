//! The slot that a thread is on: the sources, the choice of one, and its self-test.
//!
//! Each file imports only files before it: error, number, cpus, rseq, source, spec, selftest,
//! detect.

mod cpus;
pub(crate) mod detect;
pub(crate) mod error;
pub(crate) mod number;
mod rseq;
#[cfg(all(target_os = "linux", not(miri), not(memgroup_loom)))]
mod selftest;
pub(crate) mod source;
mod spec;
