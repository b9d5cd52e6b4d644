//! Threads: `std::thread`, or `loom::thread` under `cfg(memgroup_loom)`.
//!
//! The library code of memgroup starts no thread that outlives a call; [`spawn`] is here for tests and models.

use core::time::Duration;

#[cfg(not(memgroup_loom))]
pub use std::thread::{JoinHandle, Thread, current, spawn, yield_now};

#[cfg(memgroup_loom)]
pub use loom::thread::{JoinHandle, Thread, current, spawn, yield_now};

/// Sleeps until somebody unparks the thread, for `most` at most; in a model, where no time passes, until somebody does. It may also
/// return earlier: who calls it looks whether what it waits for is there.
pub fn park_timeout(most: Duration) {
    #[cfg(not(memgroup_loom))]
    std::thread::park_timeout(most);
    #[cfg(memgroup_loom)]
    {
        let _ = most;
        loom::thread::park();
    }
}
