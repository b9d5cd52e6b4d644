//! Files of the system: where they are, and errors that name them.

use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use memgroup::{LimitError, RegisterError};
use procfs_core::FromRead;

/// The reason why the process's limit or its use of memory is unknown, or why the limit is not in
/// force. Printed, it completes the phrase "failed to ...".
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// A file of the system could not be read, or does not have the expected form.
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
    /// The root of the hierarchy counts no charges, so a limit there would have no effect.
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
    /// Returns whether the error may go away by itself: the process or the system has no free
    /// descriptor or no memory at the moment, or a signal interrupted the call.
    ///
    /// [`Watcher::run_while`](crate::Watcher::run_while) continues after such an error.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        const PASSING: [i32; 6] =
            [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EINTR, libc::EAGAIN, libc::EBUSY];
        matches!(self, ProcessError::Unreadable { code: Some(code), .. } if PASSING.contains(code))
    }
}

/// The directory that contains `proc` and every directory that `proc` names. It is `/` except in
/// tests.
#[derive(Clone, Debug)]
pub(crate) struct Files(PathBuf);

impl Files {
    pub(crate) fn of_system() -> Files {
        Files::below("/")
    }

    pub(crate) fn below(root: impl Into<PathBuf>) -> Files {
        Files(root.into())
    }

    /// Returns where an absolute path of the system is.
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
    parse_text(path, &text(path)?)
}

pub(crate) fn parse_text<T: FromRead>(path: &Path, text: &str) -> Result<T, ProcessError> {
    T::from_read(text.as_bytes()).map_err(|why| malformed(path, why))
}

pub(crate) fn text(path: &Path) -> Result<String, ProcessError> {
    fs::read_to_string(path).map_err(|why| unreadable(path, &why))
}

/// Reads a file with one number. Returns `None` if it has the word `max`.
pub(crate) fn number(path: &Path) -> Result<Option<u64>, ProcessError> {
    parse_number(path, &text(path)?)
}

pub(crate) fn parse_number(path: &Path, text: &str) -> Result<Option<u64>, ProcessError> {
    match text.trim() {
        "max" => Ok(None),
        number => number.parse().map(Some).map_err(|why| malformed(path, format!("{number:?}: {why}"))),
    }
}

/// The error of a file that the system does not let us read.
fn unreadable(path: &Path, why: &io::Error) -> ProcessError {
    ProcessError::Unreadable { path: path.to_owned(), why: why.to_string(), code: why.raw_os_error() }
}

/// The error of a file that does not have the expected form.
pub(crate) fn malformed(path: &Path, why: impl std::fmt::Display) -> ProcessError {
    ProcessError::Unreadable { path: path.to_owned(), why: why.to_string(), code: None }
}

/// A file that is read repeatedly. It stays open, so reading needs no descriptor, and no memory
/// once the buffer is long enough.
#[derive(Debug)]
pub(crate) struct Kept {
    path: PathBuf,
    file: Option<File>,
    buffer: Vec<u8>,
}

impl Kept {
    /// Returns the file at `path`, which is opened when it is first read.
    pub(crate) fn at(path: PathBuf) -> Kept {
        Kept { path, file: None, buffer: Vec::new() }
    }

    /// Reads the file as it is now. If that fails, opens it again and reads once more, because the
    /// open file of a process or group that is gone stays gone, although another one may be at the
    /// path.
    pub(crate) fn text(&mut self) -> Result<(&Path, &str), ProcessError> {
        let read = match &self.file {
            Some(file) => read_whole(file, &mut self.buffer).or_else(|_| self.open_and_read()),
            None => self.open_and_read(),
        };
        read.map_err(|why| unreadable(&self.path, &why))?;
        match std::str::from_utf8(&self.buffer) {
            Ok(text) => Ok((&self.path, text)),
            Err(why) => Err(malformed(&self.path, why)),
        }
    }

    fn open_and_read(&mut self) -> io::Result<()> {
        self.file = None;
        let file = File::open(&self.path)?;
        read_whole(&file, &mut self.buffer)?;
        self.file = Some(file);
        Ok(())
    }
}

/// Reads `file` from its beginning into `buffer`.
fn read_whole(mut file: &File, buffer: &mut Vec<u8>) -> io::Result<()> {
    buffer.clear();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(buffer).map(drop)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::{Kept, ProcessError, number};

    #[test]
    fn a_file_that_is_open_is_read_anew_and_opened_again_when_its_process_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("statm");
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        symlink(format!("/proc/{}/statm", child.id()), &path).unwrap();
        let mut kept = Kept::at(path.clone());
        assert!(kept.text().unwrap().1.split_whitespace().count() > 1);
        child.kill().unwrap();
        child.wait().unwrap();
        let error = kept.text().unwrap_err();
        assert!(error.to_string().contains("/statm: No such file"), "{error}");
        assert!(!error.is_passing(), "{error}");
        std::fs::remove_file(&path).unwrap();
        symlink("/proc/self/statm", &path).unwrap();
        assert!(kept.text().unwrap().1.split_whitespace().count() > 1);
    }

    #[test]
    fn a_file_may_become_longer_than_the_buffer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        let mut kept = Kept::at(path.clone());
        for length in [0, 1, 8 << 10, (8 << 10) + 1, 100_000, 5] {
            std::fs::write(&path, "x".repeat(length)).unwrap();
            assert_eq!(kept.text().unwrap().1.len(), length);
        }
    }

    #[test]
    fn a_lack_of_something_passes_and_a_wrong_form_does_not() {
        let unreadable = |code| ProcessError::Unreadable { path: "x".into(), why: String::new(), code };
        for code in [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EINTR] {
            assert!(unreadable(Some(code)).is_passing(), "{code}");
        }
        for code in [None, Some(libc::ENOENT), Some(libc::EACCES), Some(libc::ENODEV)] {
            assert!(!unreadable(code).is_passing(), "{code:?}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("number");
        std::fs::write(&path, "many\n").unwrap();
        let error = number(&path).unwrap_err();
        assert!(!error.is_passing() && error.to_string().contains("\"many\""), "{error}");
    }
}
