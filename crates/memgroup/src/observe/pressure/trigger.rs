//! Pressure trigger: wakes a thread or a task when a group was stalled for so long within so much time, while it is still stalled.
//!
//! A thread that begins or ends a stall in the group or below checks its triggers, and so does a waiter. The waiter sleeps until the earliest moment at
//! which the trigger could fire. If nothing was stalled for a whole window, it sleeps until a stall begins. The engine has no thread for it: a
//! waiting thread sleeps in the list of waits, and a reclaimer wakes a waiting task.
//!
//! - I1. A trigger fires at most once within its window.
//! - I2. Each time that it fires one wait returns, also one that begins afterwards.
//! - I3. A waiter dozes only if it has seen that nothing is stalled after it announced that it dozes, and after its wait was armed. A stall that
//!   begins later finds that under the trigger's lock, and then the wait under the list's.
//! - B1. It fires at most a fiftieth of the window after its condition holds, plus the time to wake a thread.

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::str::FromStr;
use core::task::{Context, Poll};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memgroup_sync::{Mutex, interleave};

use crate::base::deadline::Deadline;
use crate::base::limit::start;
use crate::observe::pressure::tally::{Progress, Seen};
use crate::observe::pressure::window::Window;
use crate::observe::wait::list::{Target, begin_for_events};
use crate::observe::wait::tasks::{TaskWait, WaitEnded};
use crate::observe::wait::{WaitKind, Wake};
use crate::tree::handle::Group;

/// The windows that the kernel accepts.
const WINDOW: core::ops::RangeInclusive<Duration> = Duration::from_millis(500)..=Duration::from_secs(10);

/// One of the two lines of a [`Pressure`](crate::Pressure).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PressureKind {
    /// At least one thread is stalled.
    Some,
    /// At least one thread is stalled, and none is at work.
    Full,
}

/// The condition of a pressure trigger: a line that is on for so long within a window.
///
/// Its text is that of `memory.pressure`: the line, the stall and the window in microseconds.
///
/// ```
/// # use memgroup::{PressureKind, PressureTrigger};
/// # use std::time::Duration;
/// let (stall, window) = (Duration::from_millis(150), Duration::from_secs(1));
/// let trigger = PressureTrigger::new(PressureKind::Some, stall, window).unwrap();
/// assert_eq!(trigger, "some 150000 1000000".parse().unwrap());
/// assert_eq!(trigger.to_string(), "some 150000 1000000");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PressureTrigger {
    kind: PressureKind,
    stall: Duration,
    window: Duration,
}

impl PressureTrigger {
    /// A trigger that fires when the line of this kind was on for `stall` within `window`.
    ///
    /// # Errors
    /// The window is not 500 ms to 10 s, or the stall is not 1 us to the window.
    pub fn new(
        kind: PressureKind,
        stall: Duration,
        window: Duration,
    ) -> Result<PressureTrigger, TriggerError> {
        if !WINDOW.contains(&window) {
            return Err(TriggerError::Window { window });
        }
        if !(Duration::from_micros(1)..=window).contains(&stall) {
            return Err(TriggerError::Stall { stall, window });
        }
        Ok(PressureTrigger { kind, stall, window })
    }

    /// The line that it watches.
    pub fn kind(&self) -> PressureKind {
        self.kind
    }

    /// The stall at which it fires.
    pub fn stall(&self) -> Duration {
        self.stall
    }

    /// The window within which the stall counts.
    pub fn window(&self) -> Duration {
        self.window
    }

    fn progress(&self, seen: &Seen) -> Progress {
        match self.kind {
            PressureKind::Some => seen.some,
            PressureKind::Full => seen.full,
        }
    }
}

impl FromStr for PressureTrigger {
    type Err = TriggerError;

    fn from_str(text: &str) -> Result<PressureTrigger, TriggerError> {
        let syntax = |reason| TriggerError::Syntax { text: start(text), reason };
        let mut words = text.split_ascii_whitespace();
        let (Some(kind), Some(stall), Some(window), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(syntax("it has not three words"));
        };
        let kind = match kind {
            "some" => PressureKind::Some,
            "full" => PressureKind::Full,
            _ => return Err(syntax("it begins neither with some nor with full")),
        };
        let micros = |word: &str| {
            let is_digits = word.bytes().all(|byte| byte.is_ascii_digit());
            let number = word.parse().ok().filter(|_| is_digits);
            number.map(Duration::from_micros).ok_or(syntax("the stall and the window are not whole numbers"))
        };
        PressureTrigger::new(kind, micros(stall)?, micros(window)?)
    }
}

impl fmt::Display for PressureTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            PressureKind::Some => "some",
            PressureKind::Full => "full",
        };
        write!(f, "{kind} {} {}", self.stall.as_micros(), self.window.as_micros())
    }
}

