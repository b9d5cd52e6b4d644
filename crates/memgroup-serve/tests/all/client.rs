//! A client that writes each byte itself, and so can be rude.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde_json::Value;

/// A connection to a server.
pub(crate) trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

/// Where a server listens.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

/// A client with the headers that it sends.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) place: Place,
    pub(crate) headers: Vec<(String, String)>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Client {
    pub(crate) fn unix(path: impl Into<PathBuf>) -> Client {
        Client { place: Place::Unix(path.into()), headers: vec![("host".into(), "localhost".into())] }
    }

    pub(crate) fn tcp(address: SocketAddr) -> Client {
        Client { place: Place::Tcp(address), headers: vec![("host".into(), address.to_string())] }
    }

    /// The same client with another value of a header.
    pub(crate) fn with(&self, name: &str, value: &str) -> Client {
        let mut client = self.clone();
        client.headers.retain(|(known, _)| known != name);
        client.headers.push((name.into(), value.into()));
        client
    }

    pub(crate) fn token(&self, token: &str) -> Client {
        self.with("authorization", &format!("Bearer {token}"))
    }

    pub(crate) fn connect(&self) -> io::Result<Box<dyn Stream>> {
        Ok(match &self.place {
            Place::Unix(path) => Box::new(UnixStream::connect(path)?),
            Place::Tcp(address) => Box::new(TcpStream::connect(address)?),
        })
    }

    /// The head of a request.
    pub(crate) fn head(&self, method: &str, path: &str, more: &str) -> String {
        let headers: String =
            self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        format!("{method} {path} HTTP/1.1\r\n{headers}{more}\r\n")
    }

    /// Sends a request on a connection of its own, and reads the answer.
    pub(crate) fn send(&self, method: &str, path: &str, body: &[u8]) -> Reply {
        self.try_send(method, path, body).unwrap()
    }

    pub(crate) fn try_send(&self, method: &str, path: &str, body: &[u8]) -> io::Result<Reply> {
        let mut stream = self.connect()?;
        let more = format!("connection: close\r\ncontent-length: {}\r\n", body.len());
        let mut request = self.head(method, path, &more).into_bytes();
        request.extend_from_slice(body);
        // A server that refuses the head may close its end before it has read the body.
        let _sent = stream.write_all(&request);
        read_reply(&mut stream, method == "HEAD")
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.send("GET", path, b"")
    }
}

/// Reads one answer: its head, and its body if there is one to wait for.
pub(crate) fn read_reply(stream: &mut impl Read, is_head_only: bool) -> io::Result<Reply> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut reply = Reply { status, headers, body: Vec::new() };
    if is_head_only || status == 204 || reply.header("content-type") == Some("text/event-stream") {
        return Ok(reply);
    }
    if reply.header("transfer-encoding") == Some("chunked") {
        while let Some(chunk) = read_chunk(stream)? {
            reply.body.extend(chunk);
        }
    } else {
        let length: usize = reply.header("content-length").unwrap_or("0").parse().unwrap();
        reply.body = vec![0; length];
        stream.read_exact(&mut reply.body)?;
    }
    Ok(reply)
}

/// Reads a chunk of a body; `None` at its end.
pub(crate) fn read_chunk(stream: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        line.push(byte[0]);
    }
    let length = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
    let mut chunk = vec![0; length + 2];
    stream.read_exact(&mut chunk)?;
    chunk.truncate(length);
    Ok((length > 0).then_some(chunk))
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The code of a problem.
    pub(crate) fn code(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{}", self.text());
        let problem = self.json();
        assert_eq!(problem["status"], self.status);
        problem["code"].as_str().unwrap().to_owned()
    }
}
