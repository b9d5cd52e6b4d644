//! A terminal of its own for the program, by `script` of util-linux.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// Codes that enter and leave the alternate screen, and show the cursor.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";
const SHOW_CURSOR: &str = "\x1b[?25h";

/// The program on a terminal of its own.
pub(super) struct Terminal {
    pub(super) script: Child,
    output: BufReader<ChildStdout>,
    shown: String,
    /// Dropped when the program has ended.
    _ended: Sender<()>,
}

/// A program that hangs longer is killed, and its test fails.
const PATIENCE: Duration = Duration::from_secs(120);

impl Terminal {
    /// Starts the program with these arguments.
    pub(super) fn start(arguments: &str) -> Terminal {
        let program = env!("CARGO_BIN_EXE_memgroup-top");
        let line = format!("stty cols 100 rows 30; exec {program} {arguments}");
        let mut script = Command::new("script")
            .args(["-q", "-e", "-c", &line, "/dev/null"])
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script, of util-linux, starts");
        let output = BufReader::new(script.stdout.take().expect("a pipe"));
        let (pid, (ended, end)) = (script.id().to_string(), mpsc::channel());
        thread::spawn(move || {
            if end.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                let _ = Command::new("kill").args(["-KILL", &pid]).status();
            }
        });
        Terminal { script, output, shown: String::new(), _ended: ended }
    }

    /// Reads until the output has `wanted`.
    pub(super) fn wait_for(&mut self, wanted: &str) {
        while !self.shown.contains(wanted) {
            let bytes = self.output.fill_buf().expect("it can be read").to_vec();
            assert!(!bytes.is_empty(), "it ended before it showed {wanted:?}: {:?}", self.shown);
            self.shown.push_str(&String::from_utf8_lossy(&bytes));
            self.output.consume(bytes.len());
        }
    }

    pub(super) fn press(&mut self, keys: &str) {
        let mut input = self.script.stdin.as_ref().expect("a pipe");
        input.write_all(keys.as_bytes()).and_then(|()| input.flush()).expect("it is open");
    }

    /// The whole output and the exit code.
    pub(super) fn end(mut self) -> (String, Option<i32>) {
        let mut rest = Vec::new();
        self.output.read_to_end(&mut rest).expect("it can be read");
        self.shown.push_str(&String::from_utf8_lossy(&rest));
        (self.shown, self.script.wait().expect("it ends").code())
    }
}

/// Checks that the screen was entered and left once, and returns the later output.
pub(super) fn after_the_screen(shown: &str) -> &str {
    assert_eq!((shown.matches(ENTER).count(), shown.matches(LEAVE).count()), (1, 1), "{shown:?}");
    let (_, after) = shown.split_once(LEAVE).expect("it was left");
    assert!(shown.rfind(SHOW_CURSOR) > shown.rfind("\x1b[?25l"), "the cursor is back: {shown:?}");
    after
}
