//! User: the one that runs this process.

use std::os::unix::fs::MetadataExt as _;
use std::{fs, io};

/// The user's number. It is the owner of the process's entry in /proc: root, if no other process
/// may look into this one.
pub(crate) fn own() -> io::Result<u32> {
    fs::metadata("/proc/self").map(|found| found.uid())
}
