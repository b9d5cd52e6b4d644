//! `--serve`: a page, figures and control files of the running tenants.

use std::cell::RefCell;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};

use serde_json::Value;

use super::{Place, SINGLE, http, interrupt, stderr, wait_for};

/// Sends a request with the token, and returns the status line and the body.
fn ask(address: &str, token: &str, request: &str, body: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    let length = body.len();
    let head = format!("{request} HTTP/1.0\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n");
    let rest = format!("Content-Length: {length}\r\n\r\n{body}");
    stream.write_all((head + &rest).as_bytes()).expect("the server reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.lines().next().expect("a status").to_owned(), body.to_owned())
}

/// A running program. A test that fails leaves none behind.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads the address and the token of the page from standard error, which stays open.
fn page(child: &mut Child) -> (String, String, BufReader<ChildStderr>) {
    let found = RefCell::new(None);
    let rest = wait_for(child, |line| {
        let parts = line.split_once("http://").and_then(|(_, page)| page.split_once("/#token="));
        *found.borrow_mut() = parts.map(|(address, token)| (address.to_owned(), token.to_owned()));
        parts.is_some()
    });
    let (address, token) = found.into_inner().expect("an address");
    (address, token, rest)
}

#[test]
fn serves_figures_and_takes_a_limit_while_statements_run() {
    let place = Place::new();
    let spec = place.write("single.toml", SINGLE);
    let mut command = place.run(&spec, &["--seconds", "86400", "--serve", "127.0.0.1:0"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut child = Running(child);
    let (address, token, _rest) = page(&mut child.0);

    let (status, metrics) = ask(&address, &token, "GET /metrics", "");
    assert!(status.contains(" 200 ") && metrics.contains("id=\"/tenants/shop\""), "{status}\n{metrics}");
    let (status, text) = ask(&address, &token, "GET /", "");
    assert!(status.contains(" 200 ") && text.contains("<html"), "{status}\n{text}");

    let file = "/v1/groups/tenants/shop/memory.max";
    let (status, text) = ask(&address, &token, &format!("PUT {file}"), "3M");
    assert!(status.contains(" 204 "), "{status}\n{text}");
    assert_eq!(ask(&address, &token, &format!("GET {file}"), "").1, "3145728\n");
    let (status, _) = ask(&address, "wrong", &format!("PUT {file}"), "4M");
    assert!(status.contains(" 401 "), "{status}");
    assert_eq!(ask(&address, &token, &format!("GET {file}"), "").1, "3145728\n");
    let (_, tree) = ask(&address, &token, "GET /v1/tree", "");
    let tree: Value = serde_json::from_str(&tree).expect("JSON");
    let groups = tree["groups"].as_array().expect("a list");
    let shop = groups.iter().find(|group| group["path"] == "/tenants/shop").expect("a group");
    assert_eq!(shop["limits"]["max_bytes"], 3 << 20);

    interrupt(&child.0);
    assert_eq!(child.0.wait().expect("it ends").code(), Some(130));
    assert!(TcpStream::connect(&address).is_err(), "the server ends with the run");
}

#[test]
fn names_an_address_that_it_cannot_serve_at() {
    let place = Place::new();
    let spec = place.write("single.toml", SINGLE);
    for address in ["192.0.2.1:80", "0.0.0.0:0", "localhost:80", "shop"] {
        let reason = "not a loopback address with a port, such as 127.0.0.1:9191";
        let output = place.output(&spec, &["--serve", address]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(
            stderr(&output).contains("--serve") && stderr(&output).contains(reason),
            "{}",
            stderr(&output)
        );
    }
    let output = place.output(&spec, &["--engine", "http", "--serve", "127.0.0.1:0"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

/// Reads the path of the socket from standard error, which stays open.
fn socket(child: &mut Child) -> (PathBuf, BufReader<ChildStderr>) {
    let found = RefCell::new(None);
    let rest = wait_for(child, |line| {
        let path = line.strip_prefix("to watch the groups of this run: memgroup-top ");
        *found.borrow_mut() = path.map(PathBuf::from);
        path.is_some()
    });
    (found.into_inner().expect("a path"), rest)
}

#[test]
fn serves_each_run_on_a_socket_in_a_directory_of_the_user() {
    let place = Place::new();
    let spec = place.write("single.toml", SINGLE);
    let runtime = place.path("runtime");
    DirBuilder::new().mode(0o700).create(&runtime).expect("a directory");
    let temporary = place.path("temporary");
    fs::create_dir(&temporary).expect("a directory");
    let http = place.write("http.toml", http::SPEC);
    for (runtime, spec) in [(Some(&runtime), &spec), (None, &spec), (Some(&runtime), &http)] {
        let mut command = place.run(spec, &["--seconds", "86400"]);
        if spec == &http {
            command = Command::new(env!("CARGO_BIN_EXE_memgroup"));
            command.arg("run").arg(spec).args(["--seconds", "86400"]);
        }
        command.env_remove("XDG_RUNTIME_DIR").envs(runtime.map(|path| ("XDG_RUNTIME_DIR", path)));
        command.env("TMPDIR", &temporary).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = Running(command.spawn().expect("the program starts"));
        let (socket, _rest) = socket(&mut child.0);
        let folder = socket.parent().expect("a directory");
        let expected = runtime.cloned().unwrap_or_else(|| folder.to_owned());
        assert!(folder == expected && folder.starts_with(place.directory.path()), "{socket:?}");
        assert_eq!(folder.metadata().expect("a directory").permissions().mode() & 0o7777, 0o700);
        let mut stream = UnixStream::connect(&socket).expect("the server listens");
        stream.write_all(b"GET /v1/tree HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("the server reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        assert!(answer.contains("\"/tenants/shop\""), "{answer}");
        interrupt(&child.0);
        assert_eq!(child.0.wait().expect("it ends").code(), Some(130));
        if spec != &http {
            assert!(!socket.exists());
        }
    }
    // Another user may have placed that.
    let made =
        fs::read_dir(&temporary).expect("a directory").next().expect("an entry").expect("a name").path();
    fs::set_permissions(&made, Permissions::from_mode(0o777)).expect("a mode");
    let mut command = place.run(&spec, &[]);
    let output = command.env_remove("XDG_RUNTIME_DIR").env("TMPDIR", &temporary).output().expect("it starts");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains(&format!("directory {} for a socket", made.display())),
        "{}",
        stderr(&output)
    );
}
