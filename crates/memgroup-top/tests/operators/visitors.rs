//! Visitors: processes that look at the program, and can be killed. A test that fails leaves none
//! behind.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use serde_json::Value;

use crate::program::{kill, pause, until};

/// The variable of the environment with the directory that a reader opens.
const DIRECTORY: &str = "MEMGROUP_TEST_READER";

/// A process. Dropping it kills it.
pub(crate) struct Visitor(pub(crate) Child);

impl Drop for Visitor {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

fn top_with(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memgroup-top"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// `memgroup-top`. Its frames are thrown away.
pub(crate) fn top(socket: &Path) -> Visitor {
    Visitor(top_with(&[text(socket), "--json", "--interval", "0.1"]).spawn().unwrap())
}

/// `memgroup-top` that writes into a pipe which is not read.
pub(crate) fn top_that_is_not_read(socket: &Path) -> Visitor {
    let mut command = top_with(&[text(socket), "--json", "--interval", "0.1"]);
    Visitor(command.stdout(Stdio::piped()).spawn().unwrap())
}

/// `memgroup-top` on a terminal. The process that is killed is the program itself, or the terminal
/// above it. Dropping it kills both.
pub(crate) struct Terminal {
    script: Visitor,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if self.script.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.children().for_each(kill);
        }
    }
}

impl Terminal {
    pub(crate) fn start(socket: &Path) -> Terminal {
        let line = format!("exec {} {}", env!("CARGO_BIN_EXE_memgroup-top"), socket.display());
        let mut command = Command::new("script");
        command.args(["-q", "-c", &line, "/dev/null"]).env("TERM", "xterm");
        let command = command.stdin(Stdio::piped()).stdout(Stdio::null());
        Terminal { script: Visitor(command.spawn().unwrap()) }
    }

    /// The children of the terminal: the program.
    fn children(&self) -> impl Iterator<Item = i32> + use<> {
        let id = self.script.0.id();
        let text = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        text.split_whitespace().map(|child| child.parse().unwrap()).collect::<Vec<_>>().into_iter()
    }

    /// Kills the program, and waits for the end of its terminal.
    pub(crate) fn kill(mut self) {
        // The program may have ended by itself.
        until("a terminal with a program", || {
            self.children().next().is_some() || self.script.0.try_wait().unwrap().is_some()
        });
        self.children().for_each(kill);
        self.script.0.wait().unwrap();
    }
}

/// A recorder that takes ten snapshots a second.
pub(crate) fn recorder(file: &Path, socket: &Path) -> Visitor {
    let mut command = top_with(&["record", text(file), text(socket), "--interval", "0.1"]);
    Visitor(command.stderr(Stdio::null()).spawn().unwrap())
}

pub(crate) fn size(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |found| found.len())
}

/// Waits until the recording has a snapshot that was asked for after this call: the second frame
/// from now on.
pub(crate) fn wait_for_a_snapshot(file: &Path) {
    for _ in 0..2 {
        let before = size(file);
        until("a recorder that writes", || size(file) > before);
    }
}

/// Waits for two frames. `false` if the recorder ends before, as it does if it gets no answer to
/// its first request.
pub(crate) fn has_begun(recorder: &mut Visitor, file: &Path) -> bool {
    let has_ended = |recorder: &mut Visitor| recorder.0.try_wait().unwrap().is_some();
    for _ in 0..2 {
        let before = size(file);
        until("a recorder that writes or ends", || size(file) > before || has_ended(recorder));
    }
    !has_ended(recorder)
}

/// The snapshots of a recording. There is none if the server did not answer.
pub(crate) fn replay(file: &Path) -> Vec<Value> {
    let output = top_with(&["replay", text(file), "--json"]).stdout(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || said.ends_with("it has no snapshot\n"), "{said}");
    output.stdout.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect()
}

pub(crate) fn has_group(snapshot: &Value, path: &str) -> bool {
    snapshot["groups"].as_array().unwrap().iter().any(|group| group["path"] == path)
}

/// Reads a directory of the mount until it is killed, if this process is a reader. Each test with
/// readers begins with this call.
pub(crate) fn is_a_reader() -> bool {
    let directory = std::env::var_os(DIRECTORY);
    if let Some(directory) = &directory {
        read(Path::new(directory));
    }
    directory.is_some()
}

/// Keeps the group by its peak and by a trigger, and waits for events.
fn read(directory: &Path) {
    let open = |name: &str| OpenOptions::new().read(true).write(true).open(directory.join(name)).unwrap();
    let (mut peak, mut pressure) = (open("memory.peak"), open("memory.pressure"));
    peak.write_all(b"1").unwrap();
    pressure.write_all(b"full 1000000 1000000").unwrap();
    let events = File::open(directory.join("memory.events.local")).unwrap();
    let look = || events.read_at(&mut [0; 256], 0).unwrap();
    look();
    println!("\nreads");
    std::io::stdout().flush().unwrap();
    loop {
        let mut waits = [PollFd::new(&events, PollFlags::PRI), PollFd::new(&pressure, PollFlags::PRI)];
        poll(&mut waits, None).unwrap();
        look();
    }
}

/// Starts a reader for the test of this name, and returns it when it waits for events of the
/// directory.
pub(crate) fn reader(test: &str, directory: &Path) -> Visitor {
    let child = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture", "--test-threads=1", "--include-ignored"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut reader = Visitor(child);
    let mut lines = BufReader::new(reader.0.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "reads"), "the reader has ended");
    let id = reader.0.id();
    // It is in the call of `poll` when the system says that it sleeps.
    let is_asleep = || {
        let tasks = fs::read_dir(format!("/proc/{id}/task")).unwrap();
        tasks.flatten().all(|task| {
            let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('S'))
        })
    };
    while !is_asleep() {
        pause();
    }
    reader
}
