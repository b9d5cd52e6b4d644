//! Settings of a server, and tokens: secrets that grant a right.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use subtle::ConstantTimeEq as _;

/// The default limit of the server's group. With it, each route can answer in a tree with as many
/// groups as a hierarchy allows by default.
const MAX_BYTES: u64 = 64 << 20;

/// Settings of a server: where it listens, which clients may read and control, and its bounds.
/// [`start`](crate::start) takes them.
///
/// ```
/// use memgroup_serve::{Control, Serve};
///
/// let reading = Serve::unix("/run/shop/memgroup.sock");
/// let both = Serve::unix("/run/shop/memgroup.sock").and_tcp(([127, 0, 0, 1], 9191)).control(Control::Unix);
/// # drop((reading, both));
/// ```
#[derive(Clone, Debug)]
#[must_use = "settings do nothing until a server is started with them"]
pub struct Serve {
    pub(crate) unix: Option<PathBuf>,
    pub(crate) tcp: Option<SocketAddr>,
    pub(crate) beyond_loopback: bool,
    pub(crate) hosts: Vec<String>,
    pub(crate) token: Option<Token>,
    pub(crate) control_unix: bool,
    pub(crate) control_token: Option<Token>,
    pub(crate) group: String,
    pub(crate) max_bytes: u64,
    pub(crate) min_bytes: u64,
    pub(crate) metrics_groups: usize,
    pub(crate) history_groups: usize,
    pub(crate) events: usize,
    pub(crate) connections: usize,
    pub(crate) cpu_percent: u32,
    pub(crate) niceness: i32,
    pub(crate) times: Times,
}

/// How clients get the right to control. By default no client has it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Control {
    /// Each client of the Unix socket: processes of the same user, and of root.
    Unix,
    /// Each client that sends this token, by TCP or the Unix socket. The client may then also read.
    Token(Token),
}

/// The time that each step of a client may take. The server ends the connection of a client that
/// takes longer.
///
/// ```
/// use memgroup_serve::{Serve, Times};
/// use std::time::Duration;
///
/// let patient = Times { write: Duration::from_secs(60), ..Times::default() };
/// let serve = Serve::unix("/run/shop/memgroup.sock").times(patient);
/// # drop(serve);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// From the first byte of a request to the end of its headers; 5 s by default.
    pub head: Duration,
    /// For the body of a request; 5 s by default.
    pub body: Duration,
    /// Between two requests of a connection; 30 s by default.
    pub idle: Duration,
    /// For a client that reads nothing of an answer, from the moment when the server can write no
    /// more bytes; 10 s by default.
    pub write: Duration,
    /// For a whole answer, except `/v1/events`; 60 s by default.
    pub answer: Duration,
}

impl Default for Times {
    fn default() -> Times {
        let seconds = Duration::from_secs;
        Times {
            head: seconds(5),
            body: seconds(5),
            idle: seconds(30),
            write: seconds(10),
            answer: seconds(60),
        }
    }
}

impl Serve {
    /// A server without a listener. It writes log lines, and feeds the facade `metrics` if that
    /// feature is on.
    pub fn without_listener() -> Serve {
        Serve {
            unix: None,
            tcp: None,
            beyond_loopback: false,
            hosts: Vec::new(),
            token: None,
            control_unix: false,
            control_token: None,
            group: "/memgroup-serve".to_owned(),
            max_bytes: MAX_BYTES,
            min_bytes: 0,
            metrics_groups: 1000,
            history_groups: 500,
            events: 4096,
            connections: 64,
            cpu_percent: 25,
            niceness: 10,
            times: Times::default(),
        }
    }

    /// A server on a Unix socket with mode 0600. Processes of the same user, and of root, may read.
    ///
    /// The directory must exist. The server replaces a socket that no server uses any longer.
    pub fn unix(path: impl Into<PathBuf>) -> Serve {
        Serve::without_listener().and_unix(path)
    }

    /// A server on a TCP address of the loopback; port 0 is any free port. A client needs a
    /// [token](Serve::token) to read.
    pub fn tcp(address: impl Into<SocketAddr>) -> Serve {
        Serve::without_listener().and_tcp(address)
    }

    /// Listens on a Unix socket as well; see [`unix`](Serve::unix).
    pub fn and_unix(mut self, path: impl Into<PathBuf>) -> Serve {
        self.unix = Some(path.into());
        self
    }

