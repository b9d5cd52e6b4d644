//! The program, attached to a server in this process: on a terminal and in pipes. Recordings, the
//! man page, and completions.

mod terminal;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use memgroup::{Charge, Config, Hierarchy};
use memgroup_serve::{Serve, Server};
use serde_json::Value;
use tempfile::TempDir;
use xtask::Watchdog;

use terminal::{Terminal, after_the_screen};

/// A served tree: `/tenants/alice` and `/tenants/bob` with 4 and 9 KiB.
struct Served {
    hierarchy: Hierarchy,
    folder: TempDir,
    socket: PathBuf,
    server: Option<Server>,
    _held: Vec<Charge>,
}

impl Served {
    fn new() -> Served {
        let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).expect("a hierarchy");
        hierarchy.create("/tenants").expect("a group");
        let charge =
            |(name, bytes)| hierarchy.create(name).expect("a group").try_charge(bytes).expect("room");
        let held = [("/tenants/alice", 4 << 10), ("/tenants/bob", 9 << 10)].map(charge).into();
        let folder = tempfile::tempdir().expect("a directory");
        let socket = folder.path().join("m.sock");
        let mut served = Served { hierarchy, folder, socket, server: None, _held: held };
        served.start();
        served
    }

    fn start(&mut self) {
        let serve = Serve::unix(&self.socket).and_tcp(([127, 0, 0, 1], 0));
        self.server = Some(memgroup_serve::start(&self.hierarchy, serve).expect("a server"));
    }

    fn stop(&mut self) {
        self.server.take().expect("it runs").stop();
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memgroup-top"));
    command.stdin(Stdio::null());
    command
}