/// The reason why a [`PressureTrigger`] was not made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TriggerError {
    /// The text does not have the form of a trigger.
    Syntax {
        /// The beginning of the text.
        text: String,
        /// The part that is wrong.
        reason: &'static str,
    },
    /// The window is not 500 ms to 10 s.
    Window {
        /// The window as given.
        window: Duration,
    },
    /// The stall is not 1 us to the window.
    Stall {
        /// The stall as given.
        stall: Duration,
        /// The window as given.
        window: Duration,
    },
}

impl fmt::Display for TriggerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TriggerError::Syntax { text, reason } => write!(
                f,
                "read the pressure trigger {text:?}: {reason}; \
                 write it as some 150000 1000000: the line, the stall and the window in microseconds"
            ),
            TriggerError::Window { window } => {
                write!(f, "make a pressure trigger with a window of {window:?}: it is not 500ms to 10s")
            }
            TriggerError::Stall { stall, window } => {
                write!(
                    f,
                    "make a pressure trigger with a stall of {stall:?}: it is not 1µs to its window, {window:?}"
                )
            }
        }
    }
}

impl std::error::Error for TriggerError {}

/// The state of a trigger that is on a group.
pub(crate) struct TriggerState {
    trigger: PressureTrigger,
    state: Mutex<State>,
}

struct State {
    window: Window,
    /// The moment at which it fired last, and the total then.
    fired: Option<(u64, u64)>,
    /// The trigger has fired, and no wait has returned for it.
    is_due: bool,
    /// A waiter sleeps until a stall begins.
    dozes: bool,
}

fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}

impl State {
    /// The stall that counts towards the next firing: that in the window, less the stall for which it fired.
    fn growth(&self) -> u64 {
        let since_fired = self.fired.map_or(u64::MAX, |(_, total)| self.window.total() - total);
        self.window.growth().min(since_fired)
    }

    /// The earliest moment at which it could fire, if the line is on from now.
    fn earliest(&self, trigger: &PressureTrigger, now: u64) -> u64 {
        let lacks = nanos(trigger.stall).saturating_sub(self.growth());
        let again = self.fired.map_or(0, |(at, _)| at + nanos(trigger.window));
        (now + lacks).max(again)
    }

    /// Takes in the line at one moment. Returns whether the trigger fires.
    fn see(&mut self, trigger: &PressureTrigger, seen: &Seen) -> bool {
        self.window.see(seen.now, trigger.progress(seen).total_nanos);
        let fires = self.earliest(trigger, seen.now) <= seen.now;
        if fires {
            (self.fired, self.is_due) = (Some((seen.now, self.window.total())), true);
        }
        fires
    }
}

impl TriggerState {
    fn new(trigger: PressureTrigger, seen: &Seen) -> TriggerState {
        let window = Window::new(nanos(trigger.window), seen.now, trigger.progress(seen).total_nanos);
        let state = State { window, fired: None, is_due: false, dozes: false };
        TriggerState { trigger, state: Mutex::new(state) }
    }

    /// The events for which its waits are armed.
    pub(crate) fn target(&self) -> Target {
        Target::Trigger(std::ptr::from_ref(self).addr())
    }

    /// Takes in the line after a stall has begun or ended. Returns whether its waits are to be notified.
    pub(crate) fn see(&self, seen: &Seen) -> bool {
        let mut state = self.state.lock();
        let fires = state.see(&self.trigger, seen);
        let wakes = fires || (state.dozes && self.trigger.progress(seen).is_on);
        if wakes {
            state.dozes = false;
        }
        wakes
    }

    /// How long a waiter may sleep after it has seen this; `None`: until a stall begins.
    fn patience(&self, state: &State, seen: &Seen) -> Option<Duration> {
        if !self.trigger.progress(seen).is_on && state.growth() == 0 {
            return None;
        }
        let left = state.earliest(&self.trigger, seen.now).saturating_sub(seen.now);
        Some(Duration::from_nanos(left).max(self.trigger.window / 50))
    }
}

/// A trigger on the pressure of a group, which is on until this is dropped; from [`Group::add_pressure_trigger`].
///
/// It keeps its group as a handle does. A removed group has no new stalls, and waits for its triggers end.
#[must_use = "the trigger is on only while this lives"]
pub struct PressureWatch {
    group: Group,
    state: Arc<TriggerState>,
}

impl PressureWatch {
    pub(crate) fn new(group: &Group, trigger: PressureTrigger) -> PressureWatch {
        let meter = group.node().pressure();
        let state = Arc::new(TriggerState::new(trigger, &meter.seen(group.node())));
        meter.add(Arc::clone(&state));
        PressureWatch { group: group.clone(), state }
    }

    /// Its group.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Its trigger.
    pub fn trigger(&self) -> PressureTrigger {
        self.state.trigger
    }

    /// Whether the trigger has fired, for the caller alone. As an error, for how long it may sleep before it looks again; `None`: until a stall
    /// begins. Its wait is armed.
    fn look(&self) -> Result<(), Option<Duration>> {
        let node = self.group.node();
        loop {
            let seen = node.pressure().seen(node);
            interleave::point();
            let mut state = self.state.state.lock();
            state.see(&self.state.trigger, &seen);
            if std::mem::take(&mut state.is_due) {
                return Ok(());
            }
            let patience = self.state.patience(&state, &seen);
            if patience.is_some() || state.dozes {
                return Err(patience);
            }
            // Looks once more after it announced that it dozes (I3).
            state.dozes = true;
        }
    }

