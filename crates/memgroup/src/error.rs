//! Errors. Those of the charge path are `Copy` and allocate nothing; names are resolved when they are printed.

use core::fmt;
use core::time::Duration;

use crate::counter::Reading;
use crate::group::GroupId;
use crate::limit::UNLIMITED;
use crate::node::Node;

/// Why a charge was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChargeErrorKind {
    /// The group named by the error has no room below its limit.
    Refused,
    /// The group was removed.
    Offline,
    /// No counter can hold so much (256 TiB), whatever the limits.
    TooLarge,
    /// The group denies charges at random ([`Group::deny`](crate::Group::deny)), and this was one.
    Denied,
    /// There was no room in the group named by the error until the deadline of a charge that waits.
    Deadline,
    /// All waits of the group were ended while the charge waited.
    Woken,
}

/// A charge that was not made. Nothing was charged anywhere.
///
/// Printed, it completes the phrase "failed to ...". Names the group that refused, which is often an ancestor of the one charged. `Copy`, and made without allocating; its
/// `Display` looks the group's path up at that moment.
///
/// ```
/// # use memgroup::{Config, Hierarchy};
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// let tenant = hierarchy.create("/tenant").unwrap();
/// tenant.set_max(4096).unwrap();
/// let error = tenant.try_charge(10_000).unwrap_err();
/// assert_eq!((error.asked(), error.usage(), error.max()), (10_000, 0, 4096));
/// assert!(error.to_string().contains("/tenant"));
/// ```
#[derive(Clone, Copy)]
pub struct ChargeError {
    node: &'static Node,
    generation: u32,
    kind: ChargeErrorKind,
    asked: u64,
    usage: u64,
    max: u64,
    reserved: u64,
    waited_nanos: u64,
}

impl ChargeError {
    pub(crate) fn of(node: &'static Node, seen: Reading, asked: u64) -> ChargeError {
        let kind = if seen.offline {
            ChargeErrorKind::Offline
        } else if asked > crate::counter::LARGEST - seen.usage {
            ChargeErrorKind::TooLarge
        } else {
            ChargeErrorKind::Refused
        };
        let Reading { usage, max, reserved, .. } = seen;
        ChargeError {
            node,
            generation: node.generation(),
            kind,
            asked,
            usage,
            max,
            reserved,
            waited_nanos: 0,
        }
    }

    pub(crate) fn denied(node: &'static Node, asked: u64) -> ChargeError {
        let seen = node.counter.read();
        ChargeError { kind: ChargeErrorKind::Denied, ..ChargeError::of(node, seen, asked) }
    }

    /// The same refusal, after a wait that ended so.
    pub(crate) fn after_wait(self, kind: ChargeErrorKind, waited: Duration) -> ChargeError {
        ChargeError { kind, waited_nanos: waited.as_nanos().try_into().unwrap_or(u64::MAX), ..self }
    }

    /// Why.
    pub fn kind(&self) -> ChargeErrorKind {
        self.kind
    }

    /// The group that refused.
    pub fn group(&self) -> GroupId {
        self.node.id
    }

    /// The path of the group that refused; `None` once it has been removed and released.
    pub fn path(&self) -> Option<String> {
        self.node.shared.path_of(self.node.id, self.generation)
    }

    /// Bytes that were asked for.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// Usage of the group that refused, in bytes, at the instant of the refusal.
    pub fn usage(&self) -> u64 {
        self.usage
    }

    /// Its limit in force at that instant; [`UNLIMITED`] if it had none.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Bytes below that limit that this charge was to leave free, for groups within their [`min`](crate::Group::set_min) or `low`; 0 where none are
    /// protected.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// For how long the charge waited for room; zero unless it is of a call with a deadline.
    pub fn waited(&self) -> Duration {
        Duration::from_nanos(self.waited_nanos)
    }
}

impl ChargeError {
    fn write_usage(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ", usage {} of max {}", self.usage, self.max)?;
        if self.reserved > 0 {
            write!(f, ", {} of it kept for groups within min or low", self.reserved)?;
        }
        Ok(())
    }
}

impl PartialEq for ChargeError {
    fn eq(&self, other: &ChargeError) -> bool {
        std::ptr::eq(self.node, other.node)
            && (self.generation, self.kind, self.asked) == (other.generation, other.kind, other.asked)
            && (self.usage, self.max, self.reserved) == (other.usage, other.max, other.reserved)
            && self.waited_nanos == other.waited_nanos
    }
}

impl Eq for ChargeError {}

