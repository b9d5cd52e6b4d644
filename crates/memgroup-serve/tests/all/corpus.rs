//! Requests from `corpus/requests`, and others made from them.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use memgroup_serve::Control;
use xtask::corpus;

use crate::client::{Reply, read_reply};
use crate::fixture::{Fixture, token};

/// The texts of all settings, by the paths of the groups and the names of the files.
type State = BTreeMap<String, BTreeMap<String, String>>;

fn state(fixture: &Fixture) -> State {
    let files = fixture.hierarchy.files();
    let names: Vec<_> =
        files.iter().filter(|file| file.writable && file.readable).map(|file| &file.name).collect();
    let (mut state, mut left) = (State::new(), vec![fixture.hierarchy.root()]);
    while let Some(group) = left.pop() {
        let texts = names.iter().map(|name| ((*name).clone(), group.read_file(name).unwrap()));
        state.insert(group.path(), texts.collect());
        left.extend(group.children());
    }
    state
}

/// Restores the tree.
fn restore(fixture: &Fixture, wanted: &State) {
    for path in state(fixture).keys().filter(|path| !wanted.contains_key(*path)) {
        // It may be gone with its parent.
        let _gone = fixture.hierarchy.lookup(path).map(|group| group.remove_all());
    }
    for (path, texts) in wanted {
        let group = fixture.hierarchy.get_or_create(path).unwrap();
        for (name, text) in texts.iter().filter(|(name, text)| group.read_file(name).as_ref() != Some(text)) {
            group.write_file(name, text).unwrap();
        }
    }
    assert_eq!(state(fixture), *wanted);
}

fn fixture(set: impl FnOnce(memgroup_serve::Serve) -> memgroup_serve::Serve) -> Fixture {
    let fixture = Fixture::with(|serve| set(serve.control(Control::Unix).cpu_percent(100)));
    fixture.hierarchy.create("/t").unwrap();
    fixture.hierarchy.create("/t/a b").unwrap();
    fixture
}

/// The request with the right length of its body, and an end after its answer.
fn framed(input: &[u8]) -> Vec<u8> {
    let end = |end: &[u8]| {
        input.windows(end.len()).position(|window| window == end).map(|at| (at + 1, at + end.len()))
    };
    let (head, body) =
        end(b"\n\r\n").into_iter().chain(end(b"\n\n")).min().unwrap_or((input.len(), input.len()));
    let is_framing = |line: &&[u8]| {
        let names = ["content-length", "transfer-encoding", "connection", "expect"];
        names.iter().any(|name| {
            line.get(..name.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(name.as_bytes()))
        })
    };
    let mut request = Vec::new();
    for line in input[..head].split_inclusive(|&byte| byte == b'\n').filter(|line| !is_framing(line)) {
        request.extend_from_slice(line);
    }
    if !request.ends_with(b"\n") {
        request.extend(b"\r\n");
    }
    request.extend(format!("connection: close\r\ncontent-length: {}\r\n\r\n", input.len() - body).bytes());
    request.extend_from_slice(&input[body..]);
    request
}

/// A refusal has the form of a problem, and names its group.
fn check_refusal(reply: &Reply) {
    if reply.header("content-type").is_none() {
        // The head could not be read.
        assert!(matches!(reply.status, 400 | 414 | 431 | 505) && reply.body.is_empty(), "{}", reply.status);
        return;
    }
    let (code, problem) = (reply.code(), reply.json());
    // A stream ends a moment after its client.
    assert!(reply.status < 500 || code == "too_many_streams", "{problem}");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.len() > 10 && !detail.contains(char::is_control), "{detail:?}");
    let group = problem["group"].as_str().unwrap_or_default();
    let is_plain = group.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'/');
    assert!(!is_plain || detail.contains(group) || code == "group_is_root", "{problem}");
}

#[test]
fn a_request_changes_what_its_answer_says_and_nothing_else() {
    let fixture = fixture(|serve| serve);
    let wanted = state(&fixture);
    corpus::run("requests", 3000, |input| {
        let request = framed(input);
        let mut stream = fixture.unix().connect().unwrap();
        // A server that refuses the head may close its end before it has read the body.
        let _sent = stream.write_all(&request);
        let line = request.trim_ascii_start();
        let reply = read_reply(&mut stream, line.starts_with(b"HEAD ")).ok();
        let method = line.split(|&byte| byte == b' ').next().unwrap_or_default();
        let now = state(&fixture);
        let status = reply.as_ref().map_or(0, |reply| reply.status);
        if let Some(reply) = reply.filter(|reply| reply.status >= 400 && method != b"HEAD") {
            check_refusal(&reply);
        }
        let added = now.keys().filter(|path| !wanted.contains_key(*path)).count();
        let removed = wanted.keys().filter(|path| !now.contains_key(*path)).count();
        let files = |path: &String, old: &BTreeMap<_, _>| {
            now.get(path).map_or(0, |new| old.iter().zip(new).filter(|(old, new)| old != new).count())
        };
        let changed: usize = wanted.iter().map(|(path, texts)| files(path, texts)).sum();
        let differences = (added, removed, changed);
        match (method, status) {
            (b"PUT", 204) => assert!(added + removed == 0 && changed <= 1, "{differences:?}"),
            (b"POST", 201) => assert_eq!(differences, (1, 0, 0)),
            (b"DELETE", 204) => assert!(added + changed == 0 && removed > 0, "{differences:?}"),
            _ => assert_eq!(differences, (0, 0, 0), "with the status {status}"),
        }
        if now != wanted {
            restore(&fixture, &wanted);
        }
    });
}

#[test]
fn bytes_without_a_right_change_nothing_and_learn_nothing() {
    let tokens = ["another-token-one", "another-token-two"].map(token);
    let fixture = fixture(|serve| serve.token(tokens[0].clone()).control(Control::Token(tokens[1].clone())));
    fixture.hierarchy.create("/secret-tenant").unwrap();
    let wanted = state(&fixture);
    let address = fixture.server.address().unwrap();
    corpus::run("requests", 2000, |input| {
        let mut request = Vec::new();
        let mut rest = input;
        // The name of this server, so that most requests get as far as the check of rights.
        while let Some(at) = rest.windows(9).position(|window| window == b"localhost") {
            request.extend_from_slice(&rest[..at]);
            request.extend(address.to_string().bytes());
            rest = &rest[at + 9..];
        }
        request.extend_from_slice(rest);
        let mut stream = TcpStream::connect(address).unwrap();
        // The server may close its end at any time.
        let _sent = stream.write_all(&request).and_then(|()| stream.shutdown(Shutdown::Write));
        let mut answer = Vec::new();
        let _ended = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer);
        assert!(
            !["secret-tenant", "HTTP/1.1 201", "HTTP/1.1 204"].iter().any(|text| answer.contains(text)),
            "{answer}"
        );
        assert_eq!(state(&fixture), wanted);
    });
    assert_eq!(fixture.unix().get("/v1/about").status, 200);
}
