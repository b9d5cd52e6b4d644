//! Access: the rights of a request, and whether a page of another site may have sent it.
//!
//! - I1. A request has the right to control only through a token in the header `Authorization`, or
//!   through the Unix socket if the program allows that. Nothing that a browser adds by itself,
//!   such as a cookie, gives a right.
//! - I2. A request with a `Host` that is not allowed gets no figures and changes nothing, because
//!   an attacker may have pointed that name to this machine. The same holds for a request with an
//!   `Origin` other than its `Host`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use http::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderMap, StatusCode};

use crate::config::Serve;
use crate::config::Token;
use crate::problem::Problem;
use crate::route::Right;

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Peer {
    Unix { uid: u32, pid: Option<i32>, is_allowed: bool },
    Tcp(SocketAddr),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Unix { uid, pid: Some(pid), .. } => write!(f, "uid {uid}, pid {pid}"),
            Peer::Unix { uid, pid: None, .. } => write!(f, "uid {uid}"),
            Peer::Tcp(address) => address.fmt(f),
        }
    }
}

/// The rules of a server.
#[derive(Debug)]
pub(crate) struct Access {
    serve: Serve,
    /// The address of the TCP listener.
    tcp: Option<SocketAddr>,
}

impl Access {
    pub(crate) fn new(serve: &Serve, tcp: Option<SocketAddr>) -> Access {
        Access { serve: serve.clone(), tcp }
    }

    /// Returns the right of a request, if it is at least the `needed` one.
    pub(crate) fn check(&self, request: &Parts, peer: Peer, needed: Right) -> Result<Right, Problem> {
        let host = self.check_host(request, peer)?;
        self.check_origin(&request.headers, &host, needed)?;
        let right = self.right(&request.headers, peer)?;
        if right >= needed {
            return Ok(right);
        }
        Err(self.lacking(peer, right, needed))
    }

    fn check_host(&self, request: &Parts, peer: Peer) -> Result<String, Problem> {
        let mut named = request.headers.get_all(HOST).iter();
        let (first, more) = (named.next(), named.next());
        let host = match (first, more) {
            (Some(host), None) => host.to_str().ok().map(str::to_ascii_lowercase),
            _ => None,
        };
        let host = host.ok_or_else(|| {
            Problem::bad(
                "invalid_host",
                "a request needs the header Host once, with the name or address of this server",
            )
        })?;
        // If the request line has a whole address, it must name the same server.
        let target = request.uri.authority().map(|authority| authority.as_str().to_ascii_lowercase());
        let is_same = target.as_ref().is_none_or(|target| *target == host);
        if is_same && self.is_allowed_host(&host, peer) {
            return Ok(host);
        }
        let detail = format!(
            "the host {:?} is not allowed; use localhost or an address, or allow the name with Serve::host",
            target.filter(|_| !is_same).unwrap_or(host)
        );
        Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "wrong_host", detail)
            .allowed(self.allowed_hosts(peer)))
    }

    fn is_allowed_host(&self, host: &str, peer: Peer) -> bool {
        if self.serve.hosts.iter().any(|allowed| allowed == host) {
            return true;
        }
        let Ok(authority) = host.parse::<Authority>() else { return false };
        if authority.as_str().contains('@') {
            return false;
        }
        let name = authority.host();
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let address = address.parse::<IpAddr>().ok();
        match (peer, self.tcp) {
            // A browser reaches the Unix socket only through a forwarded port, which may be any
            // port.
            (Peer::Unix { .. }, _) => name == "localhost" || address.is_some_and(|ip| ip.is_loopback()),
            (Peer::Tcp(_), Some(own)) => {
                let is_local = own.ip().is_loopback();
                let is_named = match address {
                    Some(ip) => !is_local || ip.is_loopback(),
                    None => name == "localhost",
                };
                is_named && authority.port_u16().unwrap_or(80) == own.port()
            }
            (Peer::Tcp(_), None) => false,
        }
    }

    fn allowed_hosts(&self, peer: Peer) -> Vec<String> {
        let own = match (peer, self.tcp) {
            (Peer::Tcp(_), Some(own)) => vec![format!("localhost:{}", own.port()), own.to_string()],
            _ => vec!["localhost".to_owned()],
        };
        own.into_iter().chain(self.serve.hosts.iter().cloned()).collect()
    }

    fn check_origin(&self, headers: &HeaderMap, host: &str, needed: Right) -> Result<(), Problem> {
        let foreign = |detail: String| Err(Problem::new(StatusCode::FORBIDDEN, "wrong_origin", detail));
        for origin in headers.get_all(ORIGIN) {
            let text = origin.to_str().map(str::to_ascii_lowercase).unwrap_or_default();
            let own = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
            if own != Some(host) {
                return foreign(format!(
                    "a page of the origin {text:?} may not send requests here; allowed is http://{host}"
                ));
            }
        }
        // Any site may link to the page itself.
        if needed == Right::Nothing {
            return Ok(());
        }
        match headers.get(FETCH_SITE).map(|site| site.as_bytes()) {
            None | Some(b"same-origin" | b"none") => Ok(()),
            Some(_) => foreign("a page of another site may not send requests here".to_owned()),
        }
    }

    fn right(&self, headers: &HeaderMap, peer: Peer) -> Result<Right, Problem> {
        let by_socket = match peer {
            Peer::Unix { is_allowed: true, .. } if self.serve.control_unix => Right::Control,
            Peer::Unix { is_allowed: true, .. } => Right::Read,
            Peer::Unix { is_allowed: false, .. } | Peer::Tcp(_) => Right::Nothing,
        };
        let mut sent = headers.get_all(AUTHORIZATION).iter();
        let Some(header) = sent.next() else { return Ok(by_socket) };
        let unknown = || {
            unauthorized(
                "wrong_token",
                "the token is not one of this server; send it as Authorization: Bearer TOKEN",
            )
        };
        let secret = bearer(header.as_bytes()).filter(|_| sent.next().is_none()).ok_or_else(unknown)?;
        // Both are always compared, so that the time reveals nothing.
        let is = |token: &Option<Token>| token.as_ref().is_some_and(|token| token.is(secret));
        let (reads, controls) = (is(&self.serve.token), is(&self.serve.control_token));
        match (controls, reads) {
            (true, _) => Ok(Right::Control),
            (false, true) => Ok(by_socket.max(Right::Read)),
            (false, false) => Err(unknown()),
        }
    }

    fn lacking(&self, peer: Peer, right: Right, needed: Right) -> Problem {
        let forbidden = |detail: String| Problem::new(StatusCode::FORBIDDEN, "no_right", detail);
        match (peer, needed) {
            (Peer::Unix { uid, is_allowed: false, .. }, _) => {
                forbidden(format!("user {uid} may not use this socket; its owner and root may, or a client with a token"))
            }
            (_, Right::Control) if right == Right::Read && self.serve.control_token.is_some() => {
                forbidden("this client may read, and not control; the token for control is another one".to_owned())
            }
            (_, Right::Control) if right == Right::Read => forbidden(
                "this client may read, and not control; the program allows it with Serve::control, which is off by default"
                    .to_owned(),
            ),
            _ => unauthorized("no_token", "a token is needed; send it as Authorization: Bearer TOKEN"),
        }
    }
}

