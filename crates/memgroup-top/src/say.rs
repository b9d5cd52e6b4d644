//! Say: lines on standard error.

use std::io::{self, Write as _};

/// Prints a line to standard error.
pub(crate) fn say(line: &str) {
    // Snapshots matter even if standard error is closed.
    let _ = writeln!(io::stderr().lock(), "memgroup-top: {line}");
}

/// Prints a line to standard error unless the last one was the same.
pub(crate) fn say_once(said: &mut String, line: String) {
    if *said != line {
        say(&line);
        *said = line;
    }
}
