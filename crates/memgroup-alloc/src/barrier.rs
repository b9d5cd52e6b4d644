//! Barrier: one on all processors, at the expense of the thread that makes it (`membarrier`).
//!
//! - I1. When [`make`] returns, each thread of the process has executed a full barrier since the call, or did not run and executes one before it runs
//!   again. If the system stops offering it, the process ends: threads would rely on it in vain.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU32, Ordering};

const UNKNOWN: u32 = 0;
const OFFERED: u32 = 1;
const ABSENT: u32 = 2;

/// Whether the system has the barrier. Registered with the kernel at the first question.
static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);

#[cfg(all(target_os = "linux", not(miri)))]
fn call(command: libc::c_int) -> bool {
    // SAFETY: reads and writes no memory of ours; flags and processor are 0.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Registers the process; whether the barrier works.
fn register() -> bool {
    #[cfg(all(target_os = "linux", not(miri)))]
    return call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
        && call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    #[cfg(not(all(target_os = "linux", not(miri))))]
    false
}

/// Whether threads may rely on [`make`].
pub(crate) fn is_offered() -> bool {
    // ORDERING: Relaxed, all; an answer by itself, the same for all threads that ask.
    if STATE.load(Ordering::Relaxed) == UNKNOWN {
        let state = if register() { OFFERED } else { ABSENT };
        // ORDERING: as above.
        _ = STATE.compare_exchange(UNKNOWN, state, Ordering::Relaxed, Ordering::Relaxed);
    }
    // ORDERING: as above.
    STATE.load(Ordering::Relaxed) == OFFERED
}

/// Makes the barrier (I1), if threads rely on it.
pub(crate) fn make() {
    #[cfg(all(target_os = "linux", not(miri)))]
    // A fork loses the registration.
    if is_offered() && !call(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) && !register() {
        std::process::abort();
    }
}
