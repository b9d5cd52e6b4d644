//! Events: counts of limits that were met. See [`guide::events`](crate::guide::events).
//!
//! # Synchronisation
//!
//! - E1. `announce` ↔ `wait`: an event counts, fences, and looks for an armed wait. A waiter arms
//!   its wait, fences, and looks at the counts. One of the two sees the other, so no wake-up is
//!   lost. A waiter is a thread or a task. Loom: `an_event_wakes_its_waiter`,
//!   `an_event_wakes_its_task`, and their twins with a fault each.

#[cfg(all(test, memgroup_loom))]
mod loom;

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::time::Instant;

use memgroup_sync::atomic::Ordering;

use crate::base::deadline::Deadline;
use crate::counter::chain::Charged;
use crate::counter::events::{self, Event, Events};
use crate::observe::wait::WaitKind;
use crate::observe::wait::list::{Target, wait_for};
use crate::observe::wait::tasks::{TaskWait, WaitEnded};
use crate::state::stats::Reach;
use crate::tree::handle::Group;
use crate::tree::node::Node;

/// Counts an event of `node` there and above, and wakes the threads and tasks that wait for it.
/// The caller holds the node.
pub(crate) fn count(node: &'static Node, event: Event) {
    events::count(node, event);
    announce(node);
}

/// Wakes the threads and tasks that wait for events of `node`, after one was counted.
pub(crate) fn announce(node: &'static Node) {
    if node.shared().waits().is_armed() {
        wake_watchers(node);
    }
}

/// Wakes the threads and tasks that wait for the events that a charge of `node` counted.
#[inline]
pub(crate) fn after_charge(node: &'static Node, charged: Charged) {
    if charged.has_events {
        events::levels(node).for_each(announce);
    }
}

#[cold]
fn wake_watchers(node: &'static Node) {
    // ORDERING: Relaxed; written before the fence of the wait that was seen armed, or its waiter
    // sees the counts (E1).
    let is_watched = |level: &Node| level.events().watched.load(Ordering::Relaxed) > 0;
    if events::levels(node).any(is_watched) {
        node.shared().waits().wake_armed(|group, target| match target {
            Target::Group => node.is_within(group),
            Target::Trigger(_) => false,
        });
    }
}

/// Returns the counts if one differs from `seen`. If none does, only an event can change that.
fn look(node: &'static Node, seen: &Events) -> Result<Events, Option<Instant>> {
    Some(node.events().of(Reach::Subtree)).filter(|now| now != seen).ok_or(None)
}

/// Waits until a count differs from `seen`. Returns `None` if the wait ends before.
fn wait(node: &'static Node, seen: &Events, deadline: Deadline) -> Option<Events> {
    wait_for(node, WaitKind::Event, Target::Group, deadline.instant_or_far(), || look(node, seen))
}

/// A wait for events without a thread; from [`Group::events_after`].
///
/// It does nothing before its first poll, and belongs to no runtime. Dropped at any moment it
/// leaves nothing behind.
#[must_use = "futures do nothing unless they are polled"]
pub struct EventsAfter {
    wait: TaskWait,
    seen: Events,
}

impl EventsAfter {
    /// Sets until when it waits: an instant, a duration from now on, or [`Deadline::NEVER`], as it
    /// is unless set. A reclaimer wakes the task then.
    pub fn until(mut self, deadline: impl Into<Deadline>) -> EventsAfter {
        self.wait.set_deadline(deadline.into());
        self
    }

    /// Until when it waits; `None` for a wait without end.
    pub fn deadline(&self) -> Option<Instant> {
        self.wait.deadline()
    }

    /// The group that it waits for.
    pub fn group(&self) -> &Group {
        self.wait.group()
    }
}

impl Future for EventsAfter {
    type Output = Result<Events, WaitEnded>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Events, WaitEnded>> {
        let EventsAfter { wait, seen } = &mut *self;
        let node = wait.group().node();
        wait.poll(context.waker(), || look(node, seen))
    }
}

impl core::fmt::Debug for EventsAfter {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut wait = f.debug_struct("EventsAfter");
        wait.field("group", &self.group().path()).field("seen", &self.seen);
        wait.field("deadline", &self.deadline()).finish_non_exhaustive()
    }
}

