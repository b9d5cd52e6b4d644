//! Error: why a file of a group was not written.

use core::fmt;
use std::io;

use crate::api::snapshot::files::{File, TABLE};

/// A file of a group that was not written, and why. Printed, it completes the phrase "failed to
/// ...".
///
/// `From` converts it to an [`io::Error`] of the kind that stands for the kernel's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileError {
    /// Path of the group.
    pub path: String,
    /// Name of the file, as given.
    pub file: String,
    /// Reason.
    pub problem: FileProblem,
}

/// Why a file of a group was not written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileProblem {
    /// No group has such a file.
    Unknown,
    /// The file can only be read.
    ReadOnly,
    /// The group was removed.
    Offline,
    /// A group cannot do this. The message says why.
    Unsupported(&'static str),
    /// The text is invalid. The message repeats it, and says which texts are valid.
    Text(String),
    /// Fewer bytes were reclaimed than requested, and no cache can give more now. The freed bytes
    /// stay freed.
    Short {
        /// Bytes that were requested.
        asked_bytes: u64,
        /// Bytes that were freed.
        freed_bytes: u64,
    },
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FileError { path, file, problem } = self;
        // Writes to the other files of `cgroup.` change nothing.
        let changes = |name: &str| !name.starts_with("cgroup.") || name.starts_with("cgroup.max.");
        let is_setting = |file: &&File| file.write.is_some() && changes(file.name);
        let writable =
            || TABLE.iter().filter(is_setting).map(|file| file.name).collect::<Vec<_>>().join(", ");
        if *problem == FileProblem::Unknown {
            return write!(
                f,
                "write {file:?} of group {path}: there is no such file; can be written: {}",
                writable()
            );
        }
        write!(f, "write {file} of group {path}: ")?;
        match problem {
            FileProblem::Unknown | FileProblem::ReadOnly => {
                write!(f, "it can only be read; can be written: {}", writable())
            }
            FileProblem::Offline => f.write_str("the group was removed"),
            FileProblem::Unsupported(why) => f.write_str(why),
            FileProblem::Text(wrong) => f.write_str(wrong),
            FileProblem::Short { asked_bytes, freed_bytes } => {
                write!(f, "{freed_bytes} of {asked_bytes} bytes were freed, and no cache can give more now")
            }
        }
    }
}

impl std::error::Error for FileError {}

impl From<FileError> for io::Error {
    fn from(error: FileError) -> io::Error {
        let kind = match error.problem {
            FileProblem::Unknown | FileProblem::Offline => io::ErrorKind::NotFound,
            FileProblem::ReadOnly => io::ErrorKind::PermissionDenied,
            FileProblem::Unsupported(_) => io::ErrorKind::Unsupported,
            FileProblem::Text(_) => io::ErrorKind::InvalidInput,
            FileProblem::Short { .. } => io::ErrorKind::WouldBlock,
        };
        io::Error::new(kind, error)
    }
}
