//! Charge: the engine's waiting charges, with a timer of tokio at their deadline; and their reclaimer.
//!
//! The engine's future has a deadline and no timer. A poll after the deadline ends it. The timer may run on another clock than the engine, as in tests
//! with paused time: when it fires, the future gets a deadline that has passed.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use memgroup::{ChargeError, Hierarchy, ReclaimerStop};
use tokio::time::{Instant, Sleep};

use crate::charge::waits::Waits;

/// A charge that waits, with a timer at its deadline. Made by [`TimedExt`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Timed<C> {
    /// `None` once it has ended.
    charging: Option<C>,
    deadline: Option<Instant>,
    /// Armed when the charge has to wait.
    sleep: Option<Pin<Box<Sleep>>>,
}

/// A charge of the engine that waits: [`Charging`](memgroup::Charging) and [`Growing`](memgroup::Growing).
pub trait TimedExt: Waits {
    /// Arms a timer at the charge's own deadline ([`Charging::until`](memgroup::Charging::until)), when it has to wait.
    ///
    /// **Errors**: those of the charge. **Cancel safety**: dropped at any moment, nothing stays charged. **Panics** when it has to wait outside of a
    /// tokio runtime with a timer.
    fn timed(self) -> Timed<Self> {
        let deadline = self.deadline().map(Instant::from_std);
        Timed { charging: Some(self), deadline, sleep: None }
    }

    /// Sets the deadline to `timeout` from now on by tokio's clock, which may be paused in tests, and arms a timer for it.
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
        self.until(Instant::now().into_std().checked_add(timeout).into()).timed()
    }
}

impl<C: Waits> TimedExt for C {}

mod waits {
    use memgroup::{Charging, Deadline, Growing};

    /// A charge that waits until a deadline.
    pub trait Waits: Sized {
        fn deadline(&self) -> Option<std::time::Instant>;
        fn until(self, deadline: Deadline) -> Self;
    }

    impl Waits for Charging {
        fn deadline(&self) -> Option<std::time::Instant> {
            self.deadline()
        }

        fn until(self, deadline: Deadline) -> Charging {
            self.until(deadline)
        }
    }

    impl Waits for Growing<'_> {
        fn deadline(&self) -> Option<std::time::Instant> {
            self.deadline()
        }

        fn until(self, deadline: Deadline) -> Self {
            self.until(deadline)
        }
    }
}

impl<C, T> Timed<C>
where
    C: Future<Output = Result<T, ChargeError>> + Waits + Unpin,
{
    /// Whether the timer has fired, which is armed here.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        self.deadline.is_some_and(|deadline| {
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
            sleep.as_mut().poll(context).is_ready()
        })
    }
}

impl<C, T> Future for Timed<C>
where
    C: Future<Output = Result<T, ChargeError>> + Waits + Unpin,
{
    type Output = Result<T, ChargeError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, ChargeError>> {
        let this = &mut *self;
        let mut charging = this.charging.take().expect("a charge is polled after its end");
        let mut polled = Pin::new(&mut charging).poll(context);
        if polled.is_pending() && this.is_late(context) {
            charging = charging.until(std::time::Instant::now().into());
            polled = Pin::new(&mut charging).poll(context);
        }
        if polled.is_pending() {
            this.charging = Some(charging);
        }
        polled
    }
}

/// A thread that runs a [`Reclaimer`](memgroup::Reclaimer): it makes room for charges that wait, until this is dropped.
///
/// One is enough for a hierarchy. Without one, `.await` of a charge that finds no room fails at once. It is a thread of its own: a blocking task of the
/// runtime would keep paused time from advancing, and the runtime from shutting down.
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

    /// Whether it runs.
    pub fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }
}

impl Drop for ReclaimerThread {
    /// Ends the reclaimer, and waits for nothing: a shrinker's call that it is in goes on.
    fn drop(&mut self) {
        self.stop.stop();
    }
}
