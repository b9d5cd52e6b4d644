//! Start, stop, restart.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};

use memgroup_serve::{Serve, StartError};
use xtask::Watchdog;

use crate::client::Client;
use crate::fixture::{Fixture, hierarchy, socket};

fn names(folder: &tempfile::TempDir) -> Vec<String> {
    std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn a_stop_closes_all_and_leaves_nothing() {
    let _watched = Watchdog::over("a stop with open connections");
    let fixture = Fixture::new();
    let address = fixture.server.address().unwrap();
    let (unix, tcp) = (fixture.unix(), fixture.tcp());
    let mut idle = unix.connect().unwrap();
    let mut half = tcp.connect().unwrap();
    half.write_all(b"GET /metrics HT").unwrap();
    let mut stream = unix.connect().unwrap();
    stream.write_all(unix.head("GET", "/v1/events", "").as_bytes()).unwrap();
    let _head = crate::client::read_reply(&mut stream, true).unwrap();
    let Fixture { server, hierarchy, folder } = fixture;
    server.stop();
    for stream in [&mut idle, &mut half, &mut stream] {
        let mut rest = Vec::new();
        // The end, or a reset.
        let _closed = stream.read_to_end(&mut rest);
    }
    assert_eq!(names(&folder), [""; 0]);
    assert!(hierarchy.lookup("/memgroup-serve").is_err(), "its group is removed");
    assert_eq!((hierarchy.root().usage(), hierarchy.dying()), (0, vec![]));
    assert!(std::net::TcpStream::connect(address).is_err());
    // The same address at once.
    let server = memgroup_serve::start(&hierarchy, Serve::tcp(address)).unwrap();
    assert_eq!(server.address(), Some(address));
}

#[test]
fn a_second_server_does_not_take_the_socket() {
    let fixture = Fixture::new();
    let path = fixture.server.socket().unwrap();
    let error = memgroup_serve::start(&hierarchy(), Serve::unix(path)).unwrap_err();
    assert!(matches!(error, StartError::Listen(_)));
    let text = error.to_string();
    assert!(
        text.starts_with("failed to start the server: listen on ") && text.contains("another server uses it"),
        "{text}"
    );
    assert_eq!(fixture.unix().get("/v1/about").status, 200);
    // On another path both serve one hierarchy, and one group is charged for both.
    let second = Serve::unix(fixture.folder.path().join("second"));
    let second = memgroup_serve::start(&fixture.hierarchy, second).unwrap();
    assert_eq!(Client::unix(second.socket().unwrap()).get("/v1/tree").status, 200);
    drop(second);
    assert_eq!(fixture.unix().get("/v1/tree").status, 200);
}

#[test]
fn a_socket_that_no_server_answers_is_replaced() {
    let (hierarchy, folder) = (hierarchy(), tempfile::tempdir().unwrap());
    let path = socket(&folder);
    // As a killed server leaves them.
    drop(UnixListener::bind(&path).unwrap());
    std::fs::write(folder.path().join("m.sock.lock"), "").unwrap();
    UnixStream::connect(&path).unwrap_err();
    let server = memgroup_serve::start(&hierarchy, Serve::unix(&path)).unwrap();
    assert_eq!(Client::unix(&path).get("/v1/about").status, 200);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    server.stop();
    assert!(names(&folder).is_empty());
}

#[test]
fn a_restarted_server_serves_the_same_tree() {
    let (hierarchy, folder) = (hierarchy(), tempfile::tempdir().unwrap());
    hierarchy.create("/t").unwrap().set_max(77).unwrap();
    for _ in 0..20 {
        let server = memgroup_serve::start(&hierarchy, Serve::unix(socket(&folder))).unwrap();
        assert_eq!(Client::unix(socket(&folder)).get("/v1/groups/t/memory.max").text(), "77\n");
        drop(server);
    }
    assert_eq!(hierarchy.root().usage(), 0);
}

#[test]
fn a_start_that_fails_says_why_and_leaves_nothing() {
    let (hierarchy, folder) = (hierarchy(), tempfile::tempdir().unwrap());
    std::fs::write(socket(&folder), "data").unwrap();
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let cases = [
        (Serve::unix(socket(&folder)), "a file that is no socket is there"),
        (Serve::tcp(([0, 0, 0, 0], 0)), "Serve::beyond_loopback"),
        (
            Serve::tcp(taken.local_addr().unwrap()),
            "another program listens there; use another port, or 0 for a free one",
        ),
        (Serve::unix(folder.path().join("s")).group("no/path"), "write it as /parent/child"),
        (Serve::unix(folder.path().join("s")).group("/"), "the root group"),
        (Serve::unix(folder.path().join("s")).max_bytes(1000), "refused by group /memgroup-serve"),
        (Serve::unix(folder.path().join("s")).max_bytes(u64::MAX), "max"),
    ];
    for (serve, words) in cases {
        let error = memgroup_serve::start(&hierarchy, serve).unwrap_err().to_string();
        assert!(error.starts_with("failed to start the server: ") && error.contains(words), "{error}");
        assert_eq!(names(&folder), ["m.sock"], "{words}");
        assert!(hierarchy.lookup("/memgroup-serve").is_err(), "{words}");
    }
    assert_eq!(std::fs::read_to_string(socket(&folder)).unwrap(), "data");
}

#[test]
fn runs_in_a_program_that_has_a_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let (hierarchy, folder) = (hierarchy(), tempfile::tempdir().unwrap());
        let server = memgroup_serve::start(&hierarchy, Serve::unix(socket(&folder))).unwrap();
        assert_eq!(Client::unix(socket(&folder)).get("/v1/about").status, 200);
        server.stop();
    });
}

