//! The layer: a group for each request, and the answers when a limit refuses.

use std::convert::Infallible;
use std::future::{Ready, pending, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use memgroup::{Charge, ChargeErrorKind, Config, Effort, Group, Hierarchy, KillOutcome, scope};
use memgroup_tokio::{ChargedBody, ReclaimerThread, RequestGroup, RequestGroups};
use tokio::task::yield_now;
use tower_layer::Layer;
use tower_service::Service;

use crate::assert_empty;
use crate::frames::Frames;

type Handled = Response<Full<Bytes>>;
type Incoming = ChargedBody<Full<Bytes>>;

/// A service made of a function.
#[derive(Clone)]
struct Handler<F>(F);

impl<F, B, R> Service<Request<B>> for Handler<F>
where
    F: Fn(Request<B>) -> R,
    R: Future<Output = Handled>,
{
    type Response = Handled;
    type Error = Infallible;
    type Future = Infallibly<R>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Infallibly<R> {
        Infallibly(Box::pin((self.0)(request)))
    }
}

struct Infallibly<R>(Pin<Box<R>>);

impl<R: Future> Future for Infallibly<R> {
    type Output = Result<R::Output, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context).map(Ok)
    }
}

/// Tenants with 1000 bytes together, `alice` among them with 800.
struct Fixture {
    hierarchy: Hierarchy,
    alice: Group,
    bob: Group,
    layer: RequestGroups,
}

impl Fixture {
    fn new() -> Fixture {
        let hierarchy = Hierarchy::new(Config::new()).unwrap();
        let tenants = hierarchy.create("/tenants").unwrap();
        tenants.set_max(1000).unwrap();
        let (alice, bob) = (tenants.create("alice").unwrap(), tenants.create("bob").unwrap());
        alice.set_max(800).unwrap();
        let tenant = move |head: &Parts| {
            let name = head.headers.get("tenant").ok_or(StatusCode::UNAUTHORIZED)?.to_str().unwrap();
            tenants.children().into_iter().find(|group| group.name() == name).ok_or(StatusCode::FORBIDDEN)
        };
        Fixture { hierarchy, alice, bob, layer: RequestGroups::new(tenant) }
    }

    /// Checks that no request and no byte is left.
    fn assert_ended(&self) {
        assert_empty(&self.hierarchy, &self.alice);
        assert!(self.alice.children().is_empty() && self.bob.children().is_empty());
        assert!(self.hierarchy.dying().is_empty());
    }
}

fn request(tenant: &str, body: &'static str) -> Request<Full<Bytes>> {
    Request::builder().header("tenant", tenant).body(Full::from(body)).unwrap()
}

fn text(text: impl Into<Bytes>) -> Handled {
    Response::new(Full::new(text.into()))
}

/// The status and `Retry-After`.
fn answer<B>(response: &Response<B>) -> (u16, Option<&str>) {
    (response.status().as_u16(), response.headers().get(RETRY_AFTER).map(|after| after.to_str().unwrap()))
}

