//! Errors of setting a protection.

use core::fmt;

use crate::base::limit::BYTES_MAX;

/// The reason why a `min` or `low` was not set. The previous setting stays in force. As text, it
/// completes the phrase "failed to ...".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProtectionError {
    /// The setting is more than a group can account.
    OutOfRange {
        /// `min` or `low`.
        setting: &'static str,
        /// The group's path.
        path: String,
        /// The setting as given, in bytes.
        asked: u64,
    },
    /// The group was removed, and is not protected any more.
    Offline {
        /// `min`, `low` or `reserve_min`.
        setting: &'static str,
        /// The path it had.
        path: String,
    },
}

impl fmt::Display for ProtectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProtectionError::OutOfRange { setting, path, asked } => {
                write!(
                    f,
                    "set {setting} of group {path}: {asked} bytes are out of range; 0 to {BYTES_MAX}, which protects all"
                )
            }
            ProtectionError::Offline { setting, path } => {
                write!(f, "set {setting} of group {path}: it was removed; protect a group that is online")
            }
        }
    }
}

impl std::error::Error for ProtectionError {}
