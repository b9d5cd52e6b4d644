#![doc = include_str!("../../docs/pressure.md")]

#[cfg(all(test, memgroup_loom))]
mod loom;
mod meter;
mod record;
mod report;
mod stall;
mod tally;
#[cfg(all(test, not(memgroup_loom)))]
mod tests;
mod trigger;
mod window;

pub(crate) use meter::Meter;
pub(crate) use record::publish;
pub(crate) use stall::{Stall, release, stall, stall_that_lasts};

pub use report::{Pressure, PressureLine};
pub use stall::StallGuard;
pub use trigger::{Trigger, TriggerError};

use crate::group::Group;

impl Group {
    /// How much of the time threads were stalled for memory, here and below: `memory.pressure`. A stall that is on counts as far as it has come.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let tenant = hierarchy.create("/tenant").unwrap();
    /// let stalled = tenant.stall();
    /// std::thread::sleep(std::time::Duration::from_millis(2));
    /// assert!(tenant.pressure().full.total >= 2000);
    /// drop(stalled);
    /// assert_eq!(tenant.pressure().some.total, hierarchy.root().pressure().some.total);
    /// ```
    pub fn pressure(&self) -> Pressure {
        self.node().control.pressure.report(self.node())
    }

    /// The calling thread is stalled for memory of this group until the guard is dropped: for who waits for memory where the engine does not see it,
    /// as when what was evicted is read back. What the engine waits for itself it counts itself; a thread is stalled once, however many
    /// guards it has, in the group of the first.
    ///
    /// Takes a short lock at each level, here and at the end; changes of [`scope`](crate::scope) on other threads are looked at meanwhile. A guard that is
    /// forgotten (`mem::forget`) leaves the thread stalled until it ends, if it was ever in a scope, or until the group is released.
    pub fn stall(&self) -> StallGuard<'_> {
        StallGuard::new(self, stall_that_lasts(self.node()))
    }

    /// Adds a trigger: a line, a stall and a window in microseconds, as written to `memory.pressure`. It fires when the line was on for so long within the
    /// window, whoever was stalled, at most once within a window.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// # use std::time::{Duration, Instant};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let tenant = hierarchy.create("/tenant").unwrap();
    /// let trigger = tenant.add_pressure_trigger("some 2000 1000000").unwrap();
    /// let _stalled = tenant.stall();
    /// assert!(trigger.wait(Instant::now() + Duration::from_secs(60)), "while the stall is on");
    /// ```
    ///
    /// # Errors
    /// The text is not of that form, the window is not 500 ms to 10 s, or the stall is not 1 us to the window.
    pub fn add_pressure_trigger(&self, text: &str) -> Result<Trigger, TriggerError> {
        Trigger::new(self, text)
    }
}
