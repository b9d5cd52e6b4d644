//! The system call `membarrier`: a full barrier in every running thread of the process, at one thread's expense.
//!
//! - I1. When [`run`] returns `Ok`, every thread of the process has executed a full barrier between the call and the
//!   return, or did not run and executes one before it runs again.

#![allow(unsafe_code)]

/// A command that makes the barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(any(memgroup_loom, miri, not(target_os = "linux")), allow(dead_code))]
pub(super) enum Command {
    /// Waits until every processor went through the scheduler: milliseconds, no interrupt.
    Global,
    /// Interrupts the processors that run a thread of this process: microseconds, of theirs too.
    Private,
}

impl Command {
    /// The kernel's name of it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Global => "MEMBARRIER_CMD_GLOBAL",
            Self::Private => "MEMBARRIER_CMD_PRIVATE_EXPEDITED",
        }
    }
}

#[cfg(all(target_os = "linux", not(any(miri, memgroup_loom))))]
mod system {
    use super::Command;
    use crate::grace::report::GraceError;
    use core::ffi::{c_int, c_long};
    use std::io;

    impl Command {
        fn number(self) -> c_int {
            match self {
                Self::Global => libc::MEMBARRIER_CMD_GLOBAL,
                Self::Private => libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED,
            }
        }
    }

    fn call(command: c_int) -> io::Result<c_long> {
        // SAFETY: reads and writes no memory of ours; flags and cpu are 0.
        let answer = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
    }

    /// `command`, if the kernel says that it has it, ready to [`run`].
    ///
    /// A kernel booted with `nohz_full` leaves the global command out: a processor without ticks may not go through the
    /// scheduler for a long time.
    pub(in crate::grace) fn offered(command: Command) -> Result<Command, GraceError> {
        let errno = |error: io::Error| error.raw_os_error().unwrap_or(0);
        let offered =
            call(libc::MEMBARRIER_CMD_QUERY).map_err(|error| GraceError::Query { errno: errno(error) })?;
        if offered & c_long::from(command.number()) == 0 {
            return Err(GraceError::NotOffered { command: command.name() });
        }
        if command == Command::Private {
            // The call costs microseconds and is tried, so that a filter that lets only the query pass is found now.
            let tried =
                call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED).and_then(|_| call(command.number()));
            tried.map_err(|error| GraceError::Refused { command: command.name(), errno: errno(error) })?;
        }
        Ok(command)
    }

    /// Makes the barrier (I1).
    pub(in crate::grace) fn run(command: Command) -> io::Result<()> {
        match call(command.number()) {
            Err(error) if command == Command::Private && error.raw_os_error() == Some(libc::EPERM) => {
                // Not registered any more.
                call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)?;
                call(command.number()).map(drop)
            }
            answer => answer.map(drop),
        }
    }
}
#[cfg(all(target_os = "linux", not(any(miri, memgroup_loom))))]
pub(super) use system::{offered, run};

/// There is no such call here, so nothing was ever entered by a store.
#[cfg(not(all(target_os = "linux", not(any(miri, memgroup_loom)))))]
pub(super) fn run(_: Command) -> Result<(), ()> {
    Err(())
}
