//! Trigger: tells who waits that a group was stalled for so long within so much time, while it is still stalled.
//!
//! A trigger is looked at by whoever begins or ends a stall in the group or below, and by who waits for it: that one sleeps until the earliest moment at
//! which it could fire, or, where nothing was stalled for a whole window, until something is. No thread is there for it.
//!
//! - I1. It fires at most once within its window.
//! - I2. Each time that it fires one wait returns, also one that begins afterwards.
//! - I3. A waiter dozes only if it has seen that nothing is stalled after it has said that it dozes: what begins later finds that and wakes it.
//! - B1. It fires at most a fiftieth of the window after the moment at which its condition holds, and what it takes to wake a thread.

use core::fmt;
use core::str::FromStr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use memgroup_sync::interleave;

use super::tally::{Progress, Seen};
use super::window::Window;
use crate::group::Group;

/// The windows that the kernel takes.
const WINDOW_US: core::ops::RangeInclusive<u64> = 500_000..=10_000_000;

/// Of which of the two lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Some,
    Full,
}

/// What a trigger is to fire at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Condition {
    kind: Kind,
    stall_nanos: u64,
    window_nanos: u64,
}

/// A text that is no trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TriggerError {
    text: String,
    reason: Reason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Words(usize),
    Kind,
    Number,
    Window(u64),
    Stall { stall_us: u64, window_us: u64 },
}

/// As much of a text as an error repeats.
const REPEATED_MOST: usize = 80;

impl fmt::Display for TriggerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no trigger: ", self.text)?;
        match self.reason {
            Reason::Words(words) => write!(f, "it has {words} words and not three")?,
            Reason::Kind => f.write_str("it begins neither with some nor with full")?,
            Reason::Number => f.write_str("the stall and the window are not both whole numbers")?,
            Reason::Window(us) => {
                let (least, most) = WINDOW_US.into_inner();
                write!(f, "its window has {us} us and not {least} to {most}")?;
            }
            Reason::Stall { stall_us, window_us } => {
                write!(f, "its stall has {stall_us} us and not 1 to those of its window, {window_us}")?;
            }
        }
        f.write_str("; write it as some 150000 1000000: the line, the stall and the window in microseconds")
    }
}

impl std::error::Error for TriggerError {}

impl FromStr for Condition {
    type Err = Reason;

    fn from_str(text: &str) -> Result<Condition, Reason> {
        let mut words = text.split_ascii_whitespace();
        let (Some(kind), Some(stall), Some(window), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(Reason::Words(text.split_ascii_whitespace().count()));
        };
        let kind = match kind {
            "some" => Kind::Some,
            "full" => Kind::Full,
            _ => return Err(Reason::Kind),
        };
        let number = |word: &str| {
            let is_digits = word.bytes().all(|byte| byte.is_ascii_digit());
            word.parse().ok().filter(|_| is_digits).ok_or(Reason::Number)
        };
        let (stall_us, window_us): (u64, u64) = (number(stall)?, number(window)?);
        if !WINDOW_US.contains(&window_us) {
            return Err(Reason::Window(window_us));
        }
        if !(1..=window_us).contains(&stall_us) {
            return Err(Reason::Stall { stall_us, window_us });
        }
        Ok(Condition { kind, stall_nanos: stall_us * 1000, window_nanos: window_us * 1000 })
    }
}

/// One trigger, as changes of the lines find it.
pub(super) struct Watch {
    condition: Condition,
    state: Mutex<State>,
    bell: Condvar,
}

struct State {
    window: Window,
    /// When it fired last, and the total then.
    fired: Option<(u64, u64)>,
    /// It has fired and no wait has returned for it.
    is_due: bool,
    /// Somebody waits without a look at the clock.
    dozes: bool,
}

impl State {
    /// What counts towards its firing: the stall in the window, without what it has fired for.
    fn growth(&self) -> u64 {
        let since_fired = self.fired.map_or(u64::MAX, |(_, total)| self.window.total() - total);
        self.window.growth().min(since_fired)
    }

