//! Panics of user code, which the engine catches.

use std::any::Any;
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

/// The text that a panic was given.
pub(crate) fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}
