//! What can go wrong while an experiment is prepared, run or written down.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why an experiment ended without a report.
///
/// A figure that misses its goal is not an error: it is printed as missed. An error is a bad argument, a machine
/// that refused something, or a **wrong result** - bytes that do not add up after a measurement.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// An argument that makes no experiment; the text names it and what is allowed.
    Argument(String),
    /// The JSON file could not be written.
    Json {
        /// The file that was asked for.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The report could not be printed.
    Output(io::Error),
    /// The system refused something the experiment needs.
    System {
        /// What was tried, as in "failed to ...".
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// The engine refused to build the groups of an experiment; the text names the group and the reason.
    Setup(String),
    /// A measurement ended with bytes or counts that do not add up: the figures of the run are worthless.
    Wrong(String),
}

impl Error {
    /// True when the caller's arguments are at fault (the program's exit code is then 2, not 1).
    pub fn is_usage(&self) -> bool {
        matches!(self, Error::Argument(_))
    }

    pub(crate) fn setup(what: impl fmt::Display, why: impl fmt::Display) -> Error {
        Error::Setup(format!("{what}: {why}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Argument(text) => write!(f, "{text}"),
            Error::Json { path, source } => write!(f, "write the JSON file {}: {source}", path.display()),
            Error::Output(source) => write!(f, "print the report: {source}"),
            Error::System { what, source } => write!(f, "{what}: {source}"),
            Error::Setup(text) => write!(f, "set up the groups: {text}"),
            Error::Wrong(text) => write!(f, "get a right result: {text}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Json { source, .. } | Error::Output(source) | Error::System { source, .. } => Some(source),
            Error::Argument(_) | Error::Setup(_) | Error::Wrong(_) => None,
        }
    }
}