    /// When it could fire at the earliest, if everything stalls from now on.
    fn earliest(&self, condition: &Condition, now: u64) -> u64 {
        let lacks = condition.stall_nanos.saturating_sub(self.growth());
        let again = self.fired.map_or(0, |(at, _)| at + condition.window_nanos);
        (now + lacks).max(again)
    }

    /// Looks at its line; whether it fires.
    fn see(&mut self, condition: &Condition, seen: &Seen) -> bool {
        self.window.see(seen.now, condition.progress(seen).total_nanos);
        let fires = self.earliest(condition, seen.now) <= seen.now;
        if fires {
            (self.fired, self.is_due) = (Some((seen.now, self.window.total())), true);
        }
        fires
    }
}

impl Condition {
    fn progress(&self, seen: &Seen) -> Progress {
        match self.kind {
            Kind::Some => seen.some,
            Kind::Full => seen.full,
        }
    }
}

impl Watch {
    fn new(condition: Condition, seen: &Seen) -> Watch {
        let window = Window::new(condition.window_nanos, seen.now, condition.progress(seen).total_nanos);
        let state = State { window, fired: None, is_due: false, dozes: false };
        Watch { condition, state: Mutex::new(state), bell: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stall has begun or ended.
    pub(super) fn see(&self, seen: &Seen) {
        let mut state = self.lock();
        let fires = state.see(&self.condition, seen);
        if fires || (state.dozes && self.condition.progress(seen).is_on) {
            state.dozes = false;
            drop(state);
            self.bell.notify_all();
        }
    }

    /// For how long a waiter may sleep that has seen this; `None`: until something begins to stall.
    fn patience(&self, state: &State, seen: &Seen) -> Option<Duration> {
        if !self.condition.progress(seen).is_on && state.growth() == 0 {
            return None;
        }
        let least = self.condition.window_nanos / 50;
        Some(Duration::from_nanos(
            state.earliest(&self.condition, seen.now).saturating_sub(seen.now).max(least),
        ))
    }
}

/// A trigger on the pressure of a group; made by [`Group::add_pressure_trigger`], and there until it is dropped.
///
/// It keeps the group's place, as a handle does; when the group is removed nothing new is stalled there, and it does not fire any more.
#[must_use = "the trigger is there only while this lives"]
pub struct Trigger {
    group: Group,
    watch: Arc<Watch>,
}

impl Trigger {
    pub(super) fn new(group: &Group, text: &str) -> Result<Trigger, TriggerError> {
        let condition = text.parse().map_err(|reason| {
            let text = text.chars().take(REPEATED_MOST).collect();
            TriggerError { text, reason }
        })?;
        let meter = &group.node().control.pressure;
        let watch = Arc::new(Watch::new(condition, &meter.seen(group.node())));
        meter.add(Arc::clone(&watch));
        Ok(Trigger { group: group.clone(), watch })
    }

    /// The group it is on.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Waits until it fires, or has fired since the last wait for it returned `true`; `false` when `deadline` has passed before. Of several threads that
    /// wait, one returns.
    ///
    /// It fires at most once within its window, and while the stall is still on.
    ///
    /// The stalls it fires for happen before the return.
    pub fn wait(&self, deadline: Instant) -> bool {
        let node = self.group.node();
        loop {
            let seen = node.control.pressure.seen(node);
            interleave::point();
            let mut state = self.watch.lock();
            state.see(&self.watch.condition, &seen);
            if std::mem::take(&mut state.is_due) {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let patience = match self.watch.patience(&state, &seen) {
                Some(patience) => patience.min(left),
                None if state.dozes => left,
                None => {
                    // One more look, with that said (I3).
                    state.dozes = true;
                    continue;
                }
            };
            drop(self.watch.bell.wait_timeout(state, patience));
        }
    }
}

impl Drop for Trigger {
    fn drop(&mut self) {
        self.group.node().control.pressure.remove(&self.watch);
    }
}

impl fmt::Debug for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trigger")
            .field("group", &self.group)
            .field("condition", &self.watch.condition)
            .finish()
    }
}

#[cfg(all(test, not(memgroup_loom)))]
#[path = "trigger/tests.rs"]
mod tests;
