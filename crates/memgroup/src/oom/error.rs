//! Errors of kill hooks and of what decides about victims. Printed, they complete the phrase "failed to ...".

use core::fmt;

/// A score that no group can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OomScoreError {
    /// What was asked for.
    pub asked: i32,
}

impl fmt::Display for OomScoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "set an oom score of {}: it is out of range; -1000 (never) to 1000 (first)", self.asked)
    }
}

impl std::error::Error for OomScoreError {}

/// Why a kill hook was not set, or its end not waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HookError {
    /// The group has one.
    Exists {
        /// The group's path.
        group: String,
    },
    /// The group's last hook was removed, and a call of it goes on.
    InCall {
        /// The group's path.
        group: String,
    },
    /// The group was removed.
    Removed {
        /// The path it had.
        group: String,
    },
    /// The hook's end is waited for within a call of it. It is removed all the same, and dropped when that call ends.
    FromWithin {
        /// The group's path.
        group: String,
    },
}

impl fmt::Display for HookError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HookError::Exists { group } => {
                write!(f, "set the kill hook of group {group}: it has one; drop that one's KillHook first")
            }
            HookError::InCall { group } => write!(
                f,
                "set the kill hook of group {group}: a call of the one that was removed goes on; KillHook::remove waits for it"
            ),
            HookError::Removed { group } => {
                write!(f, "set the kill hook of group {group}: the group was removed")
            }
            HookError::FromWithin { group } => write!(
                f,
                "wait for the calls of group {group}'s kill hook within one of them; the hook is dropped when that returns"
            ),
        }
    }
}

impl std::error::Error for HookError {}
