//! Output: the JSON to its file or standard output, the tables to the reader.
//!
//! - I1. A regular file holds either its old content or the whole JSON: the JSON is written under another name, then renamed.
//!   Only in a directory that takes no new file is it written in place.
//! - I2. The JSON is written before the tables, so a reader that closes its pipe cannot cost the JSON.
//! - I3. A closed pipe is no error.

mod comparison;
mod details;
mod http;
mod sentences;
mod summary;
mod table;

use std::fs::{self, File};
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use crate::run::base::error::{OrFail, RunError};
use crate::run::base::fresh;
use crate::run::report::Report;
use table::Emphasis;

/// Name of standard output as a destination of the JSON.
pub(crate) const STDOUT: &str = "-";

/// Checks before the run that the JSON can be written. The file keeps its content.
pub(crate) fn check(file: &Path) -> Result<(), RunError> {
    let checked = match fs::metadata(file) {
        _ if file == Path::new(STDOUT) => Ok(()),
        Ok(metadata) if metadata.is_file() || metadata.is_dir() => {
            File::options().append(true).open(file).map(drop)
        }
        // Opening a pipe here would wait for its reader, and closing it would end the reader's input.
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            fresh::beside(file, ".new").and_then(|(name, _)| fs::remove_file(name))
        }
        Err(error) => Err(error),
    };
    let allowed =
        |error| format!("{error}; --json takes a file that can be written, or - for standard output");
    checked.map_err(allowed).or_fail(format_args!("write the report to {}", file.display()))
}

/// Replaces `file` by a new file with `text` (I1). A device, a pipe, and a file in a directory that takes no new file are written in
/// place.
fn replace(file: &Path, text: &str) -> io::Result<()> {
    // The canonical path keeps a link a link.
    let target = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let old = fs::metadata(&target).ok();
    let is_regular = old.as_ref().is_none_or(fs::Metadata::is_file);
    let Some((name, mut new)) = is_regular.then(|| fresh::beside(&target, ".new").ok()).flatten() else {
        return fs::write(file, text);
    };
    let written = new.write_all(text.as_bytes());
    let written = written.and_then(|()| old.map_or(Ok(()), |old| new.set_permissions(old.permissions())));
    let replaced = written.and_then(|()| fs::rename(&name, target));
    if replaced.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(name);
    }
    replaced
}

/// Writes the JSON to its file, if it has one, then the tables to standard output, or to standard error if `stdout_taken`.
pub(crate) fn publish(
    report: &Report,
    file: Option<&Path>,
    stdout_taken: bool,
    details: bool,
) -> Result<(), RunError> {
    let text = |is_terminal| {
        let (emphasis, own) = (Emphasis::on(is_terminal), &report.memgroup);
        match own.server {
            Some(_) => http::of_report(report, emphasis),
            None => summary::of_report(report, details, emphasis),
        }
    };
    let written = file.map_or(Ok(()), |file| {
        let text = json(report)?;
        if file == Path::new(STDOUT) {
            return print(&text);
        }
        replace(file, &text).or_fail(format_args!("write the report to {}", file.display()))
    });
    if stdout_taken {
        // Standard error may be closed; the JSON matters more.
        let _ = io::stderr().lock().write_all(text(io::stderr().is_terminal()).as_bytes());
        return written;
    }
    // The tables are printed even if the JSON could not be written.
    let printed = print(&text(io::stdout().is_terminal()));
    written.and(printed)
}

/// Formats a report as JSON.
pub(crate) fn json(report: &impl serde::Serialize) -> Result<String, RunError> {
    serde_json::to_string_pretty(report).map(|text| text + "\n").or_fail("write the report as JSON")
}

/// Prints `text` to standard output. A closed pipe is no error (I3).
pub(crate) fn print(text: &str) -> Result<(), RunError> {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed.or_fail("write the report to standard output"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{check, replace};

    #[test]
    fn keeps_the_old_file_until_the_new_one_is_complete() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("a.json");
        let count = || fs::read_dir(directory.path()).expect("a directory").count();
        check(&file).expect("writable");
        assert_eq!(count(), 0, "the check leaves no file");
        replace(&file, "first").expect("it is written");
        check(&file).expect("writable");
        assert_eq!(fs::read_to_string(&file).expect("a file"), "first");
        replace(&file, "second").expect("it is written");
        assert_eq!((fs::read_to_string(&file).expect("a file").as_str(), count()), ("second", 1));
    }

    #[cfg(unix)]
    #[test]
    fn keeps_links_and_devices() {
        let directory = tempfile::tempdir().expect("a directory");
        let (file, link) = (directory.path().join("a.json"), directory.path().join("link"));
        fs::write(&file, "old").expect("a file");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        check(&link).expect("writable");
        replace(&link, "new").expect("it is written");
        assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
        assert_eq!(fs::read_to_string(&file).expect("a file"), "new");
        let null = Path::new("/dev/null");
        check(null).expect("writable");
        replace(null, "new").expect("it is written");
        assert!(!fs::metadata(null).expect("a device").is_file());
    }

    #[test]
    fn refuses_a_directory_before_the_run() {
        let directory = tempfile::tempdir().expect("a directory");
        let error = check(directory.path()).expect_err("a directory").to_string();
        assert!(error.contains(&directory.path().display().to_string()), "{error}");
    }
}