/// Waiting for events.
impl Group {
    /// Waits until a count of [`events`](Group::events) differs from `seen`, and returns the
    /// counts. Returns at once if one differs already.
    ///
    /// Returns `None` if the wait ends with nothing new: at the deadline, when the group is
    /// removed, or when its waits are [ended](Group::wake_waiters). A loop that takes each
    /// answer for its next `seen` misses no event, and ends with the group. Several events may
    /// come as one answer.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// # use std::time::Instant;
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let tenants = hierarchy.create("/tenants").unwrap();
    /// let alice = tenants.create("alice").unwrap();
    /// alice.set_max(4096).unwrap();
    /// let seen = tenants.events();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| alice.try_charge(5000).unwrap_err());
    ///     let now = tenants.wait_events(&seen, None).unwrap();
    ///     assert_eq!(now.max, seen.max + 1);
    /// });
    /// assert_eq!(tenants.wait_events(&tenants.events(), Some(Instant::now())), None);
    /// ```
    pub fn wait_events(&self, seen: &Events, deadline: impl Into<Deadline>) -> Option<Events> {
        wait(self.node(), seen, deadline.into())
    }

    /// Waits as [`wait_events`](Group::wait_events) does, and without a thread: a future, of no
    /// runtime.
    ///
    /// A loop that takes each answer for its next `seen` misses no event, and ends with the group.
    /// Counts that differ already are the answer of the first poll. Otherwise a
    /// [`Reclaimer`](crate::Reclaimer) wakes the task: an event may be counted inside an allocator
    /// or under locks, where no waker may be called. So a hierarchy needs one that
    /// [runs](crate::Reclaimer::run). While it is in a shrinker's call or a kill hook, it wakes
    /// no task; another reclaimer does.
    ///
    /// A poll runs no code of the user's but the clone and the drop of a waker. It waits for short
    /// locks only. An event takes one of them, the lock of the list of waits, if a wait is
    /// armed for it. The wait is [listed](crate::Hierarchy::waits).
    ///
    /// *Cancel safety*: dropped at any moment it leaves nothing behind, and no event is lost: the
    /// next future finds the counts.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy, WaitEnded};
    /// # use std::pin::pin;
    /// # use std::sync::Arc;
    /// # use std::task::{Context, Poll, Wake, Waker};
    /// # struct Unpark(std::thread::Thread);
    /// # impl Wake for Unpark { fn wake(self: Arc<Self>) { self.0.unpark() } }
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    /// #     let mut future = pin!(future);
    /// #     loop {
    /// #         match future.as_mut().poll(&mut Context::from_waker(&waker)) {
    /// #             Poll::Ready(output) => return output,
    /// #             Poll::Pending => std::thread::park(),
    /// #         }
    /// #     }
    /// # }
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let reclaimer = hierarchy.reclaimer();
    /// let stop = reclaimer.stop_handle();
    /// let thread = std::thread::spawn(|| reclaimer.run());
    ///
    /// let alice = hierarchy.create("/alice").unwrap();
    /// alice.set_max(4096).unwrap();
    /// let task = {
    ///     let (alice, mut seen) = (alice.clone(), alice.events());
    ///     async move {
    ///         loop {
    ///             match alice.events_after(&seen).await {
    ///                 Ok(now) => seen = now,
    ///                 Err(ended) => return (seen.max, ended),
    ///             }
    ///         }
    ///     }
    /// };
    /// let task = std::thread::spawn(|| block_on(task));
    /// alice.try_charge(5000).unwrap_err();
    /// alice.remove().unwrap();
    /// assert_eq!(task.join().unwrap(), (1, WaitEnded::Removed));
    /// stop.stop();
    /// thread.join().unwrap();
    /// ```
    ///
    /// # Errors
    /// There are no new counts, and:
    /// - [`Removed`](WaitEnded::Removed): the group was removed.
    /// - [`Woken`](WaitEnded::Woken): all its waits were [ended](Group::wake_waiters).
    /// - [`Deadline`](WaitEnded::Deadline): the [deadline](EventsAfter::until) has passed.
    /// - [`NoReclaimer`](WaitEnded::NoReclaimer): there is no reclaimer, or the last one was
    ///   stopped.
    ///
    /// # Panics
    /// When it is polled after its end.
    pub fn events_after(&self, seen: &Events) -> EventsAfter {
        EventsAfter { wait: TaskWait::new(self, WaitKind::Event, Target::Group), seen: *seen }
    }
}
