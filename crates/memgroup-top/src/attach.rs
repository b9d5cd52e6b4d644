//! Attach: finds a program by its socket, its number or its address, and reads its snapshots.
//!
//! - I1. A token is sent only to programs of this user or of root, because any user may create a
//!   socket.
//! - I2. A token is sent to another machine only if the user says so, because HTTP doesn't encrypt
//!   it.
//! - I3. Without a name, only a program of this user or of root is shown.

use std::net::SocketAddr;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant, SystemTime};
use std::{fmt, fs, io, thread};

use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use memgroup::Snapshot;
use serde::de::IgnoredAny;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::{Builder, Runtime};

use super::find;
use crate::text::{Error, plain};

/// The most bytes of an answer.
const ANSWER_MAX: usize = 256 << 20;
/// The most bytes of a problem.
const PROBLEM_MAX: usize = 64 << 10;
/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// The most groups of a snapshot. The engine writes about 1.5 KB for each, so the largest answer
/// that is accepted has fewer.
const GROUPS_MAX: usize = 1 << 18;
/// The pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(20);
/// The environment variable with a token. Unlike a command line, other users cannot read it.
const TOKEN: &str = "MEMGROUP_TOKEN";

/// Where a program serves its groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Unix(PathBuf),
    /// Host and port.
    Tcp(String),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Unix(path) => f.write_str(&plain(&path.to_string_lossy())),
            Target::Tcp(host) => write!(f, "http://{host}"),
        }
    }
}

impl Target {
    /// Finds the program that `word` names. Without one, it's the only program that is found.
    pub(crate) fn of(word: Option<&str>) -> Result<Target, Error> {
        let Some(word) = word else {
            let (found, others): (Vec<_>, Vec<_>) =
                find::programs(None).into_iter().partition(|one| one.is_trusted);
            let beside = match others.len() {
                0 => String::new(),
                others => format!(" ({others} of other users)"),
            };
            let none = format!(
                "found no program of this user that serves its groups on a Unix socket{beside}; give its SOCKET, its PID, \
                 or http://127.0.0.1:PORT with --token"
            );
            return only(&found, none);
        };
        if let Some(host) = word.strip_prefix("http://") {
            if let Some((host, _)) = host.split_once("/#token=") {
                return Err(Error::Usage(format!(
                    "the address of the page has a token; give http://{host}, and the token with --token or in {TOKEN}"
                )));
            }
            let host = host.trim_end_matches('/');
            let parsed = host.parse::<hyper::http::uri::Authority>();
            if parsed.is_ok_and(|one| one.port_u16().is_some()) {
                return Ok(Target::Tcp(host.to_owned()));
            }
            return Err(Error::Usage(format!("{word:?} is no address; give http://HOST:PORT")));
        }
        if let Ok(pid) = word.parse::<u32>() {
            let none = if Path::new("/proc").join(pid.to_string()).exists() {
                format!(
                    "process {pid} serves no groups on a Unix socket, or this user may not read /proc/{pid}/fd; give its SOCKET"
                )
            } else {
                format!("no process has the number {pid}; `memgroup-top` alone finds the programs")
            };
            return only(&find::programs(Some(pid)), none);
        }
        let reason = match fs::metadata(word) {
            Ok(found) if found.file_type().is_socket() => return Ok(Target::Unix(word.into())),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let (word, who) = (plain(word), "the user of its program reaches it, or root");
                return Err(Error::Failure(format!("failed to reach {word}: {error}; {who}")));
            }
            Ok(_) => format!("the file {word:?} is no socket"),
            Err(_) if word.contains('/') && !word.contains("://") => format!("no file is at {word:?}"),
            Err(_) => format!("{word:?} is no socket, process number or address"),
        };
        let remedy = "give the path of a socket, a PID, or http://127.0.0.1:PORT with --token";
        Err(Error::Usage(format!("{reason}; {remedy}")))
    }
}

/// Returns the only program of `found`. If there is none, the error says `none`.
fn only(found: &[find::Program], none: String) -> Result<Target, Error> {
    match found {
        [] => Err(Error::Failure(none)),
        [one] => Ok(Target::Unix(one.socket.clone())),
        several => {
            let line = |one: &find::Program| {
                let (name, socket) = (plain(&one.name), plain(&one.socket.to_string_lossy()));
                format!("\n  {:>7}  {name:<16} {socket}", one.pid)
            };
            let (lines, text): (String, _) =
                (several.iter().map(line).collect(), "several programs serve their groups");
            Err(Error::Usage(format!("{text}; give the PID or the SOCKET of one:{lines}")))
        }
    }
}

