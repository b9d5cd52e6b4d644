//! Errors. Each names the program or file that failed, and says how to correct it where the user
//! can.

use std::fmt;

/// The reason why the program ends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// The command line is wrong.
    Usage(String),
    /// A step failed.
    Failure(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Error::Usage(text) | Error::Failure(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for Error {}

/// Turns the error of a step into an [`Error`] that names the step.
pub(crate) trait OrFail<T> {
    /// The step `action` failed.
    fn or_fail(self, action: impl fmt::Display) -> Result<T, Error>;
}

impl<T, E: fmt::Display> OrFail<T> for Result<T, E> {
    fn or_fail(self, action: impl fmt::Display) -> Result<T, Error> {
        self.map_err(|error| Error::Failure(format!("failed to {action}: {error}")))
    }
}
