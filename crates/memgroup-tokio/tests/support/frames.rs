//! A body of frames that never waits.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};

/// A body of the frames that an iterator makes, each when it is asked for.
pub(crate) struct Frames<I = std::vec::IntoIter<Bytes>>(pub(crate) I);

impl<I: Iterator<Item = Bytes> + Unpin> Body for Frames<I> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(|data| Ok(Frame::data(data))))
    }
}

/// Frames of zeros, of these lengths.
pub(crate) fn zeros<I>(lengths: I) -> Frames<impl Iterator<Item = Bytes> + Unpin + Send>
where
    I: IntoIterator<Item = usize, IntoIter: Unpin + Send>,
{
    Frames(lengths.into_iter().map(|length| Bytes::from(vec![0; length])))
}
