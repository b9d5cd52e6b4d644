//! Layer: a service that handles each request in a group of its own.
//!
//! ```text
//!   request ─▶ tenant ─▶ too large? ─▶ group below the tenant's ─▶ admitted? ─▶ handler, in the group ─▶ response
//!               └─ status   └─ 413       └─ 503                      └─ 413, 429, 503  └─ body cut off, over the limit, killed: 413, 429, 503
//! ```
//!
//! - I1. The group is removed when its owners are dropped: the future, the request's extensions and
//!   the body of the response.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body::Body;
use memgroup::{Charge, Effort, Group, GroupError, OwnedGroup};
use tower_layer::Layer;
use tower_service::Service;

use crate::body::{ChargedBody, unless_deserted};
use crate::in_group::{GroupExt, InGroupExt};
use crate::request::future::{Handling, RequestFuture};
use crate::request::{Refusal, RequestGroup, ResponseBody};

/// A `tower` layer: each request is handled in a group of its own, below the group of its tenant.
///
/// A function chooses the tenant by the request's head. It returns the tenant's group, or the
/// status of the answer to a request without one.
///
/// - The handler's future and the response's body are polled in the request's group, which is in
///   the request's extensions as [`RequestGroup`].
/// - The request's body is charged frame by frame, before the handler sees the frame, with 128
///   bytes for each. The bytes stay charged until the frame is dropped ([`ChargedBody`]).
/// - The handler is ended when the request's group is over its limit, or is chosen as a victim for
///   a charge that [waits](RequestGroups::patience). It is delayed while a group above is over its
///   `high`.
/// - The group is removed with the last owner: the handler, the response's body, and clones of the
///   [`RequestGroup`].
///
/// | cause | answer |
/// |---|---|
/// | `Content-Length`, or the body read so far, exceeds [`body_max`](RequestGroups::body_max) | 413 |
/// | the limit of the request's group refuses a frame or the admission, or was exceeded by forced charges | 413 |
/// | the limit of the tenant refuses a frame or the admission | 429, with `Retry-After` |
/// | a limit above refuses; no group could be created; the request was stopped for another | 503, with `Retry-After` |
///
/// A charge that the handler makes itself fails in the handler, and [`RequestGroup::refuse`] makes
/// the answer. After the handler has returned, a kill does not end a body that is still being sent.
///
/// The tenant must come from what the server has verified, and its group must exist already. A
/// function that creates a group for each name lets a client create as many groups as it likes. One
/// that takes a path lets a client name a group that belongs to no tenant.
///
/// ```
/// use http::request::Parts;
/// use http::{Request, Response, StatusCode};
/// use http_body_util::Full;
/// # use bytes::Bytes;
/// # use memgroup::{Config, Hierarchy};
/// use memgroup_tokio::RequestGroups;
/// use tower_layer::Layer;
/// use tower_service::Service;
/// # #[derive(Clone)]
/// # struct Echo;
/// # impl<B: Send + 'static> Service<Request<B>> for Echo {
/// #     type Response = Response<B>;
/// #     type Error = std::convert::Infallible;
/// #     type Future = std::future::Ready<Result<Response<B>, Self::Error>>;
/// #     fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Self::Error>> {
/// #         std::task::Poll::Ready(Ok(()))
/// #     }
/// #     fn call(&mut self, request: Request<B>) -> Self::Future {
/// #         std::future::ready(Ok(Response::new(request.into_body())))
/// #     }
/// # }
///
/// /// The user whom a layer outside of this one has authenticated.
/// #[derive(Clone)]
/// struct User(String);
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// // The operator creates the tenants' groups; a request never does.
/// let tenants = hierarchy.create("/tenants").unwrap();
/// let alice = tenants.create("alice").unwrap();
///
/// let layer = RequestGroups::new(move |head: &Parts| {
///     let User(name) = head.extensions.get().ok_or(StatusCode::UNAUTHORIZED)?;
///     // `child` takes a name and no path, so it finds tenants and nothing below or beside them.
///     tenants.child(name).ok_or(StatusCode::FORBIDDEN)
/// });
/// let mut service = layer.request_max(1 << 20).body_max(64 << 10).layer(Echo);
/// let request = |user: &str, body: Vec<u8>| {
///     Request::builder().extension(User(user.to_owned())).body(Full::<Bytes>::from(body)).unwrap()
/// };
///
/// let response = service.call(request("alice", b"hello".to_vec())).await.unwrap();
/// assert_eq!(response.status(), StatusCode::OK);
/// assert_eq!(alice.children().len(), 1, "until the body was sent");
/// drop(response);
/// assert_eq!((alice.children().len(), alice.usage_exact()), (0, 0));
///
/// let large = service.call(request("alice", vec![0; 65 << 10])).await.unwrap();
/// assert_eq!(large.status(), StatusCode::PAYLOAD_TOO_LARGE);
/// for stranger in ["eve", "alice/request-7", "../memgroup-serve"] {
///     assert_eq!(service.call(request(stranger, vec![])).await.unwrap().status(), StatusCode::FORBIDDEN);
/// }
/// # }
/// ```
#[derive(Clone)]
pub struct RequestGroups {
    tenant: Arc<Tenant>,
    settings: Settings,
}

