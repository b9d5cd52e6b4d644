//! In group: a future or body that has a group in force while it is polled and dropped.
//!
//! - I1. The guard of the scope is on the stack of one poll, so it is dropped on the thread that
//!   made it, even if the poll unwinds.
//! - I2. A future that is ready, and a body that has ended, is dropped within the scope of its last
//!   poll, because each change of scope reads the clock.

use std::pin::Pin;
use std::task::{Context, Poll};

use http_body::{Body, Frame, SizeHint};
use memgroup::Group;
use memgroup::scope::{self, Scope};
use pin_project_lite::pin_project;

pin_project! {
    /// A future, or a body, with a group that is in force during each poll, and while it is
    /// dropped. Made by [`InGroupExt::in_group`].
    #[must_use = "futures do nothing unless polled"]
    #[derive(Debug)]
    pub struct InGroup<F> {
        // `None` after it was dropped.
        #[pin]
        inner: Option<F>,
        group: Group,
    }

    impl<F> PinnedDrop for InGroup<F> {
        fn drop(this: Pin<&mut Self>) {
            this.clear();
        }
    }
}

/// Puts the group in force, unless it is already.
#[inline]
fn enter(group: &Group) -> Option<Scope<'_>> {
    (scope::current_id() != Some(group.id())).then(|| scope::enter(group))
}

impl<F> InGroup<F> {
    /// The group in force.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Drops the future in the group.
    pub(crate) fn clear(self: Pin<&mut Self>) {
        let mut this = self.project();
        if this.inner.is_some() {
            let _scope = enter(this.group);
            this.inner.set(None);
        }
    }
}

impl<F: Future> Future for InGroup<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let _scope = enter(this.group);
        let inner = this.inner.as_mut().as_pin_mut().expect("a future is polled after its end");
        let polled = inner.poll(context);
        if polled.is_ready() {
            this.inner.set(None);
        }
        polled
    }
}

impl<B: Body> Body for InGroup<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let mut this = self.project();
        let _scope = enter(this.group);
        let Some(mut body) = this.inner.as_mut().as_pin_mut() else { return Poll::Ready(None) };
        let polled = body.as_mut().poll_frame(context);
        let has_ended = match &polled {
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(_))) => body.is_end_stream(),
            Poll::Ready(Some(Err(_))) | Poll::Pending => false,
        };
        if has_ended {
            this.inner.set(None);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(B::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or(SizeHint::with_exact(0), B::size_hint)
    }
}

/// Puts a group in force for a future, or for the body of a request or response.
pub trait InGroupExt: Sized {
    /// Puts `group` in force during each poll of the future or the body, and while it is dropped.
    ///
    /// Adapters that hook allocations, and [`scope::current`], then find the group. Groups nest,
    /// and that of the innermost future is in force. Between two polls the thread has its previous
    /// group, so `select!`, `join!` and other tasks on the thread are not affected. A poll that
    /// panics restores that group as well.
    ///
    /// A task that the future spawns is not in the group;
    /// [`GroupExt::spawn`](crate::GroupExt::spawn) puts it there.
    ///
    /// **Cancel safety**: that of the future itself. **Panics** as the future does, and when it is
    /// polled after its end.
    ///
    /// ```
    /// use memgroup::{Config, Hierarchy, scope};
    /// use memgroup_tokio::InGroupExt;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let alice = hierarchy.create("/alice").unwrap();
    /// let work = async {
    ///     tokio::task::yield_now().await;
    ///     scope::try_charge_current(4096).expect("a group is in force")
    /// };
    /// let charge = work.in_group(&alice).await.unwrap();
    /// assert_eq!((charge.group(), scope::current()), (alice, None));
    /// # }
    /// ```
    fn in_group(self, group: &Group) -> InGroup<Self> {
        InGroup { inner: Some(self), group: group.clone() }
    }
}

impl<F> InGroupExt for F {}
