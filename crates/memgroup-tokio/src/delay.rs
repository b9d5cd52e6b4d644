//! Delay: the time that a group owes for bytes above its `high`, as a wait that yields.
//!
//! The engine gives the delay as a value, a `Throttle`. Here a timer of tokio times it. While it lasts, the task is stalled in the group's pressure.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use memgroup::{Group, TaskStall, Throttle};
use tokio::time::{Instant, Sleep};

/// How often a delayed task looks whether it still has to wait. An uncharge wakes no delayed task.
const CHECK_EVERY: Duration = Duration::from_millis(10);

/// A delay that lasts. Dropped before its end, it gives the rest back as a debt.
pub(crate) struct Delay {
    throttle: Option<Throttle>,
    paid_at: Instant,
    sleep: Pin<Box<Sleep>>,
    _stall: TaskStall,
}

impl Delay {
    /// Takes the delay that is due for `group`; one load where the group owes nothing.
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
