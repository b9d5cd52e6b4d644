//! Charge: the reclaimer of the engine's waits, and timeouts and delays by tokio's clock, which may
//! be paused in tests.
//!
//! The reclaimer sleeps until the earliest deadline of all waits of its hierarchy, so a wait with a
//! deadline has no timer of its own. A timeout by tokio's clock has one. When it fires, the future
//! gets a deadline that has passed.
//!
//! A delay is the time that a group owes for bytes above its `high`. The engine returns it as a
//! value, a `Throttle`, and a timer of tokio times it. During the delay, the task is stalled in the
//! group's pressure.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use memgroup::{Deadline, Group, Hierarchy, ReclaimerStop, TaskStall, Throttle};
use tokio::time::{Instant, Sleep};

use crate::charge::waits::Waits;

/// A wait of the engine with a timer of tokio. Made by [`TimedExt`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Timed<C> {
    /// `None` once it has ended.
    wait: Option<C>,
    deadline: Option<Instant>,
    /// Armed when it has to wait.
    sleep: Option<Pin<Box<Sleep>>>,
}

/// A future of the engine that waits: [`Charging`](memgroup::Charging) and
/// [`Growing`](memgroup::Growing), for room; [`EventsAfter`](memgroup::EventsAfter) and
/// [`Fired`](memgroup::Fired), for events and for pressure.
pub trait TimedExt: Waits {
    /// Ends the wait after `timeout` by tokio's clock, which may be paused in tests. It replaces
    /// the future's own deadline.
    ///
    /// The deadline of the engine ([`Charging::until`](memgroup::Charging::until)) needs no timer
    /// for each wait. This one allocates a timer when it has to wait.
    ///
    /// **Errors**: those of the future. **Cancel safety**: that of the future; nothing stays
    /// charged. **Panics** when it has to wait outside of a tokio runtime with a timer.
    ///
    /// ```
    /// # use memgroup::{ChargeErrorKind, Config, Hierarchy};
    /// use memgroup_tokio::{ReclaimerThread, TimedExt};
    /// use tokio::time::{Duration, Instant};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() {
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let _reclaimer = ReclaimerThread::spawn(&hierarchy).unwrap();
    /// let alice = hierarchy.create("/alice").unwrap();
    /// alice.set_max(1000).unwrap();
    /// let mut held = alice.charge(600).timeout(Duration::from_secs(5)).await.unwrap();
    /// let began = Instant::now();
    /// let error = held.grow(600).timeout(Duration::from_secs(5)).await.unwrap_err();
    /// assert_eq!((error.kind(), began.elapsed().as_secs()), (ChargeErrorKind::Deadline, 5));
    /// # }
    /// ```
    fn timeout(self, timeout: Duration) -> Timed<Self> {
        Timed {
            wait: Some(self.until(Deadline::NEVER)),
            deadline: Instant::now().checked_add(timeout),
            sleep: None,
        }
    }
}

impl<C: Waits> TimedExt for C {}

mod waits {
    use memgroup::{Charging, Deadline, EventsAfter, Fired, Growing};

    /// A future that waits until a deadline.
    pub trait Waits: Sized {
        fn until(self, deadline: Deadline) -> Self;
    }

    macro_rules! waits {
        ($($wait:ty),*) => {
            $(impl Waits for $wait {
                fn until(self, deadline: Deadline) -> Self {
                    self.until(deadline)
                }
            })*
        };
    }

    waits!(Charging, Growing<'_>, EventsAfter, Fired<'_>);
}

impl<C> Timed<C> {
    /// Arms the timer, and returns whether it has fired.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        self.deadline.is_some_and(|deadline| {
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
            sleep.as_mut().poll(context).is_ready()
        })
    }
}

impl<C: Future + Waits + Unpin> Future for Timed<C> {
    type Output = C::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<C::Output> {
        let this = &mut *self;
        let mut wait = this.wait.take().expect("a wait is polled after its end");
        let mut polled = Pin::new(&mut wait).poll(context);
        if polled.is_pending() && this.is_late(context) {
            wait = wait.until(std::time::Instant::now().into());
            polled = Pin::new(&mut wait).poll(context);
        }
        if polled.is_pending() {
            this.wait = Some(wait);
        }
        polled
    }
}

/// How often a delayed task checks whether it must still wait, because an uncharge does not wake
/// it.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// A running delay. If it is dropped before its end, the rest becomes a debt again.
pub(crate) struct Delay {
    throttle: Option<Throttle>,
    paid_at: Instant,
    sleep: Pin<Box<Sleep>>,
    _stall: TaskStall,
}

impl Delay {
    /// Takes the delay that is due for `group`. This is one load if the group owes nothing.
    #[inline]
    pub(crate) fn begin(group: &Group) -> Option<Delay> {
        if group.owed() == 0 { None } else { Delay::take(group) }
    }

    #[cold]
    fn take(group: &Group) -> Option<Delay> {
        let throttle = group.take_throttle()?;
        let now = Instant::now();
        let paid_at = now + throttle.delay();
        let sleep = Box::pin(tokio::time::sleep_until(paid_at.min(now + CHECK_EVERY)));
        Some(Delay { throttle: Some(throttle), paid_at, sleep, _stall: group.stall_task() })
    }
}

impl Future for Delay {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        while self.sleep.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            let Some(throttle) = self.throttle.take() else { return Poll::Ready(()) };
            if now >= self.paid_at {
                throttle.finish();
                return Poll::Ready(());
            }
            if throttle.left().is_zero() {
                return Poll::Ready(());
            }
            self.throttle = Some(throttle);
            let next = self.paid_at.min(now + CHECK_EVERY);
            self.sleep.as_mut().reset(next);
        }
        Poll::Pending
    }
}

/// A thread that runs a [`Reclaimer`](memgroup::Reclaimer) until this is dropped. It makes room for
/// waiting charges, and wakes tasks that wait for events and triggers.
///
/// One is enough for a hierarchy. Without one, `.await` of a charge that finds no room fails at
/// once. It is a thread of its own, because a blocking task of the runtime would prevent paused
/// time from advancing and the runtime from shutting down.
///
/// ```
/// # use memgroup::{Config, Hierarchy};
/// use memgroup_tokio::{GroupExt, ReclaimerThread};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let _reclaimer = ReclaimerThread::spawn(&hierarchy).unwrap();
/// let alice = hierarchy.create("/alice").unwrap();
/// alice.set_max(1000).unwrap();
/// let held = alice.try_charge(800).unwrap();
/// let later = alice.clone();
/// let waiting = alice.spawn(async move { later.charge(800).await });
/// tokio::task::yield_now().await;
/// drop(held);
/// assert_eq!(waiting.await.unwrap().unwrap().bytes(), 800);
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the reclaimer ends when this is dropped"]
pub struct ReclaimerThread {
    stop: ReclaimerStop,
    thread: JoinHandle<()>,
}

impl ReclaimerThread {
    /// Runs a reclaimer of the hierarchy.
    ///
    /// # Errors
    /// The system refused the thread.
    pub fn spawn(hierarchy: &Hierarchy) -> io::Result<ReclaimerThread> {
        let reclaimer = hierarchy.reclaimer();
        let stop = reclaimer.stop_handle();
        let builder = thread::Builder::new().name("memgroup-reclaim".to_owned());
        Ok(ReclaimerThread { stop, thread: builder.spawn(move || reclaimer.run())? })
    }

    /// Returns whether the thread is running.
    pub fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }
}

impl Drop for ReclaimerThread {
    /// Ends the reclaimer without waiting. A running call of a shrinker continues.
    fn drop(&mut self) {
        self.stop.stop();
    }
}
