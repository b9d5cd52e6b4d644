//! Errors of creating, finding and removing groups.

use core::fmt;

/// The reason why a group was not created, found or removed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GroupError {
    /// The name is not allowed for a group.
    InvalidName {
        /// The name as given.
        name: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The path is not one that a group can have.
    InvalidPath {
        /// The path as given.
        path: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No group with this path is online.
    NotFound {
        /// The path as given.
        path: String,
        /// The part of it that does not exist.
        missing: String,
    },
    /// A group with this path is online already.
    Exists {
        /// Its path.
        path: String,
    },
    /// The group was removed, by this handle or another.
    Offline {
        /// The path it had.
        path: String,
    },
    /// The group has children that are online. They must be removed first.
    HasChildren {
        /// Its path.
        path: String,
        /// Their number.
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
    /// A group above has as many groups below it as its bound allows
    /// ([`set_max_descendants`](crate::Group::set_max_descendants)).
    TooManyDescendants {
        /// The path that the new group would have.
        path: String,
        /// The path of the group with the bound.
        group: String,
        /// The groups below `group` now, removed ones that still hold bytes or have handles
        /// included.
        descendants: u32,
        /// The bound.
        max_descendants: u32,
    },
    /// The group would be deeper below one of its ancestors than that ancestor's bound allows
    /// ([`set_max_depth`](crate::Group::set_max_depth)).
    TooDeepBelow {
        /// The path that the new group would have.
        path: String,
        /// The path of the group with the bound.
        group: String,
        /// Levels from `group` down to the new group.
        depth: u32,
        /// The bound.
        max_depth: u32,
    },
    /// The system refused memory for the group's node or its per-CPU words.
    OutOfMemory {
        /// Its path.
        path: String,
        /// The bytes it would have needed: for its node, and for its words in all slots that have
        /// copies, or in one slot if none has.
        bytes: u64,
    },
    /// The hierarchy has as many groups as `Config::groups_max` allows. Removed groups that still
    /// hold bytes or have handles count. If one group has most of the groups, those elsewhere are
    /// refused only a little later.
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
                "{name:?} cannot name a group: {reason}; a name has 1 to 255 bytes, no slash, no control or direction character, \
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
            GroupError::TooManyDescendants { path, group, descendants, max_descendants } => write!(
                f,
                "group {path} would be one too many below {group}, which has {descendants} groups below it and a bound of \
                 {max_descendants}; remove groups there, whose last bytes and handles must be gone too, or raise the \
                 bound by set_max_descendants or cgroup.max.descendants"
            ),
            GroupError::TooDeepBelow { path, group, depth, max_depth } => write!(
                f,
                "group {path} would be {depth} levels below {group}, whose bound is {max_depth}; create it further \
                 up, or raise the bound by set_max_depth or cgroup.max.depth"
            ),
            GroupError::OutOfMemory { path, bytes } => write!(
                f,
                "group {path} needs {bytes} bytes of memory and the system refuses them; remove groups, or raise \
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
