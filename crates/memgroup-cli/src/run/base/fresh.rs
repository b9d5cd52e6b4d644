//! New files under a name that was free, beside the file which they are to replace.
//!
//! - I1. Each call creates its file; it never returns a name that existed.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process;

/// Number of names that are tried.
const NAMES_MAX: u32 = 1_000;

/// Creates an empty file in the directory of `path`. Its name starts with a dot and ends with
/// `suffix`.
///
/// # Errors
/// The system's error when the file cannot be created; `InvalidInput` when `path` names no file.
pub(crate) fn beside(path: &Path, suffix: &str) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    for number in 0..NAMES_MAX {
        let mut fresh = OsString::from(".");
        fresh.push(name);
        fresh.push(format!(".{}-{number}{suffix}", process::id()));
        let fresh = path.with_file_name(fresh);
        match File::create_new(&fresh) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            file => return file.map(|file| (fresh, file)),
        }
    }
    Err(io::Error::from(io::ErrorKind::AlreadyExists))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::beside;

    #[test]
    fn creates_another_file_at_each_call() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.json");
        let (first, _) = beside(&path, ".new").expect("a file");
        fs::write(&first, b"mine").expect("a file");
        let (second, _) = beside(&path, ".new").expect("a file");
        assert_ne!(first, second);
        assert_eq!(first.parent(), path.parent());
        assert_eq!(fs::read(first).expect("a file"), b"mine");
        assert!(!path.exists());
    }
}
