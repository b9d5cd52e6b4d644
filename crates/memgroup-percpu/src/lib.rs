// The first definition of a link counts: here items of the crate, on other sites files.
#![doc = include_str!("links.md")]
#![doc = include_str!("../README.md")]
//!
//! # What the `unsafe` code rests on
//!
//! A safe function must be sound whatever its callers do: with wrong slots and indices, with
//! records and blocks of other arenas, with guards that are forgotten, late, on any thread. Misuse
//! panics, finds nothing, or leaks memory. The `unsafe` code rests on the following. Each `//
//! SAFETY:` names the part of it that it uses.
//!
//! - **All memory is atomics.** Blocks and tables hold `AtomicU64`. So a wrong slot, or a late
//!   addition, is never a data race. The arena itself accesses no memory of a live value: the
//!   system backs pages and takes them back.
//! - **A unit for each slot.** The address of a copy is base + slot x stride + offset. The slot is
//!   compared with the arena's number of slots and must be admitted, the offset is within the
//!   block, and a block lies in one unit.
//! - **One section for one access.** Flags, number of slots, number of words and base of a
//!   [`Record`] are read within one section of [`grace`]. So they are of one owner of its cell, or
//!   zero. The word is lent for no longer than the section.
//! - **A block has one holder**: a [`Fresh`], a record, an [`Unlinked`], or the limbo. They cannot
//!   be cloned, and each knows the [`Records`] that it came from. A record is linked and unlinked
//!   by one thread at a time, and belongs to the same records meanwhile: also where a thread with
//!   a block comes late to a cell that has another owner by then. A block that was linked is free
//!   only after a grace period.
//! - **Chunks are unmapped when nothing is left in them**: no block, and no thread that gives
//!   their pages back.
//! - **The system.** The area of a thread's restartable sequences has the fields that its
//!   registered size covers. The start-up test compares each source of slots with the system's own
//!   answer, and what a source returns is compared with the number of slots in any case.
//!
//! # Order of the modules
//!
//! Each module imports only modules above it.
//!
//! ```text
//!   bits        bits of words
//!   slot        the slot that a thread is on
//!   prefetch    hints to the processor
//!   arena       equal blocks with a copy on each slot
//!   words       one word for each place and slot, which never moves
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
mod prefetch;
mod record;
mod records;
mod slot;
mod words;

pub use arena::alloc::Arena;
pub use arena::config::{ArenaConfig, ArenaStats};
pub use arena::depopulate::Depopulated;
#[cfg(any(test, feature = "inject"))]
pub use arena::os::{Call, inject};
pub use arena::out_of_memory::{ArenaError, OutOfMemory};
pub use arena::page::PageSize;
pub use marks::{Mark, MarkCell, Marks, Piece, Rows, Scratch};
// Without a text of its own: rustdoc would join it with the links at the head of the page.
pub use memgroup_sync::grace;
#[cfg(memgroup_loom)]
pub use mutation::faults;
pub use prefetch::prefetch;
pub use record::{Access, FastAccess, Record};
pub use records::{Fresh, Records, Relocation, Unlinked};
pub use slot::detect::SlotReport;
pub use slot::error::{SlotError, VARIABLE};
pub use slot::number::{VirtualGuard, pin_virtual};
pub use slot::source::{FastSlot, SlotSource};
pub use words::{WordCell, Words, WordsStats};
