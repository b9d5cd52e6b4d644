//! Pressure trigger: wakes a thread or a task when a group was stalled for so long within so much
//! time, while it is still stalled.
//!
//! A thread that begins or ends a stall in the group or below checks its triggers, and so does a
//! waiter. The waiter sleeps until the earliest moment at which the trigger could fire. If nothing
//! was stalled for a whole window, it sleeps until a stall begins. The engine has no thread for
//! it: a waiting thread sleeps in the list of waits, and a reclaimer wakes a waiting task.
//!
//! - I1. A trigger fires at most once within its window.
//! - I2. Each time that it fires one wait returns, also one that begins afterwards.
//! - I3. A waiter dozes only if it has seen that nothing is stalled after it announced that it
//!   dozes, and after its wait was armed. A stall that begins later finds that under the trigger's
//!   lock, and then the wait under the list's.
//! - B1. It fires at most a fiftieth of the window after its condition holds, plus the time to
//!   wake a thread.

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
use crate::observe::wait::WaitKind;
use crate::observe::wait::list::{Target, wait_for};
use crate::observe::wait::tasks::{TaskWait, WaitEnded};
use crate::tree::handle::Group;

/// The windows that the kernel accepts, in microseconds.
const WINDOW: core::ops::RangeInclusive<u64> = 500_000..=10_000_000;

/// The condition of a pressure trigger: a line that is on for so long within a window.
///
/// Its text is that of `memory.pressure`: the line, the stall and the window in microseconds. The
/// window is 500 ms to 10 s, and the stall 1 us to the window.
///
/// ```
/// # use memgroup::PressureTrigger;
/// let trigger: PressureTrigger = "some 150000 1000000".parse()?;
/// assert_eq!(trigger.to_string(), "some 150000 1000000");
/// # Ok::<(), memgroup::TriggerError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PressureTrigger {
    is_of_full: bool,
    stall_us: u64,
    window_us: u64,
}

impl PressureTrigger {
    fn progress(&self, seen: &Seen) -> Progress {
        if self.is_of_full { seen.full } else { seen.some }
    }

    fn window_nanos(&self) -> u64 {
        self.window_us * 1000
    }
}

impl FromStr for PressureTrigger {
    type Err = TriggerError;

    fn from_str(text: &str) -> Result<PressureTrigger, TriggerError> {
        let error = |reason| TriggerError { text: start(text), reason };
        let words: Vec<&str> = text.split_ascii_whitespace().take(4).collect();
        let [line, stall, window] = words[..] else { return Err(error("it does not have three words")) };
        let is_of_full = match line {
            "some" => false,
            "full" => true,
            _ => return Err(error("it begins neither with some nor with full")),
        };
        let micros = |word: &str| {
            let is_digits = word.bytes().all(|byte| byte.is_ascii_digit());
            let number = word.parse().ok().filter(|_| is_digits);
            number.ok_or(error("the stall and the window are not whole numbers"))
        };
        let (stall_us, window_us) = (micros(stall)?, micros(window)?);
        if !WINDOW.contains(&window_us) {
            return Err(error("its window is not 500 ms to 10 s"));
        }
        if !(1..=window_us).contains(&stall_us) {
            return Err(error("its stall is not 1 us to its window"));
        }
        Ok(PressureTrigger { is_of_full, stall_us, window_us })
    }
}

impl fmt::Display for PressureTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let line = if self.is_of_full { "full" } else { "some" };
        write!(f, "{line} {} {}", self.stall_us, self.window_us)
    }
}

/// The reason why a text is no [`PressureTrigger`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TriggerError {
    /// The beginning of the text.
    pub text: String,
    /// The part that is wrong.
    pub reason: &'static str,
}

impl fmt::Display for TriggerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TriggerError { text, reason } = self;
        write!(
            f,
            "read the pressure trigger {text:?}: {reason}; \
             write it as some 150000 1000000: the line, the stall and the window in microseconds"
        )
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

impl State {
    /// The stall that counts towards the next firing: that in the window, less the stall for which
    /// it fired.
    fn growth(&self) -> u64 {
        let since_fired = self.fired.map_or(u64::MAX, |(_, total)| self.window.total() - total);
        self.window.growth().min(since_fired)
    }

    /// The earliest moment at which it could fire, if the line is on from now.
    fn earliest(&self, trigger: &PressureTrigger, now: u64) -> u64 {
        let lacks = (trigger.stall_us * 1000).saturating_sub(self.growth());
        let again = self.fired.map_or(0, |(at, _)| at + trigger.window_nanos());
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
        let window = Window::new(trigger.window_nanos(), seen.now, trigger.progress(seen).total_nanos);
        let state = State { window, fired: None, is_due: false, dozes: false };
        TriggerState { trigger, state: Mutex::new(state) }
    }

