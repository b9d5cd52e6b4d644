#![doc = include_str!("../README.md")]

pub mod additive;
mod arena;
#[cfg(memgroup_loom)]
mod boxed;
mod counters;
mod marks;
#[cfg(all(test, memgroup_loom))]
mod models;
mod mutation;
mod percpu;
#[cfg(not(memgroup_loom))]
mod raw;
mod record;
mod records;
mod slot;
mod value;

/// Read sections and grace periods, which whoever moves records, or has counters maintained, chooses the form of.
pub use memgroup_sync::grace;

pub use arena::block::Wait;
pub use arena::depopulate::Depopulated;
#[cfg(any(test, feature = "inject"))]
pub use arena::os::{Call, inject};
pub use arena::out_of_memory::{ArenaError, OutOfMemory};
pub use arena::page::PageSize;
pub use arena::slot_set::SlotSet;
pub use arena::{Arena, ArenaConfig, ArenaStats};
pub use counters::{CounterId, Counters, CountersMaintained, NoCounter};
pub use marks::{Mark, Marks, Rows, Scratch};
#[cfg(memgroup_loom)]
pub use mutation::faults;
pub use percpu::PerCpu;
pub use record::{Access, Early, Glance, Record, prefetch};
pub use records::{Fresh, Reclaimed, Records, Relocation, Unlinked};
pub use slot::detect::{SlotReport, VARIABLE};
pub use slot::error::SlotError;
pub use slot::number::{VirtualGuard, pin_virtual};
pub use slot::source::SlotSource;
pub use value::PerCpuValue;
