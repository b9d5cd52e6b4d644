//! Slow, huge, numerous and rude clients: the others continue.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use memgroup_serve::{Serve, Times};
use xtask::Watchdog;

use crate::client::{Client, Stream, read_reply};
use crate::fixture::{CONTROL, Fixture, READ};

const MOST: usize = 8;

const AGES: Duration = Duration::from_secs(100_000);
const LONG: Times = Times { head: AGES, body: AGES, idle: AGES, write: AGES, answer: AGES };

/// Few places, and no deadlines. Without a history, the charge of a server follows from its tree.
fn settings(serve: Serve) -> Serve {
    serve.connections(MOST).times(LONG).cpu_percent(100).metrics_groups(300).history_groups(0)
}

fn fixture() -> Fixture {
    Fixture::with(settings)
}

/// Opens more connections than there are places, and sends some bytes on each.
fn open(client: &Client, count: usize, bytes: &[u8]) -> Vec<Box<dyn Stream>> {
    let open = |_| {
        let mut stream = client.connect().unwrap();
        // A server that cuts it may be faster.
        let _sent = stream.write_all(bytes);
        stream
    };
    (0..count).map(open).collect()
}

/// A client with the right gets its answer.
fn others_go_on(fixture: &Fixture) {
    assert_eq!(fixture.unix().get("/metrics").status, 200);
    assert_eq!(fixture.tcp().token(READ).get("/v1/tree").status, 200);
    assert_eq!(fixture.unix().token(CONTROL).send("POST", "/v1/groups/x", b"").status, 201);
    assert_eq!(fixture.unix().token(CONTROL).send("DELETE", "/v1/groups/x", b"").status, 204);
}

/// Checks that everything that clients took is returned when they are gone: the server then charges
/// as much as one that never had a client, and nothing once it is stopped.
fn all_is_given_back(fixture: Fixture) {
    let _watched = Watchdog::over("connections that are gone");
    while fixture.unix().get("/v1/about").json()["connections"] != 1 {
        std::thread::yield_now();
    }
    let fresh = settings(Serve::unix(fixture.folder.path().join("fresh"))).group("/fresh");
    let fresh = memgroup_serve::start(&fixture.hierarchy, fresh).unwrap();
    let usage = |path: &str| fixture.hierarchy.lookup(path).unwrap().usage_exact();
    // Each server knows the group of the other after its next check.
    while usage("/memgroup-serve") != usage("/fresh") {
        std::thread::yield_now();
    }
    fresh.stop();
    let Fixture { server, hierarchy, folder: _folder } = fixture;
    server.stop();
    assert_eq!((hierarchy.root().usage_exact(), hierarchy.dying()), (0, vec![]));
}

#[test]
fn silent_connections_keep_no_place() {
    let _watched = Watchdog::over("silent connections");
    let fixture = fixture();
    for client in [fixture.unix(), fixture.tcp()] {
        let silent = open(&client, 5 * MOST, b"");
        // It is behind them in the queue.
        assert_eq!(client.token(CONTROL).get("/v1/about").status, 200);
        others_go_on(&fixture);
        drop(silent);
    }
    all_is_given_back(fixture);
}

#[test]
fn slow_heads_keep_no_place() {
    let _watched = Watchdog::over("slow heads");
    let fixture = fixture();
    let slow = open(&fixture.controller(), 5 * MOST, b"GET /metrics HTTP/1.1\r\nhost: loc");
    assert_eq!(fixture.controller().get("/v1/about").status, 200);
    others_go_on(&fixture);
    drop(slow);
    all_is_given_back(fixture);
}

#[test]
fn slow_bodies_keep_no_place() {
    let _watched = Watchdog::over("slow bodies");
    let fixture = fixture();
    let controller = fixture.controller();
    let head = controller.head("POST", "/v1/groups/slow", "content-length: 100\r\n");
    let slow = open(&controller, 5 * MOST, head.as_bytes());
    assert_eq!(controller.get("/v1/about").status, 200);
    others_go_on(&fixture);
    drop(slow);
    assert!(fixture.hierarchy.lookup("/slow").is_err());
    all_is_given_back(fixture);
}

#[test]
fn idle_clients_with_a_right_keep_no_place() {
    let _watched = Watchdog::over("idle clients");
    let fixture = fixture();
    let idle: Vec<_> = (0..2 * MOST)
        .map(|_| {
            let client = fixture.unix();
            let mut stream = client.connect().unwrap();
            stream.write_all(client.head("GET", "/v1/about", "").as_bytes()).unwrap();
            assert_eq!(read_reply(&mut stream, false).unwrap().status, 200);
            stream
        })
        .collect();
    others_go_on(&fixture);
    drop(idle);
    all_is_given_back(fixture);
}

/// Makes a tree with a snapshot that is larger than the buffers of a socket.
fn fill(fixture: &Fixture) {
    for number in 0..3000 {
        fixture.hierarchy.create(&format!("/{number}-{}", "x".repeat(200))).unwrap();
    }
}

#[test]
#[ignore = "takes seconds; .ci/run runs it"]
fn clients_that_do_not_read_keep_no_place_and_no_memory() {
    let _watched = Watchdog::over("clients that do not read");
    let fixture = fixture();
    fill(&fixture);
    let own = fixture.hierarchy.lookup("/memgroup-serve").unwrap();
    // One text of all metrics has room, and not two.
    own.set_max(own.usage() + (16 << 20)).unwrap();
    let client = fixture.unix();
    for path in ["/v1/tree", "/metrics", "/v1/groups/"] {
        let deaf = open(&client, 3 * MOST, client.head("GET", path, "").as_bytes());
        others_go_on(&fixture);
        assert!(own.usage() <= own.max().unwrap());
        drop(deaf);
    }
    all_is_given_back(fixture);
}

