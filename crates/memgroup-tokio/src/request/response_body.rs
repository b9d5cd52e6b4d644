//! Response body: the handler's, polled in the request's group, which it keeps; or the text of a refusal.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::body::BodyAccount;
use crate::in_group::{InGroup, InGroupExt};
use crate::request::RequestGroup;

pin_project! {
    /// The body of a response of [`RequestService`](crate::RequestService). The request's group lasts until it is dropped.
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
