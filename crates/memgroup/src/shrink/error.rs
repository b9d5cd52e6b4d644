//! Errors of shrinkers.

use core::fmt;
use std::time::Duration;

use memgroup_sync::hazard::Occupant;

use super::room::NUMBERS;

/// Why a shrinker was not registered, or has no seat in a group. Printed, it completes the phrase "failed to ...".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShrinkerError {
    /// The hierarchy has as many shrinkers as it can have.
    TooMany {
        /// The shrinker's name.
        name: String,
    },
    /// The group, or one above it, has as many seats, or groups with seats, as it can have.
    Full {
        /// The shrinker's name.
        name: String,
        /// The group's path.
        group: String,
    },
    /// The group was removed.
    Removed {
        /// The shrinker's name.
        name: String,
        /// The path it had.
        group: String,
    },
    /// The group is of another hierarchy than the shrinker.
    OtherHierarchy {
        /// The shrinker's name.
        name: String,
        /// The group's path.
        group: String,
    },
}

impl fmt::Display for ShrinkerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ShrinkerError::TooMany { name } => {
                write!(
                    f,
                    "register shrinker {name:?}: the hierarchy has {NUMBERS} of them, no more are possible"
                )
            }
            ShrinkerError::Full { name, group } => write!(
                f,
                "give shrinker {name:?} a seat in group {group}: that group, or one above it, has {NUMBERS} seats or groups with \
                 seats, no more are possible"
            ),
            ShrinkerError::Removed { name, group } => {
                write!(f, "give shrinker {name:?} a seat in group {group}: the group was removed")
            }
            ShrinkerError::OtherHierarchy { name, group } => {
                write!(f, "give shrinker {name:?} a seat in group {group}: the group is of another hierarchy")
            }
        }
    }
}

impl std::error::Error for ShrinkerError {}

/// Why shrinkers' calls were not waited for to their end. Printed, it completes the phrase "failed to ...".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallsError {
    /// The thread that waits is itself in a call, which would wait for itself.
    FromWithin,
    /// A call goes on that has been on since before the wait.
    Blocked {
        /// The shrinker's name; `None` if it was removed meanwhile.
        name: Option<String>,
        /// The thread that is in the call, by the system's number, and its name.
        thread: (u32, String),
        /// For how long at least.
        held: Duration,
    },
}

impl fmt::Display for CallsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallsError::FromWithin => f.write_str(
                "wait for the calls of all shrinkers within one of them; it ends when that returns",
            ),
            CallsError::Blocked { name, thread: (id, thread), held } => {
                let name =
                    name.as_ref().map_or_else(|| "that was removed".to_owned(), |name| format!("{name:?}"));
                write!(
                    f,
                    "see all shrinkers' calls end: thread {thread:?} ({id}) has been in a call of shrinker {name} for at least {held:.1?}"
                )
            }
        }
    }
}

impl std::error::Error for CallsError {}

/// Why a removed shrinker's calls have not ended. Printed, it completes the phrase "failed to ...".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemoveError {
    /// The thread that waits is itself in a call of it, which would wait for itself.
    FromWithin {
        /// The shrinker's name.
        name: String,
    },
    /// A call goes on.
    Blocked {
        /// The shrinker's name.
        name: String,
        /// The thread that is in the call, by the system's number, and its name.
        thread: Option<(u32, String)>,
        /// For how long at least.
        held: Duration,
    },
}

impl RemoveError {
    pub(super) fn blocked(name: String, blocker: Option<Occupant>) -> RemoveError {
        let thread = blocker.as_ref().map(|occupant| {
            (
                occupant.thread_id(),
                occupant.thread_name().unwrap_or_else(|| "a thread without a name".to_owned()),
            )
        });
        RemoveError::Blocked {
            name,
            thread,
            held: blocker.map_or(Duration::ZERO, |occupant| occupant.held()),
        }
    }
}

impl fmt::Display for RemoveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RemoveError::FromWithin { name } => {
                write!(
                    f,
                    "wait for the end of shrinker {name:?} within one of its own calls; it ends with that call"
                )
            }
            RemoveError::Blocked { name, thread: Some((id, thread)), held } => write!(
                f,
                "see shrinker {name:?} end: thread {thread:?} ({id}) has been in a call of it for at least {held:.1?}"
            ),
            RemoveError::Blocked { name, thread: None, .. } => {
                write!(f, "see shrinker {name:?} end: a call of it has just ended, try again")
            }
        }
    }
}

impl std::error::Error for RemoveError {}
