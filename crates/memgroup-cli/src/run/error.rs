//! Why a run cannot go on: what failed, on which tenant or file, and what would be right.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::spec::SpecError;

/// Why a run ended without its report.
#[derive(Debug)]
pub(crate) enum RunError {
    /// The SPEC is wrong.
    Spec(SpecError),
    /// The command line asks for something that cannot be.
    Usage(String),
    /// A file under the data directory.
    Data { path: PathBuf, action: &'static str, error: io::Error },
    /// A file that would be replaced was made by somebody else.
    NotOurs { path: PathBuf },
    /// A file that SQLite would take for a part of a database of ours, and delete.
    Beside { path: PathBuf },
    /// A tenant's database could not be built.
    Load { tenant: String, error: rusqlite::Error },
    /// A tenant's connection could not be opened.
    Open { tenant: String, error: String },
    /// A statement failed, and not for want of memory.
    Statement { tenant: String, sql: &'static str, error: String },
    /// A statement gave an answer that cannot be right.
    WrongAnswer { tenant: String, sql: &'static str },
    /// The engine, or SQLite as a whole.
    Engine { action: &'static str, error: String },
    /// Bytes stayed charged after every connection of a tenant was closed.
    LeftBehind { tenant: String, bytes: u64 },
    /// A process that ran one turn of the comparison.
    Child { regime: &'static str, error: String },
    /// The report could not be written.
    Write { to: String, error: io::Error },
    /// The signal handler.
    Signal(ctrlc::Error),
}

impl RunError {
    pub(crate) fn data(path: &Path, action: &'static str, error: io::Error) -> RunError {
        RunError::Data { path: path.to_owned(), action, error }
    }

    pub(crate) fn engine(action: &'static str, error: impl fmt::Display) -> RunError {
        RunError::Engine { action, error: error.to_string() }
    }

    /// Whether the user asked for something wrong, rather than something going wrong.
    pub(crate) fn is_usage(&self) -> bool {
        matches!(self, RunError::Spec(_) | RunError::Usage(_))
    }
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Spec(error) => error.fmt(f),
            RunError::Usage(what) => f.write_str(what),
            RunError::Data { path, action, error } => {
                write!(
                    f,
                    "failed to {action} {}: {error}; --data DIR chooses another directory",
                    path.display()
                )
            }
            RunError::NotOurs { path } => write!(
                f,
                "failed to load into {}: that file was not made by this program; move it away, or choose another \
                 directory by --data DIR",
                path.display()
            ),
            RunError::Beside { path } => write!(
                f,
                "failed to use the database beside {}: that file was not made by this program, and SQLite would take it \
                 for its own and delete it; move it away, or choose another directory by --data DIR",
                path.display()
            ),
            RunError::Load { tenant, error } => {
                write!(f, "failed to load the data of tenant `{tenant}`: {error}")
            }
            RunError::Open { tenant, error } => {
                write!(f, "failed to open a connection of tenant `{tenant}`: {error}")
            }
            RunError::Statement { tenant, sql, error } => {
                write!(f, "failed to run a statement of tenant `{tenant}`: {error}: {}", one_line(sql))
            }
            RunError::WrongAnswer { tenant, sql } => write!(
                f,
                "failed to trust an answer: a row that exists was not found for tenant `{tenant}`: {}",
                one_line(sql)
            ),
            RunError::Engine { action, error } => write!(f, "failed to {action}: {error}"),
            RunError::LeftBehind { tenant, bytes } => write!(
                f,
                "failed to account for all memory: {bytes} bytes are charged to tenant `{tenant}` though all its \
                 connections are closed"
            ),
            RunError::Child { regime, error } => write!(f, "failed to run the work {regime}: {error}"),
            RunError::Write { to, error } => write!(f, "failed to write the report to {to}: {error}"),
            RunError::Signal(error) => write!(f, "failed to listen for Ctrl-C: {error}"),
        }
    }
}

impl std::error::Error for RunError {}

impl From<SpecError> for RunError {
    fn from(error: SpecError) -> RunError {
        RunError::Spec(error)
    }
}

fn one_line(sql: &str) -> String {
    sql.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::RunError;

    #[test]
    fn statements_are_shown_on_one_line() {
        let error = RunError::WrongAnswer { tenant: "a".to_owned(), sql: "SELECT 1\n  FROM b" };
        assert!(error.to_string().ends_with("tenant `a`: SELECT 1 FROM b"), "{error}");
    }
}
