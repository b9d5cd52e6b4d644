//! Future: a request from its admission to the head of its response.
//!
//! ```text
//!   waiting for the admission ─▶ handling ─▶ response
//!          └──────────────────────┴─▶ refused
//! ```
//!
//! - I1. A request that need not wait for its admission is handled without a block, or a clone of the service, of the layer's own.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Response;
use http_body::Body;
use pin_project_lite::pin_project;

use crate::body::BodyAccount;
use crate::limited::Limited;
use crate::request::{Refusal, RequestGroup, ResponseBody};

pin_project! {
    /// A request that a handler works on.
    pub(super) struct Handling<F: Future> {
        #[pin]
        handler: Limited<F>,
        // `None` once they are the response's.
        owned: Option<(BodyAccount, RequestGroup)>,
    }
}

impl<F: Future> Handling<F> {
    pub(super) fn new(handler: Limited<F>, account: BodyAccount, request: RequestGroup) -> Handling<F> {
        Handling { handler, owned: Some((account, request)) }
    }
}

/// The group is not ready, or the request is refused: the state of a request that waits for its admission.
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
