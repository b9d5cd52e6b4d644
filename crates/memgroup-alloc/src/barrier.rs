//! Barrier: a memory barrier on all processors, paid for by the thread that makes it
//! (`membarrier`).
//!
//! - I1. When [`make`] returns `true`, each thread of the process has executed a full barrier since
//!   the call, or did not run and executes one before it runs again.
//! - I2. Once [`make`] has returned `false`, for example because a sandbox that was set up later
//!   forbids the call, no later call returns `true`. Records are then marked, because nothing can
//!   stop their stores (`records` E1).

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

const UNKNOWN: u32 = 0;
const OFFERED: u32 = 1;
const ABSENT: u32 = 2;
const LOST: u32 = 3;

/// Whether the system has the barrier. The process is registered with the kernel at the first
/// query.
static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);

#[cfg(all(target_os = "linux", not(miri)))]
fn call(command: libc::c_int) -> bool {
    // SAFETY: reads and writes no memory of ours; flags and processor are 0.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers the process, and makes the barrier. Returns whether that works.
fn register_and_make() -> bool {
    #[cfg(all(target_os = "linux", not(miri)))]
    return call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
        && call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    #[cfg(not(all(target_os = "linux", not(miri))))]
    false
}

/// Returns whether threads may rely on [`make`].
pub(crate) fn is_offered() -> bool {
    // ORDERING: Relaxed, here and in `make`, because the answer publishes nothing else. A thread
    // that reads an outdated answer makes the call, and gets the current one.
    if STATE.load(Ordering::Relaxed) == UNKNOWN {
        let state = if register_and_make() { OFFERED } else { ABSENT };
        _ = STATE.compare_exchange(UNKNOWN, state, Ordering::Relaxed, Ordering::Relaxed);
    }
    STATE.load(Ordering::Relaxed) == OFFERED
}

/// Makes the barrier (I1). Returns `false` if there is none, or no longer one.
pub(crate) fn make() -> bool {
    if !is_offered() {
        return false;
    }
    #[cfg(all(target_os = "linux", not(miri)))]
    // A fork loses the registration.
    let is_made = call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) || register_and_make();
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let is_made = false;
    if !is_made {
        // ORDERING: as in `is_offered`.
        STATE.store(LOST, Ordering::Relaxed);
    }
    is_made
}
