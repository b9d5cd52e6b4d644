//! Errors of slot sources, and the bounds on their slots.

use core::fmt;

/// The environment variable that overrides the choice.
pub const VARIABLE: &str = "MEMGROUP_SLOTS";

/// The most slots of any source, and so of any arena.
pub(crate) const SLOTS_MAX: usize = 8192;
/// The most slots of a virtual or hashing source.
pub(crate) const COUNT_MAX: usize = 4096;

/// The reason why a [`SlotSource`](crate::SlotSource) could not be made. Printed, it completes the
/// phrase "failed to ...".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SlotError {
    /// This kind of source does not work on this machine, in this process or in this build.
    Unavailable {
        /// The source's name, such as `mm_cid`.
        kind: &'static str,
        /// The thing that is missing.
        reason: String,
    },
    /// A number of slots that is not within 1..=4096.
    Count {
        /// The source's name, such as `virtual`.
        kind: &'static str,
        /// The number asked for, as written.
        asked: String,
    },
    /// A text that names no source.
    Unknown {
        /// The text.
        spec: String,
    },
    /// The environment variable `MEMGROUP_SLOTS` is set to something that cannot be used.
    Variable {
        /// The fault of its value.
        cause: Box<SlotError>,
    },
}

impl SlotError {
    pub(crate) fn unavailable(kind: &'static str, reason: impl Into<String>) -> Self {
        Self::Unavailable { kind, reason: reason.into() }
    }
}

impl fmt::Display for SlotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { kind, reason } => write!(f, "use slot source {kind}: {reason}"),
            Self::Count { kind, asked } => {
                write!(
                    f,
                    "use slot source {kind} with {asked:?} slots: expected a number from 1 to {COUNT_MAX}"
                )
            }
            Self::Unknown { spec } => write!(
                f,
                "parse slot source {spec:?}: expected mm_cid, cpu_id, getcpu, hash, hash:N or virtual:N \
                 (N from 1 to {COUNT_MAX})"
            ),
            Self::Variable { cause } => write!(f, "apply environment variable {}: {cause}", VARIABLE),
        }
    }
}

impl core::error::Error for SlotError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Variable { cause } => Some(cause),
            _ => None,
        }
    }
}
