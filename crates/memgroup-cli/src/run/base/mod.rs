//! Base: errors, processes, progress and units. It imports no other folder of `run`.

pub(crate) mod process;
pub(crate) mod progress;
pub(crate) mod units;

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::{fmt, io};

use tempfile::{Builder, NamedTempFile};

/// The reason why a run ended without its report. It names the tenant or file that failed, and says
/// how to correct it where the user can.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RunError {
    /// The command line or the SPEC is wrong.
    Usage(String),
    /// A step failed, or its result was wrong.
    Failure(String),
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (RunError::Usage(text) | RunError::Failure(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for RunError {}

/// Turns the error of a step into a `RunError` that names the step.
pub(crate) trait OrFail<T> {
    /// The step `action` failed.
    fn or_fail(self, action: impl fmt::Display) -> Result<T, RunError>;

    /// The step `action` failed on a path in the data directory.
    fn or_fail_at(self, action: &str, path: &Path) -> Result<T, RunError>;
}

impl<T, E: fmt::Display> OrFail<T> for Result<T, E> {
    fn or_fail(self, action: impl fmt::Display) -> Result<T, RunError> {
        self.map_err(|error| RunError::Failure(format!("failed to {action}: {error}")))
    }

    fn or_fail_at(self, action: &str, path: &Path) -> Result<T, RunError> {
        let path = path.display();
        self.map_err(|error| format!("{error}; --data DIR chooses another directory"))
            .or_fail(format_args!("{action} {path}"))
    }
}

/// The reason why a statement or request was not done.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It found no memory, as the text says.
    Refused(String),
    /// It was stopped to free memory.
    Killed,
    /// The end of the run interrupted it.
    Interrupted,
    /// The connection was lost, or the server is gone.
    Lost,
    /// Any other reason. It ends the run.
    Other(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Refused(error) | Failure::Other(error) => f.write_str(error),
            Failure::Killed => f.write_str("stopped to free memory"),
            Failure::Interrupted => f.write_str("interrupted"),
            Failure::Lost => f.write_str("the connection was lost"),
        }
    }
}

/// Creates an empty file in the directory of `path`, with the permissions of any new file. Its name
/// was free, begins with a dot, and ends with `suffix`. Dropping the result removes the file.
pub(crate) fn beside(path: &Path, suffix: &str) -> io::Result<NamedTempFile> {
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let mut prefix = OsString::from(".");
    prefix.push(name);
    let (mut file, directory) = (Builder::new(), path.parent().unwrap_or(path));
    file.prefix(&prefix).suffix(suffix).permissions(Permissions::from_mode(0o666)).tempfile_in(directory)
}

/// Waits for a thread. If it panicked, the panic continues here.
pub(crate) fn joined<T>(handle: std::thread::ScopedJoinHandle<'_, T>) -> T {
    handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