    /// Listens on a TCP address as well; see [`tcp`](Serve::tcp).
    pub fn and_tcp(mut self, address: impl Into<SocketAddr>) -> Serve {
        self.tcp = Some(address.into());
        self
    }

    /// Allows an address that other machines can reach. Requests, answers and tokens are not
    /// encrypted: put a proxy with TLS before it.
    pub fn beyond_loopback(mut self) -> Serve {
        self.beyond_loopback = true;
        self
    }

    /// Allows a name in the header `Host`, such as that of a proxy, with its port if it is not 80:
    /// `ops.example:8443`.
    ///
    /// Without it only `localhost` and addresses are allowed, so that a name which an attacker
    /// points to this machine is refused.
    pub fn host(mut self, name: impl Into<String>) -> Serve {
        self.hosts.push(name.into().to_ascii_lowercase());
        self
    }

    /// Sets the token with which clients read by TCP. By default the server makes a
    /// [random](Token::random) token; see [`Server::token`](crate::Server::token).
    pub fn token(mut self, token: Token) -> Serve {
        self.token = Some(token);
        self
    }

    /// Gives some clients the right to write files, to create groups and to remove them. Call it
    /// once for each [`Control`].
    pub fn control(mut self, control: Control) -> Serve {
        match control {
            Control::Unix => self.control_unix = true,
            Control::Token(token) => self.control_token = Some(token),
        }
        self
    }

    /// Sets the group that the server charges, `/memgroup-serve` by default. The server creates
    /// missing groups above it.
    pub fn group(mut self, path: impl Into<String>) -> Serve {
        self.group = path.into();
        self
    }

    /// Sets the limit of the server's group in bytes, 64 MiB by default. An answer that needs more
    /// is refused with status 503.
    ///
    /// At its start the server charges 64 KiB for each of the possible
    /// [connections](Serve::connections), and 300 bytes for each of the possible
    /// [events](Serve::events). The history takes 14 KiB for each of its groups, and the list of
    /// all groups takes about 300 bytes for each group. A snapshot takes about 1.5 KiB for each
    /// group, so an answer has the largest groups that fit in a quarter of the limit, unless its
    /// client asks for more.
    pub fn max_bytes(mut self, bytes: u64) -> Serve {
        self.max_bytes = bytes;
        self
    }

    /// Sets the protected bytes of the server's group, its `memory.min`; 0 by default.
    ///
    /// If the group above has [`set_reserve_min`](memgroup::Group::set_reserve_min), no other group
    /// can take these bytes. Large answers then work while the tree is full.
    pub fn min_bytes(mut self, bytes: u64) -> Serve {
        self.min_bytes = bytes;
        self
    }

    /// Sets the most groups with series of their own in `/metrics`: the largest ones, 1,000 by
    /// default. `other` is the sum of all others.
    pub fn metrics_groups(mut self, groups: usize) -> Serve {
        self.metrics_groups = groups.max(1);
        self
    }

    /// Sets the most groups in `/v1/history`: the largest ones, 500 by default.
    pub fn history_groups(mut self, groups: usize) -> Serve {
        self.history_groups = groups;
        self
    }

    /// Sets the number of events that are kept for clients of `/v1/events` that come back; 4,096 by
    /// default. The server reserves 300 bytes for each, and keeps fewer if events are longer.
    pub fn events(mut self, events: usize) -> Serve {
        self.events = events.max(1);
        self
    }

    /// Sets the most connections at one time, 64 by default and at least 2. Half of them may be
    /// streams of events.
    pub fn connections(mut self, connections: usize) -> Serve {
        self.connections = connections.max(2);
        self
    }

    /// Sets the part of one CPU that requests may take over a longer time, in percent from 1 to
    /// 100; 25 by default. Requests beyond it wait.
    ///
    /// Up to 33 percent, the thread also rests for 100 us after each 100 us of its work, so that a
    /// tenant's thread on the same CPU gets it soon. Operating systems make each rest longer, Linux
    /// by 50 us and more, so an answer takes two to three times its CPU time on an idle machine.
    ///
    /// All CPU time of the server's thread counts, except that of its checks of the tree, which
    /// take at most a twentieth of a CPU. Control actions have threads of their own, and their time
    /// doesn't count.
    pub fn cpu_percent(mut self, percent: u32) -> Serve {
        self.cpu_percent = percent.clamp(1, 100);
        self
    }

