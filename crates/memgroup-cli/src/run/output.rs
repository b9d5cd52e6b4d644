//! Where a report goes: the JSON into its file or to standard output, the table to where people look.
//!
//! - I1. A regular file holds either what it held before or the whole JSON: it is written under another name, then
//!   renamed. Only where the directory takes no new file is it written in place.
//! - I2. The JSON is written before the table, so that a reader of the table who goes away costs nothing.
//! - I3. A reader who goes away is no error.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use super::error::RunError;
use super::report::Report;
use super::stop::By;
use super::table::{self, Emphasis};
use super::{fresh, json};

/// Where the JSON goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Destination {
    Nowhere,
    Stdout,
    /// A device, a pipe, or a file in a directory that takes no other.
    InPlace(PathBuf),
    /// A regular file, or none yet.
    Replace(PathBuf),
}

impl Destination {
    /// Finds out, before the run and not after it, that the JSON cannot be written. What the file holds stays.
    pub(crate) fn of(file: Option<&Path>) -> Result<Destination, RunError> {
        match file {
            None => Ok(Destination::Nowhere),
            Some(file) if file.as_os_str() == "-" => Ok(Destination::Stdout),
            Some(file) => Destination::of_file(file).map_err(|error| failed(file, error)),
        }
    }

    fn of_file(file: &Path) -> io::Result<Destination> {
        let there = match fs::metadata(file) {
            Ok(there) => there,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                try_to_make(file)?;
                return Ok(Destination::Replace(file.to_owned()));
            }
            Err(error) => return Err(error),
        };
        if !there.is_file() && !there.is_dir() {
            // Opening a pipe would wait for its reader, and closing it would tell the reader that this was all.
            return Ok(Destination::InPlace(file.to_owned()));
        }
        File::options().append(true).open(file)?;
        // A link stays a link.
        let file = fs::canonicalize(file)?;
        Ok(if try_to_make(&file).is_ok() { Destination::Replace(file) } else { Destination::InPlace(file) })
    }

    fn write(&self, text: &str) -> Result<(), RunError> {
        match self {
            Destination::Nowhere => Ok(()),
            Destination::Stdout => print(text),
            Destination::InPlace(file) => fs::write(file, text).map_err(|error| failed(file, error)),
            Destination::Replace(file) => replace(file, text).map_err(|error| failed(file, error)),
        }
    }
}

fn failed(file: &Path, error: io::Error) -> RunError {
    RunError::Write { to: file.display().to_string(), error }
}

fn try_to_make(file: &Path) -> io::Result<()> {
    let (name, _) = fresh::beside(file, ".new")?;
    fs::remove_file(name)
}

fn replace(file: &Path, text: &str) -> io::Result<()> {
    let (name, mut new) = fresh::beside(file, ".new")?;
    let written = new.write_all(text.as_bytes()).and_then(|()| match fs::metadata(file) {
        Ok(old) => new.set_permissions(old.permissions()),
        Err(_) => Ok(()),
    });
    let replaced = written.and_then(|()| fs::rename(&name, file));
    if replaced.is_err() {
        // What matters is the reason.
        let _ = fs::remove_file(name);
    }
    replaced
}

/// Writes the JSON to `destination`, then the table: to standard error where standard output is `taken` by what programs read. The end was asked for
/// `by` somebody, or not.
pub(crate) fn publish(
    report: &Report,
    by: Option<By>,
    destination: &Destination,
    taken: bool,
) -> Result<(), RunError> {
    let emphasis = |terminal: bool| {
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Emphasis(terminal && !unwanted && !dumb)
    };
    let written = json(report).and_then(|text| destination.write(&text));
    if taken || *destination == Destination::Stdout {
        let text = table::of_report(report, by, emphasis(io::stderr().is_terminal()));
        // Standard error may be gone; the JSON matters more.
        let _ = io::stderr().lock().write_all(text.as_bytes());
        return written;
    }
    // The table is worth having even where the JSON could not be written.
    let printed = print(&table::of_report(report, by, emphasis(io::stdout().is_terminal())));
    written.and(printed)
}

/// Prints `text`; a reader who went away, as `head` does once it has its lines, has what it wanted (I3).
pub(crate) fn print(text: &str) -> Result<(), RunError> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(RunError::Write { to: "standard output".to_owned(), error })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::Destination;

    #[test]
    fn a_file_keeps_what_it_holds_until_all_of_the_new_is_there() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("a.json");
        let count = || fs::read_dir(directory.path()).expect("the directory is there").count();
        let destination = Destination::of(Some(&file)).expect("it can be written");
        assert_eq!(count(), 0, "looking leaves nothing behind");
        destination.write("first").expect("it is written");
        let destination = Destination::of(Some(&file)).expect("it can be written");
        assert_eq!(fs::read_to_string(&file).expect("a file"), "first");
        assert!(matches!(destination, Destination::Replace(_)), "{destination:?}");
        destination.write("second").expect("it is written");
        assert_eq!((fs::read_to_string(&file).expect("a file").as_str(), count()), ("second", 1));
    }

    #[cfg(unix)]
    #[test]
    fn links_and_devices_stay_what_they_are() {
        let directory = tempfile::tempdir().expect("a directory");
        let (file, link) = (directory.path().join("a.json"), directory.path().join("link"));
        fs::write(&file, "old").expect("a file");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        Destination::of(Some(&link)).expect("it can be written").write("new").expect("it is written");
        assert!(fs::symlink_metadata(&link).expect("it is there").is_symlink());
        assert_eq!(fs::read_to_string(&file).expect("a file"), "new");
        let null = Destination::of(Some(Path::new("/dev/null"))).expect("it can be written");
        assert_eq!(null, Destination::InPlace("/dev/null".into()));
    }

    #[test]
    fn a_directory_is_refused_before_the_run() {
        let directory = tempfile::tempdir().expect("a directory");
        let error = Destination::of(Some(directory.path())).expect_err("a directory is no file").to_string();
        assert!(error.contains(&directory.path().display().to_string()), "{error}");
    }
}
