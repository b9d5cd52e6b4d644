//! Child: this program as a process of its own, which gets an order.
//!
//! - I1. The first line of a child's standard input is its order, as JSON. The child ends when that
//!   input ends, so it does not outlive this process.

use std::error::Error;
use std::fs;
use std::io::{self, BufRead, Write};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A child process. Dropping it ends the process.
pub(crate) struct Child {
    process: std::process::Child,
    /// Its end ends the child (I1).
    input: Option<ChildStdin>,
}

impl Child {
    /// Starts `memgroup run` with hidden `arguments`, in an environment that `configure` may
    /// change, and sends the `order`. Returns its standard output, too.
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

    /// Ends the child's input: it is to end by itself.
    pub(crate) fn end_input(&mut self) {
        self.input = None;
    }

    /// Its exit status, if it ended.
    pub(crate) fn status(&mut self) -> io::Result<Option<ExitStatus>> {
        self.process.try_wait()
    }

    /// Its number.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.input = None;
        // A child that does not end by itself, because its threads wait for memory, is ended.
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

/// A line of /proc/PROCESS/status, in bytes.
pub(crate) fn proc_bytes(process: &str, key: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kib: u64 = line.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1_024)
}

#[cfg(test)]
mod tests {
    use super::proc_bytes;

    #[test]
    fn reads_the_memory_of_a_process() {
        let [peak, all] = ["VmHWM", "VmSize"].map(|key| proc_bytes("self", key).expect(key));
        assert!(0 < peak && peak < all, "{peak} {all}");
        assert_eq!(proc_bytes("self", "VmNone"), None);
    }
}
