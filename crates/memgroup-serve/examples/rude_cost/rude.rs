//! Rude clients of a server. Each call of a kind opens connections, misuses them for about a second, and leaves them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

/// Connections of a call that holds them: more than the server has places.
const MANY: usize = 200;
const SECOND: Duration = Duration::from_secs(1);

/// Where a server listens.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) unix: PathBuf,
    pub(crate) tcp: SocketAddr,
}

/// A name, and the act of the client.
pub(crate) type Kind = (&'static str, fn(&Target));

pub(crate) const KINDS: [Kind; 9] = [
    ("silent", |target| hold(target, MANY, "")),
    ("slow heads", slow_heads),
    ("slow bodies", |target| hold(target, MANY, &put("content-length: 100"))),
    ("huge bodies", huge_bodies),
    ("unread scrapes", |target| hold(target, MANY, &get("/metrics"))),
    ("unread trees", |target| hold(target, MANY, &get("/v1/tree").repeat(50))),
    ("unread events", |target| hold(target, MANY, &get("/v1/events?after=oldest"))),
    ("wrong tokens", wrong_tokens),
    ("gone within the answer", gone),
];

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// A connection by the Unix socket, which has the right to read, or by TCP, which has none. A server that hangs does not hang its client.
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

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")
}

fn put(length: &str) -> String {
    format!("PUT /v1/groups/memory.max HTTP/1.1\r\nhost: localhost\r\n{length}\r\n\r\n")
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
        let mut sent = stream.write_all(put(length).as_bytes());
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
    let request = "GET /v1/tree HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer wrong\r\nconnection: close\r\n\r\n";
    for number in 0..50 {
        let Some(mut stream) = connect(target, number) else { continue };
        let _answer = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_end(&mut Vec::new()));
        sleep(SECOND / 50);
    }
}

/// Reads a part of each answer.
fn gone(target: &Target) {
    for mut stream in open(target, 20, &get("/v1/tree")) {
        let _some = stream.read(&mut [0; 1000]);
        sleep(SECOND / 20);
    }
}