fn top(arguments: &[&str]) -> Output {
    program().args(arguments).output().expect("it starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

fn usage(line: &str, path: &str) -> Option<u64> {
    let json: Value = serde_json::from_str(line).expect("JSON");
    let groups = json["groups"].as_array().expect("groups");
    groups.iter().find(|group| group["path"] == path)?["usage_bytes"].as_u64()
}

/// Starts a recorder of the socket, and returns it when the file has so many bytes more than its
/// first snapshot.
fn recorder(served: &Served, file: &Path) -> Child {
    let mut child = program();
    child.args(["record", text(file), text(&served.socket), "--interval", "0.1"]).stderr(Stdio::piped());
    let child = child.spawn().expect("it starts");
    let size = || fs::metadata(file).map_or(0, |found| found.len());
    wait_until(|| size() > 0);
    let first = size();
    wait_until(|| size() > first + 3_000);
    child
}

fn wait_until(is_true: impl Fn() -> bool) {
    while !is_true() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn prints_one_frame_of_a_program_by_socket_and_number() {
    let served = Served::new();
    let by_socket = top(&[text(&served.socket), "--once", "--sort", "usage", "--filter", "TENANTS"]);
    assert!(by_socket.status.success(), "{}", stderr(&by_socket));
    let frame = stdout(&by_socket);
    let names: Vec<_> = frame.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["group", "/", "tenants", "bob", "alice"], "{frame}");
    assert!(frame.contains(" 9.0K") && !frame.contains("memgroup-serve "), "{frame}");
    let child = std::process::id().to_string();
    let by_number = top(&[&child, "--once", "--json"]);
    // Another test of this process may serve at the same time.
    if by_number.status.success() {
        assert_eq!(usage(&stdout(&by_number), "/tenants/alice"), Some(4 << 10));
    } else {
        assert!(stderr(&by_number).contains("several programs serve their groups"), "{}", stderr(&by_number));
        assert!(stderr(&by_number).contains(text(&served.socket)), "{}", stderr(&by_number));
    }
}

#[test]
fn waits_while_the_queue_of_connections_is_full() {
    let _watchdog = Watchdog::over("a program that waits for a place in a full queue");
    let folder = tempfile::tempdir().expect("a directory");
    let socket = folder.path().join("m.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
    let mut waiting = Vec::new();
    while let Ok(stream) = runtime.block_on(tokio::net::UnixStream::connect(&socket)) {
        waiting.push(stream);
    }
    let child = program().args([text(&socket), "--once"]).stderr(Stdio::piped()).spawn().expect("it starts");
    // Time for its first try, which finds no place.
    std::thread::sleep(std::time::Duration::from_millis(300));
    for _ in &waiting {
        listener.accept().expect("a connection");
    }
    let (mut stream, _) = listener.accept().expect("that of the program");
    assert!(stream.read(&mut [0; 1 << 10]).expect("a request") > 0);
    stream.write_all(b"HTTP/1.1 418 \r\ncontent-length: 0\r\n\r\n").expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(stderr(&output).contains("the answer has the status 418"), "{}", stderr(&output));
}

#[test]
fn reads_by_tcp_with_a_token_only() {
    let served = Served::new();
    let server = served.server.as_ref().expect("it runs");
    let url = format!("http://{}", server.address().expect("an address"));
    let refused = top(&[&url, "--once"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        stderr(&refused).contains("a token is needed") && stderr(&refused).contains("--token"),
        "{}",
        stderr(&refused)
    );
    let token = server.token().expect("a token").secret().to_owned();
    let read = top(&[&url, "--once", "--json", "--token", &token]);
    assert_eq!(usage(&stdout(&read), "/tenants/bob"), Some(9 << 10), "{}", stderr(&read));
    let by_variable =
        program().args([&url, "--once"]).env("MEMGROUP_TOKEN", &token).stdout(Stdio::null()).status();
    assert!(by_variable.expect("it starts").success());
}

#[test]
#[cfg(target_os = "linux")]
fn sends_no_token_to_a_program_of_another_user() {
    const USER: u32 = 54321;
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root listens as another user");
        return;
    }
    let _watchdog = Watchdog::over("a program that is asked");
    let folder = tempfile::tempdir().expect("a directory");
    let socket = folder.path().join("m.sock");
    let bound = socket.clone();
    let listen = move || {
        // Of this thread alone: its user is that of the socket's listener. The directory is given
        // to it.
        let user = rustix::process::Uid::from_raw(USER);
        rustix::thread::set_thread_res_uid(user, user, user).expect("another user");
        UnixListener::bind(bound).expect("a socket")
    };
    std::os::unix::fs::chown(folder.path(), Some(USER), None).expect("an owner");
    let listener = std::thread::spawn(listen).join().expect("a listener");
    let start = |token: &[&str]| {
        let mut command = program();
        command.args([text(&socket), "--once"]).args(token).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let child = start(&["--token", "secret"]);
    let (mut stream, _) = listener.accept().expect("a connection");
    let mut sent = Vec::new();
    stream.read_to_end(&mut sent).expect("its end");
    assert_eq!(sent, b"");
    let output = child.wait_with_output().expect("it ends");
    let said = format!(
        "m.sock: connect: user {USER} listens there, and a token is sent only to programs of this user, 0,"
    );
    assert!(output.status.code() == Some(1) && stderr(&output).contains(&said), "{}", stderr(&output));
    // Without a token it is asked.
    let child = start(&[]);
    let (mut stream, _) = listener.accept().expect("a connection");
    assert!(stream.read(&mut [0; 1 << 10]).expect("a request") > 0);
    stream.write_all(b"HTTP/1.1 418 \r\ncontent-length: 0\r\n\r\n").expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(stderr(&output).contains("the answer has the status 418"), "{}", stderr(&output));
}

#[test]
fn goes_on_when_the_program_comes_back() {
    let mut served = Served::new();
    let mut child = program();
    child.args([text(&served.socket), "--json", "--interval", "0.1"]);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut errors = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let mut next = || lines.next().expect("a line").expect("text");
    assert_eq!(usage(&next(), "/later"), None);
    served.stop();
    let error = errors.next().expect("a line").expect("text");
    assert!(error.starts_with("memgroup-top: ") && error.contains("m.sock: "), "{error}");
    let _later = served.hierarchy.create("/later").expect("a group");
    served.start();
    while usage(&next(), "/later").is_none() {}
    child.kill().and_then(|()| child.wait()).expect("it ends");
}

#[test]
fn shows_keys_groups_and_their_history_on_a_terminal() {
    let mut served = Served::new();
    let mut terminal = Terminal::start(&format!("{} --interval 0.1", served.socket.display()));
    terminal.wait_for("q quits");
    terminal.wait_for("alice");
    terminal.press("j\r");
    terminal.wait_for("refused, the last");
    served.stop();
    terminal.wait_for("as of");
    terminal.press("q");
    let (shown, code) = terminal.end();
    after_the_screen(&shown);
    assert_eq!(code, Some(0), "{shown:?}");
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn a_recording_survives_the_kill_of_its_recorder() {
    let served = Served::new();
    let file = served.file("a.memrec");
    let mut child = recorder(&served, &file);
    child.kill().and_then(|()| child.wait()).expect("it ends");
    let output = top(&["replay", text(&file), "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let lines: Vec<_> = stdout(&output).lines().map(str::to_owned).collect();
    assert!(lines.len() > 3, "{}", lines.len());
    for line in &lines {
        assert_eq!(usage(line, "/tenants/bob"), Some(9 << 10));
    }
    let once = top(&["replay", text(&file), "--once", "--at", "0"]);
    assert!(stdout(&once).contains("\n    bob "), "{}", stdout(&once));
    let mut terminal = Terminal::start(&format!("replay {}", file.display()));
    terminal.wait_for("space pauses");
    terminal.press(" ");
    terminal.wait_for("paused");
    terminal.press("\x03");
    let (shown, code) = terminal.end();
    after_the_screen(&shown);
    assert_eq!(code, Some(0));
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn a_recording_notes_that_the_program_was_gone() {
    let mut served = Served::new();
    let file = served.file("b.memrec");
    let mut child = recorder(&served, &file);
    let mut errors = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    served.stop();
    assert!(errors.next().expect("a line").expect("text").contains("m.sock: "));
    let size = || fs::metadata(&file).expect("a file").len();
    let before = size();
    served.start();
    wait_until(|| size() > before + 200);
    let ended = Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("kill starts");
    assert!(ended.success());
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert!(errors.last().expect("a line").expect("text").contains(" snapshots, "));
    let output = top(&["replay", text(&file), "--json"]);
    assert!(stderr(&output).contains("m.sock: "), "{}", stderr(&output));
    let (twice, socket) = (served.file("twice.memrec"), text(&served.socket));
    let output = top(&["record", text(&twice), socket, socket]);
    assert_eq!((output.status.code(), twice.exists()), (Some(2), false));
    assert!(stderr(&output).contains(&format!("{socket} is given twice")), "{}", stderr(&output));
    let again = top(&["record", text(&file), text(&served.socket)]);
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).ends_with("b.memrec exists; give the name of a new file\n"), "{}", stderr(&again));
}

#[test]
fn names_bad_arguments_and_the_allowed_values() {
    for (arguments, code, parts) in [
        (&["nowhere"][..], 2, &["\"nowhere\"", "path of a socket", "PID", "http://127.0.0.1:PORT"][..]),
        (&["http://localhost"], 2, &["\"http://localhost\"", "http://HOST:PORT"]),
        (&["4194304"], 1, &["no process has the number 4194304"]),
        (&["1"], 1, &["process 1 ", "/proc/1/fd", "SOCKET"]),
        (&["/nowhere/a.sock"], 2, &["no file is at \"/nowhere/a.sock\"", "path of a socket"]),
        (&["/dev/null"], 2, &["the file \"/dev/null\" is no socket", "path of a socket"]),
        (&["127.0.0.1:9191"], 2, &["\"127.0.0.1:9191\" is no socket", "http://127.0.0.1:PORT"]),
        (&["x", "--interval", "0"], 2, &["--interval", "0.1 to 3600"]),
        (&["x", "--interval", "nan"], 2, &["--interval", "0.1 to 3600"]),
        (&["replay", "x", "--at", "1e9"], 2, &["--at", "0 to 31536000"]),
        (&["x", "--sort", "size"], 2, &["--sort", "usage", "pressure"]),
        (&["record"], 2, &["FILE"]),
        (&["record", "f", "nowhere"], 2, &["\"nowhere\""]),
        (&["replay", "/nowhere"], 1, &["/nowhere"]),
        (&["replay", "/dev/null"], 1, &["/dev/null", "no regular file"]),
    ] {
        let output = top(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        for part in parts {
            assert!(stderr(&output).contains(part), "{part}: {}", stderr(&output));
        }
    }
}

/// Starts the program on a terminal that shows groups.
fn watching(served: &Served) -> Terminal {
    let mut terminal = Terminal::start(&format!("{} --interval 0.1", served.socket.display()));
    terminal.wait_for("q quits");
    terminal
}

#[test]
fn ends_by_control_c_and_restores_the_terminal() {
    let served = Served::new();
    let mut terminal = watching(&served);
    terminal.press("\x03");
    let (shown, code) = terminal.end();
    after_the_screen(&shown);
    assert_eq!(code, Some(0));
}

#[test]
fn restores_the_terminal_before_a_signal_ends_it() {
    let served = Served::new();
    let terminal = watching(&served);
    let script = terminal.script.id();
    let children = fs::read_to_string(format!("/proc/{script}/task/{script}/children")).expect("it has one");
    let killed = Command::new("kill").args(["-TERM", children.trim()]).status().expect("kill starts");
    assert!(killed.success(), "{children:?}");
    let (shown, code) = terminal.end();
    after_the_screen(&shown);
    assert_eq!(code, Some(128 + 15));
}

#[test]
fn prints_a_man_page_and_completions_with_every_option() {
    let man = top(&["man"]);
    assert!(man.status.success(), "{}", stderr(&man));
    let page = stdout(&man).replace("\\-", "-");
    for part in [".TH memgroup-top 1", "--interval", "--at", "SOCKET|PID|URL", "MEMGROUP_TOKEN"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = top(&["completions", shell]);
        let script = stdout(&output);
        assert!(output.status.success(), "{}", stderr(&output));
        for word in ["record", "replay", "interval", "filter"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let unknown = top(&["completions", "sh"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("bash"), "{}", stderr(&unknown));
}
