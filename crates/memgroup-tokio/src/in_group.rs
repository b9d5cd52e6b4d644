//! In group: a future or body that has a group in force while it is polled and dropped, and tasks
//! and closures that have it while they run.
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
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

use crate::charge::Delay;

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

/// Tasks and closures in a group.
pub trait GroupExt {
    /// Spawns a task in the group: [`tokio::spawn`] of the future [in the
    /// group](InGroupExt::in_group).
    ///
    /// **Panics** outside of a tokio runtime.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy, scope};
    /// # use memgroup_tokio::GroupExt;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let alice = hierarchy.create("/alice").unwrap();
    /// let found = alice.spawn(async { scope::current() }).await.unwrap();
    /// assert_eq!(found, Some(alice));
    /// # }
    /// ```
    fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static;

    /// Runs a closure in the group, on a thread for blocking work: [`tokio::task::spawn_blocking`].
    /// There it may use each [`Effort`](memgroup::Effort), and charges that block.
    ///
    /// Neither a limit nor a kill ends it. The closure must check by itself, between its steps.
    ///
    /// A thread that tokio starts for the closure stays in tokio's pool, and is charged to no
    /// group. `tokio::task::spawn_blocking`, called in a group's scope, would charge the thread to
    /// that group.
    ///
    /// **Panics** outside of a tokio runtime, and if tokio needs its first thread for blocking work
    /// and the system refuses it.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy, scope};
    /// # use memgroup_tokio::GroupExt;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let alice = hierarchy.create("/alice").unwrap();
    /// let charge = alice.spawn_blocking(|| scope::try_charge_current(100)).await.unwrap();
    /// assert_eq!(charge.unwrap().unwrap().group(), alice);
    /// # }
    /// ```
    fn spawn_blocking<R: Send + 'static>(&self, run: impl FnOnce() -> R + Send + 'static) -> JoinHandle<R>;

    /// Runs a closure in the group, on the current thread. This is for closures that other
    /// libraries run on their threads, such as rayon's.
    ///
    /// **Panics** as the closure does; the group in force before is restored.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy, scope};
    /// use memgroup_tokio::GroupExt;
    /// use rayon::prelude::*;
    ///
    /// # let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let alice = hierarchy.create("/alice").unwrap();
    /// let charges: Result<Vec<_>, _> =
    ///     (0..100).into_par_iter().map(|_| alice.run(|| scope::try_charge_current(10).unwrap())).collect();
    /// let charges = charges.unwrap();
    /// assert_eq!(alice.usage_exact(), 1000);
    /// # drop(charges);
    /// ```
    fn run<R>(&self, run: impl FnOnce() -> R) -> R;

    /// Waits for as long as the group owes for bytes above its `high`
    /// ([`Group::owed`](memgroup::Group::owed)), and yields the thread in the meantime. This is
    /// [`Group::throttle`](memgroup::Group::throttle) for tasks. It calls no shrinker. Call it
    /// where the task holds nothing that others wait for.
    ///
    /// It ends early, within 10 ms, when no level of the group is above its limit any longer. The
    /// wait counts in the group's [pressure](memgroup::Group::pressure).
    ///
    /// **Cancel safety**: the rest of the delay is owed again. **Panics** outside of a tokio
    /// runtime with a timer, if a delay is due.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// use memgroup_tokio::GroupExt;
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// # let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let etl = hierarchy.create("/etl").unwrap();
    /// etl.set_high(1 << 20).unwrap();
    /// let pinned = etl.try_charge(2 << 20).unwrap();
    /// let began = Instant::now();
    /// etl.delayed().await;
    /// assert!(began.elapsed() >= Duration::from_secs(2));
    /// assert_eq!(etl.owed(), 0);
    /// # }
    /// ```
    fn delayed(&self) -> impl Future<Output = ()> + Send;
}

/// Returns the closure in a block that is allocated in the group. It runs in the group.
fn in_group<R>(
    group: &Group,
    run: impl FnOnce() -> R + Send + 'static,
) -> impl FnOnce() -> R + Send + 'static {
    let run = group.run(|| Box::new(run));
    let group = group.clone();
    move || group.run(run)
}

impl GroupExt for Group {
    fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        tokio::spawn(future.in_group(self))
    }

    fn spawn_blocking<R: Send + 'static>(&self, run: impl FnOnce() -> R + Send + 'static) -> JoinHandle<R> {
        let run = in_group(self, run);
        // Tokio may start a thread here, whose handle would stay charged to the group for as long
        // as the thread waits in the pool.
        let _outside = scope::leave();
        tokio::task::spawn_blocking(run)
    }

    fn run<R>(&self, run: impl FnOnce() -> R) -> R {
        let _scope = scope::enter(self);
        run()
    }

    async fn delayed(&self) {
        if let Some(delay) = Delay::begin(self) {
            delay.await;
        }
    }
}

/// Tasks of a [`JoinSet`] in a group.
pub trait JoinSetExt<T> {
    /// Spawns a task in the group on this set, as [`JoinSet::spawn`] does.
    ///
    /// **Panics** outside of a tokio runtime.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy, scope};
    /// use memgroup_tokio::JoinSetExt;
    /// use tokio::task::JoinSet;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// # let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let alice = hierarchy.create("/alice").unwrap();
    /// let mut set = JoinSet::new();
    /// set.spawn_in(&alice, async { scope::current() });
    /// set.spawn_blocking_in(&alice, scope::current);
    /// while let Some(found) = set.join_next().await {
    ///     assert_eq!(found.unwrap(), Some(alice.clone()));
    /// }
    /// # }
    /// ```
    fn spawn_in(&mut self, group: &Group, future: impl Future<Output = T> + Send + 'static) -> AbortHandle;

    /// Runs a closure in the group on this set, as [`JoinSet::spawn_blocking`] does.
    ///
    /// **Panics** as [`GroupExt::spawn_blocking`].
    fn spawn_blocking_in(&mut self, group: &Group, run: impl FnOnce() -> T + Send + 'static) -> AbortHandle;
}

impl<T: Send + 'static> JoinSetExt<T> for JoinSet<T> {
    fn spawn_in(&mut self, group: &Group, future: impl Future<Output = T> + Send + 'static) -> AbortHandle {
        self.spawn(future.in_group(group))
    }

    fn spawn_blocking_in(&mut self, group: &Group, run: impl FnOnce() -> T + Send + 'static) -> AbortHandle {
        let group = group.clone();
        self.spawn_blocking(move || group.run(run))
    }
}
