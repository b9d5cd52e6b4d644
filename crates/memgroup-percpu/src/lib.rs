#![doc = include_str!("../README.md")]

pub mod additive;
mod arena;
mod bits;
mod block;
#[cfg(memgroup_loom)]
mod boxed;
#[cfg(test)]
mod check;
mod chunk;
mod chunks;
mod counters;
mod cpus;
mod decay;
mod depopulate;
mod detect;
mod error;
mod evacuate;
mod hints;
mod lists;
#[cfg(all(test, memgroup_loom))]
mod models;
mod mutation;
mod number;
mod os;
mod out_of_memory;
mod owners;
mod page;
mod percpu;
#[cfg(not(memgroup_loom))]
mod raw;
mod record;
mod records;
mod rseq;
#[cfg(not(memgroup_loom))]
mod selftest;
mod shared;
mod slot_set;
mod source;
mod spec;
#[cfg(all(test, not(memgroup_loom)))]
mod tests;
mod value;

/// Read sections and grace periods, which whoever moves records, or has counters maintained, chooses the form of.
pub use memgroup_sync::grace;

pub use arena::{Arena, ArenaConfig, ArenaStats};
pub use block::Wait;
pub use counters::{CounterId, Counters, CountersMaintained, NoCounter};
pub use depopulate::Depopulated;
pub use detect::{SlotReport, VARIABLE};
pub use error::SlotError;
pub use number::{VirtualGuard, pin_virtual};
#[cfg(any(test, feature = "inject"))]
pub use os::{Call, inject};
pub use out_of_memory::{ArenaError, OutOfMemory};
pub use page::PageSize;
pub use percpu::PerCpu;
pub use record::{Access, Early, Glance, Record};
pub use records::{Fresh, Reclaimed, Records, Relocation, Unlinked};
pub use slot_set::SlotSet;
pub use source::SlotSource;
pub use value::PerCpuValue;
