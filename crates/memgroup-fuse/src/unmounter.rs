//! Unmounter: a shell that waits for the end of the program, and unmounts then.
//!
//! A program that calls `exit` or is ended by a signal runs no destructors, and the kernel keeps the mount, which answers nothing. So a child process
//! waits: it reads from a pipe that only the program holds. The kernel closes it in whatever way the program ends.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::attach::{self, KIND};
use crate::place;

/// Unmounts the tree of the program alone. By then another file system may be seen there: the last one in the list of mounts.
const SCRIPT: &str = r#"
read -r end
while read -r id parent device root at rest; do
    if [ "$at" = "$point" ]; then top=$rest; fi
done </proc/self/mountinfo
case $top in *" - $kind $source "*) exec "$@" ;; esac
"#;

/// The child process of one mount. Dropping it ends it.
pub(crate) struct Unmounter(Child);

impl Unmounter {
    pub(crate) fn start(path: &Path, source: &str) -> io::Result<Unmounter> {
        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT, "sh"]).args(attach::unmount_command()).arg(path);
        shell.env("point", place::escaped(path)).env("kind", KIND).env("source", source);
        // It keeps no directory in use, and a signal to the program's terminal does not end it.
        shell.current_dir("/").process_group(0);
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        shell.spawn().map(Unmounter)
    }
}

impl Drop for Unmounter {
    fn drop(&mut self) {
        // It finds nothing to unmount, because the tree is gone.
        drop(self.0.stdin.take());
        _ = self.0.wait();
    }
}
