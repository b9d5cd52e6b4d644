//! Processes: this one's user and early end, and children, which run this program with an order.
//!
//! - I1. The first line of a child's standard input is its order, as JSON. The child ends when that
//!   input ends, so it doesn't outlive this process.
//! - I2. A request to stop is never withdrawn.

use std::error::Error;
use std::fs;
use std::io::{self, BufRead, Write};
use std::os::unix::fs::MetadataExt as _;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::thread;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Exit code of a run that ended early, as in shells: 128 + SIGINT.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;

/// Returns the user that runs this process. This is the owner of the process's entry in /proc: root
/// if no other process may look into this one.
pub(crate) fn user() -> io::Result<u32> {
    fs::metadata("/proc/self").map(|found| found.uid())
}

/// Returns a line of /proc/PROCESS/status, in bytes.
pub(crate) fn proc_bytes(process: &str, key: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kib: u64 = line.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1_024)
}

/// A request to end early, by Ctrl-C or by the end of the parent process. Clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    request: Arc<OnceLock<()>>,
}

impl Stop {
    /// Requests the end. Returns whether this is the first request.
    pub(crate) fn request(&self) -> bool {
        self.request.set(()).is_ok()
    }

    /// Returns whether the end was requested.
    pub(crate) fn requested(&self) -> bool {
        self.request.get().is_some()
    }

    /// Lets the first Ctrl-C request the end. The second ends the process at once.
    ///
    /// # Errors
    /// The system refused the signal handler.
    pub(crate) fn on_ctrl_c(&self) -> Result<(), ctrlc::Error> {
        let stop = self.clone();
        ctrlc::set_handler(move || {
            if !stop.request() {
                std::process::exit(i32::from(EXIT_INTERRUPTED));
            }
        })
    }
}

/// Calls `then` on a thread of its own when standard input ends. The parent process closes it, even
/// when it's killed.
pub(crate) fn on_end_of_input(then: impl FnOnce() + Send + 'static) {
    thread::spawn(move || {
        let _ended = io::copy(&mut io::stdin().lock(), &mut io::sink());
        then();
    });
}

/// A child process. Dropping it ends the process.
pub(crate) struct Child {
    pub(crate) process: std::process::Child,
    /// Dropping it ends the child's input, so the child ends by itself (I1).
    pub(crate) input: Option<ChildStdin>,
}

impl Child {
    /// Starts `memgroup run` with hidden `arguments`, in an environment that `configure` may
    /// change, and sends the `order`. Also returns the child's standard output.
    pub(crate) fn start(
        arguments: &[&str],
        configure: impl FnOnce(&mut Command),
        order: &impl Serialize,
    ) -> Result<(Child, ChildStdout), Box<dyn Error>> {
        let line = serde_json::to_string(order)? + "\n";
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("run").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        configure(&mut command);
        let mut process = command.spawn()?;
        let output = process.stdout.take().ok_or("it has no standard output")?;
        // A child that ended early has printed its error.
        let input = process.stdin.take().filter(|mut input| input.write_all(line.as_bytes()).is_ok());
        Ok((Child { process, input }, output))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.input = None;
        // A child whose threads wait for memory doesn't end by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Reads the order of the parent process from standard input (I1).
pub(crate) fn order<T: DeserializeOwned>() -> serde_json::Result<T> {
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line).map_err(serde_json::Error::io);
    read.and_then(|_| serde_json::from_str(&line))
}

#[cfg(test)]
mod tests {
    use super::{Stop, proc_bytes};

    #[test]
    fn reads_the_memory_of_a_process() {
        let [peak, all] = ["VmHWM", "VmSize"].map(|key| proc_bytes("self", key).expect(key));
        assert!(0 < peak && peak < all, "{peak} {all}");
        assert_eq!(proc_bytes("self", "VmNone"), None);
    }

    #[test]
    fn shows_a_request_through_every_clone() {
        let stop = Stop::default();
        let clone = stop.clone();
        assert!(!clone.requested());
        assert!(stop.request());
        assert!(clone.requested());
        assert!(!clone.request());
    }
}
