//! `--watch`: on a terminal, in a pipe, as JSON. The terminal is restored at every end.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::{Place, SINGLE, TINY, stderr, stdout};

/// Codes that enter and leave the alternate screen, and show the cursor.
const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";
const SHOW_CURSOR: &str = "\x1b[?25h";

#[test]
fn prints_a_frame_a_second_into_a_pipe() {
    let place = Place::new();
    let spec = place.write("tiny.toml", TINY);
    let output = place.output(&spec, &["--seconds", "2.5", "--watch"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(!text.contains('\x1b'), "{text}");
    let frames = text.lines().filter(|line| line.contains(" of 2.5 s, 7 groups, usage ")).count();
    // One at once, then one a second; fewer on a busy machine.
    assert!((2..=3).contains(&frames), "{frames}: {text}");
    for group in ["/ ", "  tenants ", "    shop ", "    board ", "    night ", "    hog ", "  unattributed "]
    {
        let lines = text.lines().filter(|line| line.starts_with(group)).count();
        assert_eq!(lines, frames, "{group}: {text}");
    }
    let shop = text.lines().find(|line| line.starts_with("    shop ")).expect("a line");
    assert!(shop.contains('[') && shop.contains(" 3M "), "{shop}");
    assert!(text.contains("\n4 tenants, ") && text.contains("all tenants"), "{text}");
    assert!(!stderr(&output).contains("running"), "{}", stderr(&output));
}

#[test]
fn prints_a_json_snapshot_a_line() {
    let place = Place::new();
    let spec = place.write("tiny.toml", TINY);
    let output = place.output(&spec, &["--seconds", "1.5", "--watch=json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let lines: Vec<Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert!((1..=2).contains(&lines.len()), "{}", lines.len());
    for snapshot in &lines {
        let groups = snapshot["groups"].as_array().expect("groups");
        let hog = groups.iter().find(|group| group["path"] == "/tenants/hog").expect("it is there");
        assert_eq!(hog["limits"]["max_bytes"], 2 << 20);
        assert!(hog["usage_bytes"].as_u64() <= Some(2 << 20), "{hog}");
    }
    assert!(stderr(&output).contains("all tenants"), "the report: {}", stderr(&output));
}

#[test]
fn shows_no_group_of_the_loader() {
    let place = Place::with_own_data();
    let spec = place.write("single.toml", SINGLE);
    let output = place.output(&spec, &["--seconds", "0.2", "--watch=json"]);
    assert!(output.status.success() && stderr(&output).contains("loaded shop"), "{}", stderr(&output));
    let text = stdout(&output);
    let snapshot: Value = serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
    let groups = snapshot["groups"].as_array().expect("groups");
    let removed: Vec<_> = groups.iter().filter(|group| group["online"] != true).collect();
    assert!(removed.is_empty() && groups.len() == 4, "{removed:?}");
}

#[test]
fn refuses_combinations_that_cannot_be_watched() {
    let place = Place::new();
    let spec = place.write("tiny.toml", TINY);
    for (more, said) in [
        (&["--watch", "--json", "-"][..], "both need standard output"),
        (&["--watch", "--baseline"], "cannot be used with"),
        (&["--watch=film"], "film"),
    ] {
        let output = place.output(&spec, more);
        assert_eq!(output.status.code(), Some(2), "{more:?}");
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
    }
}

#[test]
fn goes_on_when_the_pipe_of_frames_is_closed() {
    let place = Place::new();
    let spec = place.write("tiny.toml", TINY);
    let json = place.path("report.json");
    let mut command =
        place.run(&spec, &["--seconds", "1.5", "--watch", "--json", json.to_str().expect("text")]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&fs::read(json).expect("a file")).expect("JSON");
    assert!(report["memgroup"]["seconds"].as_f64() >= Some(1.5), "{report}");
}

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
    fn run(place: &Place, spec: &Path, more: &str) -> Terminal {
        let (spec, data) = (spec.display(), place.data.display());
        Terminal::start(&format!("run {spec} --data {data} --watch {more}"))
    }

    /// Starts the program with these arguments.
    pub(super) fn start(arguments: &str) -> Terminal {
        let program = env!("CARGO_BIN_EXE_memgroup");
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

#[test]
fn ends_by_q_and_restores_the_terminal() {
    let place = Place::new();
    let spec = place.write("tiny.toml", TINY);
    let mut terminal = Terminal::run(&place, &spec, "--seconds 86400");
    terminal.wait_for("q ends the run");
    terminal.press("q");
    let (shown, code) = terminal.end();
    let after = after_the_screen(&shown);
    assert!(after.contains(", ended by q\x1b") && after.contains("all tenants"), "{after:?}");
    assert_eq!(code, Some(130));
}

#[test]
fn ends_by_control_c_and_restores_the_terminal() {
    let place = Place::new();
    let spec = place.write("tiny.toml", TINY);
    let mut terminal = Terminal::run(&place, &spec, "--seconds 86400");
    terminal.wait_for("q ends the run");
    terminal.press("\x03");
    let (shown, code) = terminal.end();
    let after = after_the_screen(&shown);
    assert!(after.contains(", ended by Ctrl-C\x1b") && after.contains("all tenants"), "{after:?}");
    assert_eq!(code, Some(130));
}

#[test]
fn restores_the_terminal_after_its_seconds() {
    let place = Place::new();
    let spec = place.write("tiny.toml", TINY);
    let (shown, code) = Terminal::run(&place, &spec, "--seconds 1").end();
    assert!(after_the_screen(&shown).contains("all tenants"), "{shown:?}");
    assert_eq!(code, Some(0));
}

#[test]
fn restores_the_terminal_before_a_signal_ends_it() {
    let place = Place::new();
    let spec = place.write("tiny.toml", TINY);
    let mut terminal = Terminal::run(&place, &spec, "--seconds 86400");
    terminal.wait_for("q ends the run");
    let script = terminal.script.id();
    let children = fs::read_to_string(format!("/proc/{script}/task/{script}/children")).expect("it has one");
    let killed = Command::new("kill").args(["-TERM", children.trim()]).status().expect("kill starts");
    assert!(killed.success(), "{children:?}");
    let (shown, code) = terminal.end();
    let after = after_the_screen(&shown);
    assert!(!after.contains("all tenants"), "{after:?}");
    assert_eq!(code, Some(128 + 15));
}
