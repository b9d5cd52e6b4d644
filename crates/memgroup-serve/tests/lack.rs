//! A server in a process that has no threads or no descriptors left for a while. Each test is a
//! process of its own, because it takes them from the whole process.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use memgroup::{Config, Hierarchy};
use memgroup_serve::{Control, Serve, StartError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use xtask::Watchdog;

/// The user of the children: the system bounds the threads of a user other than root, in all its
/// processes. So it is one that has no other process.
fn user() -> u32 {
    60_000 + std::process::id() % 5000
}

/// One child at a time.
static TURN: Mutex<()> = Mutex::new(());

/// In the child, the folder for its sockets.
const FOLDER: &str = "MEMGROUP_TEST_FOLDER";

/// Runs a test in a child process, which is not root.
fn in_a_child(name: &str, test: impl FnOnce(&Path)) {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return test(Path::new(&folder));
    }
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().unwrap();
    // The file of the test may be in a folder that another user cannot reach.
    let mut child = Command::new("/proc/self/exe");
    child.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(FOLDER, folder.path());
    if rustix::process::geteuid().is_root() {
        use std::os::unix::process::CommandExt as _;
        chown(folder.path(), Some(user()), Some(user())).unwrap();
        child.uid(user()).gid(user()).current_dir("/");
    }
    let output = child.output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}{errors}");
}

/// Sets the soft limit of a resource; `None` is as many as the hard one allows.
fn limit(resource: Resource, most: Option<u64>) {
    let Rlimit { maximum, .. } = getrlimit(resource);
    let current = most.map(|most| most.min(maximum.unwrap_or(most))).or(maximum);
    setrlimit(resource, Rlimit { current, maximum }).unwrap();
}

fn ask(socket: &Path, request: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    finish(&mut stream, request)
}