async fn body_text<B: Body<Data = Bytes, Error: std::fmt::Debug>>(response: Response<B>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

fn take(bytes: u64) -> Charge {
    scope::try_charge_current(bytes).expect("a group is in force").unwrap()
}

fn echo(request: Request<Incoming>) -> impl Future<Output = Handled> {
    let group = request.extensions().get::<RequestGroup>().unwrap().clone();
    async move {
        assert_eq!(scope::current().as_ref(), Some(group.group()));
        match request.into_body().collect().await {
            Ok(body) => text(body.to_bytes()),
            Err(error) => text(error.to_string()),
        }
    }
}

#[tokio::test]
async fn handles_a_request_in_a_group_below_its_tenants() {
    let fixture = Fixture::new();
    let mut service = fixture.layer.clone().admission(100).layer(Handler(echo));
    let response = service.call(request("alice", "hello")).await.unwrap();
    assert_eq!(answer(&response), (200, None));
    assert_eq!((fixture.alice.children().len(), fixture.alice.usage_exact()), (1, 105 + 128));
    assert_eq!(body_text(response).await, "hello");
    fixture.assert_ended();
}

#[tokio::test]
async fn answers_with_the_status_that_the_tenants_function_returns() {
    let fixture = Fixture::new();
    let mut service = fixture.layer.clone().layer(Handler(echo));
    let unknown = service.call(request("eve", "")).await.unwrap();
    assert_eq!(answer(&unknown), (403, None));
    let none = service.call(Request::new(Full::default())).await.unwrap();
    assert_eq!(answer(&none), (401, None));
    fixture.assert_ended();
}

#[tokio::test]
async fn answers_413_to_a_body_that_announces_too_much() {
    let fixture = Fixture::new();
    let called = |_: Request<Incoming>| -> Ready<Handled> { unreachable!() };
    let mut service = fixture.layer.clone().body_max(4).layer(Handler(called));
    let response = service.call(request("alice", "hello")).await.unwrap();
    assert_eq!(answer(&response), (413, None));
    assert_eq!(body_text(response).await, "body too large: more than 4 bytes\n");
    fixture.assert_ended();
}

#[tokio::test]
async fn answers_413_to_a_body_that_turns_out_too_large() {
    let fixture = Fixture::new();
    let drain = |request: Request<ChargedBody<_>>| async {
        let collected: Result<http_body_util::Collected<Bytes>, _> = request.into_body().collect().await;
        assert!(collected.is_err());
        text("handled")
    };
    let mut service = fixture.layer.clone().body_max(4).layer(Handler(drain));
    let body = Frames(["hel", "lo"].map(Bytes::from).into_iter());
    let request = Request::builder().header("tenant", "alice").body(body).unwrap();
    let response = service.call(request).await.unwrap();
    assert_eq!(answer(&response), (413, None), "whatever the handler makes of it");
    fixture.assert_ended();
}

#[tokio::test]
async fn answers_by_the_limit_that_refuses_a_frame() {
    let fixture = Fixture::new();
    let mut service = fixture.layer.clone().request_max(500 + 128).layer(Handler(echo));
    let mut sent = async |tenant: &str, bytes: usize| {
        let body = Full::from(vec![0; bytes]);
        let request = Request::builder().header("tenant", tenant).body(body).unwrap();
        let response = service.call(request).await.unwrap();
        let (status, after) = answer(&response);
        (status, after.map(str::to_owned))
    };
    let after = Some("1".to_owned());
    assert_eq!(sent("alice", 501).await, (413, None));
    let held = fixture.alice.try_charge(400).unwrap();
    assert_eq!(sent("alice", 500).await, (429, after.clone()));
    drop(held);
    let held = fixture.bob.try_charge(600).unwrap();
    assert_eq!(sent("alice", 500).await, (503, after));
    drop(held);
    assert_eq!(sent("alice", 500).await, (200, None));
    fixture.assert_ended();
}

#[tokio::test]
async fn answers_429_to_a_request_that_is_not_admitted() {
    let fixture = Fixture::new();
    let called = |_: Request<Incoming>| -> Ready<Handled> { unreachable!() };
    let layer = fixture.layer.clone().admission(300).retry_after(Duration::from_millis(2500));
    let held = fixture.alice.try_charge(600).unwrap();
    let response = layer.layer(Handler(called)).call(request("alice", "")).await.unwrap();
    assert_eq!(answer(&response), (429, Some("3")));
    drop((held, response));
    fixture.assert_ended();
}

#[tokio::test]
async fn a_request_waits_for_its_admission() {
    let fixture = Fixture::new();
    let _reclaimer = ReclaimerThread::spawn(&fixture.hierarchy).unwrap();
    let layer = fixture.layer.clone().admission(300).patience(Duration::from_secs(3600));
    let held = fixture.alice.try_charge(600).unwrap();
    let handling = tokio::spawn(layer.layer(Handler(echo)).call(request("alice", "hello")));
    while fixture.alice.waiters().now == 0 {
        yield_now().await;
    }
    drop(held);
    assert_eq!(body_text(handling.await.unwrap().unwrap()).await, "hello");
    fixture.assert_ended();
}

#[tokio::test]
async fn a_handler_answers_a_refusal_of_its_own() {
    let fixture = Fixture::new();
    let refused = |request: Request<Incoming>| async move {
        let group = request.extensions().get::<RequestGroup>().unwrap();
        let error = group.group().try_charge_by(900, Effort::Count).unwrap_err();
        let refusal = group.refuse(&error);
        assert_eq!((refusal.status().as_u16(), refusal.retry_after()), (429, Some(1)));
        refusal.into_response::<String>().map(Full::from)
    };
    let response = fixture.layer.clone().layer(Handler(refused)).call(request("alice", "")).await.unwrap();
    assert_eq!(answer(&response), (429, Some("1")));
    assert!(
        body_text(response).await.starts_with("failed to charge 900 bytes: refused by group /tenants/alice,")
    );
    fixture.assert_ended();
}

#[tokio::test]
async fn ends_a_handler_that_exceeds_the_limit_by_force() {
    let fixture = Fixture::new();
    let runaway = |_: Request<Incoming>| async {
        let mut held = Vec::new();
        loop {
            held.push(scope::current().unwrap().charge_forced(100).unwrap());
            yield_now().await;
        }
    };
    let mut service = fixture.layer.clone().request_max(500).layer(Handler(runaway));
    let response = service.call(request("alice", "")).await.unwrap();
    assert_eq!(answer(&response), (413, None));
    fixture.assert_ended();
}

#[tokio::test]
async fn answers_503_to_a_request_that_is_stopped_for_another() {
    let fixture = Fixture::new();
    let holds = |_: Request<Incoming>| async {
        let _held = take(700);
        pending().await
    };
    let large = tokio::spawn(fixture.layer.clone().layer(Handler(holds)).call(request("alice", "")));
    while fixture.alice.usage_exact() < 700 {
        yield_now().await;
    }
    assert!(fixture.bob.try_charge(500).is_err(), "the request was not polled yet");
    let response = large.await.unwrap().unwrap();
    assert_eq!(answer(&response), (503, Some("1")));
    assert!(fixture.bob.try_charge(500).is_ok());
    drop(response);
    fixture.assert_ended();
}

/// What a closure on another thread would have of a request.
type Held = Arc<Mutex<Option<(RequestGroup, Charge)>>>;

/// A handler that hands 700 bytes out, and waits.
fn hands_out(
    held: Held,
) -> impl Fn(Request<Incoming>) -> Pin<Box<dyn Future<Output = Handled> + Send>> + Clone {
    move |request| {
        let held = Arc::clone(&held);
        Box::pin(async move {
            let group = request.extensions().get::<RequestGroup>().unwrap().clone();
            *held.lock().unwrap() = Some((group, take(700)));
            pending().await
        })
    }
}

#[tokio::test]
async fn a_stopped_request_counts_as_stopping_until_its_closures_have_freed_their_memory() {
    let fixture = Fixture::new();
    let held = Held::default();
    let mut service = fixture.layer.clone().layer(Handler(hands_out(Arc::clone(&held))));
    let large = tokio::spawn(service.call(request("alice", "")));
    let small =
        tokio::spawn(fixture.layer.clone().admission(100).layer(Handler(waits)).call(request("alice", "")));
    while fixture.alice.usage_exact() < 800 {
        yield_now().await;
    }
    let outcome = || fixture.hierarchy.kills().last().unwrap().outcome;
    assert!(fixture.bob.try_charge(250).is_err());
    assert_eq!(answer(&large.await.unwrap().unwrap()), (503, Some("1")));
    assert_eq!((outcome(), fixture.alice.usage_exact()), (None, 800), "its closure has them");
    assert!(fixture.bob.try_charge(250).is_err());
    assert_eq!(fixture.hierarchy.kills().len(), 1, "nothing else is stopped meanwhile");
    let (group, charge) = held.lock().unwrap().take().unwrap();
    drop(group);
    assert_eq!(outcome(), None, "the bytes are there without the group");
    assert!(fixture.bob.try_charge(250).is_err());
    assert_eq!(fixture.hierarchy.kills().len(), 1);
    drop(charge);
    assert!(fixture.bob.try_charge(250).is_ok());
    assert_eq!(outcome(), Some(KillOutcome::Died));
    small.abort();
    assert!(small.await.unwrap_err().is_cancelled());
    fixture.assert_ended();
}

async fn waits(_: Request<Incoming>) -> Handled {
    pending().await
}

#[tokio::test]
async fn a_request_that_was_cancelled_is_waited_for_while_its_closures_run() {
    let fixture = Fixture::new();
    let held = Held::default();
    let mut service = fixture.layer.clone().layer(Handler(hands_out(Arc::clone(&held))));
    let large = tokio::spawn(service.call(request("alice", "")));
    while fixture.alice.usage_exact() < 700 {
        yield_now().await;
    }
    large.abort();
    assert!(large.await.unwrap_err().is_cancelled());
    let error = fixture.bob.try_charge(500).unwrap_err();
    assert_eq!(error.kind(), ChargeErrorKind::VictimDying);
    drop(held.lock().unwrap().take());
    assert!(fixture.bob.try_charge(500).is_ok());
    fixture.assert_ended();
}

#[tokio::test]
async fn a_request_at_its_first_poll_has_no_smaller_one_stopped_for_it() {
    for is_killable in [true, false] {
        let fixture = Fixture::new();
        let layer = fixture.layer.clone();
        let small = tokio::spawn(layer.admission(250).layer(Handler(waits)).call(request("bob", "")));
        while fixture.bob.usage_exact() < 250 {
            yield_now().await;
        }
        let greedy = |_: Request<Incoming>| async {
            let _held = take(700);
            // As a checkpoint of an allocator does: it may stop others.
            let refused = scope::current().unwrap().try_charge(80).is_err();
            text(if refused { "refused" } else { "made" })
        };
        let mut service = fixture.layer.clone().killable(is_killable).layer(Handler(greedy));
        let response = service.call(request("alice", "")).await.unwrap();
        assert_eq!(body_text(response).await, "refused");
        let kills = fixture.hierarchy.kills();
        let has_stopped_bob = kills.iter().any(|kill| kill.victim.contains("bob"));
        assert_eq!(has_stopped_bob, !is_killable, "one that is no victim has others stopped: {kills:?}");
        small.abort();
        _ = small.await;
        fixture.assert_ended();
    }
}

#[tokio::test]
async fn a_response_that_is_being_sent_is_not_stopped_nor_waited_for() {
    let fixture = Fixture::new();
    let answers = |request: Request<Incoming>| async move {
        let group = request.extensions().get::<RequestGroup>().unwrap().clone();
        yield_now().await;
        let charge = group.group().try_charge(700).unwrap();
        let mut response = text("large");
        response.extensions_mut().insert(Arc::new(charge));
        response
    };
    let response = fixture.layer.clone().layer(Handler(answers)).call(request("alice", "")).await.unwrap();
    let error = fixture.bob.try_charge(500).unwrap_err();
    assert!(error.kind() != ChargeErrorKind::VictimDying, "{error}");
    drop(response);
    fixture.assert_ended();
}

#[tokio::test]
async fn stops_a_request_above_its_tenants_limit_for_another_tenant_without_settings() {
    let fixture = Fixture::new();
    let _reclaimer = ReclaimerThread::spawn(&fixture.hierarchy).unwrap();
    let holds = |request: Request<Incoming>| async move {
        if request.headers()["tenant"] == "alice" {
            let _held = scope::current().unwrap().charge_forced(1000).unwrap();
            pending::<()>().await;
        }
        text("done")
    };
    let mut service = fixture.layer.clone().admission(100).layer(Handler(holds));
    let runaway = tokio::spawn(service.call(request("alice", "")));
    while fixture.alice.usage_exact() < 1000 {
        yield_now().await;
    }
    assert_eq!(answer(&service.call(request("bob", "")).await.unwrap()), (200, None));
    assert_eq!(answer(&runaway.await.unwrap().unwrap()), (503, Some("1")));
    fixture.assert_ended();
}

#[tokio::test]
async fn refuses_at_once_and_names_the_limit_where_no_reclaimer_runs() {
    let fixture = Fixture::new();
    let held = fixture.alice.try_charge(800).unwrap();
    let mut service = fixture.layer.clone().admission(100).layer(Handler(echo));
    let response = service.call(request("alice", "hello")).await.unwrap();
    assert_eq!(answer(&response), (429, Some("1")));
    let text = body_text(response).await;
    assert!(text.ends_with("refused by group /tenants/alice, usage 800 of max 800\n"), "{text}");
    drop(held);
    fixture.assert_ended();
}

#[tokio::test]
async fn leaves_nothing_of_a_request_that_is_cancelled() {
    let fixture = Fixture::new();
    let seen = Arc::new(Mutex::new(0));
    let usage = (Arc::clone(&seen), fixture.alice.clone());
    let holds = move |_: Request<Incoming>| {
        let (seen, alice) = usage.clone();
        async move {
            let _held = take(100);
            *seen.lock().unwrap() = alice.usage_exact();
            pending().await
        }
    };
    let mut service = fixture.layer.clone().admission(50).layer(Handler(holds));
    tokio::select! {
        biased;
        _ = service.call(request("alice", "hello")) => unreachable!(),
        () = ready(()) => (),
    }
    assert_eq!(*seen.lock().unwrap(), 150);
    fixture.assert_ended();
}

#[tokio::test]
async fn leaves_nothing_of_a_handler_that_panics() {
    let fixture = Fixture::new();
    let panics = |_: Request<Incoming>| async {
        let _held = take(100);
        yield_now().await;
        panic!("as planned")
    };
    let handling = tokio::spawn(fixture.layer.clone().layer(Handler(panics)).call(request("alice", "hello")));
    assert!(handling.await.unwrap_err().is_panic());
    fixture.assert_ended();
}

#[tokio::test]
async fn refuses_requests_of_a_tenant_that_was_removed() {
    let fixture = Fixture::new();
    let alice = fixture.alice.clone();
    let removed = move |_: &Parts| {
        _ = alice.remove();
        Ok(alice.clone())
    };
    let mut service = RequestGroups::new(removed).layer(Handler(echo));
    assert_eq!(answer(&service.call(request("alice", "")).await.unwrap()), (503, Some("1")));
    fixture.assert_ended();
}
