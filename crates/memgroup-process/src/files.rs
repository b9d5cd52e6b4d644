//! Files of the system: where they lie, and errors that name them.

use std::fs::{self, File};
use std::io;
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
    parse_text(path, &text(path)?)
}

pub(crate) fn parse_text<T: FromRead>(path: &Path, text: &str) -> Result<T, ProcessError> {
    T::from_read(text.as_bytes()).map_err(|why| malformed(path, why))
}

pub(crate) fn text(path: &Path) -> Result<String, ProcessError> {
    fs::read_to_string(path).map_err(|why| unreadable(path, &why))
}

/// Reads a file of one number. `None` if it has the word `max`.
pub(crate) fn number(path: &Path) -> Result<Option<u64>, ProcessError> {
    parse_number(path, &text(path)?)
}

pub(crate) fn parse_number(path: &Path, text: &str) -> Result<Option<u64>, ProcessError> {
    match text.trim() {
        "max" => Ok(None),
        number => number.parse().map(Some).map_err(|why| malformed(path, format!("{number:?}: {why}"))),
    }
}

/// The system does not let the file be read.
fn unreadable(path: &Path, why: &io::Error) -> ProcessError {
    ProcessError::Unreadable { path: path.to_owned(), why: why.to_string(), code: why.raw_os_error() }
}

/// The file does not have the form that it should.
pub(crate) fn malformed(path: &Path, why: impl std::fmt::Display) -> ProcessError {
    ProcessError::Unreadable { path: path.to_owned(), why: why.to_string(), code: None }
}

/// A file that is read again and again. It stays open, so reading takes no descriptor, and no memory once the buffer is long enough.
#[derive(Debug)]
pub(crate) struct Kept {
    path: PathBuf,
    file: Option<File>,
    buffer: Vec<u8>,
}

impl Kept {
    /// The file at `path`. It is opened when it is first read.
    pub(crate) fn at(path: PathBuf) -> Kept {
        Kept { path, file: None, buffer: Vec::new() }
    }

    /// Reads the file as it is now. If that fails, it is opened again and read once more: the file of a process or a group that is
    /// gone stays gone, though another may be at the path.
    pub(crate) fn text(&mut self) -> Result<(&Path, &str), ProcessError> {
        let read = match &self.file {
            Some(file) => read_whole(file, &mut self.buffer).or_else(|_| self.open_and_read()),
            None => self.open_and_read(),
        };
        let length = read.map_err(|why| unreadable(&self.path, &why))?;
        match std::str::from_utf8(&self.buffer[..length]) {
            Ok(text) => Ok((&self.path, text)),
            Err(why) => Err(malformed(&self.path, why)),
        }
    }

    fn open_and_read(&mut self) -> io::Result<usize> {
        self.file = None;
        let file = File::open(&self.path)?;
        let length = read_whole(&file, &mut self.buffer)?;
        self.file = Some(file);
        Ok(length)
    }
}

/// Reads `file` from its beginning. Returns the number of bytes, which are at the beginning of `buffer`.
#[cfg(unix)]
fn read_whole(file: &File, buffer: &mut Vec<u8>) -> io::Result<usize> {
    use std::os::unix::fs::FileExt as _;

    /// Longer than the files of the kernel that a check reads.
    const LENGTH: usize = 8 << 10;
    let mut length = 0;
    loop {
        if length == buffer.len() {
            buffer.resize(length + LENGTH, 0);
        }
        match file.read_at(&mut buffer[length..], length as u64) {
            Ok(0) => return Ok(length),
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Elsewhere there is no such file.
#[cfg(not(unix))]
fn read_whole(_file: &File, _buffer: &mut Vec<u8>) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::{Kept, number};
    use crate::error::ProcessError;

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
