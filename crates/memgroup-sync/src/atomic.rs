//! Atomic words and fences: `core::sync::atomic`, or `loom::sync::atomic` under
//! `cfg(memgroup_loom)`.
//!
//! Only the widths that memgroup uses are here. Under loom `new` is not `const`; see
//! [`global!`](crate::global).

#[cfg(not(memgroup_loom))]
pub use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

#[cfg(memgroup_loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
