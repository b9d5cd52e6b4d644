//! Why a limit was not read or not set, or a watcher not made.

use std::path::PathBuf;

use memgroup::{LimitError, RegisterError};

/// Why the process's limit or its use of memory is unknown, or was not put in force. Printed, it completes the phrase "failed to ...".
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// A file of the system could not be read, or does not have the form that it should.
    #[error("read {}: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error, or that of the parser.
        why: String,
        /// The number of the system's error; `None` for the parser's.
        code: Option<i32>,
    },
    /// The margin leaves nothing of the process's limit.
    #[error(
        "leave a margin of {margin} bytes below the process's limit of {limit}: give less than the limit"
    )]
    MarginTooLarge {
        /// The margin that was asked for, in bytes.
        margin: u64,
        /// The process's limit, in bytes.
        limit: u64,
    },
    /// The root of the hierarchy counts no charges, so a limit there would hold nothing.
    #[error("limit group /: its hierarchy does not account the root (Config::account_root)")]
    RootNotAccounted,
    /// The engine refused the limit.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The statistics of the watcher could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
}

impl ProcessError {
    /// Returns whether the error may be gone a moment later without a change of the program: the process or the system has no free
    /// descriptor or no memory, or a signal came between.
    ///
    /// [`Watcher::run_while`](crate::Watcher::run_while) goes on after such an error.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        const PASSING: [i32; 6] =
            [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EINTR, libc::EAGAIN, libc::EBUSY];
        matches!(self, ProcessError::Unreadable { code: Some(code), .. } if PASSING.contains(code))
    }
}
