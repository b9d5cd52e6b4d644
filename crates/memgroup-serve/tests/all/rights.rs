//! Each route with each kind of client: only a client with the right gets an answer, and no other
//! one changes anything.

use memgroup_serve::{ROUTES, Right, Serve};

use crate::client::Client;
use crate::fixture::{CONTROL, Fixture, READ};

/// A kind of client.
struct Kind {
    name: &'static str,
    client: fn(&Fixture) -> Client,
    right: Right,
    /// The code of the refusal when it lacks the right.
    code: &'static str,
    /// Whether it is refused even if no right is needed.
    is_foreign: bool,
}

const fn kind(name: &'static str, right: Right, code: &'static str, client: fn(&Fixture) -> Client) -> Kind {
    Kind { name, client, right, code, is_foreign: false }
}

const fn foreign(name: &'static str, code: &'static str, client: fn(&Fixture) -> Client) -> Kind {
    Kind { name, client, right: Right::Nothing, code, is_foreign: true }
}

const KINDS: &[Kind] = &[
    kind("TCP without a token", Right::Nothing, "no_token", |f| f.tcp()),
    kind("TCP, reading", Right::Read, "no_right", |f| f.tcp().token(READ)),
    kind("TCP, control", Right::Control, "", |f| f.tcp().token(CONTROL)),
    kind("Unix", Right::Read, "no_right", |f| f.unix()),
    kind("Unix, reading by token", Right::Read, "no_right", |f| f.unix().token(READ)),
    kind("Unix, control by token", Right::Control, "", |f| f.unix().token(CONTROL)),
    foreign("wrong token", "wrong_token", |f| f.tcp().token("token-for-nothing")),
    foreign("wrong token on the Unix socket", "wrong_token", |f| f.unix().token("token-for-nothing")),
    foreign("a cookie and a wrong scheme", "wrong_token", |f| {
        f.tcp().with("cookie", &format!("token={CONTROL}")).with("authorization", &format!("Basic {CONTROL}"))
    }),
    foreign("wrong host", "wrong_host", |f| f.controller().with("host", "evil.example")),
    foreign("right host, wrong port", "wrong_host", |f| f.controller().with("host", "localhost:1")),
    foreign("wrong host on the Unix socket", "wrong_host", |f| {
        f.unix().token(CONTROL).with("host", "evil.example")
    }),
    foreign("wrong origin", "wrong_origin", |f| f.controller().with("origin", "http://evil.example")),
    foreign("no origin of a page", "wrong_origin", |f| f.controller().with("origin", "null")),
    foreign("wrong origin on the Unix socket", "wrong_origin", |f| {
        f.unix().token(CONTROL).with("origin", "http://evil.example")
    }),
    kind("a page of another site", Right::Nothing, "wrong_origin", |f| {
        f.controller().with("sec-fetch-site", "cross-site")
    }),
];

/// The headers of each answer that keep its text from other pages.
const HEADERS: &[(&str, &str)] = &[
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
];

/// All that a request could change.
fn state(fixture: &Fixture) -> Vec<(String, memgroup::Limits)> {
    let groups = fixture.hierarchy.snapshot().groups;
    groups.into_iter().filter(|group| group.online).map(|group| (group.path, group.limits)).collect()
}

/// The path and the body of a request that does something.
fn request(route: &memgroup_serve::Route) -> (String, &'static str) {
    match (route.method, route.path) {
        ("DELETE", _) => ("/v1/groups/t/old".to_owned(), ""),
        ("POST", _) => ("/v1/groups/t/new".to_owned(), "{\"max\": \"8M\"}"),
        (method, path) => {
            let path = path.replace("<path>", "t").replace("<file>", "memory.max");
            (path, if method == "PUT" { "1M" } else { "" })
        }
    }
}

/// The tree before each request.
fn prepare(fixture: &Fixture) {
    fixture.hierarchy.get_or_create("/t/old").unwrap();
    fixture.hierarchy.lookup("/t").unwrap().set_max(None).unwrap();
    if let Ok(new) = fixture.hierarchy.lookup("/t/new") {
        new.remove().unwrap();
    }
}

#[test]
fn each_route_answers_only_clients_with_its_right() {
    let fixture = Fixture::with(|serve: Serve| serve);
    for route in ROUTES {
        for kind in KINDS {
            prepare(&fixture);
            let (path, body) = request(route);
            let before = state(&fixture);
            let reply = (kind.client)(&fixture).send(route.method, &path, body.as_bytes());
            let case = format!("{} {} by {}: {}", route.method, path, kind.name, reply.status);
            for (name, value) in HEADERS {
                assert_eq!(reply.header(name), Some(*value), "{name} of {case}");
            }
            assert_eq!(reply.header("access-control-allow-origin"), None, "{case}");
            if !kind.is_foreign && kind.right >= route.right {
                assert!((200..300).contains(&reply.status), "{case} {}", reply.text());
                assert_eq!(route.right == Right::Control, state(&fixture) != before, "{case}");
            } else {
                assert_eq!(reply.code(), kind.code, "{case}");
                assert!(matches!(reply.status, 401 | 403 | 421), "{case}");
                assert_eq!(state(&fixture), before, "{case}");
            }
        }
    }
}

