//! Body: the bytes of an answer, which are made as fast as the client reads them.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::mpsc;
use tokio::time::{Sleep, sleep_until};

use super::Sure;
use super::tree::Tree;
use crate::account::Chunks;
use crate::app::App;
use crate::conn::{Conn, Phase};

/// The bytes of an answer, or the values of which they are made.
#[derive(Debug)]
pub(crate) enum Content {
    /// Bytes that need no charge: a part of the program, or a problem.
    Fixed(Bytes),
    Text(Chunks),
    Tree(Tree),
    /// Made by a task.
    Events(mpsc::Receiver<Bytes>),
}

/// The body of an answer. It notifies its connection when it begins and when it ends.
#[derive(Debug)]
pub(crate) struct AnswerBody {
    content: Content,
    app: Arc<App>,
    conn: Arc<Conn>,
    /// A pause while the answer is made, in which other requests run.
    pause: Option<Pin<Box<Sleep>>>,
}

impl AnswerBody {
    pub(super) fn new(content: Content, app: Arc<App>, conn: Arc<Conn>) -> AnswerBody {
        conn.enter(Phase::Sending { is_stream: matches!(content, Content::Events(_)) });
        AnswerBody { content, app, conn, pause: None }
    }

    /// Waits while the server's share of the CPU is spent.
    fn poll_pause(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let free_at = self.app.pace.settle();
        if self.pause.is_none() && free_at > tokio::time::Instant::now() {
            self.pause = Some(Box::pin(sleep_until(free_at)));
        }
        if let Some(pause) = &mut self.pause {
            std::task::ready!(pause.as_mut().poll(context));
            self.pause = None;
        }
        Poll::Ready(())
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        self.conn.enter(Phase::Waiting);
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Sure<Frame<Bytes>>>> {
        let this = &mut *self;
        if let Content::Tree(_) = this.content {
            std::task::ready!(this.poll_pause(context));
        }
        let piece = match &mut this.content {
            Content::Fixed(bytes) => Some(std::mem::take(bytes)).filter(|bytes| !bytes.is_empty()),
            Content::Text(text) => text.pop(),
            Content::Events(events) => std::task::ready!(events.poll_recv(context)),
            Content::Tree(tree) => {
                let piece = tree.pop();
                this.app.pace.settle();
                piece
            }
        };
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Fixed(bytes) => bytes.is_empty(),
            Content::Text(text) => text.len() == 0,
            Content::Tree(_) | Content::Events(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Fixed(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Text(text) => SizeHint::with_exact(text.len() as u64),
            Content::Tree(_) | Content::Events(_) => SizeHint::default(),
        }
    }
}
