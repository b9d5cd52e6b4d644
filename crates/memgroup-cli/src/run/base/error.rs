//! Errors of a run. Each names the tenant or file that failed, and says how to correct it where the
//! user can.

use std::fmt;
use std::path::Path;

/// Reason why a run ended without its report.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RunError {
    /// The command line or the SPEC is wrong.
    Usage(String),
    /// A step failed, or its result was wrong.
    Failure(String),
}

impl RunError {
    /// Whether the command line or the SPEC must change.
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, RunError::Usage(_))
    }
}

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

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (RunError::Usage(text) | RunError::Failure(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for RunError {}