    /// The events for which its waits are armed.
    pub(crate) fn target(&self) -> Target {
        Target::Trigger(std::ptr::from_ref(self).addr())
    }

    /// Takes in the line after a stall has begun or ended. Returns whether its waits must be
    /// notified.
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
        Some(Duration::from_nanos(left.max(self.trigger.window_nanos() / 50)))
    }
}

/// A trigger on the pressure of a group, which is on until this is dropped; from
/// [`Group::add_pressure_trigger`].
///
/// It keeps its group as a handle does. A removed group has no new stalls, and waits for its
/// triggers end.
#[must_use = "the trigger is on only while this lives"]
pub struct PressureWatch {
    group: Group,
    state: Arc<TriggerState>,
}

impl PressureWatch {
    pub(crate) fn new(group: &Group, trigger: PressureTrigger) -> PressureWatch {
        let meter = group.node().pressure();
        let state = Arc::new(TriggerState::new(trigger, &meter.seen()));
        meter.add(Arc::clone(&state));
        PressureWatch { group: group.clone(), state }
    }

    /// Returns `Ok` if the trigger has fired, to one caller for each time. The error says when the
    /// caller must look again; `None`: when a stall begins. Its wait is armed.
    fn look(&self) -> Result<(), Option<Instant>> {
        let node = self.group.node();
        loop {
            let seen = node.pressure().seen();
            interleave::point();
            let mut state = self.state.state.lock();
            state.see(&self.state.trigger, &seen);
            if std::mem::take(&mut state.is_due) {
                return Ok(());
            }
            let patience = self.state.patience(&state, &seen);
            if patience.is_some() || state.dozes {
                return Err(patience.map(|patience| Instant::now() + patience));
            }
            // Looks once more after it announced that it dozes (I3).
            state.dozes = true;
        }
    }

    /// Waits until the trigger fires. Returns `true` at once if it has fired since the last wait
    /// returned `true`. Returns `false` at the deadline, when the group is removed, or when its
    /// waits are [ended](Group::wake_waiters). Of several waits, one returns `true`.
    ///
    /// It fires at most once within its window, and while the stall is still on. The stalls it
    /// fires for happen before the return.
    pub fn wait(&self, deadline: impl Into<Deadline>) -> bool {
        let deadline = deadline.into().instant_or_far();
        let (node, target) = (self.group.node(), self.state.target());
        wait_for(node, WaitKind::Pressure, target, deadline, || self.look()).is_some()
    }

    /// Waits as [`wait`](PressureWatch::wait) does, and without a thread: a future, of no runtime.
    ///
    /// A [`Reclaimer`](crate::Reclaimer) wakes the task when a stall begins or the trigger fires,
    /// and at the moments at which it could fire. So a hierarchy needs one that
    /// [runs](crate::Reclaimer::run). While it is in a shrinker's call or a kill hook, it wakes no
    /// task; another reclaimer does.
    ///
    /// A poll runs no code of the user's but the clone and the drop of a waker. It waits for short
    /// locks only: those that a stall takes at its begin and end, and that of the list of
    /// waits. The wait is [listed](crate::Hierarchy::waits).
    ///
    /// *Cancel safety*: dropped at any moment it leaves nothing behind. A firing is kept until a
    /// wait returns for it.
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
    /// - [`NoReclaimer`](WaitEnded::NoReclaimer): there is no reclaimer, or the last one was
    ///   stopped.
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
/// It does nothing before its first poll, and belongs to no runtime. Dropped at any moment it
/// leaves nothing behind.
#[must_use = "futures do nothing unless they are polled"]
pub struct Fired<'a> {
    watch: &'a PressureWatch,
    wait: TaskWait,
}

impl Fired<'_> {
    /// Sets until when it waits: an instant, a duration from now on, or [`Deadline::NEVER`], as it
    /// is unless set. A reclaimer wakes the task then.
    pub fn until(mut self, deadline: impl Into<Deadline>) -> Self {
        self.wait.set_deadline(deadline.into());
        self
    }
}

impl Future for Fired<'_> {
    type Output = Result<(), WaitEnded>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), WaitEnded>> {
        let Fired { watch, wait } = &mut *self;
        wait.poll(context.waker(), || watch.look())
    }
}

impl fmt::Debug for Fired<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fired").field("watch", self.watch).finish_non_exhaustive()
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