/// A connection to a program, which is restored when it is lost.
pub(crate) struct Client {
    pub(crate) target: Target,
    token: Option<String>,
    /// Whether the token may be sent to another machine (I2).
    is_insecure: bool,
    runtime: Runtime,
    sender: Option<Sender>,
}

/// Why a request has no answer.
type Failed = Box<dyn std::error::Error + Send + Sync>;
type Sender = SendRequest<Empty<Bytes>>;

/// A connected socket of any kind.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A snapshot and its JSON, on one line.
pub(crate) struct Shot {
    pub(crate) json: Vec<u8>,
    pub(crate) snapshot: Snapshot,
}

/// A snapshot, or why there is none.
pub(crate) type Answer = Result<Shot, String>;

impl Shot {
    pub(crate) fn of(mut json: Vec<u8>) -> Answer {
        let snapshot = read(&json).map_err(|error| format!("read a snapshot: {error}"))?;
        // JSON has line ends only between names and values.
        json.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
        Ok(Shot { json, snapshot })
    }
}

/// Reads a snapshot, which may come from any program.
///
/// - I1. It has a root, and each other group has a parent, so that all are shown.
/// - I2. It has at most [`GROUPS_MAX`] groups, because even a group written as `{}` takes a
///   thousand times as much in memory.
/// - I3. No name has a control character, which a terminal would obey.
fn read(json: &[u8]) -> Result<Snapshot, String> {
    /// Counts groups without allocating memory for them.
    #[derive(serde::Deserialize)]
    struct Groups {
        groups: Vec<IgnoredAny>,
    }
    let Groups { groups } = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    if groups.len() > GROUPS_MAX {
        return Err(format!("it has {} groups; at most {GROUPS_MAX} are read", groups.len()));
    }
    let from = &mut serde_json::Deserializer::from_slice(json);
    let snapshot: Snapshot = serde_path_to_error::deserialize(from).map_err(|error| error.to_string())?;
    if snapshot.groups.is_empty() {
        return Err("it has no groups".to_owned());
    }
    for (at, group) in snapshot.groups.iter().enumerate() {
        if group.path.chars().chain(group.name.chars()).any(char::is_control) {
            return Err(format!("the name of group {at} has a control character"));
        }
        if (at == 0) != group.parent.is_none() {
            return Err(format!("group {at} has no parent before it"));
        }
    }
    Ok(snapshot)
}

impl Client {
    pub(crate) fn new(target: Target, token: Option<String>, is_insecure: bool) -> io::Result<Client> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let token = token.or_else(|| std::env::var(TOKEN).ok()).filter(|token| !token.is_empty());
        Ok(Client { target, token, is_insecure, runtime, sender: None })
    }

    /// Asks for the program's groups as they are now.
    pub(crate) fn shot(&mut self) -> Answer {
        let is_kept = self.sender.is_some();
        let mut answer = self.ask();
        // A server closes a connection that was idle for long.
        if answer.is_err() && is_kept {
            answer = self.ask();
        }
        answer.and_then(Shot::of).map_err(|error| format!("{}: {error}", self.target))
    }

    /// Asks once. A connection without an answer isn't used again.
    fn ask(&mut self) -> Result<Vec<u8>, String> {
        let Client { target, token, is_insecure, runtime, sender } = self;
        let asked = async {
            let got = get(target, token.as_deref(), *is_insecure, sender);
            tokio::time::timeout(PATIENCE, got).await
        };
        let none = |_| Err(format!("no answer within {} s", PATIENCE.as_secs()).into());
        let answer = runtime.block_on(asked).unwrap_or_else(none);
        answer.map_err(|error| {
            *sender = None;
            error.to_string()
        })
    }

    /// Starts a thread that sends a snapshot and `number` at each interval of `every`, until the
    /// receiver is dropped.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn follow(
        mut self,
        every: Duration,
        number: usize,
        to: SyncSender<(usize, Answer)>,
    ) -> io::Result<()> {
        let follow = move || {
            let mut begun = Instant::now();
            while to.send((number, self.shot())).is_ok() {
                thread::sleep(every.saturating_sub(begun.elapsed()));
                begun = Instant::now();
            }
        };
        thread::Builder::new().name("attach".to_owned()).spawn(follow).map(drop)
    }
}

/// Fails if a token must not be sent: the system tells which user listens (I1).
fn check_user(stream: &UnixStream) -> Result<(), Failed> {
    let (theirs, own) = (stream.peer_cred()?.uid(), find::own_user()?);
    if theirs == own || theirs == 0 {
        return Ok(());
    }
    Err(format!(
        "user {theirs} listens there, and a token is sent only to programs of this user, {own}, or of root; ask without \
         --token and {TOKEN}"
    )
    .into())
}

