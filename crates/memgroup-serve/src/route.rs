//! Route: each path that the server answers, with the right that it needs.

use http::{Method, StatusCode};

use crate::path::Parts;
use crate::problem::Problem;

/// The right that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    /// No right: the answer is a file of the page, and has no figures.
    Nothing,
    /// The right to read all figures of the tree.
    Read,
    /// The right to write files, to create groups, and to remove them.
    Control,
}

/// The act that a route stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// A file of the page, by its position.
    Page(usize),
    About,
    Metrics,
    Tree,
    Table,
    /// A group, or a file of it.
    Show,
    Write,
    Create,
    Remove,
    Waits,
    Kills,
    History,
    Events,
}

/// A path, a method, and the right that a request for it needs.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Route {
    /// The method. `HEAD` is answered as `GET` is.
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

impl Route {
    const fn query(self, query: &'static [&'static str]) -> Route {
        Route { query, ..self }
    }
}

/// All routes. A request for another path is answered with status 404, and one with another method with status 405.
pub const ROUTES: &[Route] = &[
    route("GET", "/", Right::Nothing, Act::Page(0)),
    route("GET", "/style.css", Right::Nothing, Act::Page(1)),
    route("GET", "/app.js", Right::Nothing, Act::Page(2)),
    route("GET", "/text.js", Right::Nothing, Act::Page(3)),
    route("GET", "/icicle.js", Right::Nothing, Act::Page(4)),
    route("GET", "/table.js", Right::Nothing, Act::Page(5)),
    route("GET", "/group.js", Right::Nothing, Act::Page(6)),
    route("GET", "/log.js", Right::Nothing, Act::Page(7)),
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
    route("PUT", "/v1/groups/<path>/<file>", Right::Control, Act::Write),
    route("POST", "/v1/groups/<path>", Right::Control, Act::Create),
    route("DELETE", "/v1/groups/<path>", Right::Control, Act::Remove).query(&["recursive"]),
];

const GROUPS: &str = "/v1/groups";

/// The name of the most groups of an answer, in a query.
pub(crate) const LIMIT: &str = "limit";

/// The rest of a path below [`GROUPS`].
fn below_groups(path: &str) -> Option<&str> {
    path.strip_prefix(GROUPS).filter(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl Route {
    fn has(&self, path: &str) -> bool {
        if self.path.starts_with(GROUPS) { below_groups(path).is_some() } else { self.path == path }
    }

    /// The route of a request.
    pub(crate) fn find(method: &Method, path: &str) -> Result<&'static Route, Problem> {
        let method = if method == Method::HEAD { "GET" } else { method.as_str() };
        if let Some(route) = ROUTES.iter().find(|route| route.method == method && route.has(path)) {
            return Ok(route);
        }
        let mut methods: Vec<&str> =
            ROUTES.iter().filter(|route| route.has(path)).map(|route| route.method).collect();
        methods.dedup();
        if methods.is_empty() {
            let mut paths: Vec<&str> = Vec::new();
            for route in ROUTES {
                if !paths.contains(&route.path) {
                    paths.push(route.path);
                }
            }
            let detail = format!("there is nothing at {path:?}; allowed are {}", paths.join(", "));
            return Err(Problem::new(StatusCode::NOT_FOUND, "no_such_path", detail).allowed(paths));
        }
        let detail = format!("{path:?} takes no {method}; allowed are {}", methods.join(", "));
        Err(Problem::new(StatusCode::METHOD_NOT_ALLOWED, "no_such_method", detail).allowed(methods))
    }
}

/// The parts of the path of a request for a group.
pub(crate) fn parts(path: &str) -> Result<Parts, Problem> {
    Parts::parse(below_groups(path).unwrap_or_default())
}

#[cfg(test)]
mod tests {
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
}
