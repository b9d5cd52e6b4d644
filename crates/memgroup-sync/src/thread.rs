//! Threads: `std::thread`, or `loom::thread` under `cfg(memgroup_loom)`.
//!
//! The library code of memgroup starts no thread that outlives a call; [`spawn`] is here for tests
//! and models.

use core::time::Duration;
#[cfg(not(memgroup_loom))]
pub use std::thread::{JoinHandle, Thread, current, spawn, yield_now};

#[cfg(memgroup_loom)]
pub use loom::thread::{JoinHandle, Thread, current, spawn, yield_now};

/// Sleeps until another thread unparks this one, for at most `most`; in a model, where no time
/// passes, without a bound. It may also return earlier: the caller checks its condition again.
pub fn park_timeout(most: Duration) {
    #[cfg(not(memgroup_loom))]
    std::thread::park_timeout(most);
    #[cfg(memgroup_loom)]
    {
        let _ = most;
        loom::thread::park();
    }
}