#[test]
fn huge_requests_are_refused() {
    let _watched = Watchdog::over("huge requests");
    let fixture = fixture();
    let client = fixture.unix().token(CONTROL);
    let refused = |request: String| {
        let mut stream = client.connect().unwrap();
        let _sent = stream.write_all(request.as_bytes());
        // The connection may be reset before the answer is read.
        read_reply(&mut stream, true).map_or(0, |reply| reply.status)
    };
    let long = "x".repeat(1 << 20);
    assert!([0, 431].contains(&refused(client.head("GET", "/metrics", &format!("x: {long}\r\n")))));
    assert!([0, 414, 431].contains(&refused(client.head("GET", &format!("/{long}"), ""))));
    let many: String = (0..1000).map(|number| format!("x{number}: y\r\n")).collect();
    assert!([0, 431].contains(&refused(client.head("GET", "/metrics", &many))));
    let put = |more: &str| client.head("PUT", "/v1/groups/memory.max", more);
    assert_eq!(refused(put("content-length: 100000\r\n")), 413);
    assert!([413, 431].contains(&refused(put("content-length: 18446744073709551615\r\n"))));
    assert_eq!(refused(put("content-length: 18446744073709551616\r\n")), 400);
    assert!([0, 413].contains(&refused(put("transfer-encoding: chunked\r\n") + "100000\r\n" + &long)));
    others_go_on(&fixture);
    all_is_given_back(fixture);
}

#[test]
fn nonsense_ends_its_own_connection_only() {
    let _watched = Watchdog::over("nonsense");
    let fixture = fixture();
    for bytes in [
        &b"\0\0\0\0\0\0\0\0"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET  HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"\r\n\r\n\r\n\r\n",
        b"GET / HTTP/1.1\nhost:localhost\n\n",
        b"POST /v1/groups/n HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST /v1/groups/n HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ] {
        for client in [fixture.unix(), fixture.tcp()] {
            let mut stream = client.connect().unwrap();
            let _sent = stream.write_all(bytes);
            drop(stream);
        }
        others_go_on(&fixture);
    }
    assert!(fixture.hierarchy.lookup("/n").is_err());
    all_is_given_back(fixture);
}

#[test]
fn clients_that_go_away_within_an_answer_cost_nothing() {
    let fixture = fixture();
    fill(&fixture);
    let client = fixture.unix();
    for _ in 0..20 {
        let mut stream = client.connect().unwrap();
        stream.write_all(client.head("GET", "/v1/tree", "").as_bytes()).unwrap();
        let mut some = [0; 1000];
        stream.read_exact(&mut some).unwrap();
    }
    others_go_on(&fixture);
    all_is_given_back(fixture);
}

#[test]
fn many_requests_on_one_connection_leave_others_their_turn() {
    let _watched = Watchdog::over("a client with many requests");
    let fixture = fixture();
    let client = fixture.unix();
    let requests = client.head("GET", "/metrics", "").repeat(2000);
    let mut greedy = client.connect().unwrap();
    std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let _sent = greedy.write_all(requests.as_bytes());
            greedy
        });
        for _ in 0..20 {
            others_go_on(&fixture);
        }
        // A client that reads nothing is cut for one that needs the place.
        let filled = open(&client, 3 * MOST, b"");
        others_go_on(&fixture);
        drop((filled, sender.join().unwrap()));
    });
    all_is_given_back(fixture);
}

#[test]
fn slow_clients_are_cut_in_time() {
    let _watched = Watchdog::over("slow clients that are to be cut");
    let short = Duration::from_millis(20);
    let cases = [
        ("idle", Times { idle: short, ..LONG }),
        ("head", Times { head: short, ..LONG }),
        ("body", Times { body: short, ..LONG }),
        ("write", Times { write: short, ..LONG }),
        ("answer", Times { answer: short, ..LONG }),
    ];
    for (name, times) in cases {
        let fixture = Fixture::with(|serve| serve.times(times));
        fill(&fixture);
        let client = fixture.unix().token(CONTROL);
        let mut stream = client.connect().unwrap();
        let request = match name {
            "idle" => String::new(),
            "head" => "GET / HT".to_owned(),
            "body" => client.head("PUT", "/v1/groups/memory.max", "content-length: 10\r\n"),
            _ => client.head("GET", "/v1/tree", ""),
        };
        let _sent = stream.write_all(request.as_bytes());
        let mut rest = Vec::new();
        if matches!(name, "write" | "answer") {
            // It reads nothing until the server has cut it.
            let about = || fixture.unix().try_send("GET", "/v1/about", b"");
            while name == "write" && about().unwrap().json()["connections"] != 1 {
                std::thread::yield_now();
            }
            while name == "answer" && about().is_ok_and(|reply| reply.json()["connections"] != 1) {
                std::thread::yield_now();
            }
        }
        let _cut = stream.read_to_end(&mut rest);
        assert_eq!(
            rest.starts_with(b"HTTP/1.1 408 "),
            name == "body",
            "{name}: {}",
            String::from_utf8_lossy(&rest)
        );
        assert!(!rest.ends_with(b"0\r\n\r\n"), "the whole answer arrived");
    }
}