/// Fails if a token must not be sent to this address (I2).
fn check_address(address: SocketAddr) -> Result<(), String> {
    if address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    Err(format!(
        "the token would go to {} unencrypted; forward its port (ssh -L 9191:127.0.0.1:PORT HOST) and give \
         http://127.0.0.1:9191, or send it nevertheless with --insecure",
        address.ip()
    ))
}

async fn connect(target: &Target, has_token: bool, is_insecure: bool) -> Result<Sender, Failed> {
    let stream: Box<dyn Stream> = match target {
        Target::Unix(path) => {
            let stream = loop {
                match UnixStream::connect(path).await {
                    // The server's queue of connections is full, and the system doesn't wait until
                    // it has room.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        tokio::time::sleep(RETRY).await
                    }
                    connected => break connected?,
                }
            };
            if has_token {
                check_user(&stream)?;
            }
            Box::new(stream)
        }
        Target::Tcp(host) => {
            let stream = TcpStream::connect(host.as_str()).await?;
            if has_token && !is_insecure {
                check_address(stream.peer_addr()?)?;
            }
            Box::new(stream)
        }
    };
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn get(
    target: &Target,
    token: Option<&str>,
    is_insecure: bool,
    kept: &mut Option<Sender>,
) -> Result<Vec<u8>, Failed> {
    let sender = match kept {
        Some(sender) => sender,
        None => {
            let connected = connect(target, token.is_some(), is_insecure).await;
            kept.insert(connected.map_err(|error| {
                let refused =
                    error.downcast_ref().map(io::Error::kind) == Some(io::ErrorKind::ConnectionRefused);
                format!("connect: {error}{}", if refused { ": no program listens there" } else { "" })
            })?)
        }
    };
    sender.ready().await?;
    let host = if let Target::Tcp(host) = target { host } else { "localhost" };
    let mut request = Request::get("/v1/tree").header("host", host);
    if let Some(token) = token {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    let request = request.body(Empty::new()).map_err(|_| "a token has letters, digits and -._~+/= only")?;
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let most = if status == StatusCode::OK { ANSWER_MAX } else { PROBLEM_MAX };
    let body = Limited::new(answer.into_body(), most).collect().await.map(|body| Vec::from(body.to_bytes()));
    if status == StatusCode::OK { body } else { Err(refusal(status, &body.unwrap_or_default()).into()) }
}

/// Returns the detail of a problem, or the status alone.
fn refusal(status: StatusCode, body: &[u8]) -> String {
    let problem: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let detail = problem["detail"].as_str().map(plain);
    match detail {
        Some(detail) if status == StatusCode::UNAUTHORIZED => format!("{detail} (--token, or {TOKEN})"),
        Some(detail) => detail,
        None => format!("the answer has the status {status}"),
    }
}

/// Returns the microseconds since 1970; 0 if the clock is set to an earlier time.
pub(crate) fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixListener;

    use super::find::Program;
    use super::*;

    #[test]
    fn shows_names_and_paths_of_programs_without_characters_that_a_terminal_obeys() {
        let program = |pid, name: &str, socket: &str| Program {
            pid,
            name: name.to_owned(),
            socket: socket.into(),
            is_trusted: true,
        };
        let found = [
            program(7, "a\x1b[2J\n", "/tmp/\x1b]0;x\x07/m.sock"),
            program(8, "b\u{9b}31m", "/tmp/\u{202e}gnp.sock"),
        ];
        let error = only(&found, String::new()).expect_err("two programs").to_string();
        let lines: Vec<_> = error.lines().collect();
        let shown = [
            "        7  a\u{fffd}[2J\u{fffd}           /tmp/\u{fffd}]0;x\u{fffd}/m.sock",
            "        8  b\u{fffd}31m            /tmp/\u{fffd}gnp.sock",
        ];
        assert_eq!(lines[1..], shown, "{error:?}");
        let one = only(&[program(7, "a", "/tmp/\x1b[2J/m.sock")], String::new()).expect("a program");
        assert_eq!(one, Target::Unix("/tmp/\x1b[2J/m.sock".into()), "it is connected to as it is named");
        assert_eq!(one.to_string(), "/tmp/\u{fffd}[2J/m.sock");
    }

    #[test]
    fn reads_unknown_names_and_missing_figures() {
        let json = br#"{"later":[1,{"a":null}],"groups":[{"path":"/","later":{}},{"path":"/a","parent":0,"usage_bytes":7}]}"#;
        let snapshot = read(json).expect("a snapshot");
        let figures: Vec<_> =
            snapshot.groups.iter().map(|group| (&*group.path, group.depth, group.usage_bytes)).collect();
        assert_eq!(figures, [("/", 0, 0), ("/a", 1, 7)]);
    }

    #[test]
    fn names_the_value_that_is_wrong() {
        for (groups, part) in [
            ("", "no groups"),
            ("{\"parent\":0}", "group 0 has the parent 0"),
            ("{},{}", "group 1 has no parent"),
            ("{},{\"parent\":1}", "group 1 has the parent 1"),
            ("{},{\"parent\":0,\"limits\":{\"max_bytes\":-1}}", "groups[1].limits.max_bytes: "),
            ("1", "groups[0]: invalid type: integer `1`"),
        ] {
            let json = format!("{{\"groups\":[{groups}]}}");
            let error = Shot::of(json.into_bytes()).err().expect(groups);
            assert!(error.starts_with("read a snapshot: ") && error.contains(part), "{part}: {error}");
        }
        assert!(Shot::of(b"{".to_vec()).is_err());
    }

    #[test]
    fn refuses_more_groups_than_it_has_memory_for() {
        let json = |count: usize| format!("{{\"groups\":[{{}}{}]}}", ",{\"parent\":0}".repeat(count - 1));
        assert_eq!(read(json(GROUPS_MAX).as_bytes()).expect("a snapshot").groups.len(), GROUPS_MAX);
        let error = read(json(GROUPS_MAX + 1).as_bytes()).expect_err("too many");
        assert_eq!(error, "it has 262145 groups; at most 262144 are read");
    }

    #[test]
    fn sends_a_token_to_this_machine_only() {
        for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            check_address(address.parse().expect("an address")).expect("this machine");
        }
        for address in ["10.0.0.1:1", "192.0.2.7:1", "[2001:db8::1]:1", "[::ffff:10.0.0.1]:1", "0.0.0.0:1"] {
            let error = check_address(address.parse().expect("an address")).expect_err("another machine");
            assert!(error.contains("unencrypted") && error.contains("--insecure"), "{error}");
        }
    }

    /// The address at which this machine reaches others, if it has one.
    fn outer_address() -> Option<std::net::IpAddr> {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
        socket.connect("192.0.2.1:9").ok()?;
        socket.local_addr().ok().map(|address| address.ip()).filter(|ip| !ip.is_loopback())
    }

    #[test]
    fn sends_no_byte_to_another_address_with_a_token_unless_told() {
        let Some(ip) = outer_address() else {
            eprintln!("skipped: this machine has no address but the loopback's");
            return;
        };
        let listener = std::net::TcpListener::bind((ip, 0)).expect("a port");
        let target = Target::Tcp(listener.local_addr().expect("an address").to_string());
        let token = || Some("secret".to_owned());
        let mut client = Client::new(target.clone(), token(), false).expect("a client");
        let error = client.shot().err().expect("an error");
        assert!(error.contains("--insecure"), "{error}");
        let (mut stream, _) = listener.accept().expect("a connection");
        assert_eq!(stream.read(&mut [0; 1 << 10]).expect("the end"), 0, "bytes were sent");
        for (token, is_insecure) in [(None, false), (token(), true)] {
            let has_token = token.is_some();
            let mut client = Client::new(target.clone(), token, is_insecure).expect("a client");
            thread::scope(|scope| {
                let server = scope.spawn(|| {
                    let (mut stream, _) = listener.accept().expect("a connection");
                    let mut request = [0; 1 << 10];
                    let length = stream.read(&mut request).expect("a request");
                    stream
                        .write_all(b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n")
                        .expect("a head");
                    String::from_utf8_lossy(&request[..length]).contains("secret")
                });
                assert!(client.shot().err().expect("an error").contains("503"));
                drop(client);
                assert_eq!(server.join().expect("a server"), has_token);
            });
        }
    }

    #[test]
    fn reads_a_bounded_part_of_an_error() {
        const ENDLESS: usize = 64 << 20;
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let mut client = Client::new(Target::Unix(socket), None, false).expect("a client");
        thread::scope(|scope| {
            let server = scope.spawn(|| {
                let (mut stream, _) = listener.accept().expect("a connection");
                assert!(stream.read(&mut [0; 1 << 10]).expect("a request") > 0);
                stream.write_all(b"HTTP/1.1 503 Service Unavailable\r\n\r\n").expect("a head");
                let piece = [b' '; 1 << 16];
                (0..ENDLESS / piece.len()).take_while(|_| stream.write_all(&piece).is_ok()).count()
                    * piece.len()
            });
            let error = client.shot().err().expect("an error");
            assert!(error.ends_with("the answer has the status 503 Service Unavailable"), "{error}");
            drop(client);
            assert!(server.join().expect("a server") < ENDLESS, "the whole body was read");
        });
    }
}
