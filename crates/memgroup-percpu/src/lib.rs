#![doc = include_str!("../README.md")]

#[cfg(memgroup_loom)]
mod boxed;
mod cpus;
mod detect;
mod error;
mod number;
mod percpu;
#[cfg(not(memgroup_loom))]
mod pool;
#[cfg(not(memgroup_loom))]
mod raw;
mod rseq;
#[cfg(not(memgroup_loom))]
mod selftest;
mod source;
#[cfg(not(memgroup_loom))]
mod spans;
mod spec;
mod value;

pub use detect::{SlotReport, VARIABLE};
pub use error::SlotError;
pub use number::{VirtualGuard, pin_virtual};
pub use percpu::{OutOfMemory, PerCpu};
pub use source::SlotSource;
pub use value::PerCpuValue;
