//! Unmounter: a shell that waits for the end of the program, and unmounts then.
//!
//! A program that calls `exit` or is ended by a signal runs no destructors, and the kernel keeps the mount, which answers nothing. So a child process
//! waits: it reads from a pipe that only the program holds. The kernel closes it in whatever way the program ends.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::attach::{self, KIND};

/// Unmounts only a tree with the source that was given: another one may be mounted there by then.
const SCRIPT: &str = r#"
read -r end
source=$1
shift
while read -r line; do
    case $line in *" $kind $source "*) exec "$@" ;; esac
done </proc/self/mountinfo
"#;

/// The child process of one mount. Dropping it ends it.
pub(crate) struct Unmounter(Child);

impl Unmounter {
    pub(crate) fn start(path: &Path, source: &str) -> io::Result<Unmounter> {
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(SCRIPT).args(["sh", source]).args(attach::unmount_command()).arg(path);
        shell.env("kind", format!("- {KIND}"));
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
