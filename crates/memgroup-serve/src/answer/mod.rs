//! Answer: from a request to the bytes of its answer.

mod body;
mod control;
mod events;
mod list;
mod tree;

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue};
use http::header::{REFERRER_POLICY, RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;

pub(crate) use self::body::AnswerBody;
use self::body::Content;
use crate::access::Peer;
use crate::account::Chunks;
use crate::app::App;
use crate::conn::{Conn, Phase};
use crate::log;
use crate::metrics;
use crate::problem::{NO_MEMORY, Problem, READ_ONLY};
use crate::route::{Act, LIMIT, POLICY, PageFile, Right, Route, parts, query};

const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");

/// The status, the type and the bytes of an answer.
#[derive(Debug)]
pub(crate) struct Answer {
    status: StatusCode,
    kind: &'static str,
    content: Content,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Answer {
    fn new(kind: &'static str, content: Content) -> Answer {
        Answer { status: StatusCode::OK, kind, content, headers: Vec::new() }
    }

    /// A value as JSON, charged.
    fn json(app: &App, value: &impl serde::Serialize) -> Result<Answer, Problem> {
        let mut text = Chunks::new(&app.account, &app.pace)?;
        let written = serde_json::to_writer(&mut text, value);
        Ok(Answer::new(JSON, Content::Text(text.written(written, "not_serialised")?)))
    }

    /// A text, charged.
    fn text(app: &App, text: &str) -> Result<Answer, Problem> {
        let mut chunks = Chunks::new(&app.account, &app.pace)?;
        let written = chunks.write_str(text);
        Ok(Answer::new(TEXT, Content::Text(chunks.written(written, "not_written")?)))
    }
}

impl From<Problem> for Answer {
    /// A problem is small and isn't charged: the charge of its connection covers it.
    fn from(problem: Problem) -> Answer {
        let text = serde_json::to_vec(&problem).unwrap_or_default();
        let mut answer = Answer::new("application/problem+json", Content::Fixed(Bytes::from(text)));
        answer.status = problem.status;
        if problem.status == StatusCode::UNAUTHORIZED {
            answer.headers.push((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"memgroup\"")));
        }
        if let Some(seconds) = problem.retry_after_s {
            answer.headers.push((RETRY_AFTER, HeaderValue::from(seconds)));
        }
        if problem.status == StatusCode::METHOD_NOT_ALLOWED {
            // For a file that can only be read, `allowed` has the names of other files, not
            // methods.
            let is_read = problem.allowed.is_empty() || problem.file.is_some() && problem.code == READ_ONLY;
            let methods = if is_read { "GET".to_owned() } else { problem.allowed.join(", ") };
            if let Ok(methods) = HeaderValue::from_str(&methods) {
                answer.headers.push((ALLOW, methods));
            }
        }
        answer
    }
}

/// Answers a request.
pub(crate) async fn answer(
    app: Arc<App>,
    conn: Arc<Conn>,
    peer: Peer,
    request: Request<Incoming>,
) -> Response<AnswerBody> {
    conn.enter(Phase::Answering);
    let (head, body) = request.into_parts();
    let answer = match admitted(&app, &conn, &head, peer).await {
        Ok((route, right)) => dispatch(&app, &conn, peer, route, right, &head, body).await,
        Err(problem) => Err(problem),
    };
    let Answer { status, kind, content, headers } = answer.unwrap_or_else(Answer::from);
    *app.answers.lock().entry(status.as_u16()).or_default() += 1;
    let mut response = Response::new(AnswerBody::new(content, Arc::clone(&app), Arc::clone(&conn)));
    *response.status_mut() = status;
    let to = response.headers_mut();
    to.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    to.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    to.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    to.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    to.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    to.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    to.extend(headers);
    response
}

/// Waits for the turn of a request, and returns its route and right.
async fn admitted(
    app: &App,
    conn: &Conn,
    head: &Parts,
    peer: Peer,
) -> Result<(&'static Route, Right), Problem> {
    let route = Route::find(&head.method, head.uri.path());
    let needed = route.as_ref().map_or(Right::Nothing, |route| route.right);
    let checked = app.access.check(head, peer, needed);
    // Done before the request's turn, so that strangers that keep it waiting cannot replace its
    // connection.
    let has_right = matches!(checked, Ok(right) if right > Right::Nothing);
    conn.set_right(has_right);
    app.pace.turn_of(has_right).await;
    if let (Right::Control, Err(problem)) = (needed, &checked) {
        log::denied(&app.denied, &peer, &format!("{} {}", head.method, head.uri.path()), problem);
    }
    let right = checked?;
    Ok((route?, right))
}

/// Makes an answer. While there is no memory for it, clients that do not read their answers are
/// cut, one after the other.
async fn with_room(app: &App, make: impl Fn() -> Result<Answer, Problem>) -> Result<Answer, Problem> {
    loop {
        let answer = make();
        app.pace.settle();
        match answer {
            Err(problem) if problem.code == NO_MEMORY && app.conns.cut_stalled() => {
                // The connection that was cut returns its memory when its task runs.
                tokio::task::yield_now().await;
            }
            answer => return answer,
        }
    }
}

async fn dispatch(
    app: &Arc<App>,
    conn: &Conn,
    peer: Peer,
    route: &Route,
    right: Right,
    head: &Parts,
    body: Incoming,
) -> Result<Answer, Problem> {
    let asked = query(head.uri.query(), route.query)?;
    let path = head.uri.path();
    let most = limit(&asked)?;
    let last = || asked.iter().rfind(|(name, _)| *name != LIMIT).map(|(_, value)| value.as_str());
    match &route.act {
        Act::Page(PageFile { kind, text }) => {
            Ok(Answer::new(kind, Content::Fixed(Bytes::from_static(text.as_bytes()))))
        }
        Act::About => with_room(app, || list::about(app, right)).await,
        Act::Metrics => with_room(app, || metrics(app, head)).await,
        Act::Tree => with_room(app, || tree::whole(app, most)).await,
        Act::Table => with_room(app, || list::table(app, last(), most)).await,
        Act::Waits => with_room(app, || list::waits(app)).await,
        Act::Kills => with_room(app, || list::kills(app)).await,
        Act::Show => {
            let parts = parts(path)?;
            with_room(app, || tree::show(app, &parts, most)).await
        }
        Act::History => {
            let paths: Vec<String> = asked.into_iter().map(|(_, path)| path).collect();
            with_room(app, || list::history(app, &paths)).await
        }
        Act::Events => with_room(app, || events::events(app, &head.headers, last())).await,
        Act::Control(change) => control::act(app, conn, peer, *change, path, last(), body).await,
    }
}

fn metrics(app: &Arc<App>, head: &Parts) -> Result<Answer, Problem> {
    metrics::text(app, head).map(|(kind, text)| Answer::new(kind, Content::Text(text)))
}

/// Returns the most groups that a client asks for, or `None` if it gives no number.
fn limit(asked: &[(&'static str, String)]) -> Result<Option<usize>, Problem> {
    let Some((_, text)) = asked.iter().rfind(|(name, _)| *name == LIMIT) else { return Ok(None) };
    let limit = text.parse().ok().filter(|&limit| limit > 0);
    limit.map(Some).ok_or_else(|| {
        Problem::bad(
            "invalid_query",
            format!("limit={text:?} is no number of groups: write 1 or more, or leave it out"),
        )
    })
}

/// The result of code that cannot fail.
pub(crate) type Sure<T> = Result<T, Infallible>;

#[cfg(test)]
mod tests {
    use std::future::Future as _;
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use http_body::Body as _;
    use memgroup::{Config, Hierarchy};

    use super::*;
    use crate::access::Access;
    use crate::account::Account;
    use crate::config::Serve;
    use crate::conn::Conns;
    use crate::pace::settles_of;

    /// Returns how often `act` settles, with an app for a tree of a dozen groups.
    fn settles_of_app(act: impl FnOnce(Arc<App>)) -> u32 {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let _groups: Vec<_> =
            (0..10).map(|number| hierarchy.create(&format!("/{number}")).unwrap()).collect();
        let (serve, account) =
            (Serve::without_listener(), Account { group: hierarchy.create("/serve").unwrap() });
        let access = Access::new(&serve, None);
        let mut app = App::new(hierarchy, serve, account, access, None).unwrap();
        settles_of(|pace| {
            app.pace = Arc::clone(pace);
            act(Arc::new(app));
        })
    }

    fn len(content: &Content) -> u32 {
        let Content::Text(text) = content else { panic!("{content:?}") };
        text.len() as u32
    }

    #[test]
    fn settles_while_texts_are_written() {
        let mut bytes = 0;
        let settles = settles_of_app(|app| {
            bytes = len(&Answer::json(&app, &vec![1_234_567; 3000]).unwrap().content);
        });
        assert_eq!(settles, bytes / 4096);
        for accept in ["text/plain", "application/openmetrics-text"] {
            let head =
                Request::builder().header(http::header::ACCEPT, accept).body(()).unwrap().into_parts().0;
            let settles = settles_of_app(|app| {
                bytes = len(&Content::Text(metrics::text(&app, &head).unwrap().1));
            });
            // One is that of the snapshot. A part ends after the line that makes it 4 KiB.
            assert!((bytes / 4300..=bytes / 4096).contains(&(settles - 1)), "{settles} for {bytes}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_waits_for_its_turn_has_shown_its_right() {
        const TOKEN: &str = "token-for-reading";
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let account = Account { group: hierarchy.create("/serve").unwrap() };
        let serve = Serve::without_listener().cpu_percent(1).token(crate::config::Token::new(TOKEN).unwrap());
        let address = ([127, 0, 0, 1], 9191).into();
        let access = Access::new(&serve, Some(address));
        let app = App::new(hierarchy, serve, account, access, None).unwrap();
        // The time of requests before.
        while app.pace.settle() <= tokio::time::Instant::now() {}
        for (token, is_kept) in [(TOKEN, true), ("token-for-nothing", false)] {
            let conns = Conns::default();
            let conn = conns.admit(1).await.unwrap();
            conn.enter(Phase::Answering);
            let head = Request::builder().uri("/v1/tree").header(http::header::HOST, "localhost:9191");
            let head = head.header(http::header::AUTHORIZATION, format!("Bearer {token}"));
            let head = head.body(()).unwrap().into_parts().0;
            let mut asked = std::pin::pin!(admitted(&app, &conn, &head, Peer::Tcp(address)));
            assert!(asked.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            assert_eq!(
                conns.admit(1).await.is_none(),
                is_kept,
                "a newcomer takes the place of a stranger only"
            );
        }
    }

    #[tokio::test]
    async fn settles_before_and_after_each_piece_of_a_tree() {
        let conn = Conns::default().admit(1).await.unwrap();
        let mut pieces = 0;
        let settles = settles_of_app(|app| {
            let mut body = AnswerBody::new(tree::whole(&app, None).unwrap().content, Arc::clone(&app), conn);
            let mut context = Context::from_waker(Waker::noop());
            while let Poll::Ready(Some(_)) = Pin::new(&mut body).poll_frame(&mut context) {
                pieces += 1;
            }
        });
        // The first is that of the snapshot, and the end settles as a piece does.
        assert_eq!((pieces, settles), (1, 1 + 2 + 2));
    }
}
