//! Errors: why a tree was not mounted, and the error numbers in answers to requests.

use std::io;
use std::path::PathBuf;

use fuser::Errno;
use memgroup::{FileProblem, GroupError};

/// The path of a tree that was not mounted, and the reason. Printed, it completes the phrase
/// "failed to ...".
#[derive(Debug, thiserror::Error)]
#[error("mount the tree at {}: {problem}", path.display())]
#[non_exhaustive]
pub struct MountError {
    /// The path as given.
    pub path: PathBuf,
    /// Reason.
    #[source]
    pub problem: MountProblem,
}

/// The reason why a tree was not mounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountProblem {
    /// There is no directory at the path, or it cannot be reached.
    #[error("{0}; it must be a directory that exists")]
    NoDirectory(io::Error),
    /// The path contains a symbolic link in a directory where other users may create links.
    #[error(
        "it has a symbolic link, and other users may place links in {}; give the directory to which it leads",
        directory.display()
    )]
    Link {
        /// The directory of the link.
        directory: PathBuf,
    },
    /// A tree is mounted at the path, and its program answers.
    #[error("another tree is mounted there; unmount it, or take another directory")]
    Occupied,
    /// A file system of another kind is mounted at the path, and does not answer.
    #[error("{kind} is mounted there and does not answer; if it is not needed, unmount it by `umount -l`")]
    Dead {
        /// Its type, as in `/proc/self/mountinfo`.
        kind: String,
    },
    /// A dead tree at the path could not be unmounted.
    #[error("a tree of a program that ended is mounted there, and unmounting it failed: {0}")]
    Stale(io::Error),
    /// The list of mounts could not be read.
    #[error("reading /proc/self/mountinfo failed: {0}")]
    Mounts(io::Error),
    /// The kernel's device for file systems in user space could not be opened.
    #[error(
        "opening /dev/fuse failed: {0}; the kernel needs its module `fuse`, and a container needs the device"
    )]
    Device(io::Error),
    /// The system call failed.
    #[error("the system refused it: {0}")]
    Refused(io::Error),
    /// Users other than root mount by `fusermount3`, which could not be started.
    #[error(
        "only root mounts without help; other users need the program fusermount3 (Debian's package fuse3), and starting it failed: {0}"
    )]
    NoFusermount(io::Error),
    /// `fusermount3` refused.
    #[error("fusermount3 refused it: {0}")]
    Fusermount(String),
    /// The shell that unmounts after the end of the program could not be started.
    #[error(
        "starting the shell that unmounts after the end of the program failed: {0}; Options::unmount_at_end(false) goes without"
    )]
    Shell(io::Error),
    /// The kernel and the program did not agree on a protocol, or a thread could not be started.
    #[error("starting to serve it failed: {0}")]
    Session(io::Error),
}

/// Returns the error number for a file that was not written.
pub(crate) fn of_file(problem: &FileProblem) -> Errno {
    match problem {
        FileProblem::Unknown => Errno::ENOENT,
        FileProblem::Offline => Errno::ENODEV,
        FileProblem::Unsupported(_) => Errno::EOPNOTSUPP,
        FileProblem::Short { .. } => Errno::EAGAIN,
        // The kernel gives root this answer to a write to a read-only file. Others have no
        // permission.
        _ => Errno::EINVAL,
    }
}

/// Returns the error number for a group that was not made or not removed. EAGAIN is the kernel's
/// for its bounds on depth and number.
pub(crate) fn of_group(error: &GroupError) -> Errno {
    match error {
        GroupError::NotFound { .. } => Errno::ENOENT,
        GroupError::Exists { .. } => Errno::EEXIST,
        GroupError::Offline { .. } => Errno::ENODEV,
        GroupError::HasChildren { .. } | GroupError::IsRoot => Errno::EBUSY,
        GroupError::TooDeep { .. } | GroupError::TooDeepBelow { .. } => Errno::EAGAIN,
        GroupError::TooMany { .. } | GroupError::TooManyDescendants { .. } => Errno::EAGAIN,
        GroupError::OutOfMemory { .. } => Errno::ENOMEM,
        _ => Errno::EINVAL,
    }
}
