//! The cost of a group for each request: microseconds beyond the bare service, which is the
//! control.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body_util::Full;
use memgroup::{Config, Hierarchy};
use memgroup_tokio::RequestGroups;
use tower_layer::Layer;
use tower_service::Service;

const REQUESTS: u32 = 500;
const ROUNDS: usize = 200;

/// Answers at once.
#[derive(Clone)]
struct Answers;

impl<B> Service<Request<B>> for Answers {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        ready(Ok(Response::new(Full::from("answer"))))
    }
}

/// Microseconds a request.
async fn time<S: Service<Request<Full<Bytes>>, Error = Infallible>>(service: &mut S) -> f64 {
    let began = Instant::now();
    for _ in 0..REQUESTS {
        let response = service.call(Request::new(Full::from("body"))).await;
        drop(response);
    }
    began.elapsed().as_secs_f64() * 1e6 / f64::from(REQUESTS)
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let hierarchy = Hierarchy::new(Config::new()).expect("the settings are in range");
    let tenant = hierarchy.create("/tenant").expect("the name is free");
    let layer = RequestGroups::new(move |_: &Parts| Ok(tenant.clone())).admission(16 << 10);
    let (mut bare, mut whole) = (Answers, layer.layer(Answers));
    let mut without_kills = layer.killable(false).layer(Answers);
    let mut best = [f64::MAX; 3];
    for _ in 0..ROUNDS {
        best[0] = best[0].min(time(&mut bare).await);
        best[1] = best[1].min(time(&mut without_kills).await);
        best[2] = best[2].min(time(&mut whole).await);
    }
    println!(
        "us a request, best of {ROUNDS} rounds in turns: the group made, 16 KiB admitted, the group removed"
    );
    for (name, micros) in
        ["bare service (control)", "with a group, not killable", "with a group"].iter().zip(best)
    {
        println!("{name:<30} {micros:>8.2}");
    }
}
