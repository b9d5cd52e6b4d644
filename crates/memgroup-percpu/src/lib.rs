#![doc = include_str!("../README.md")]
//!
//! # Order of the modules
//!
//! Each module imports only modules above it.
//!
//! ```text
//!   bits        bits of words
//!   slot        the slot that a thread is on
//!   prefetch    hints to the processor
//!   arena       memory with a unit for each slot
//!   value       types that may live in it
//!   percpu      one object with a copy for each slot
//!   additive    words that move while threads add to them
//!   records     memory of records: blocks, enabled slots, the limbo
//!   record      the handle of one record
//!   marks       the numbers with counters that changed
//! ```

pub mod additive;
mod arena;
mod bits;
mod marks;
#[cfg(all(test, memgroup_loom))]
mod models;
mod mutation;
mod percpu;
mod prefetch;
mod record;
mod records;
mod slot;
mod value;

pub use arena::alloc::Arena;
pub use arena::block::Wait;
pub use arena::config::{ArenaConfig, ArenaStats};
pub use arena::depopulate::Depopulated;
#[cfg(any(test, feature = "inject"))]
pub use arena::os::{Call, inject};
pub use arena::out_of_memory::{ArenaError, OutOfMemory};
pub use arena::page::PageSize;
pub use marks::{Mark, MarkCell, Marks, Piece, Rows, Scratch};
/// Read sections and grace periods. A caller that moves records chooses their form.
pub use memgroup_sync::grace;
#[cfg(memgroup_loom)]
pub use mutation::faults;
pub use percpu::PerCpu;
pub use prefetch::prefetch;
pub use record::{Access, FastAccess, Record};
pub use records::{Fresh, Reclaimed, Records, Relocation, SlotPreparation, Unlinked};
pub use slot::detect::{SlotReport, VARIABLE};
pub use slot::error::SlotError;
pub use slot::number::{VirtualGuard, pin_virtual};
pub use slot::source::{FastSlot, SlotSource};
pub use value::PerCpuValue;