fn unauthorized(code: &'static str, detail: &str) -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, code, detail)
}

/// Returns the secret in a header `Authorization`.
fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, secret) = header.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| secret.trim_ascii())
}

#[cfg(test)]
mod tests {
    use http::Request;
    use proptest::prelude::*;

    use super::*;

    const READ: &str = "reading-reading-reading";
    const CONTROL: &str = "control-control-control";

    fn access() -> Access {
        let token = |text: &str| Token::new(text).unwrap();
        let serve = Serve::tcp(([127, 0, 0, 1], 9191)).token(token(READ)).host("Ops.example:8443");
        let serve = serve.control(crate::Control::Token(token(CONTROL)));
        Access::new(&serve, Some(([127, 0, 0, 1], 9191).into()))
    }

    const TCP: Peer = Peer::Tcp(SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 5000));
    const OWNER: Peer = Peer::Unix { uid: 1000, pid: None, is_allowed: true };
    const STRANGER: Peer = Peer::Unix { uid: 2000, pid: None, is_allowed: false };

    fn check(peer: Peer, needed: Right, headers: &[(&str, &str)]) -> Result<Right, &'static str> {
        let mut request = Request::builder().uri("/v1/tree");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        access().check(&parts, peer, needed).map_err(|problem| problem.code)
    }

    #[test]
    fn allows_addresses_and_listed_names_as_hosts() {
        let bearer = format!("Bearer {READ}");
        let tcp = |host: &str| check(TCP, Right::Read, &[("host", host), ("authorization", &bearer)]);
        for host in [
            "localhost:9191",
            "LOCALHOST:9191",
            "127.0.0.1:9191",
            "127.1.2.3:9191",
            "[::1]:9191",
            "ops.example:8443",
        ] {
            assert_eq!(tcp(host), Ok(Right::Read), "{host}");
        }
        let wrong = [
            "localhost",
            "localhost:9192",
            "evil.example:9191",
            "10.0.0.1:9191",
            "localhost.evil.example:9191",
            "a@localhost:9191",
            "ops.example",
            "ops.example:9191",
            "[::1",
            "::1",
            "localhost:",
            "",
        ];
        for host in wrong {
            assert_eq!(tcp(host), Err("wrong_host"), "{host}");
        }
        assert_eq!(check(TCP, Right::Nothing, &[]), Err("invalid_host"));
        assert_eq!(
            check(TCP, Right::Nothing, &[("host", "localhost:9191"), ("host", "localhost:9191")]),
            Err("invalid_host")
        );
        for (host, expected) in [
            ("localhost", Ok(Right::Read)),
            ("127.0.0.1:1", Ok(Right::Read)),
            ("evil.example", Err("wrong_host")),
        ] {
            assert_eq!(check(OWNER, Right::Read, &[("host", host)]), expected, "{host}");
        }
    }

    #[test]
    fn a_whole_address_in_the_request_line_names_the_same_host() {
        for (uri, expected) in
            [("http://localhost:9191/", Ok(Right::Nothing)), ("http://evil.example:9191/", Err("wrong_host"))]
        {
            let request = Request::builder().uri(uri).header("host", "localhost:9191").body(()).unwrap();
            let (parts, ()) = request.into_parts();
            assert_eq!(access().check(&parts, TCP, Right::Nothing).map_err(|problem| problem.code), expected);
        }
    }

    #[test]
    fn refuses_pages_of_other_origins() {
        let host = ("host", "localhost");
        for origin in [
            "http://evil.example",
            "null",
            "http://localhost:9191",
            "file://",
            "http://localhost@evil.example",
            "localhost",
        ] {
            assert_eq!(
                check(OWNER, Right::Nothing, &[host, ("origin", origin)]),
                Err("wrong_origin"),
                "{origin}"
            );
        }
        assert_eq!(check(OWNER, Right::Read, &[host, ("origin", "http://localhost")]), Ok(Right::Read));
        for (site, expected) in [
            ("same-origin", Ok(Right::Read)),
            ("none", Ok(Right::Read)),
            ("same-site", Err("wrong_origin")),
            ("cross-site", Err("wrong_origin")),
        ] {
            assert_eq!(check(OWNER, Right::Read, &[host, ("sec-fetch-site", site)]), expected, "{site}");
        }
        assert_eq!(check(OWNER, Right::Nothing, &[host, ("sec-fetch-site", "cross-site")]), Ok(Right::Read));
    }

    #[test]
    fn rights_come_from_the_socket_and_from_tokens() {
        use Right::{Control, Nothing, Read};
        let (read, control) = (format!("Bearer {READ}"), format!("bearer  {CONTROL} "));
        let cases = [
            (TCP, "", Nothing, Ok(Nothing)),
            (TCP, "", Read, Err("no_token")),
            (TCP, "", Control, Err("no_token")),
            (TCP, &read, Read, Ok(Read)),
            (TCP, &read, Control, Err("no_right")),
            (TCP, &control, Read, Ok(Control)),
            (TCP, &control, Control, Ok(Control)),
            (TCP, "Bearer wrong", Nothing, Err("wrong_token")),
            (TCP, "Basic cmVhZA==", Read, Err("wrong_token")),
            (TCP, "Bearer", Read, Err("wrong_token")),
            (OWNER, "", Read, Ok(Read)),
            (OWNER, "", Control, Err("no_right")),
            (OWNER, &read, Read, Ok(Read)),
            (OWNER, &read, Control, Err("no_right")),
            (OWNER, &control, Control, Ok(Control)),
            (OWNER, "Bearer wrong", Read, Err("wrong_token")),
            (STRANGER, "", Nothing, Ok(Nothing)),
            (STRANGER, "", Read, Err("no_right")),
            (STRANGER, &read, Read, Ok(Read)),
            (STRANGER, &read, Control, Err("no_right")),
        ];
        for (peer, header, needed, expected) in cases {
            let host = ("host", if matches!(peer, Peer::Tcp(_)) { "localhost:9191" } else { "localhost" });
            let sent = [host, ("authorization", header)];
            let sent = if header.is_empty() { &sent[..1] } else { &sent[..] };
            assert_eq!(check(peer, needed, sent), expected, "{peer} {header:?} {needed:?}");
        }
        let twice =
            [("host", "localhost"), ("authorization", control.as_str()), ("authorization", control.as_str())];
        assert_eq!(check(OWNER, Control, &twice), Err("wrong_token"));
    }

    proptest! {
        #[test]
        fn no_header_panics_or_gives_a_right(host in "[ -~]{0,40}", origin in "[ -~]{0,40}", token in "[ -~]{0,60}") {
            let right = check(TCP, Right::Control, &[("host", &host), ("origin", &origin), ("authorization", &token)]);
            prop_assert!(right.is_err());
        }
    }
}
