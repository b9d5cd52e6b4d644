//! Future: a request from its admission to the head of its response, and the body of the response.
//!
//! ```text
//!   waiting for the admission ─▶ handling ─▶ response
//!          └──────────────────────┴─▶ refused
//! ```
//!
//! - I1. If a request need not wait for its admission, the layer allocates no block and clones no
//!   service for it.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Response;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::body::BodyAccount;
use crate::in_group::{InGroup, InGroupExt};
use crate::limited::Limited;
use crate::request::{Refusal, RequestGroup};

pin_project! {
    /// A request that a handler is working on.
    pub(super) struct Handling<F: Future> {
        #[pin]
        handler: Limited<F>,
        // `None` after they were moved into the response.
        owned: Option<(BodyAccount, RequestGroup)>,
    }
}

impl<F: Future> Handling<F> {
    pub(super) fn new(handler: Limited<F>, account: BodyAccount, request: RequestGroup) -> Handling<F> {
        Handling { handler, owned: Some((account, request)) }
    }
}

/// The state of a request that waits for its admission.
type Waiting<F> = Pin<Box<dyn Future<Output = Result<Handling<F>, Refusal>> + Send>>;

pin_project! {
    #[project = StateNow]
    enum State<F: Future> {
        Waiting { waiting: Waiting<F> },
        Handling { #[pin] handling: Handling<F> },
        // `None` after its answer.
        Refused { refusal: Option<Refusal> },
    }
}

pin_project! {
    /// The future of a [`RequestService`](crate::RequestService).
    #[must_use = "futures do nothing unless polled"]
    pub struct RequestFuture<F: Future> {
        #[pin]
        state: State<F>,
    }
}

impl<F: Future> RequestFuture<F> {
    pub(super) fn refused(refusal: Refusal) -> RequestFuture<F> {
        RequestFuture { state: State::Refused { refusal: Some(refusal) } }
    }

    pub(super) fn handling(handling: Handling<F>) -> RequestFuture<F> {
        RequestFuture { state: State::Handling { handling } }
    }

    pub(super) fn waiting(
        waiting: impl Future<Output = Result<Handling<F>, Refusal>> + Send + 'static,
    ) -> RequestFuture<F> {
        RequestFuture { state: State::Waiting { waiting: Box::pin(waiting) } }
    }
}

impl<F, R, E> Future for RequestFuture<F>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: Body<Data: From<String>>,
{
    type Output = Result<Response<ResponseBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                StateNow::Waiting { waiting } => match ready!(waiting.as_mut().poll(context)) {
                    Ok(handling) => state.set(State::Handling { handling }),
                    Err(refusal) => state.set(State::Refused { refusal: Some(refusal) }),
                },
                StateNow::Handling { mut handling } => {
                    let handled = ready!(handling.as_mut().project().handler.poll(context));
                    let owned = handling.project().owned.take();
                    let (account, request) = owned.expect("a request is polled after its answer");
                    let refusal = match handled {
                        Err(ended) => request.ended(&ended),
                        Ok(Err(error)) => return Poll::Ready(Err(error)),
                        Ok(Ok(response)) => match account.failure() {
                            Some(failure) => request.cut_off(&failure),
                            None => {
                                request.answered();
                                let served = |body| ResponseBody::served(body, account, request);
                                return Poll::Ready(Ok(response.map(served)));
                            }
                        },
                    };
                    state.set(State::Refused { refusal: Some(refusal) });
                }
                StateNow::Refused { refusal } => {
                    let refusal = refusal.take().expect("a request is polled after its answer");
                    return Poll::Ready(Ok(refusal.into_response()));
                }
            }
        }
    }
}

impl<F: Future> fmt::Debug for RequestFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestFuture").finish_non_exhaustive()
    }
}

pin_project! {
    /// The body of a response of [`RequestService`](crate::RequestService). The request's group
    /// lasts until it is dropped.
    pub struct ResponseBody<B: Body> {
        // None for a refusal. Dropped first, in the group.
        #[pin]
        body: Option<InGroup<B>>,
        refusal: Option<B::Data>,
        // The request's own bytes, if it was read.
        account: Option<BodyAccount>,
        request: Option<RequestGroup>,
    }
}

impl<B: Body> ResponseBody<B> {
    pub(crate) fn served(body: B, account: BodyAccount, request: RequestGroup) -> ResponseBody<B> {
        let body = Some(body.in_group(request.group()));
        ResponseBody { body, refusal: None, account: Some(account), request: Some(request) }
    }
}

impl<B: Body<Data: From<String>>> From<String> for ResponseBody<B> {
    fn from(text: String) -> ResponseBody<B> {
        ResponseBody { body: None, refusal: Some(text.into()), account: None, request: None }
    }
}

impl<B: Body> Body for ResponseBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        match this.body.as_pin_mut() {
            Some(body) => body.poll_frame(context),
            None => Poll::Ready(this.refusal.take().map(|text| Ok(Frame::data(text)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().map_or(self.refusal.is_none(), InGroup::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let refusal = self.refusal.as_ref().map_or(0, |text| bytes::Buf::remaining(text) as u64);
        self.body.as_ref().map_or(SizeHint::with_exact(refusal), InGroup::size_hint)
    }
}

impl<B: Body> fmt::Debug for ResponseBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseBody").field("request", &self.request).finish_non_exhaustive()
    }
}
