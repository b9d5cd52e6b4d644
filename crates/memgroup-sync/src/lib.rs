//! Atomics, locks, threads, grace periods and hazard records of memgroup: the standard library's,
//! or [loom]'s for model checking.
//!
//! Every crate of memgroup that shares memory between threads takes its primitives from here, so
//! that one and the same source ships and is explored by the model checker.
//!
//! | here | in a normal build | with `--cfg memgroup_loom` |
//! |---|---|---|
//! | [`atomic`] | `core::sync::atomic` | `loom::sync::atomic` |
//! | [`AtomicRef`] | an atomic `Option<&'static T>` | the same of loom's |
//! | [`Mutex`], [`MutexGuard`] | `std::sync::Mutex` without poisoning | `loom::sync::Mutex` |
//! | [`depth`] | whether a thread is within the engine | never |
//! | [`thread`] | `std::thread` | `loom::thread` |
//! | [`spin::Wait`] | spins a little, then yields, then sleeps | yields at once |
//! | [`thread_local!`] | `std::thread_local!`, const-initialised | `loom::thread_local!` |
//! | [`global!`] | a plain `static` | `loom::lazy_static!`, one value for each execution |
//! | [`CachePadded`] | `crossbeam_utils`' | the same |
//! | [`interleave::point`] | nothing, or a yield with `--cfg memgroup_yields` | nothing |
//! | [`keep`] | leaks | keeps for an execution |
//! | [`Chunk`], [`ChunkPool`] | cells with addresses that stay good, and pages that go back | cells for an execution |
//! | [`trim_heap`] | asks glibc for its free memory | the same |
//! | [`grace`] | read sections entered by a store or a swap | by a swap |
//! | [`hazard`] | places pinned by a store or a swap | by a swap |
//! | `model`, `loom` | absent | `loom::model`, the crate `loom` |
//!
//! `Arc`, `OnceLock` and `Instant` stay the standard library's in both builds. loom does not see
//! synchronisation through them, so a model must not depend on it.
//!
//! # Order of the modules
//!
//! [`atomic`], [`thread`], [`depth`], locks, [`spin`], [`ticks`], [`interleave`], [`keep`],
//! [`Erasable`], fixed values, owned and plain atomic pointers; then [`grace`]; then [`hazard`]
//! and [`Chunk`], which use it. Each imports only modules before it: `xtask/layers.txt` has the
//! order.
//!
//! # What the `unsafe` code rests on
//!
//! A safe function must be sound whatever its callers do: in any order, on any thread, with guards
//! that are forgotten, and with closures that panic. The `unsafe` code rests on the following.
//! Each `// SAFETY:` names the part of it that it uses.
//!
//! - **Section and grace period.** A section is on its thread until it is dropped (`Section` and
//!   `BriefSection` are not `Send`), and a grace period that began after an unlinking ends only
//!   after each section that may have found the value. The two forms of a barrier, their fences,
//!   and the loss of `membarrier` have models and litmus tests ([`grace`]). If a section is
//!   forgotten, no grace period ends any more: memory stays, and nothing is freed early.
//! - **Withdrawal by one exchange.** A value leaves a `Published` or a hazard `Place` by one
//!   atomic swap, so it has one owner afterwards. Only that owner frees it, after a grace period,
//!   or after the last pin. A `grace::Withdrawn` that is dropped otherwise leaks. A
//!   `hazard::Withdrawn` that is dropped leaves its value to the last thread that uses it; one
//!   that is forgotten leaks it, and its place stays occupied.
//! - **Cells that stay.** The address space of a [`Chunk`] is never unmapped, and holds values of
//!   one type for ever. So `&'static` references to its cells stay valid, also for a thread that
//!   is late. [`Erasable`], the one trait that is `unsafe` to implement, promises that a value may
//!   turn to zero under its users. Within one section, a cell has the values of one owner or
//!   zeros.
//! - **References that are `'static`.** [`AtomicRef`], [`FixedRef`] and [`FixedSlice`] take only
//!   `&'static` values, and write an address and its length as one word. [`keep`] leaks its box.
//! - **The system.** `mmap` returns zero pages, `MADV_DONTNEED` makes them zero again, and
//!   `membarrier` does what its manual says.
//!
//! # Two differences for a caller
//!
//! - Constructors of loom's types are not `const` and work only inside a model. A static is
//!   therefore written with [`global!`] and a thread-local with [`thread_local!`], which read the
//!   same in both builds.
//! - loom checks `fence(SeqCst)` but treats a SeqCst *access* as AcqRel. A total order is written
//!   as a fence on both sides, or drawn from a chain of read-modify-writes on one word.
//!
//! # Running models
//!
//! A model is a test named `loom...` behind `#[cfg(memgroup_loom)]`:
//!
//! ```text
//! RUSTFLAGS="--cfg memgroup_loom" cargo test --release -p <crate> loom
//! ```
//!
//! Tests that are no models are compiled out under this cfg: loom's types panic outside a model.
//! `LOOM_MAX_PREEMPTIONS=3` bounds a model that would otherwise not end, `LOOM_LOG=trace` prints
//! the failing execution.
//!
//! [loom]: https://docs.rs/loom

pub mod atomic;
mod atomic_box;
mod atomic_ref;
#[cfg(not(memgroup_loom))]
mod chunk;
#[cfg(memgroup_loom)]
#[path = "chunk/model.rs"]
mod chunk;
pub mod depth;
mod erasable;
mod fixed;
pub mod grace;
pub mod hazard;
mod heap;
pub mod interleave;
mod keep;
mod macros;
mod mutation;
mod mutex;
pub mod spin;
pub mod thread;
pub mod ticks;

pub use atomic_ref::AtomicRef;
#[cfg(all(any(test, feature = "inject"), not(memgroup_loom)))]
pub use chunk::inject;
pub use chunk::{ADDRESS_BITS, Chunk, ChunkPool, RetiredChunk};
pub use crossbeam_utils::CachePadded;
pub use erasable::Erasable;
pub use fixed::{FixedRef, FixedSlice, FixedU32, FixedU64};
pub use heap::trim_heap;
#[cfg(memgroup_loom)]
pub use keep::explore;
pub use keep::keep;
#[cfg(memgroup_loom)]
pub use loom::{self, model};
pub use mutex::{Mutex, MutexGuard};
