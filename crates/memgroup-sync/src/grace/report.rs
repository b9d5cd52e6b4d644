//! The form of sections and barriers that was chosen at start-up, as a report.

use core::fmt;

use super::epoch;
use super::membarrier::{Command, GraceError};

/// The environment variable that overrides the choice: `quiet`, `swap` or `expedited`.
pub const VARIABLE: &str = "MEMGROUP_GRACE";

/// How sections are entered, and the barrier that a writer makes before its scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Sections are entered by a swap; no barrier is needed.
    Swap,
    /// Sections are entered by a store; each form makes its own barrier.
    Store { quiet: Command, expedited: Command },
}

/// How sections are entered and which barriers writers make, and why a better form was rejected.
/// Printed, it is one line.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GraceReport {
    pub(super) plan: Plan,
    /// Whether the environment variable chose the form; else the kernel's offer did.
    pub by_variable: bool,
    /// The rejected forms with the reason: a value of the environment variable that cannot be
    /// used, then missing commands.
    pub rejected: Vec<GraceError>,
}

impl GraceReport {
    /// Returns whether sections are entered by a store, at about a nanosecond; else by a swap. It
    /// becomes `false` when the barrier is lost, see [`barrier_lost`](Self::barrier_lost).
    pub fn enters_by_store(&self) -> bool {
        self.plan != Plan::Swap && !self.barrier_lost()
    }

    /// Returns whether the barrier has failed since it was chosen. Sections are then entered by a
    /// swap, and the next grace period also waits until each thread that has a record enters a
    /// section or ends.
    pub fn barrier_lost(&self) -> bool {
        epoch::barrier_lost().is_some()
    }
}

impl fmt::Display for GraceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.plan {
            Plan::Swap => f.write_str("sections by swap, no barrier")?,
            Plan::Store { quiet, expedited } => {
                write!(f, "sections by store, quiet barrier {}, ", quiet.name())?;
                write!(f, "expedited barrier {}", expedited.name())?;
            }
        }
        write!(f, ", by {}", if self.by_variable { VARIABLE } else { "query" })?;
        self.rejected.iter().try_for_each(|error| write!(f, "; failed to {error}"))?;
        if self.barrier_lost() {
            f.write_str("; the barrier failed later, sections by swap since then")?;
        }
        Ok(())
    }
}