    /// Sets the niceness of the server's thread above that of the thread that starts the server,
    /// from 0 to 19; 10 by default. With a high niceness, a tenant's thread doesn't wait for a CPU
    /// that the server uses. Only on Linux do threads have a niceness of their own; on other
    /// systems this does nothing.
    ///
    /// Control actions run on threads with the niceness of the thread that starts the server. They
    /// take locks of the engine that tenants may wait for.
    pub fn niceness(mut self, niceness: u8) -> Serve {
        self.niceness = i32::from(niceness.min(19));
        self
    }

    /// Sets the times that clients may take.
    pub fn times(mut self, times: Times) -> Serve {
        self.times = times;
        self
    }
}

/// The fewest and the most bytes of a token.
const LEN: std::ops::RangeInclusive<usize> = 16..=256;

/// A secret that a client sends in the header `Authorization: Bearer ...`. `Debug` does not show
/// it.
#[derive(Clone)]
pub struct Token(String);

/// The reason why a text is not a [`Token`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The text is too short for a secret, or too long for a header; its length in bytes.
    #[error("a token of {0} bytes: it needs {least} to {most}", least = LEN.start(), most = LEN.end())]
    Length(usize),
    /// The text has this byte, which is not a letter, a digit or one of `-._~+/=`.
    #[error("a token with the byte {:?}: it takes letters, digits and -._~+/=", char::from(*.0))]
    Byte(u8),
}

impl Token {
    /// Makes a token of 256 random bits, written as 64 hexadecimal digits.
    ///
    /// # Errors
    /// The operating system provides no random numbers.
    pub fn random() -> io::Result<Token> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)
            .map_err(|error| io::Error::other(format!("make a random token: {error}")))?;
        Ok(Token(bytes.iter().map(|byte| format!("{byte:02x}")).collect()))
    }

    /// Makes a token from a text, such as one from a file of secrets.
    ///
    /// ```
    /// use memgroup_serve::Token;
    ///
    /// let token = Token::new("k3Yg0zJ7c2P4_not-this-one".replace('_', "~"))?;
    /// assert_eq!(format!("{token:?}"), "Token(..)");
    /// assert_eq!(Token::new("short").unwrap_err().to_string(), "a token of 5 bytes: it needs 16 to 256");
    /// # Ok::<(), memgroup_serve::TokenError>(())
    /// ```
    ///
    /// # Errors
    /// The text has less than 16 or more than 256 bytes, or a byte that [`TokenError::Byte`]
    /// describes.
    pub fn new(text: impl Into<String>) -> Result<Token, TokenError> {
        let text = text.into();
        let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte);
        if !LEN.contains(&text.len()) {
            return Err(TokenError::Length(text.len()));
        }
        match text.bytes().find(|byte| !allowed(byte)) {
            Some(byte) => Err(TokenError::Byte(byte)),
            None => Ok(Token(text)),
        }
    }

    /// The secret itself.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// Writes the secret and a newline to a new file of mode 0600. It first removes a file or link
    /// at `path`, and never writes through a link.
    ///
    /// # Errors
    /// The file cannot be removed, created or written.
    pub fn write_to(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        writeln!(file, "{}", self.0)
    }

    /// Returns whether a client's text is this token. The time does not depend on where the two
    /// differ.
    pub(crate) fn is(&self, text: &[u8]) -> bool {
        bool::from(self.0.as_bytes().ct_eq(text))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn two_random_tokens_differ_and_are_valid() {
        let (one, other) = (Token::random().unwrap(), Token::random().unwrap());
        assert_eq!(one.secret().len(), 64);
        assert!(!one.is(other.secret().as_bytes()) && one.is(one.secret().as_bytes()));
        Token::new(one.secret()).unwrap();
    }

    #[test]
    fn a_prefix_and_a_longer_text_are_no_match() {
        let token = Token::new("0123456789abcdef").unwrap();
        for text in ["", "0123456789abcde", "0123456789abcdef0", "0123456789abcdeF"] {
            assert!(!token.is(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn refuses_bytes_that_no_header_takes() {
        assert_eq!(Token::new("0123456789abcde\n").unwrap_err(), TokenError::Byte(b'\n'));
        assert_eq!(Token::new("x".repeat(257)).unwrap_err(), TokenError::Length(257));
    }

    #[test]
    fn writes_a_new_file_that_only_the_owner_reads() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("token"), folder.path().join("other"));
        std::fs::write(&other, "untouched").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        let token = Token::random().unwrap();
        token.write_to(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{}\n", token.secret()));
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "untouched");
    }
}
