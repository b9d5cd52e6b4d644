//! Lines of the log: each control action has one, and limits that are met have few. The subscriber
//! is that of the whole process, so this is one test.

use std::io::{self, Read as _, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use memgroup::{Config, Hierarchy, KillAnswer, KillRequest};
use memgroup_serve::{Control, Serve, Token};
use tracing_subscriber::fmt::MakeWriter;
use xtask::Watchdog;

/// The lines so far.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Lines {
    type Writer = Lines;

    fn make_writer(&self) -> Lines {
        self.clone()
    }
}

impl Lines {
    /// The lines that have all of these words.
    fn with(&self, words: &[&str]) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let has = |line: &&str| words.iter().all(|word| line.contains(word));
        text.lines().filter(has).map(str::to_owned).collect()
    }

    /// Waits for a line with all of these words.
    fn wait(&self, words: &[&str]) -> String {
        loop {
            if let Some(line) = self.with(words).pop() {
                return line;
            }
            std::thread::yield_now();
        }
    }
}

/// Sends a request, and waits for its answer.
fn send(socket: &Path, method: &str, path: &str, headers: &str, body: &str) {
    let mut stream = UnixStream::connect(socket).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n"
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 "), "{answer}");
}

#[test]
fn acts_and_limits_have_lines() {
    let _watched = Watchdog::over("lines of the log");
    let lines = Lines::default();
    tracing_subscriber::fmt().with_ansi(false).with_writer(lines.clone()).init();
    let (hierarchy, folder) =
        (Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap(), tempfile::tempdir().unwrap());
    let socket = folder.path().join("m.sock");
    let secret = "token-for-control";
    let serve = Serve::unix(&socket).control(Control::Token(Token::new(secret).unwrap()));
    let _server = memgroup_serve::start(&hierarchy, serve).unwrap();
    let group = hierarchy.create("/t").unwrap();

    let token = format!("authorization: Bearer {secret}\r\n");
    send(&socket, "PUT", "/v1/groups/t/memory.max", &token, "100\n");
    send(&socket, "PUT", "/v1/groups/t/memory.max", &token, "lots\nforged line");
    send(&socket, "POST", "/v1/groups/u", "", "");
    send(&socket, "DELETE", "/v1/groups/t%0Aforged", &token, "");
    let control = lines.with(&["memgroup::control"]);
    assert_eq!(control.len(), 4, "{control:#?}");
    let of = |words: &[&str]| {
        assert!(
            control.iter().any(|line| words.iter().all(|word| line.contains(word))),
            "{words:?} in {control:#?}"
        );
    };
    let own = format!("pid {}", std::process::id());
    of(&[" INFO ", "carried out", &own, r#"write \"100\" to \"memory.max\" of group \"/t\""#]);
    of(&[" WARN ", "refused", "is not a number of bytes"]);
    of(&[" WARN ", "denied", "POST /v1/groups/u", "this client may read, and not control"]);
    of(&["refused", "remove group"]);
    assert!(lines.with(&[secret]).is_empty(), "a secret is in the log");
    assert!(
        lines.with(&["forged"]).iter().all(|line| line.contains("memgroup::control")),
        "a client forged a line"
    );

    let began = Instant::now();
    for _ in 0..500 {
        group.try_charge(101).unwrap_err();
    }
    let line = lines.wait(&["memgroup::refusals", "group=\"/t\""]);
    assert!(line.contains("usage_bytes=0 max_bytes=100"), "{line}");
    // The rest is logged ten seconds later, in one line, although the server checks some twenty
    // times in between.
    while began.elapsed() < Duration::from_secs(2) {
        group.try_charge(101).unwrap_err();
        std::thread::sleep(Duration::from_millis(10));
    }
    let told = lines.with(&["memgroup::refusals", "group=\"/t\""]).len() as u64;
    assert!(told <= 1 + began.elapsed().as_secs() / 10, "{told} lines");

    let victim = group.create("victim").unwrap();
    let held = Mutex::new(Some(victim.try_charge(100).unwrap()));
    let hook = victim.set_kill_hook(move |_: &KillRequest<'_>| {
        drop(held.lock().unwrap().take());
        KillAnswer::Dying
    });
    let charge = group.try_charge(60).unwrap();
    let line = lines.wait(&["memgroup::kills", "outcome=\"died\""]);
    assert!(line.contains("victim=\"/t/victim\" requester=\"/t\" full=\"/t\""), "{line}");
    drop((charge, hook));

    let slow = hierarchy.create("/slow").unwrap();
    slow.set_high(1 << 20).unwrap();
    let charge = slow.try_charge((1 << 20) + 4096).unwrap();
    let line = lines.wait(&["memgroup::throttles", "group=\"/slow\""]);
    assert!(line.contains("above_high=1 throttles_in_all="), "{line}");
    drop(charge);
}
