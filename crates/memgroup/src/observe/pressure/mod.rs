//! Pressure: time lost for lack of memory. See [`guide::pressure`](crate::guide::pressure).

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

pub(crate) use record::publish;
pub use report::{Pressure, PressureLine};
pub use stall::{StallGuard, TaskStall};
pub(crate) use stall::{begin_of_task, end_of_task, release, stall};
pub use trigger::{Fired, PressureTrigger, PressureWatch, TriggerError};

use crate::tree::handle::Group;

/// Pressure.
impl Group {
    /// The share of time in which threads were stalled for memory, here and below:
    /// `memory.pressure`. A stall that is on counts up to now.
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
        self.node().pressure().report()
    }

    /// Stalls the calling thread for memory of this group until the guard is dropped.
    ///
    /// It is for waits for memory that the engine does not see, such as reading evicted pages
    /// back. The engine counts its own waits itself. A thread is stalled once, however many
    /// guards it has, in the group of the first.
    ///
    /// It takes a short lock at each level, at its beginning and its end. Meanwhile changes of
    /// [`scope`](crate::scope) in this hierarchy are checked, which makes them slower. A guard
    /// that is forgotten (`mem::forget`) leaves the thread stalled until the group is
    /// released. If the thread was ever in a scope, its end ends the stall too.
    pub fn stall(&self) -> StallGuard<'_> {
        stall(self.node())
    }

    /// Stalls a task for memory of this group until the guard is dropped: a unit of work that
    /// waits without a thread.
    ///
    /// Each guard is a stall of its own, whichever threads hold it. While the task waits, no
    /// thread is in its scope, so none is at work for it. The group is `full` unless a thread
    /// is in a scope of another task there.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// let hierarchy = Hierarchy::new(Config::new()).unwrap();
    /// let tenant = hierarchy.create("/tenant").unwrap();
    /// let stalled = tenant.stall_task();
    /// std::thread::sleep(std::time::Duration::from_millis(2));
    /// std::thread::spawn(move || drop(stalled)).join().unwrap();
    /// assert!(tenant.pressure().some.total >= 2000);
    /// ```
    pub fn stall_task(&self) -> TaskStall {
        TaskStall::new(self)
    }

    /// Adds a trigger, which fires when its line was on for its stall within its window, whichever
    /// threads were stalled.
    ///
    /// ```
    /// # use memgroup::{Config, Hierarchy};
    /// # use std::time::Duration;
    /// let hierarchy = Hierarchy::new(Config::new())?;
    /// let tenant = hierarchy.create("/tenant")?;
    /// let watch = tenant.add_pressure_trigger("some 2000 1000000".parse()?);
    /// let _stalled = tenant.stall();
    /// assert!(watch.wait(Duration::from_secs(60)), "while the stall is on");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_pressure_trigger(&self, trigger: PressureTrigger) -> PressureWatch {
        PressureWatch::new(self, trigger)
    }
}
