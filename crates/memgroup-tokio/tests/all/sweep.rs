//! Each charge of a server's work is refused once, and from then on.

use std::convert::Infallible;
use std::future::ready;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use memgroup::{Config, Hierarchy, scope};
use memgroup_tokio::{ChargedBody, GroupExt, RequestGroup, RequestGroups, Tasks, TimedExt};
use tower_layer::Layer;
use tower_service::Service;
use xtask::sweep::Form;

use crate::frames::Frames;

/// A body of `count` frames of 100 bytes.
fn frames(count: usize) -> Frames {
    Frames(vec![Bytes::from_static(&[7; 100]); count].into_iter())
}

/// A handler that reads the body, and holds as much beside it, charge by charge. A refusal is its
/// answer.
#[derive(Clone)]
struct Handler;

impl Service<Request<ChargedBody<Frames>>> for Handler {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ChargedBody<Frames>>) -> Self::Future {
        Box::pin(async move {
            let group = request.extensions().get::<RequestGroup>().unwrap().clone();
            let mut body = request.into_body();
            let (mut frames, mut held) = (Vec::new(), Vec::new());
            // The layer answers for a body that is cut off.
            while let Some(Ok(frame)) = body.frame().await {
                frames.push(frame);
                match scope::try_charge_current(100).expect("a group is in force") {
                    Ok(charge) => held.push(charge),
                    Err(error) => return Ok(group.refuse(&error).into_response::<String>().map(Full::from)),
                }
                tokio::task::yield_now().await;
            }
            Ok(Response::new(Full::from(frames.len().to_string())))
        })
    }
}

/// Two requests, tasks of a group, blocking work, and a charge that grows. The error is the first
/// answer that is not as without refusals.
async fn scenario(hierarchy: &Hierarchy, patience: Duration) -> Result<(), String> {
    let tenants = hierarchy.get_or_create("/tenants").unwrap();
    let (alice, tenant) = (hierarchy.get_or_create("/tenants/alice").unwrap(), tenants.clone());
    let layer = RequestGroups::new(move |_| tenant.child("alice").ok_or(StatusCode::FORBIDDEN));
    let mut service = layer.admission(50).request_max(100_000).patience(patience).layer(Handler);
    for count in [5, 3] {
        let response = service.call(Request::new(frames(count))).await.unwrap();
        let status = response.status();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        match status {
            StatusCode::OK => assert_eq!(text, count.to_string()),
            // An injected refusal is one by the group that charges.
            StatusCode::PAYLOAD_TOO_LARGE => {
                assert!(text.starts_with("failed to charge "), "{text}");
                return Err(text);
            }
            other => panic!("status {other}: {text}"),
        }
    }
    let tasks = Tasks::of(&alice).unwrap();
    let charging = || async { scope::try_charge_current(1000).expect("a group is in force").map(drop) };
    let spawned: Vec<_> = (0..4).map(|_| tasks.spawn(charging())).collect();
    let mut ended = ready(Ok(())).await;
    for task in spawned {
        ended = ended.and(task.await.unwrap().expect("nothing stops it").map_err(|error| error.to_string()));
    }
    ended?;
    let blocking = || scope::try_charge_current(1000).expect("a group is in force").map(drop);
    alice.spawn_blocking(blocking).await.unwrap().map_err(|error| error.to_string())?;
    let mut charge = alice.charge(1000).timeout(patience).await.map_err(|error| error.to_string())?;
    charge.grow(500).timeout(patience).await.map_err(|error| error.to_string())
}

/// Runs the scenario, checks what it leaves, and runs it again without refusals. Returns whether it
/// failed, and the number of its charges.
fn run(run: xtask::sweep::Run, patience: Duration) -> (bool, u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Without stocks each charge can be refused.
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
    let injection = hierarchy.root().inject_failures_at(run.refused());
    let outcome = runtime.block_on(scenario(&hierarchy, patience));
    let charges = injection.drawn();
    drop(injection);
    assert_eq!(hierarchy.groups().iter().map(|group| group.usage_exact()).sum::<u64>(), 0);
    assert!(hierarchy.dying().is_empty(), "{:?}", hierarchy.dying());
    assert_eq!(runtime.block_on(scenario(&hierarchy, patience)), Ok(()));
    (outcome.is_err(), charges)
}

#[test]
fn sweep_requests_and_tasks() {
    xtask::sweep::sweep("requests and tasks", |one| {
        let (has_failed, charges) = run(one, Duration::ZERO);
        assert_eq!(has_failed, one.refuses_any_of(charges));
        charges
    });
}

#[test]
fn sweep_requests_and_tasks_that_wait() {
    xtask::sweep::sweep("requests and tasks that wait", |one| {
        let (has_failed, charges) = run(one, Duration::from_secs(3600));
        // A frame that was refused once is charged again when it begins to wait.
        let must_fail = one.refuses_any_of(charges) && one.form == Form::FromThenOn;
        assert!(has_failed || !must_fail);
        assert!(one.refuses_any_of(charges) || !has_failed);
        charges
    });
}
