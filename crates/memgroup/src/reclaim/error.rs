//! Errors of shrinkers. Printed, each completes the phrase "failed to ...".

use core::fmt;
use std::time::Duration;

use memgroup_sync::hazard::Occupant;

use crate::reclaim::bitmap::NUMBERS;

/// Why a shrinker was not registered, or not attached to a group. Printed, it completes the phrase
/// "failed to ...".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShrinkerError {
    /// The hierarchy has as many shrinkers as it can have.
    TooMany {
        /// The shrinker's name.
        name: String,
    },
    /// The group, or one above it, has as many shrinkers, or children with shrinkers, as it can
    /// have.
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
        let (name, group, why) = match self {
            ShrinkerError::TooMany { name } => {
                return write!(
                    f,
                    "register shrinker {name:?}: the hierarchy has {NUMBERS}, the most it can have"
                );
            }
            ShrinkerError::Full { name, group } => {
                (name, group, "the group, or one above it, has no free slot")
            }
            ShrinkerError::Removed { name, group } => (name, group, "the group was removed"),
            ShrinkerError::OtherHierarchy { name, group } => {
                (name, group, "the group is of another hierarchy")
            }
        };
        write!(f, "attach shrinker {name:?} to group {group}: {why}")
    }
}

impl std::error::Error for ShrinkerError {}

/// Why a wait for the end of shrinkers' calls failed. Printed, it completes the phrase "failed to
/// ...".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallsError {
    /// The waiting thread is itself in such a call, and would wait for itself.
    FromWithin {
        /// The shrinker's name; `None` if the wait was for all shrinkers.
        name: Option<String>,
    },
    /// A call has not ended.
    Blocked {
        /// The shrinker's name; `None` if it was removed meanwhile.
        name: Option<String>,
        /// The thread in the call: its number in the system, and its name. `None` if the call has
        /// just ended.
        thread: Option<(u32, String)>,
        /// How long the call has lasted at least.
        held: Duration,
    },
}

impl CallsError {
    pub(crate) fn blocked(name: Option<String>, caller: Option<&Occupant>) -> CallsError {
        let thread_name =
            |caller: &Occupant| caller.thread_name().unwrap_or_else(|| "a thread without a name".to_owned());
        CallsError::Blocked {
            name,
            thread: caller.map(|caller| (caller.thread_id(), thread_name(caller))),
            held: caller.map_or(Duration::ZERO, Occupant::held),
        }
    }
}

impl fmt::Display for CallsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (CallsError::FromWithin { name } | CallsError::Blocked { name, .. }) = self;
        let shrinkers =
            name.as_ref().map_or_else(|| "shrinkers".to_owned(), |name| format!("shrinker {name:?}"));
        write!(f, "wait until the calls of {shrinkers} have ended: ")?;
        match self {
            CallsError::FromWithin { .. } => f.write_str("this thread is in one of them"),
            CallsError::Blocked { thread: Some((id, thread)), held, .. } => {
                write!(f, "thread {thread:?} ({id}) has been in one for at least {held:.1?}")
            }
            CallsError::Blocked { thread: None, .. } => f.write_str("one has just ended, try again"),
        }
    }
}

impl std::error::Error for CallsError {}
