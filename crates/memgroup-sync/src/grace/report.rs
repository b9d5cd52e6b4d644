//! What was chosen at start-up, for people.

use core::fmt;

use super::barrier::{Plan, VARIABLE};
use super::epoch;

/// How sections are entered and which barriers writers make, and why not something better. Printed, it is one line.
#[derive(Clone, Debug)]
pub struct GraceReport {
    pub(super) plan: Plan,
    pub(super) by_variable: bool,
    pub(super) rejected: Vec<GraceError>,
}

impl GraceReport {
    /// Whether sections are entered by a store, at about a nanosecond; else by a swap. Not any more once the barrier is
    /// lost, see [`barrier_lost`](Self::barrier_lost).
    #[must_use]
    pub fn enters_by_store(&self) -> bool {
        self.plan != Plan::Swap && !self.barrier_lost()
    }

    /// Whether the environment variable chose it; else what the kernel offers did.
    #[must_use]
    pub fn by_variable(&self) -> bool {
        self.by_variable
    }

    /// What was not chosen and why: a value of the environment variable that cannot be used, then what is missing.
    #[must_use]
    pub fn rejected(&self) -> &[GraceError] {
        &self.rejected
    }

    /// Whether the barrier has failed since it was chosen. Sections are then entered by a swap, and the next grace period
    /// also waits until each thread that has a record enters a section or ends.
    #[must_use]
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

/// Why something was not chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GraceError {
    /// The environment variable names no form.
    Variable {
        /// What it says.
        value: String,
    },
    /// The system call `membarrier` does not answer.
    Query {
        /// The system's error number.
        errno: i32,
    },
    /// The kernel does not offer the command.
    NotOffered {
        /// The kernel's name of the command.
        command: &'static str,
    },
    /// The kernel offers the command and refuses it.
    Refused {
        /// The kernel's name of the command.
        command: &'static str,
        /// The system's error number.
        errno: i32,
    },
    /// The system has no such call.
    NoSuchCall,
}

impl fmt::Display for GraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable { value } => {
                write!(f, "use {VARIABLE}={value}: it must be quiet, swap or expedited")
            }
            Self::Query { errno } => write!(f, "use membarrier: the query answers error {errno}"),
            Self::NotOffered { command } => write!(f, "use {command}: the kernel does not offer it"),
            Self::Refused { command, errno } => write!(f, "use {command}: it answers error {errno}"),
            Self::NoSuchCall => f.write_str("use membarrier: this system has no such call"),
        }
    }
}

impl std::error::Error for GraceError {}