/// Sends a request, and returns the status of the answer.
fn finish(stream: &mut UnixStream, request: &str) -> io::Result<String> {
    let (line, body) = request.split_once('\n').unwrap_or((request, ""));
    let length = body.len();
    write!(
        stream,
        "{line} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.get(9..12).unwrap_or("no answer").to_owned())
}

fn names(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// A hierarchy with a tenant, and the settings of a server with control.
fn program(folder: &Path) -> (Hierarchy, PathBuf, impl Fn() -> Serve) {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    hierarchy.create("/tenant").unwrap();
    let socket = folder.join("m.sock");
    let serve = {
        let socket = socket.clone();
        move || Serve::unix(&socket).and_tcp(([127, 0, 0, 1], 0)).control(Control::Unix)
    };
    (hierarchy, socket, serve)
}

/// Starts a server again and again, each time with one more of a resource, until it starts. Each
/// start that fails says what it lacked, and leaves nothing. Returns what the starts lacked.
fn starts_that_fail(folder: &Path, allow: impl Fn(u64)) -> BTreeSet<String> {
    let (hierarchy, socket, serve) = program(folder);
    let held = || ["fd", "task"].map(|kind| fs::read_dir(format!("/proc/self/{kind}")).map(Iterator::count));
    let before = held().map(Result::unwrap);
    let mut lacked = BTreeSet::new();
    for more in 0.. {
        allow(more);
        let started = memgroup_serve::start(&hierarchy, serve());
        allow(1 << 20);
        let error = match started {
            Ok(server) => {
                assert_eq!(ask(&socket, "GET /v1/about").unwrap(), "200");
                server.stop();
                break;
            }
            Err(error) => error,
        };
        let text = error.to_string();
        assert!(text.starts_with("failed to start the server: "), "{text}");
        assert_eq!(names(folder), [""; 0].map(PathBuf::from), "{text}");
        assert!(hierarchy.lookup("/memgroup-serve").is_err(), "{text}");
        assert_eq!((hierarchy.root().usage_exact(), hierarchy.dying()), (0, vec![]), "{text}");
        // The system lists a joined thread for a moment longer.
        while held().map(Result::unwrap) != before {
            std::thread::yield_now();
        }
        lacked.insert(match error {
            StartError::Io(act, _) => act,
            _ => "listen".to_owned(),
        });
    }
    lacked
}

#[test]
fn control_goes_on_while_no_thread_can_be_started() {
    in_a_child("control_goes_on_while_no_thread_can_be_started", |folder| {
        let _watched = Watchdog::over("control without threads");
        let (hierarchy, socket, serve) = program(folder);
        let tenant = hierarchy.lookup("/tenant").unwrap();
        let server = memgroup_serve::start(&hierarchy, serve()).unwrap();
        limit(Resource::Nproc, Some(1));
        std::thread::Builder::new().spawn(|| ()).unwrap_err();
        for max in [1_000_000, 2_000_000] {
            let put = format!("PUT /v1/groups/tenant/memory.max\n{max}");
            assert_eq!(ask(&socket, &put).unwrap(), "204");
            assert_eq!(tenant.max(), Some(max));
        }
        assert_eq!(ask(&socket, "POST /v1/groups/new\n{\"max\":1}").unwrap(), "201");
        assert_eq!(ask(&socket, "DELETE /v1/groups/new").unwrap(), "204");
        for path in ["/metrics", "/v1/tree", "/v1/table", "/v1/about"] {
            assert_eq!(ask(&socket, &format!("GET {path}")).unwrap(), "200", "{path}");
        }
        limit(Resource::Nproc, None);
        assert_eq!(ask(&socket, "PUT /v1/groups/tenant/memory.max\n3000000").unwrap(), "204");
        server.stop();
        assert_eq!((hierarchy.root().usage_exact(), names(folder)), (0, vec![]));
    });
}

#[test]
fn a_start_without_threads_says_so_and_leaves_nothing() {
    in_a_child("a_start_without_threads_says_so_and_leaves_nothing", |folder| {
        let _watched = Watchdog::over("starts without threads");
        let lacked = starts_that_fail(folder, |threads| limit(Resource::Nproc, Some(threads)));
        let acts = ["start a thread", "start the threads of control actions"];
        assert_eq!(lacked, acts.map(String::from).into());
    });
}

#[test]
fn a_start_without_descriptors_says_so_and_leaves_nothing() {
    in_a_child("a_start_without_descriptors_says_so_and_leaves_nothing", |folder| {
        let _watched = Watchdog::over("starts without descriptors");
        // A system call takes the lowest free number.
        let first =
            u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&File::open("/dev/null").unwrap())).unwrap();
        let lacked = starts_that_fail(folder, |more| limit(Resource::Nofile, Some(first + more)));
        let acts = ["listen", "start a runtime"];
        assert_eq!(lacked, acts.map(String::from).into());
    });
}

#[test]
fn connections_wait_while_the_process_has_no_descriptor() {
    in_a_child("connections_wait_while_the_process_has_no_descriptor", |folder| {
        let _watched = Watchdog::over("a connection that waits for a descriptor");
        let (hierarchy, socket, serve) = program(folder);
        let server = memgroup_serve::start(&hierarchy, serve()).unwrap();
        assert_eq!(ask(&socket, "GET /v1/about").unwrap(), "200");
        limit(Resource::Nofile, Some(64));
        let mut all: Vec<File> = Vec::new();
        while let Ok(file) = File::open("/dev/null") {
            all.push(file);
        }
        // The client takes the last one, so the server cannot accept.
        all.pop();
        let mut waiting = UnixStream::connect(&socket).unwrap();
        assert_eq!(File::open("/dev/null").unwrap_err().raw_os_error(), Some(24), "EMFILE");
        write!(waiting, "GET /v1/about HTTP/1.1\r\n").unwrap();
        waiting.set_read_timeout(Some(std::time::Duration::from_millis(300))).unwrap();
        let error = waiting.read(&mut [0; 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "it is neither refused nor answered");
        drop(all);
        waiting.set_read_timeout(None).unwrap();
        waiting.write_all(b"host: localhost\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        waiting.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert_eq!(ask(&socket, "PUT /v1/groups/tenant/memory.max\n4096").unwrap(), "204");
        server.stop();
        assert_eq!((hierarchy.root().usage_exact(), names(folder)), (0, vec![]));
    });
}
