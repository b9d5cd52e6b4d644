//! Route: each path that the server answers, with the right that it needs, and what a request
//! names: the group, the file, the query.
//!
//! - I1. Each part of a path is decoded once, and has no slash afterwards, so a request names a
//!   group only by the group's own path.
//! - I2. A text that cannot be decoded is refused, never repaired: `%zz`, `%` at the end, bytes
//!   that are not UTF-8, an empty part.

use http::{Method, StatusCode};
use percent_encoding::percent_decode_str;

use crate::problem::Problem;

/// The right that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    /// No right: the answer is a file of the page, which has no figures.
    Nothing,
    /// The right to read all figures of the tree.
    Read,
    /// The right to write files, and to create and remove groups.
    Control,
}

/// The act that a route stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Page(PageFile),
    About,
    Metrics,
    Tree,
    Table,
    /// A group, or a file of it.
    Show,
    Waits,
    Kills,
    History,
    Events,
    Control(Change),
}

/// The act of a route that changes the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Write,
    Create,
    Remove,
}

/// A file of the page, which is a part of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageFile {
    pub(crate) kind: &'static str,
    pub(crate) text: &'static str,
}

/// The policy of all answers: the page loads nothing from elsewhere, and runs no code but its own
/// files.
pub(crate) const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                                 img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A path, a method, and the right that such a request needs.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Route {
    /// The method. `HEAD` is answered like `GET`.
    pub method: &'static str,
    /// The path; `<path>` stands for the parts of a group's path, `<file>` for the name of a file.
    pub path: &'static str,
    /// The right.
    pub right: Right,
    /// The names that the query of a request may have.
    pub query: &'static [&'static str],
    pub(crate) act: Act,
}

const fn route(method: &'static str, path: &'static str, right: Right, act: Act) -> Route {
    Route { method, path, right, query: &[], act }
}

macro_rules! page {
    ($path:literal, $kind:literal, $file:literal) => {{
        let kind = concat!("text/", $kind, "; charset=utf-8");
        let text = include_str!(concat!("../page/", $file));
        route("GET", $path, Right::Nothing, Act::Page(PageFile { kind, text }))
    }};
}

impl Route {
    const fn query(self, query: &'static [&'static str]) -> Route {
        Route { query, ..self }
    }
}

/// All routes. A request for another path is answered with status 404, and one with another method
/// with status 405.
pub const ROUTES: &[Route] = &[
    page!("/", "html", "index.html"),
    page!("/style.css", "css", "style.css"),
    page!("/app.js", "javascript", "app.js"),
    page!("/text.js", "javascript", "text.js"),
    page!("/icicle.js", "javascript", "icicle.js"),
    page!("/table.js", "javascript", "table.js"),
    page!("/group.js", "javascript", "group.js"),
    page!("/log.js", "javascript", "log.js"),
    route("GET", "/metrics", Right::Read, Act::Metrics),
    route("GET", "/v1/about", Right::Read, Act::About),
    route("GET", "/v1/tree", Right::Read, Act::Tree).query(&[LIMIT]),
    route("GET", "/v1/table", Right::Read, Act::Table).query(&["known", LIMIT]),
    route("GET", "/v1/waits", Right::Read, Act::Waits),
    route("GET", "/v1/kills", Right::Read, Act::Kills),
    route("GET", "/v1/history", Right::Read, Act::History).query(&["group"]),
    route("GET", "/v1/events", Right::Read, Act::Events).query(&["after"]),
    route("GET", "/v1/groups/<path>", Right::Read, Act::Show).query(&[LIMIT]),
    route("GET", "/v1/groups/<path>/<file>", Right::Read, Act::Show).query(&[LIMIT]),
    route("PUT", "/v1/groups/<path>/<file>", Right::Control, Act::Control(Change::Write)),
    route("POST", "/v1/groups/<path>", Right::Control, Act::Control(Change::Create)),
    route("DELETE", "/v1/groups/<path>", Right::Control, Act::Control(Change::Remove)).query(&["recursive"]),
];

const GROUPS: &str = "/v1/groups";

/// The name of a query's number of groups.
pub(crate) const LIMIT: &str = "limit";

