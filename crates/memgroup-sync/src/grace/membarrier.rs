//! The system call `membarrier`: a full barrier in every running thread of the process, at one
//! thread's expense.
//!
//! - I1. When [`run`] returns `Ok`, every thread of the process has executed a full barrier
//!   between the call and the return, or did not run and executes one before it runs again.

#![allow(unsafe_code)]

use core::fmt;

/// A command that makes the barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// The reason why a form of grace periods was not chosen. Printed, it completes the phrase "failed
/// to ...".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraceError(pub(super) String);

impl fmt::Display for GraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GraceError {}

#[cfg(all(target_os = "linux", not(any(miri, memgroup_loom))))]
mod system {
    use core::ffi::{c_int, c_long};
    use std::io;

    use super::{Command, GraceError};

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

    /// Returns `command` ready to [`run`], if the kernel offers it.
    ///
    /// A kernel booted with `nohz_full` leaves the global command out: a processor without ticks
    /// may not go through the scheduler for a long time.
    pub(in crate::grace) fn offered(command: Command) -> Result<Command, GraceError> {
        let errno = |error: io::Error| error.raw_os_error().unwrap_or(0);
        let query = |error| GraceError(format!("use membarrier: the query answers error {}", errno(error)));
        let offered = call(libc::MEMBARRIER_CMD_QUERY).map_err(query)?;
        let name = command.name();
        if offered & c_long::from(command.number()) == 0 {
            return Err(GraceError(format!("use {name}: the kernel does not offer it")));
        }
        if command == Command::Private {
            // The call costs microseconds. Trying it finds a filter that lets only the query pass.
            call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
                .and_then(|_| call(command.number()))
                .map_err(|error| GraceError(format!("use {name}: it answers error {}", errno(error))))?;
        }
        Ok(command)
    }

    /// Makes the barrier (I1).
    pub(in crate::grace) fn run(command: Command) -> io::Result<()> {
        match call(command.number()) {
            Err(error) if command == Command::Private && error.raw_os_error() == Some(libc::EPERM) => {
                // The registration was lost.
                call(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)?;
                call(command.number()).map(drop)
            }
            answer => answer.map(drop),
        }
    }
}
#[cfg(all(target_os = "linux", not(any(miri, memgroup_loom))))]
pub(super) use system::{offered, run};

/// Fails: there is no such call here, so no section was ever entered by a store.
#[cfg(not(all(target_os = "linux", not(any(miri, memgroup_loom)))))]
pub(super) fn run(_: Command) -> Result<(), ()> {
    Err(())
}

/// Fails, as above.
#[cfg(not(all(target_os = "linux", not(any(miri, memgroup_loom)))))]
pub(super) fn offered(_: Command) -> Result<Command, GraceError> {
    Err(GraceError("use membarrier: this system has no such call".to_owned()))
}
