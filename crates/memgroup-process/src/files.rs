//! Files of the system: where they lie, and errors that name them.

use std::fs;
use std::path::{Path, PathBuf};

use procfs_core::FromRead;

use crate::error::ProcessError;

/// The directory in which `proc` lies, and every directory that `proc` names. Another than `/` in tests only.
#[derive(Clone, Debug)]
pub(crate) struct Files(PathBuf);

impl Files {
    pub(crate) fn of_system() -> Files {
        Files::below("/")
    }

    pub(crate) fn below(root: impl Into<PathBuf>) -> Files {
        Files(root.into())
    }

    /// The place of an absolute path of the system.
    pub(crate) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Reads a file of `proc`.
    pub(crate) fn parse<T: FromRead>(&self, path: &str) -> Result<T, ProcessError> {
        parse(&self.at(path))
    }
}

pub(crate) fn parse<T: FromRead>(path: &Path) -> Result<T, ProcessError> {
    let text = text(path)?;
    T::from_read(text.as_bytes()).map_err(|why| unreadable(path, why))
}

pub(crate) fn text(path: &Path) -> Result<String, ProcessError> {
    fs::read_to_string(path).map_err(|why| unreadable(path, why))
}

/// Reads a file of one number. `None` if it has the word `max`.
pub(crate) fn number(path: &Path) -> Result<Option<u64>, ProcessError> {
    match text(path)?.trim() {
        "max" => Ok(None),
        number => number.parse().map(Some).map_err(|why| unreadable(path, format!("{number:?}: {why}"))),
    }
}

pub(crate) fn unreadable(path: &Path, why: impl std::fmt::Display) -> ProcessError {
    ProcessError::Unreadable { path: path.to_owned(), why: why.to_string() }
}