/// Returns the rest of a path below [`GROUPS`].
fn below_groups(path: &str) -> Option<&str> {
    path.strip_prefix(GROUPS).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Route {
    fn has(&self, path: &str) -> bool {
        if self.path.starts_with(GROUPS) { below_groups(path).is_some() } else { self.path == path }
    }

    /// Finds the route of a request.
    pub(crate) fn find(method: &Method, path: &str) -> Result<&'static Route, Problem> {
        let method = if method == Method::HEAD { "GET" } else { method.as_str() };
        if let Some(route) = ROUTES.iter().find(|route| route.method == method && route.has(path)) {
            return Ok(route);
        }
        let mut methods: Vec<&str> =
            ROUTES.iter().filter(|route| route.has(path)).map(|route| route.method).collect();
        methods.dedup();
        if methods.is_empty() {
            // Each path is given by one `GET` route.
            let paths: Vec<&str> =
                ROUTES.iter().filter(|route| route.method == "GET").map(|route| route.path).collect();
            let detail = format!("there is nothing at {path:?}; allowed are {}", paths.join(", "));
            return Err(Problem::new(StatusCode::NOT_FOUND, "no_such_path", detail).allowed(paths));
        }
        let detail = format!("{path:?} takes no {method}; allowed are {}", methods.join(", "));
        Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, "no_such_method", detail).allowed(methods))
    }
}

/// Reads the path of a request for a group.
pub(crate) fn parts(path: &str) -> Result<Parts, Problem> {
    Parts::parse(below_groups(path).unwrap_or_default())
}

/// The parts of a path below `/v1/groups`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parts {
    parts: Vec<String>,
    /// Whether the path ends with a slash. If so, it names a group even if its last part is the
    /// name of a file.
    is_closed: bool,
}

impl Parts {
    /// Reads the rest of a path after `/v1/groups`, which is empty or begins with a slash.
    pub(crate) fn parse(rest: &str) -> Result<Parts, Problem> {
        let Some(inner) = rest.strip_prefix('/').filter(|inner| !inner.is_empty()) else {
            return Ok(Parts { parts: Vec::new(), is_closed: true });
        };
        let (inner, is_closed) = inner.strip_suffix('/').map_or((inner, false), |inner| (inner, true));
        let parts = inner.split('/').map(|part| decode_part(part, rest)).collect::<Result<_, _>>()?;
        Ok(Parts { parts, is_closed })
    }

    /// Returns the path of the group that all parts name.
    pub(crate) fn group(&self) -> String {
        join(&self.parts)
    }

    /// Returns the path of a group, and the last part as the name of its file. Returns `None` if
    /// there is no part, or a slash at the end.
    pub(crate) fn group_and_file(&self) -> Option<(String, &str)> {
        let (file, parts) = self.parts.split_last().filter(|_| !self.is_closed)?;
        Some((join(parts), file))
    }
}

fn join(parts: &[String]) -> String {
    if parts.is_empty() {
        return "/".to_owned();
    }
    parts.iter().flat_map(|part| ["/", part]).collect()
}

fn decode_part(part: &str, whole: &str) -> Result<String, Problem> {
    let wrong = |reason: &str| {
        let detail = format!(
            "{whole:?} is no path of a group: {reason}; write it as /parent/child, and bytes other than letters and digits as %XX"
        );
        Problem::bad("invalid_path", detail)
    };
    if part.is_empty() {
        return Err(wrong("a part is empty"));
    }
    let text = decode(part)
        .ok_or_else(|| wrong("a part has a % without two hexadecimal digits, or is not UTF-8"))?;
    if text.contains('/') {
        return Err(wrong("a part has a slash"));
    }
    Ok(text)
}

/// Decodes `%XX`. Returns `None` if the text is malformed.
fn decode(text: &str) -> Option<String> {
    let is_hex = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_hexdigit);
    let is_valid =
        text.bytes().enumerate().all(|(at, byte)| byte != b'%' || (is_hex(at + 1) && is_hex(at + 2)));
    let decoded = percent_decode_str(text).decode_utf8();
    decoded.ok().filter(|_| is_valid).map(|text| text.into_owned())
}

