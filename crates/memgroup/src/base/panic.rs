//! Panics of user code, which the engine catches.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls user code. If it panics, the panic's payload is forgotten, because dropping it might
/// panic too.
pub(crate) fn caught(call: impl FnOnce()) {
    if cfg!(memgroup_loom) {
        // Models report faults by panics.
        return call();
    }
    if let Err(panic) = catch_unwind(AssertUnwindSafe(call)) {
        std::mem::forget(panic);
    }
}

/// Drops a user's value, and catches a panic as [`caught`] does.
pub(crate) fn drop_caught<T>(value: T) {
    caught(|| drop(value));
}
