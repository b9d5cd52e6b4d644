//! Rude clients of a server. Each call of a kind opens connections, misuses them for about a
//! second, and leaves them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Connections of a call that holds them: more than the server has places.
const MANY: usize = 200;
const SECOND: Duration = Duration::from_secs(1);

/// Where a server listens, and the token that clients send with each request.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) unix: PathBuf,
    pub(crate) tcp: SocketAddr,
    pub(crate) token: String,
}

impl Target {
    /// The head of a request up to the empty line. Both listeners allow this `Host`.
    fn head(&self, method: &str, path: &str) -> String {
        let Target { tcp, token, .. } = self;
        format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost:{}\r\nauthorization: Bearer {token}\r\n",
            tcp.port()
        )
    }

    fn get(&self, path: &str) -> String {
        self.head("GET", path) + "\r\n"
    }

    fn put(&self, length: &str) -> String {
        format!("{}{length}\r\n\r\n", self.head("PUT", "/v1/groups/others/group-0/memory.max"))
    }
}

/// A name, and the act of the client.
pub(crate) type Kind = (&'static str, fn(&Target));

/// Clients that hold places and memory of the server.
pub(crate) const HOLDING: &[Kind] = &[
    ("silent", |target| hold(target, MANY, "")),
    ("slow heads", slow_heads),
    ("slow bodies", |target| hold(target, MANY, &target.put("content-length: 100"))),
    ("huge bodies", huge_bodies),
    ("unread scrapes", |target| hold(target, MANY, &target.get("/metrics"))),
    ("unread trees", |target| hold(target, MANY, &target.get("/v1/tree").repeat(50))),
    ("unread events", |target| hold(target, MANY, &target.get("/v1/events?after=oldest"))),
    ("wrong tokens", wrong_tokens),
    ("gone within the answer", gone),
];

/// Clients that take all that the server gives, as fast as they can.
pub(crate) const FLOOD: &[Kind] = &[
    ("connections", |target| drop(open(target, MANY, ""))),
    ("small requests", |target| flood(target, &target.get("/v1/about").repeat(50))),
    ("missing paths", |target| flood(target, &target.get("/v1/groups/none").repeat(50))),
    ("scrapes", |target| flood(target, &target.get("/metrics"))),
    ("trees", |target| flood(target, &target.get("/v1/tree"))),
    ("waits", |target| flood(target, &target.get("/v1/waits"))),
];

/// Clients with the right to control, as fast as they can: they set a limit, and make and remove a
/// group.
pub(crate) const CONTROL: &[Kind] = &[
    ("settings", |target| flood(target, &(target.put("content-length: 7") + "1048576").repeat(50))),
    ("groups", |target| {
        let act = |method| target.head(method, "/v1/groups/others/made") + "content-length: 0\r\n\r\n";
        flood(target, &(act("POST") + &act("DELETE")).repeat(25));
    }),
];

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A connection by the Unix socket, or by TCP. A server that hangs does not hang its client.
fn connect(target: &Target, number: usize) -> Option<Box<dyn Stream>> {
    if number.is_multiple_of(4) {
        let stream = TcpStream::connect(target.tcp).ok()?;
        stream.set_read_timeout(Some(SECOND)).and(stream.set_write_timeout(Some(SECOND))).ok()?;
        return Some(Box::new(stream));
    }
    let stream = UnixStream::connect(&target.unix).ok()?;
    stream.set_read_timeout(Some(SECOND)).and(stream.set_write_timeout(Some(SECOND))).ok()?;
    Some(Box::new(stream))
}

/// Opens connections, and writes some bytes on each. A server that cuts one may be faster.
fn open(target: &Target, count: usize, bytes: &str) -> Vec<Box<dyn Stream>> {
    let open = |number| {
        let mut stream = connect(target, number)?;
        let _sent = stream.write_all(bytes.as_bytes());
        Some(stream)
    };
    (0..count).filter_map(open).collect()
}

/// Reads nothing of the answers.
fn hold(target: &Target, count: usize, bytes: &str) {
    let held = open(target, count, bytes);
    sleep(SECOND);
    drop(held);
}

/// Sends the same bytes again and again for a second on some connections, by both listeners, and
/// reads all answers.
fn flood(target: &Target, bytes: &str) {
    let began = Instant::now();
    std::thread::scope(|threads| {
        for mut stream in open(target, 4, "") {
            threads.spawn(move || {
                let mut answers = [0; 64 << 10];
                // More is asked for when something was answered: the server does not read requests
                // that wait behind unread answers.
                while began.elapsed() < SECOND && stream.write_all(bytes.as_bytes()).is_ok() {
                    if !matches!(stream.read(&mut answers), Ok(1..)) {
                        break;
                    }
                }
            });
        }
    });
}

/// A byte a second on each connection.
fn slow_heads(target: &Target) {
    let mut held = open(target, MANY, "G");
    for byte in b"ET /" {
        sleep(SECOND);
        for stream in &mut held {
            let _sent = stream.write(&[*byte]);
        }
    }
}

/// Four gigabytes, as far as the server takes them.
fn huge_bodies(target: &Target) {
    let piece = [b'1'; 64 << 10];
    let heads = ["content-length: 4294967296", "transfer-encoding: chunked"];
    for (number, length) in heads.into_iter().cycle().take(20).enumerate() {
        let Some(mut stream) = connect(target, number) else { continue };
        let mut sent = stream.write_all(target.put(length).as_bytes());
        for _ in 0..(4_u64 << 30) / piece.len() as u64 {
            if length.starts_with('t') {
                sent = sent.and_then(|()| stream.write_all(b"10000\r\n"));
            }
            sent = sent.and_then(|()| stream.write_all(&piece));
            if length.starts_with('t') {
                sent = sent.and_then(|()| stream.write_all(b"\r\n"));
            }
            if sent.is_err() {
                break;
            }
        }
        sleep(SECOND / 20);
    }
}

fn wrong_tokens(target: &Target) {
    let wrong = Target { token: "wrong".to_owned(), ..target.clone() };
    let request = wrong.head("GET", "/v1/tree") + "connection: close\r\n\r\n";
    for number in 0..50 {
        let Some(mut stream) = connect(target, number) else { continue };
        let _answer = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_end(&mut Vec::new()));
        sleep(SECOND / 50);
    }
}

/// Reads a part of each answer.
fn gone(target: &Target) {
    for mut stream in open(target, 20, &target.get("/v1/tree")) {
        let _some = stream.read(&mut [0; 1000]);
        sleep(SECOND / 20);
    }
}