/// How long a charge of the layer waits by default. By then, the victim of another tenant's charge
/// has ended if it was polled.
const PATIENCE: Duration = Duration::from_millis(100);

/// Chooses the group of a request's tenant.
type Tenant = dyn Fn(&Parts) -> Result<Group, StatusCode> + Send + Sync;

#[derive(Clone, Copy, Debug)]
struct Settings {
    request_max: Option<u64>,
    body_max: u64,
    admission: u64,
    patience: Duration,
    retry_after: Duration,
    is_killable: bool,
}

impl RequestGroups {
    /// Makes a layer with the tenants that `tenant` chooses. Without further settings, only the
    /// limits of the tenants' groups refuse requests.
    pub fn new(
        tenant: impl Fn(&Parts) -> Result<Group, StatusCode> + Send + Sync + 'static,
    ) -> RequestGroups {
        let settings = Settings {
            request_max: None,
            body_max: u64::MAX,
            admission: 0,
            patience: PATIENCE,
            retry_after: Duration::from_secs(1),
            is_killable: true,
        };
        RequestGroups { tenant: Arc::new(tenant), settings }
    }
}

/// The settings.
impl RequestGroups {
    /// The limit of each request's group, in bytes: its body, its admission, and the handler's
    /// charges.
    #[must_use]
    pub fn request_max(mut self, max: u64) -> RequestGroups {
        self.settings.request_max = Some(max);
        self
    }

    /// The most bytes of data in the body of a request.
    #[must_use]
    pub fn body_max(mut self, max: u64) -> RequestGroups {
        self.settings.body_max = max;
        self
    }

    /// Bytes that are charged before the handler is called, and until the response's body ends. If
    /// they cannot be charged, the request is refused before it costs anything.
    #[must_use]
    pub fn admission(mut self, bytes: u64) -> RequestGroups {
        self.settings.admission = bytes;
        self
    }

    /// How long the admission and each frame of the body wait for room; 100 ms by default. This
    /// needs a [`Reclaimer`](memgroup::Reclaimer), which shrinks caches and stops victims while
    /// they wait. Without one, or with a patience of zero, they are refused at once, and no victim
    /// is stopped for them.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> RequestGroups {
        self.settings.patience = patience;
        self
    }

    /// The time in `Retry-After`, in whole seconds; 1 s by default.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> RequestGroups {
        self.settings.retry_after = after;
        self
    }

    /// Sets whether the engine may choose the request as a victim; `true` by default.
    #[must_use]
    pub fn killable(mut self, is_killable: bool) -> RequestGroups {
        self.settings.is_killable = is_killable;
        self
    }
}

impl<S> Layer<S> for RequestGroups {
    type Service = RequestService<S>;

    fn layer(&self, inner: S) -> RequestService<S> {
        RequestService { inner, layer: self.clone() }
    }
}

/// The service that a [`RequestGroups`] layer makes.
#[derive(Clone)]
pub struct RequestService<S> {
    inner: S,
    layer: RequestGroups,
}

