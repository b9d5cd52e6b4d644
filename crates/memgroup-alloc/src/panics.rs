//! Panics: what the panic hook allocates is charged to no group.
//!
//! The first panic with `RUST_BACKTRACE=1` has the standard library load the program's debug
//! symbols, and keep them for the process: some 30 MB, which would stay charged to the tenant whose
//! panic it was.
//!
//! - I1. Only the hook is uncounted. The message of a panic is formatted before the hook is called,
//!   and values are dropped after it, so both are charged as always. Else a tenant's code could
//!   allocate there, and be charged for nothing.

use std::panic;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::mode::Uncounted;

/// Charges to no group what the panic hook allocates that is in force now.
///
/// The first [`Hierarchy::new`](memgroup::Hierarchy::new) of the process does this for the hook
/// that it finds, so a program calls it only if it sets a hook of its own later. The hook prints
/// the message, and with `RUST_BACKTRACE=1` it loads the program's debug symbols, which the
/// standard library then keeps: some 30 MB, for which no tenant should pay. What a panicking thread
/// allocates otherwise is charged as always: for the message, before the hook, and in destructors,
/// after it.
///
/// # Panics
/// On a thread that panics, as [`std::panic::set_hook`] does.
///
/// ```
/// use std::panic;
///
/// panic::set_hook(Box::new(|info| eprintln!("{info}\n{}", std::backtrace::Backtrace::capture())));
/// memgroup_alloc::uncounted_panic_hook();
/// ```
pub fn uncounted_panic_hook() {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let _token = Uncounted::begin();
        hook(info);
    }));
}

/// The same, once in the process. It is left to a later call where the thread panics.
pub(crate) fn wrap_once() {
    static IS_WRAPPED: AtomicBool = AtomicBool::new(false);
    // ORDERING: Relaxed; only one thread wraps the hook, and the hook has a lock of its own.
    if !std::thread::panicking() && !IS_WRAPPED.swap(true, Ordering::Relaxed) {
        uncounted_panic_hook();
    }
}
