//! Limited: a future in a group that waits while its group is above `high`, and ends when the group
//! is over its limit or is stopped.
//!
//! ```text
//!   poll ─▶ stopped? ─▶ delay left? ─▶ poll in the group ─▶ pending ─▶ stopped? over the limit? ─▶ ended: dropped in the group, then the error
//!                                                        └─ ready ──▶ debt? ─▶ dropped in the group ─▶ delay ─▶ the output
//! ```

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use memgroup::{Group, GroupId};
use pin_project_lite::pin_project;

use crate::charge::Delay;
use crate::in_group::InGroup;
use crate::stop::Member;

/// Why a task was ended. Its future was dropped, and the memory that it held is free.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Ended {
    /// The group was over its limit after a poll: by forced charges, or because the limit was
    /// lowered.
    #[error("task ended: group {group} is over its limit, usage {usage} of max {max}")]
    OverLimit {
        /// The group's path.
        group: String,
        /// Bytes charged to it then.
        usage: u64,
        /// Its limit in bytes.
        max: u64,
    },
    /// The group was stopped to make room for another group's charge.
    #[error("task ended: group {group} was stopped to free memory for a charge of {asked} bytes")]
    Killed {
        /// The path of the stopped group.
        group: String,
        /// The group that needed the memory.
        requester: GroupId,
        /// The group that was full.
        full: GroupId,
        /// Bytes that were asked for.
        asked: u64,
    },
    /// [`Tasks::stop`](crate::Tasks::stop) was called.
    #[error("task ended: the tasks of group {group} were stopped")]
    Stopped {
        /// The path of the stopped group.
        group: String,
    },
}

impl Ended {
    fn of(member: &Member, group: &Group) -> Ended {
        let group = group.path();
        match member.reason() {
            Some(reason) => {
                let (requester, full, asked) = (reason.requester, reason.full, reason.asked);
                Ended::Killed { group, requester, full, asked }
            }
            None => Ended::Stopped { group },
        }
    }
}

/// Returns the error, if the group's usage is above its limit and the limit is enforced.
fn over_limit(group: &Group) -> Option<Ended> {
    let (usage, max) = group.usage_and_max();
    let max = max.filter(|&max| usage > max && group.is_enforced())?;
    Some(Ended::OverLimit { group: group.path(), usage, max })
}

pin_project! {
    /// A future in a group that ends with an error when the group is over its limit. Made by
    /// [`InGroup::ended_over_limit`] and [`Tasks::track`].
    ///
    /// [`Tasks::track`]: crate::Tasks::track
    #[must_use = "futures do nothing unless polled"]
    pub struct Limited<F: Future> {
        #[pin]
        inner: InGroup<F>,
        output: Option<F::Output>,
        delay: Option<Delay>,
        // Declared after the future, which it must outlive.
        member: Option<Member>,
    }
}

impl<F: Future> Limited<F> {
    pub(crate) fn new(inner: InGroup<F>, member: Option<Member>) -> Limited<F> {
        Limited { inner, output: None, delay: None, member }
    }

    /// The group in force.
    pub fn group(&self) -> &Group {
        self.inner.group()
    }

    /// The reason to end the task now.
    fn reason(&self) -> Option<Ended> {
        let group = self.inner.group();
        self.member.as_ref().filter(|member| member.is_stopped()).map(|member| Ended::of(member, group))
    }

    /// Returns pending, to be woken by a stop.
    fn wait(mut self: Pin<&mut Self>, context: &Context<'_>) -> Poll<Result<F::Output, Ended>> {
        let member = self.as_mut().project().member.as_mut();
        if member.is_some_and(|member| member.wake_by(context.waker()))
            && let Some(ended) = self.reason()
        {
            return self.end(ended);
        }
        Poll::Pending
    }

    /// Ends the future: drops it in its group.
    fn end(self: Pin<&mut Self>, ended: Ended) -> Poll<Result<F::Output, Ended>> {
        let this = self.project();
        this.inner.clear();
        (*this.delay, *this.output) = (None, None);
        *this.member = None;
        Poll::Ready(Err(ended))
    }
}

impl<F: Future> InGroup<F> {
    /// Ends the future with an error when its group is over its limit, and delays it while the
    /// group is above its `high`.
    ///
    /// After each poll that is pending, the group's usage is compared with its [`max`](Group::max).
    /// A group gets over it by [forced](Group::charge_forced) charges, or when the limit is
    /// lowered. The future is then dropped in the group, and the output is [`Ended::OverLimit`].
    /// The limit of a group above ends nothing here, because kill hooks choose the group to be
    /// stopped ([`Tasks`](crate::Tasks)). Nor does a limit that is [not
    /// enforced](Group::set_enforced). A future that is ready keeps its output.
    ///
    /// Between two polls, and before the output, the future waits as
    /// [`GroupExt::delayed`](crate::GroupExt::delayed) does. If the future is woken during the
    /// delay, it is polled afterwards.
    ///
    /// **Cancel safety**: that of the future itself; the rest of an unfinished delay is owed again.
    /// **Panics** as the future does, and when a delay is due outside of a tokio runtime with a
    /// timer.
    ///
    /// ```
    /// use memgroup::{Config, Hierarchy, scope};
    /// use memgroup_tokio::{Ended, InGroupExt};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let alice = hierarchy.create("/alice").unwrap();
    /// alice.set_max(1 << 20).unwrap();
    /// let runaway = async {
    ///     let mut held = Vec::new();
    ///     loop {
    ///         held.push(scope::current().unwrap().charge_forced(300_000).unwrap());
    ///         tokio::task::yield_now().await;
    ///     }
    /// };
    /// let ended: Result<(), Ended> = runaway.in_group(&alice).ended_over_limit().await;
    /// assert!(matches!(ended, Err(Ended::OverLimit { usage: 1_200_000, .. })));
    /// assert_eq!(alice.usage_exact(), 0);
    /// # }
    /// ```
    pub fn ended_over_limit(self) -> Limited<F>
    where
        F: Future,
    {
        Limited::new(self, None)
    }
}

impl<F: Future> Future for Limited<F> {
    type Output = Result<F::Output, Ended>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(ended) = self.reason() {
            return self.end(ended);
        }
        let mut this = self.as_mut().project();
        if let Some(delay) = this.delay {
            if Pin::new(delay).poll(context).is_pending() {
                return self.wait(context);
            }
            *this.delay = None;
            if let Some(output) = this.output.take() {
                *this.member = None;
                return Poll::Ready(Ok(output));
            }
        }
        if let Poll::Ready(output) = this.inner.as_mut().poll(context) {
            // By now the future is dropped (`in_group` I2).
            *this.delay = Delay::begin(this.inner.group());
            if this.delay.is_none() {
                *this.member = None;
                return Poll::Ready(Ok(output));
            }
            *this.output = Some(output);
        } else if let Some(ended) = over_limit(this.inner.group()) {
            return self.end(ended);
        } else {
            *this.delay = Delay::begin(this.inner.group());
        }
        if let Some(delay) = this.delay
            && Pin::new(delay).poll(context).is_ready()
        {
            // The poll set no timer, because the delay is over already.
            context.waker().wake_by_ref();
        }
        self.wait(context)
    }
}

impl<F: Future> fmt::Debug for Limited<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limited").field("group", self.group()).finish_non_exhaustive()
    }
}