    /// Waits until the trigger fires. Returns `true` at once if it has fired since the last wait returned `true`. Returns `false` at the deadline,
    /// when the group is removed, or when its waits are [ended](Group::wake_waiters). Of several waits, one returns `true`.
    ///
    /// It fires at most once within its window, and while the stall is still on. The stalls it fires for happen before the return.
    pub fn wait(&self, deadline: impl Into<Deadline>) -> bool {
        let deadline = deadline.into().instant_or_far();
        let listed = begin_for_events(self.group.node(), WaitKind::Pressure, self.state.target(), deadline);
        loop {
            listed.arm();
            let patience = match self.look() {
                Ok(()) => return true,
                Err(patience) => patience,
            };
            let again = patience.map_or(deadline, |patience| deadline.min(Instant::now() + patience));
            match listed.park(again) {
                Wake::Notified => {}
                Wake::Deadline if again < deadline => {}
                _ => return self.look().is_ok(),
            }
        }
    }

    /// Waits as [`wait`](PressureWatch::wait) does, and without a thread: a future, of no runtime.
    ///
    /// A [`Reclaimer`](crate::Reclaimer) wakes the task when a stall begins or the trigger fires, and at the moments at which it could fire. So a
    /// hierarchy needs one that [runs](crate::Reclaimer::run). While it is in a shrinker's call or a kill hook, it wakes no task; another reclaimer
    /// does.
    ///
    /// A poll runs no code of the user's but the clone and the drop of a waker. It waits for short locks only: those that a stall takes at its begin
    /// and end, and that of the list of waits. The wait is [listed](crate::Hierarchy::waits).
    ///
    /// *Cancel safety*: dropped at any moment it leaves nothing behind. A firing is kept until a wait returns for it.
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
    /// let hierarchy = Hierarchy::new(Config::new())?;
    /// let reclaimer = hierarchy.reclaimer();
    /// let stop = reclaimer.stop_handle();
    /// let thread = std::thread::spawn(|| reclaimer.run());
    ///
    /// let tenant = hierarchy.create("/tenant")?;
    /// let watch = tenant.add_pressure_trigger("some 2000 1000000".parse()?);
    /// let stalled = tenant.stall();
    /// assert_eq!(block_on(watch.fired()), Ok(()), "while the stall is on");
    /// drop(stalled);
    /// tenant.remove()?;
    /// assert_eq!(block_on(watch.fired()), Err(WaitEnded::Removed));
    /// stop.stop();
    /// thread.join().unwrap();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// It has not fired, and:
    /// - [`Removed`](WaitEnded::Removed): the group was removed.
    /// - [`Woken`](WaitEnded::Woken): all its waits were [ended](Group::wake_waiters).
    /// - [`Deadline`](WaitEnded::Deadline): the [deadline](Fired::until) has passed.
    /// - [`NoReclaimer`](WaitEnded::NoReclaimer): there is no reclaimer, or the last one was stopped.
    ///
    /// # Panics
    /// When it is polled after its end.
    pub fn fired(&self) -> Fired<'_> {
        let wait = TaskWait::new(&self.group, WaitKind::Pressure, self.state.target());
        Fired { watch: self, wait }
    }
}

/// A wait for a trigger without a thread; from [`PressureWatch::fired`].
///
/// It does nothing before its first poll, and belongs to no runtime. Dropped at any moment it leaves nothing behind.
#[must_use = "futures do nothing unless they are polled"]
pub struct Fired<'a> {
    watch: &'a PressureWatch,
    wait: TaskWait,
}

impl Fired<'_> {
    /// Sets until when it waits: an instant, a duration from now on, or [`Deadline::NEVER`], as it is unless set. A reclaimer wakes the task then.
    pub fn until(mut self, deadline: impl Into<Deadline>) -> Self {
        self.wait.set_deadline(deadline.into());
        self
    }

    /// Until when it waits; `None` for a wait without end.
    pub fn deadline(&self) -> Option<Instant> {
        self.wait.deadline()
    }
}

impl Future for Fired<'_> {
    type Output = Result<(), WaitEnded>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), WaitEnded>> {
        let Fired { watch, wait } = &mut *self;
        let again = |patience: Option<Duration>| patience.map(|patience| Instant::now() + patience);
        wait.poll(context.waker(), || watch.look().map_err(again))
    }
}

impl fmt::Debug for Fired<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fired").field("watch", self.watch).field("deadline", &self.deadline()).finish()
    }
}

impl Drop for PressureWatch {
    fn drop(&mut self) {
        self.group.node().pressure().remove(&self.state);
    }
}

impl fmt::Debug for PressureWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("PressureWatch");
        out.field("group", &self.group).field("trigger", &self.state.trigger).finish()
    }
}

#[cfg(all(test, not(memgroup_loom)))]
#[path = "trigger/tests.rs"]
mod tests;
