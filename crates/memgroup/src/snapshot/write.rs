//! Write: a group is told something as a cgroup's file is written.

use core::fmt;
use std::io;

use super::files;
use crate::group::Group;
use crate::limit::{UNLIMITED, parse_bytes};

/// Rounds of reclaim in a row that come to nothing, though others are at it, after which it is given up.
const FRUITLESS_MOST: u32 = 16;

/// The longest text that can mean anything, in bytes.
const TEXT_MAX: usize = 4096;

/// Why a file did not take what was written.
#[derive(Debug)]
pub(super) enum Refused {
    /// What is wrong with the text, and what would be right.
    Text(String),
    /// Less could be reclaimed than was asked for.
    Short { asked_bytes: u64, freed_bytes: u64 },
}

impl From<String> for Refused {
    fn from(wrong: String) -> Refused {
        Refused::Text(wrong)
    }
}

/// Why a file of a group was not written. Printed, it completes the phrase "failed to ...".
///
/// As an [`io::Error`] it is of the kind that stands for the kernel's answer; `From` converts it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileError {
    /// No group has such a file.
    Unknown {
        /// The group's path.
        path: String,
        /// The name as given.
        file: String,
    },
    /// The file can only be read.
    ReadOnly {
        /// The group's path.
        path: String,
        /// The file.
        file: String,
    },
    /// The group was removed.
    Offline {
        /// The path it had.
        path: String,
        /// The file.
        file: String,
    },
    /// The text does not say what the file can be told.
    Text {
        /// The group's path.
        path: String,
        /// The file.
        file: String,
        /// What is wrong with the text, which it repeats, and what would be right.
        wrong: String,
    },
    /// Less was reclaimed than was asked for, and there is nothing more to be had now; what was freed stays freed.
    Short {
        /// The group's path.
        path: String,
        /// The file.
        file: String,
        /// Bytes that were asked for.
        asked_bytes: u64,
        /// Bytes that were freed.
        freed_bytes: u64,
    },
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileError::Unknown { path, file } => {
                write!(f, "write {file:?} of group {path}: there is no such file; can be written: ")?;
                list(f)
            }
            FileError::ReadOnly { path, file } => {
                write!(f, "write {file} of group {path}: it can only be read; can be written: ")?;
                list(f)
            }
            FileError::Offline { path, file } => {
                write!(f, "write {file} of group {path}: the group was removed")
            }
            FileError::Text { path, file, wrong } => write!(f, "write {file} of group {path}: {wrong}"),
            FileError::Short { path, file, asked_bytes, freed_bytes } => write!(
                f,
                "write {file} of group {path}: {freed_bytes} of {asked_bytes} bytes were freed, and there is nothing \
                 more to be had now"
            ),
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    files::writable()
        .enumerate()
        .try_for_each(|(nth, name)| write!(f, "{}{name}", if nth > 0 { ", " } else { "" }))
}

impl std::error::Error for FileError {}

impl From<FileError> for io::Error {
    fn from(error: FileError) -> io::Error {
        let kind = match error {
            FileError::Unknown { .. } | FileError::Offline { .. } => io::ErrorKind::NotFound,
            FileError::ReadOnly { .. } => io::ErrorKind::PermissionDenied,
            FileError::Text { .. } => io::ErrorKind::InvalidInput,
            FileError::Short { .. } => io::ErrorKind::WouldBlock,
        };
        io::Error::new(kind, error)
    }
}

/// `memory.reclaim`: has caches give back so many bytes. Stocks do not count, a drain frees nothing that anybody held.
pub(super) fn reclaim(group: &Group, text: &str) -> Result<(), Refused> {
    let asked_bytes = reclaim_bytes(text)?;
    let (mut freed_bytes, mut fruitless) = (0, 0);
    while freed_bytes < asked_bytes && fruitless < FRUITLESS_MOST {
        let round = group.reclaim(asked_bytes - freed_bytes, None);
        freed_bytes += round.bytes;
        if round.bytes > 0 {
            fruitless = 0;
        } else if round.busy > 0 {
            fruitless += 1;
            std::thread::yield_now();
        } else {
            break;
        }
        // Whoever removes the group does not want to wait for its caches.
        if !group.is_online() {
            break;
        }
    }
    if freed_bytes < asked_bytes { Err(Refused::Short { asked_bytes, freed_bytes }) } else { Ok(()) }
}

fn reclaim_bytes(text: &str) -> Result<u64, String> {
    let mut words = text.split_whitespace();
    let bytes = words.next().unwrap_or_default();
    if let Some(more) = words.next() {
        return Err(format!(
            "{text:?} says {more:?} after the number of bytes: nothing is swapped here, so write the number alone"
        ));
    }
    match parse_bytes(bytes) {
        Ok(UNLIMITED) => {
            Err("\"max\" is no number of bytes that could be freed; write digits with an optional K, M, G \
                              or T (powers of two)"
                .to_owned())
        }
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

impl Group {
    /// Does what writing `text` to the cgroup v2 file of this name does: `memory.max` takes bytes (`512M`) or `max`, as
    /// [`set_max`](Group::set_max) does; `memory.reclaim` takes bytes and has caches give so many back, as
    /// [`reclaim`](Group::reclaim) does, and waits for as long as their callbacks take. Blanks around the text are allowed, as `echo` leaves a newline.
    ///
    /// Returns when it is done; nothing is kept of a text that was refused.
    ///
    /// # Errors
    /// There is no such file, or it can only be read; the text does not say what the file takes; the group was removed; or less was
    /// reclaimed than asked, for which the kernel says `EAGAIN`.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let group = hierarchy.create("/tenant").unwrap();
    /// group.write_file("memory.max", "512M\n").unwrap();
    /// assert_eq!(group.max(), 512 << 20);
    /// let error = group.write_file("memory.max", "lots").unwrap_err();
    /// assert!(error.to_string().starts_with("write memory.max of group /tenant: \"lots\" is not a number"));
    /// ```
    pub fn write_file(&self, name: &str, text: &str) -> Result<(), FileError> {
        let path = || self.path();
        let Some(file) = files::find(name) else {
            return Err(FileError::Unknown { path: path(), file: start(name) });
        };
        let file_name = file.name.to_owned();
        let Some(write) = file.write else {
            return Err(FileError::ReadOnly { path: path(), file: file_name });
        };
        if !self.is_online() {
            return Err(FileError::Offline { path: path(), file: file_name });
        }
        let written = match text.len() {
            0..=TEXT_MAX => write(self, text),
            bytes => Err(Refused::Text(format!(
                "a text of {bytes} bytes, {:?}, is no setting; at most {TEXT_MAX} bytes can be",
                start(text)
            ))),
        };
        written.map_err(|refused| match refused {
            Refused::Text(wrong) => FileError::Text { path: path(), file: file_name, wrong },
            Refused::Short { asked_bytes, freed_bytes } => {
                FileError::Short { path: path(), file: file_name, asked_bytes, freed_bytes }
            }
        })
    }
}

/// As much of a text as an error repeats.
fn start(text: &str) -> String {
    const CHARS_MOST: usize = 64;
    match text.char_indices().nth(CHARS_MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
