//! Panics of user code, which the engine catches.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls code of the user's. If it panics, that panic is forgotten: its own drop might panic too.
pub(crate) fn caught(call: impl FnOnce()) {
    if cfg!(memgroup_loom) {
        // A model reports faults by panics.
        return call();
    }
    if let Err(panic) = catch_unwind(AssertUnwindSafe(call)) {
        std::mem::forget(panic);
    }
}

/// Drops a value of the user's, as [`caught`] calls.
pub(crate) fn drop_caught<T>(value: T) {
    caught(|| drop(value));
}