#[test]
fn a_server_without_a_listener_starts_and_stops() {
    let hierarchy = hierarchy();
    let server = memgroup_serve::start(&hierarchy, Serve::without_listener()).unwrap();
    assert_eq!((server.address(), server.socket(), server.page()), (None, None, None));
    server.stop();
}

#[test]
fn the_page_has_the_token_in_its_fragment() {
    let fixture = Fixture::new();
    let address = fixture.server.address().unwrap();
    assert_eq!(fixture.server.page(), Some(format!("http://{address}/#token=token-for-reading")));
    let server = memgroup_serve::start(&fixture.hierarchy, Serve::tcp(([127, 0, 0, 1], 0))).unwrap();
    let made = server.token().unwrap().secret().to_owned();
    assert_eq!(made.len(), 64);
    assert_eq!(Client::tcp(server.address().unwrap()).token(&made).get("/metrics").status, 200);
}

/// The niceness in a file `stat` of a thread.
#[cfg(target_os = "linux")]
fn niceness(stat: &str) -> Option<i32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(16)?.parse().ok()
}

#[cfg(target_os = "linux")]
fn own_niceness() -> Option<i32> {
    niceness(&std::fs::read_to_string("/proc/thread-self/stat").unwrap())
}

#[test]
#[cfg(target_os = "linux")]
fn the_thread_of_the_server_is_nicer_than_the_program() {
    let before = own_niceness().unwrap();
    let _fixture = Fixture::with(|serve| serve.niceness(7));
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    // A thread of another test may end in the meantime.
    let stats = tasks.map(|task| std::fs::read_to_string(task.path().join("stat")).unwrap_or_default());
    let mut servers = stats.filter(|stat| stat.contains("(memgroup-serve)"));
    assert!(
        servers.any(|stat| niceness(&stat) == Some((before + 7).min(19))),
        "those of other tests have 10"
    );
    assert_eq!(own_niceness(), Some(before));
}

#[test]
#[cfg(target_os = "linux")]
fn control_actions_have_the_niceness_of_the_program() {
    let fixture = Fixture::new();
    let (tell, told) = std::sync::mpsc::channel();
    for number in 0..8 {
        let group = fixture.hierarchy.create(&format!("/{number}")).unwrap();
        let tell = tell.clone();
        group.on_end(move |_| tell.send(own_niceness()).unwrap()).unwrap();
        let reply = fixture.unix().send("DELETE", &format!("/v1/groups/{number}"), b"");
        assert_eq!(reply.status, 204);
        assert_eq!(told.recv().unwrap(), own_niceness());
    }
}
