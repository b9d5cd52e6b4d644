//! Requests with the global allocator of memgroup-alloc, which charges what handlers allocate.

mod bodies;
// The other tests make bodies of zeros as well.
#[allow(dead_code)]
#[path = "../support/frames.rs"]
mod frames;
mod kills;
mod pools;

use std::convert::Infallible;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use memgroup::{Config, Group, Hierarchy};
use memgroup_alloc::Allocator;
use memgroup_tokio::RequestGroups;
use tower_service::Service;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::system();

const MIB: u64 = 1 << 20;

/// A service made of a function that returns a future.
#[derive(Clone)]
struct Handler<F>(F);

impl<F, B, R> Service<Request<B>> for Handler<F>
where
    F: Fn(Request<B>) -> R,
    R: Future<Output = Response<Full<Bytes>>>,
{
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Infallibly<R>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Infallibly<R> {
        Infallibly(Box::pin((self.0)(request)))
    }
}

struct Infallibly<R>(std::pin::Pin<Box<R>>);

impl<R: Future> Future for Infallibly<R> {
    type Output = Result<R::Output, Infallible>;

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(context).map(Ok)
    }
}

/// A hierarchy with tenants below `/tenants`, and a layer that finds them by the header `tenant`.
fn tenants(names: &[&str]) -> (Hierarchy, Group, RequestGroups) {
    // Without stocks, so that a peak counts no prepaid bytes.
    let hierarchy = Hierarchy::new(Config::new().stock_cap_bytes(0)).unwrap();
    let tenants = hierarchy.create("/tenants").unwrap();
    for name in names {
        tenants.create(name).unwrap();
    }
    let below = tenants.clone();
    let layer = RequestGroups::new(move |head: &http::request::Parts| {
        let name = head.headers.get("tenant").and_then(|name| name.to_str().ok());
        below.child(name.ok_or(StatusCode::UNAUTHORIZED)?).ok_or(StatusCode::FORBIDDEN)
    });
    (hierarchy, tenants, layer)
}