/// Creates the group of a request, with a name that no other has.
fn create(tenant: &Group, max: Option<u64>) -> Result<OwnedGroup, GroupError> {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    // ORDERING: Relaxed, because the number publishes nothing else.
    let group = tenant.create_owned(name(&mut [0; NAME_BYTES], NUMBER.fetch_add(1, Ordering::Relaxed)))?;
    // A limit that no counter can represent is no limit.
    _ = group.set_max(max);
    Ok(group)
}

const NAME_BYTES: usize = "request-".len() + u64::MAX.ilog10() as usize + 1;

/// Formats `request-N` without allocating.
fn name(bytes: &mut [u8; NAME_BYTES], number: u64) -> &str {
    let mut left = &mut bytes[..];
    write!(left, "request-{number}").expect("each number has room");
    let length = NAME_BYTES - left.len();
    std::str::from_utf8(&bytes[..length]).expect("all of it is ASCII")
}

impl Settings {
    /// Returns the request's group, or the refusal of a request that announces too large a body.
    fn begin(&self, tenant: Group, body: &impl Body) -> Result<RequestGroup, Refusal> {
        if body.size_hint().lower() > self.body_max {
            let failure = crate::BodyFailure::TooLarge { max: self.body_max };
            return Err(Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, self.retry_after, failure));
        }
        match create(&tenant, self.request_max) {
            Ok(group) => Ok(RequestGroup::new(group, tenant, self.retry_after)),
            Err(error) => Err(Refusal::no_group(self.retry_after, &error)),
        }
    }

    /// Calls the service, in the request's group.
    fn call<S, B>(
        &self,
        service: &mut S,
        mut head: Parts,
        body: B,
        admission: Charge,
        request: RequestGroup,
    ) -> Handling<S::Future>
    where
        S: Service<Request<ChargedBody<B>>>,
        B: Body,
    {
        let body =
            ChargedBody::new(body, admission).growing().max_bytes(self.body_max).patience(self.patience);
        let account = body.account();
        head.extensions.insert(request.clone());
        // Set before the handler starts. Otherwise a charge that it makes could stop others,
        // because the request is not a victim itself.
        let tasks = if self.is_killable { request.tasks() } else { None };
        let handler = request.group().run(|| service.call(Request::from_parts(head, body)));
        let handler = match tasks {
            Some(tasks) => tasks.track(handler),
            None => handler.in_group(request.group()).ended_over_limit(),
        };
        Handling::new(handler, account, request)
    }
}

impl<S, B, R> Service<Request<B>> for RequestService<S>
where
    S: Service<Request<ChargedBody<B>>, Response = Response<R>, Error: Send, Future: Send + 'static>
        + Clone
        + Send
        + 'static,
    B: Body + Send + 'static,
    R: Body<Data: From<String>> + Send + 'static,
{
    type Response = Response<ResponseBody<R>>;
    type Error = S::Error;
    type Future = RequestFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> RequestFuture<S::Future> {
        let settings = self.layer.settings;
        let (head, body) = request.into_parts();
        let begun = (self.layer.tenant)(&head)
            .map_err(|status| Refusal::new(status, settings.retry_after, status))
            .and_then(|tenant| settings.begin(tenant, &body));
        let request = match begun {
            Ok(request) => request,
            Err(refusal) => return RequestFuture::refused(refusal),
        };
        let refused = match request.group().try_charge_by(settings.admission, Effort::Count) {
            Ok(admission) => {
                let handling = settings.call(&mut self.inner, head, body, admission, request);
                return RequestFuture::handling(handling);
            }
            Err(refused) if settings.patience.is_zero() => {
                return RequestFuture::refused(request.refuse(&refused));
            }
            Err(refused) => refused,
        };
        // Uses the service that is ready; its clone may not be.
        let next = self.inner.clone();
        let mut service = std::mem::replace(&mut self.inner, next);
        RequestFuture::waiting(async move {
            let charging = request.group().charge(settings.admission).until(settings.patience);
            match charging.await {
                Ok(admission) => Ok(settings.call(&mut service, head, body, admission, request)),
                Err(error) => Err(request.refuse(&unless_deserted(error, refused))),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_requests_by_their_number() {
        for number in [0, 1, 9, 10, 1_234_567_890, u64::MAX] {
            assert_eq!(name(&mut [0; NAME_BYTES], number), format!("request-{number}"));
        }
    }
}