#[test]
fn other_methods_and_paths_change_nothing() {
    let fixture = Fixture::new();
    prepare(&fixture);
    let before = state(&fixture);
    let client = fixture.controller();
    let known = |method: &str, path: &str| {
        ROUTES.iter().any(|route| route.method == method && request(route).0 == path)
    };
    for path in ROUTES.iter().map(|route| request(route).0).chain(["/nothing".to_owned(), "/v1".to_owned()]) {
        for method in ["GET", "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "get"] {
            let is_group =
                path.starts_with("/v1/groups") && ["GET", "PUT", "POST", "DELETE"].contains(&method);
            if known(method, &path) || is_group {
                continue;
            }
            let reply = client.send(method, &path, b"1M");
            assert!(matches!(reply.code().as_str(), "no_such_path" | "no_such_method"), "{method} {path}");
            assert_eq!(state(&fixture), before, "{method} {path}");
        }
    }
}

#[test]
fn control_is_off_unless_it_was_turned_on() {
    let folder = tempfile::tempdir().unwrap();
    let hierarchy = crate::fixture::hierarchy();
    let serve = Serve::unix(crate::fixture::socket(&folder)).and_tcp(([127, 0, 0, 1], 0));
    let server = memgroup_serve::start(&hierarchy, serve).unwrap();
    hierarchy.create("/t").unwrap();
    let unix = Client::unix(server.socket().unwrap());
    let tcp = Client::tcp(server.address().unwrap()).token(server.token().unwrap().secret());
    for client in [unix, tcp] {
        assert_eq!(client.get("/v1/about").json()["rights"], serde_json::json!(["read"]));
        let reply = client.send("PUT", "/v1/groups/t/memory.max", b"1M");
        assert!(reply.text().contains("Serve::control"), "{}", reply.text());
        assert_eq!(reply.code(), "no_right");
    }
    assert_eq!(hierarchy.lookup("/t").unwrap().max(), None);
}

#[test]
fn another_user_gets_nothing_by_the_socket() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Output};

    /// The status of curl when it cannot connect.
    const NO_CONNECTION: Option<i32> = Some(7);
    const OTHER: u32 = 65_534;

    let fixture = Fixture::new();
    let socket = fixture.server.socket().unwrap();
    let ask = |user: Option<u32>, method: &str, path: &str, more: &[&str]| -> std::io::Result<Output> {
        let mut curl = Command::new("curl");
        curl.args(["-s", "-m", "60", "-X", method, "-w", "\n%{http_code}", "--unix-socket"]).arg(socket);
        curl.args(more).arg(format!("http://localhost{path}"));
        if let Some(user) = user {
            curl.uid(user).gid(user);
        }
        curl.output()
    };
    // Only root can be another user, and curl may be missing.
    if ask(Some(OTHER), "GET", "/v1/tree", &[]).is_err() {
        println!("SKIPPED: this process cannot run curl as another user");
        return;
    }
    let is_kept_out = |reason: &str| {
        let own = ask(None, "GET", "/v1/tree", &[]).unwrap();
        let text = String::from_utf8(own.stdout).unwrap();
        assert!(text.contains("\"groups\"") && text.ends_with("\n200"), "the owner connects: {text}");
        let other = ask(Some(OTHER), "GET", "/v1/tree", &[]).unwrap();
        assert_eq!(other.status.code(), NO_CONNECTION, "{reason}: {other:?}");
    };
    is_kept_out("the folder and the mode keep it out");
    let open = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap()
    };
    open(fixture.folder.path(), 0o755);
    is_kept_out("the mode keeps it out");

    open(socket, 0o666);
    let reply = |method: &str, path: &str, more: &[&str]| {
        let output = ask(Some(OTHER), method, path, more).unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let (body, status) = text.rsplit_once('\n').unwrap();
        (body.to_owned(), status.to_owned())
    };
    for route in ROUTES.iter().filter(|route| route.right > Right::Nothing) {
        prepare(&fixture);
        let ((path, body), before) = (request(route), state(&fixture));
        let (answer, status) = reply(route.method, &path, &["--data-binary", body]);
        let problem: serde_json::Value = serde_json::from_str(&answer).unwrap();
        let case = format!("{} {path}: {answer}", route.method);
        assert_eq!((status.as_str(), &problem["code"]), ("403", &"no_right".into()), "{case}");
        assert!(answer.contains("user 65534 may not use this socket"), "{case}");
        assert_eq!(state(&fixture), before, "{case}");
    }
    // A token shows a right by itself.
    let bearer = format!("authorization: Bearer {READ}");
    assert_eq!(reply("GET", "/v1/tree", &["-H", &bearer]).1, "200");
    let (answer, status) = reply("PUT", "/v1/groups/t/memory.max", &["-H", &bearer, "--data-binary", "1M"]);
    assert_eq!(status, "403", "{answer}");
}
