//! Errors of an experiment: its arguments, its machine, its output, its results.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why an experiment ended without a report.
///
/// A figure that misses its goal is not an error: it is printed as missed. An error is a bad
/// argument, a machine that refused something, or a **wrong result**: bytes that do not add up
/// after a measurement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument that makes no experiment; the text names it and the allowed values.
    #[error("{0}")]
    Argument(String),
    /// The JSON file could not be written.
    #[error("write the JSON file {}: {source}", path.display())]
    Json {
        /// The file that was asked for.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The report could not be printed.
    #[error("print the report: {0}")]
    Output(#[source] io::Error),
    /// The system refused something the experiment needs.
    #[error("{what}: {source}")]
    System {
        /// The refused action, as in "failed to ...".
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The engine refused to build the groups of an experiment; the text names the group and the
    /// reason.
    #[error("set up the groups: {0}")]
    Setup(String),
    /// A measurement ended with bytes or counts that do not add up: the figures of the run are
    /// worthless.
    #[error("get a right result: {0}")]
    Wrong(String),
}

impl Error {
    /// True when the caller's arguments are at fault (the program's exit code is then 2, not 1).
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Argument(_))
    }

    /// Turns the system's error into one that names the refused action, as in "failed to ...".
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::System { what, source }
    }
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Names the step that failed.
pub(crate) trait OrFail<T> {
    /// The experiment could not be prepared.
    fn set_up(self, what: impl fmt::Display) -> Result<T>;
    /// A measured result is wrong.
    fn or_wrong(self, what: impl fmt::Display) -> Result<T>;
}

impl<T, E: fmt::Display> OrFail<T> for Result<T, E> {
    fn set_up(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|why| Error::Setup(format!("{what}: {why}")))
    }

    #[inline]
    fn or_wrong(self, what: impl fmt::Display) -> Result<T> {
        self.map_err(|why| wrong(&what, &why))
    }
}

/// Out of line, so that a timed loop holds a call only.
#[cold]
fn wrong(what: &dyn fmt::Display, why: &dyn fmt::Display) -> Error {
    Error::Wrong(format!("{what}: {why}"))
}

/// Ends the run with a wrong result unless both values are equal.
pub(crate) fn expect<T: PartialEq + fmt::Debug>(what: impl fmt::Display, found: T, right: T) -> Result<()> {
    ensure(found == right, || format!("{what}: {found:?}, it should be {right:?}"))
}

/// Ends the run with a wrong result unless `right` holds.
pub(crate) fn ensure(right: bool, wrong: impl FnOnce() -> String) -> Result<()> {
    if right { Ok(()) } else { Err(Error::Wrong(wrong())) }
}
