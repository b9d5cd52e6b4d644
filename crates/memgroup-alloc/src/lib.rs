// The first definition of a link counts: here items of the crate, on other sites files.
#![doc = "[guarantees]: memgroup::guide::guarantees\n[memgroup]: memgroup\n[scope]: memgroup::scope\n"]
#![doc = "[`Checked`]: Checked\n[`Uncounted`]: Uncounted\n[`checkpoint`]: checkpoint\n"]
#![doc = "[`checkpoint_until`]: checkpoint_until\n[`fallible`]: fallible\n[`uncounted`]: uncounted\n"]
#![doc = "[`set_min`]: memgroup::Group::set_min\n"]
#![doc = include_str!("../README.md")]
//!
//! # Layers
//!
//! For readers of the source. A module imports only modules of earlier lines, or earlier in its own line:
//!
//! - `mutation`, `slots`, `records`, `barrier`: the held back bytes of a thread, and of all threads.
//! - `mode`, `thread`: the modes of a thread, its record, and its end.
//! - `block`, `allocator`: the layout of a block, and `GlobalAlloc`.
//! - `checked`, `deserializer`: safe points.
//! - `unwind`: refused blocks that unwind.

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
pub use mode::{Uncounted, fallible, is_uncounted, uncounted};
#[cfg(all(feature = "nightly", not(memgroup_loom)))]
pub use unwind::unwind_on_refusal;
