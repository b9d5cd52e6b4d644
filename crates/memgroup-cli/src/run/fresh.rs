//! Files that nobody else has: made beside the one they are to replace.
//!
//! - I1. A name handed out was free: the file is made by whoever asks, or asking goes on with another name.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process;

/// How many names are tried before giving up.
const NAMES_MOST: u32 = 1_000;

/// Makes an empty file in the directory of `path`, under a name of its own that starts with a dot and ends with
/// `suffix`.
///
/// # Errors
/// What the system says when a file cannot be made there; `InvalidInput` when `path` names no file.
pub(crate) fn beside(path: &Path, suffix: &str) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    for number in 0..NAMES_MOST {
        let mut fresh = OsString::from(".");
        fresh.push(name);
        fresh.push(format!(".{}-{number}{suffix}", process::id()));
        let fresh = path.with_file_name(fresh);
        match File::create_new(&fresh) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|file| (fresh, file)),
        }
    }
    Err(io::Error::from(io::ErrorKind::AlreadyExists))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::beside;

    #[test]
    fn each_call_makes_a_file_of_its_own_in_the_same_directory() {
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