/// Returns the values of a query with their names, which must be among `allowed`.
pub(crate) fn query(
    text: Option<&str>,
    allowed: &[&'static str],
) -> Result<Vec<(&'static str, String)>, Problem> {
    let pairs = text.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    let read = |pair: &str| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = decode(key).and_then(|name| allowed.iter().find(|known| **known == name));
        name.copied().zip(decode(value)).ok_or_else(|| {
            let known = if allowed.is_empty() { "none".to_owned() } else { allowed.join(", ") };
            // The value isn't shown, because a client may have put a token there.
            let detail = format!("{key:?} with its value is no part of this query; its names: {known}");
            Problem::bad("invalid_query", detail).allowed(allowed.iter().copied())
        })
    };
    pairs.map(read).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn finds_each_route_and_names_the_allowed_ones() {
        for route in ROUTES {
            let path = route.path.replace("<path>", "a/b").replace("<file>", "memory.max");
            let found = Route::find(&route.method.parse().unwrap(), &path).unwrap();
            assert_eq!((found.right, found.act), (route.right, route.act), "{path}");
        }
        let problem = Route::find(&Method::PATCH, "/v1/groups/a").unwrap_err();
        assert_eq!(
            (problem.status.as_u16(), problem.allowed),
            (405, vec!["GET".into(), "PUT".into(), "POST".into(), "DELETE".into()])
        );
        assert_eq!(Route::find(&Method::POST, "/metrics").unwrap_err().allowed, ["GET"]);
        for path in ["", "/v1", "/v1/groupsx", "/metrics/", "//", "/index.html"] {
            let problem = Route::find(&Method::GET, path).unwrap_err();
            assert_eq!(problem.code, "no_such_path", "{path:?}");
            let named = |named: &str| problem.allowed.iter().filter(|path| *path == named).count();
            assert!(ROUTES.iter().all(|route| named(route.path) == 1), "{:?}", problem.allowed);
        }
        assert_eq!(Route::find(&Method::HEAD, "/metrics").unwrap().act, Act::Metrics);
    }

    fn group(rest: &str) -> Result<String, &'static str> {
        Parts::parse(rest).map(|parts| parts.group()).map_err(|problem| problem.code)
    }

    #[test]
    fn reads_groups_and_the_file_in_the_last_part() {
        for root in ["", "/"] {
            let parts = Parts::parse(root).unwrap();
            assert_eq!((parts.group().as_str(), parts.group_and_file()), ("/", None));
        }
        let parts = Parts::parse("/a/b%20c/memory.max").unwrap();
        assert_eq!(parts.group(), "/a/b c/memory.max");
        assert_eq!(parts.group_and_file(), Some(("/a/b c".to_owned(), "memory.max")));
        let parts = Parts::parse("/memory.max").unwrap();
        assert_eq!(parts.group_and_file(), Some(("/".to_owned(), "memory.max")));
        let parts = Parts::parse("/a/memory.max/").unwrap();
        assert_eq!((parts.group().as_str(), parts.group_and_file()), ("/a/memory.max", None));
    }

    #[test]
    fn refuses_texts_that_cannot_be_decoded() {
        for wrong in ["//", "/a//b", "//a", "/a//", "/%", "/%4", "/%zz", "/a%2fb", "/%2F", "/%ff", "/%c3%28"]
        {
            assert_eq!(group(wrong), Err("invalid_path"), "{wrong}");
        }
        assert_eq!(group("/%61").as_deref(), Ok("/a"));
        assert_eq!(group("/%25").as_deref(), Ok("/%"), "decoded once");
        assert_eq!(group("/%2561").as_deref(), Ok("/%61"), "decoded once");
    }

    #[test]
    fn reads_queries_with_known_names_only() {
        assert_eq!(query(None, &[]), Ok(vec![]));
        assert_eq!(query(Some("recursive=true"), &["recursive"]), Ok(vec![("recursive", "true".to_owned())]));
        assert_eq!(query(Some("group=%2Fa%26b&"), &["group"]), Ok(vec![("group", "/a&b".to_owned())]));
        for wrong in ["x=1", "recursive=%", "recursive=%ff", "=", "%zz=1"] {
            assert_eq!(query(Some(wrong), &["recursive"]).unwrap_err().code, "invalid_query", "{wrong}");
        }
        let problem = query(Some("token=secret"), &["recursive"]).unwrap_err();
        assert!(
            problem.detail.contains("\"token\"") && !problem.detail.contains("secret"),
            "{}",
            problem.detail
        );
    }

    proptest! {
        #[test]
        fn every_encoded_path_comes_back(names in prop::collection::vec("[^/]{1,12}", 0..6)) {
            let encode = |name: &String| {
                name.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>()
            };
            let rest: String = names.iter().map(|name| format!("/{}", encode(name))).collect();
            let parts = Parts::parse(&rest).unwrap();
            prop_assert_eq!(&parts.parts, &names);
        }

        #[test]
        fn no_text_panics_or_makes_a_part_that_names_two_groups(rest in "\\PC{0,64}|(/|%|%2[fF]|%00|\\.|[a-z]){0,32}") {
            if let Ok(parts) = Parts::parse(&rest) {
                prop_assert!(parts.parts.iter().all(|part| !part.is_empty() && !part.contains('/')));
                prop_assert!(parts.group().starts_with('/'));
            }
        }

        #[test]
        fn no_query_panics(text in "\\PC{0,64}|(=|&|%|%2[fF]|[a-z]){0,32}") {
            let _ = query(Some(&text), &["a", "group"]);
        }
    }
}