impl fmt::Debug for ChargeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChargeError")
            .field("kind", &self.kind)
            .field("group", &self.path().unwrap_or_else(|| "(released)".to_owned()))
            .field("asked", &self.asked)
            .field("usage", &self.usage)
            .field("max", &self.max)
            .field("reserved", &self.reserved)
            .field("waited", &self.waited())
            .finish()
    }
}

impl fmt::Display for ChargeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path();
        let group = path.as_deref().unwrap_or("(a group removed since)");
        match self.kind {
            ChargeErrorKind::Refused => {
                write!(f, "charge {} bytes: refused by group {group}", self.asked)?;
                self.write_usage(f)
            }
            ChargeErrorKind::Deadline => {
                write!(
                    f,
                    "charge {} bytes: no room in group {group} within {:.3?}",
                    self.asked,
                    self.waited()
                )?;
                self.write_usage(f)
            }
            ChargeErrorKind::Woken => {
                let (asked, waited) = (self.asked, self.waited());
                write!(
                    f,
                    "charge {asked} bytes: woken after {waited:.3?} of waiting for room in group {group}"
                )?;
                self.write_usage(f)
            }
            ChargeErrorKind::Offline => {
                write!(f, "charge {} bytes: group {group} was removed", self.asked)
            }
            ChargeErrorKind::TooLarge => {
                write!(
                    f,
                    "charge {} bytes: more than group {group} can account, 256 TiB in all",
                    self.asked
                )?;
                if self.max == UNLIMITED { write!(f, "; usage {}, no max", self.usage) } else { Ok(()) }
            }
            ChargeErrorKind::Denied => {
                write!(f, "charge {} bytes: denied by injection in group {group}", self.asked)
            }
        }
    }
}

impl std::error::Error for ChargeError {}

/// Why a group was not created, found or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupError {
    /// The name cannot be a group's.
    InvalidName {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The path cannot lead to a group.
    InvalidPath {
        /// The path as given.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No group of this path is online.
    NotFound {
        /// The path that was asked for.
        path: String,
        /// The part of it that is not there.
        missing: String,
    },
    /// A group of this path is online already.
    Exists {
        /// Its path.
        path: String,
    },
    /// The group was removed, by whatever handle.
    Offline {
        /// The path it had.
        path: String,
    },
    /// The group has children that are online; they must be removed first.
    HasChildren {
        /// Its path.
        path: String,
        /// How many.
        children: usize,
    },
    /// The root cannot be removed or created.
    IsRoot,
    /// The group would be deeper than `Config::depth_max`.
    TooDeep {
        /// The path it would have.
        path: String,
        /// The bound.
        depth_max: u32,
    },
    /// The system refuses memory for the group's per-CPU words.
    OutOfMemory {
        /// Its path.
        path: String,
        /// Bytes it would have needed over all slots that have copies; at least those of one.
        bytes: u64,
    },
    /// The hierarchy holds as many groups as `Config::groups_max` allows, removed ones that still
    /// hold bytes or have handles included.
    TooMany {
        /// The bound.
        groups_max: u32,
    },
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupError::InvalidName { name, reason } => write!(
                f,
                "{name:?} cannot name a group: {reason}; a name has 1 to 255 bytes, no slash, no control character, \
                 and is not . or .."
            ),
            GroupError::InvalidPath { path, reason } => {
                write!(f, "{path:?} is no path of a group: {reason}; write it as /parent/child")
            }
            GroupError::NotFound { path, missing } if path == missing => {
                write!(f, "group {path} does not exist")
            }
            GroupError::NotFound { path, missing } => {
                write!(f, "group {path} does not exist: {missing} is not there")
            }
            GroupError::Exists { path } => write!(f, "group {path} exists already"),
            GroupError::Offline { path } => write!(f, "group {path} was removed"),
            GroupError::HasChildren { path, children } => {
                write!(f, "group {path} has {children} children; remove them first")
            }
            GroupError::IsRoot => {
                f.write_str("the root group is always there and cannot be created or removed")
            }
            GroupError::TooDeep { path, depth_max } => {
                write!(f, "group {path} would be deeper than {depth_max} levels below the root")
            }
            GroupError::OutOfMemory { path, bytes } => write!(
                f,
                "group {path} needs {bytes} bytes of per-CPU memory and the system refuses them; remove groups, or raise \
                 the process's limit"
            ),
            GroupError::TooMany { groups_max } => write!(
                f,
                "the hierarchy holds {groups_max} groups already, its bound; removed groups count until their last \
                 byte and their last handle are gone"
            ),
        }
    }
}

impl std::error::Error for GroupError {}
