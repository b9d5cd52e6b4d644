// The first definition of a link counts: here items of the crate, on other sites files.
#![doc = "[guarantees]: memgroup::guide::guarantees\n[memgroup]: memgroup\n[scope]: memgroup::scope\n"]
#![doc = "[`Checked`]: Checked\n[`Uncounted`]: Uncounted\n[`checkpoint`]: checkpoint\n"]
#![doc = "[`checkpoint_until`]: checkpoint_until\n[`fallible`]: fallible\n[`uncounted`]: uncounted\n"]
#![doc = "[`set_min`]: memgroup::Group::set_min\n[`uncounted_panic_hook`]: uncounted_panic_hook\n"]
#![doc = include_str!("../README.md")]
//!
//! # Layers
//!
//! For readers of the source. A module imports only modules of earlier lines, or earlier in its own
//! line:
//!
//! - `mutation`, `slots`, `records`, `barrier`: the held back bytes of a thread, and of all
//!   threads.
//! - `mode`, `thread`: the modes of a thread, its record, and its end.
//! - `block`, `allocator`: the layout of a block, and `GlobalAlloc`.
//! - `checked`, `deserializer`: safe points.
//! - `unwind`: refused blocks that unwind.
//!
//! # What the unsafe code rests on
//!
//! Only `records`, `barrier`, `thread`, `block` and `allocator` have unsafe code. It rests on these
//! facts, whatever safe functions are called, in whichever order, and whichever tokens and scopes
//! are forgotten:
//!
//! - *Blocks.* A program's pointer is behind a header that this crate wrote, in a block of the
//!   inner allocator whose layout follows from the program's (`block` I1, I2). The caller of
//!   `GlobalAlloc` promises the layout. No safe function gets, makes or returns such a pointer;
//!   [`Allocator::inner`] gives the inner allocator itself, whose methods are unsafe.
//! - *Owners.* A header and a slot store an owner as its address. An owner is a reference to a node
//!   that is never unmapped, so a stale one can be the wrong group, but never invalid memory. Safe
//!   code cannot make an owner from a number.
//! - *Records.* A record is never freed, so a thread's pointer to it stays valid, even after the
//!   thread's end and in the child of a fork. All of its fields are atomics, so no order of calls
//!   is a data race. The protocol of its words (`records` I3) prevents bytes from being lost or
//!   counted twice. Memory safety does not depend on it.
//! - *Unwinding.* The engine panics if more is uncharged than was charged, which safe code can
//!   cause by wrong numbers in other calls. The functions that call it are `extern "C"`, so such a
//!   panic ends the process and does not unwind through `GlobalAlloc`.

#![cfg_attr(feature = "nightly", feature(alloc_error_hook))]

#[cfg(not(memgroup_loom))]
mod allocator;
#[cfg(not(memgroup_loom))]
mod barrier;
#[cfg(not(memgroup_loom))]
mod block;
#[cfg(not(memgroup_loom))]
mod checked;
#[cfg(all(feature = "serde", not(memgroup_loom)))]
mod deserializer;
#[cfg(all(test, memgroup_loom))]
mod loom;
#[cfg(not(memgroup_loom))]
mod mode;
mod mutation;
#[cfg_attr(memgroup_loom, allow(dead_code))]
mod records;
#[cfg_attr(memgroup_loom, allow(dead_code))]
mod slots;
#[cfg(not(memgroup_loom))]
mod thread;
#[cfg(all(feature = "nightly", not(memgroup_loom)))]
mod unwind;

#[cfg(not(memgroup_loom))]
pub use allocator::Allocator;
#[cfg(not(memgroup_loom))]
pub use checked::{Checked, OverLimit, checkpoint, checkpoint_until};
#[cfg(not(memgroup_loom))]
pub use mode::{Uncounted, fallible, is_uncounted, uncounted, uncounted_panic_hook};
#[cfg(all(feature = "nightly", not(memgroup_loom)))]
pub use unwind::unwind_on_refusal;
