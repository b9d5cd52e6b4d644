//! The reasons why an executor cannot have its tenants, or a session its group.

use std::io;
use std::path::PathBuf;

use memgroup::{ApplyError, GroupError};

/// The reason why an executor cannot have its tenants, or a session its group.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TenantError {
    /// The file of the tree cannot be read.
    #[error("read the tree of groups from {path}: {error}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The file of the tree is no tree of groups.
    #[error("read the tree of groups from {path}: {reason}", path = path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The fault in it.
        reason: String,
    },
    /// The tree cannot be applied to the hierarchy.
    #[error("apply the tree of groups: {0}")]
    Apply(#[from] ApplyError),
    /// The tree has no group to hold the tenants' groups, or a default tenant without a group.
    #[error("the tree of groups has no {path}: {error}; a tree names tenants as [\"/tenants/alice\"]")]
    NoGroup {
        /// The group's path.
        path: String,
        /// The engine's error.
        error: GroupError,
    },
    /// A session names no tenant, and there is no default.
    #[error(
        "the session names no tenant: SET memgroup.tenant before its first query, or give the executors a default tenant"
    )]
    NoTenant,
    /// A session names a tenant that the tree does not have.
    #[error("the session's tenant {tenant:?} has no group below {parent} on this executor: {error}")]
    UnknownTenant {
        /// The name as the session gave it.
        tenant: String,
        /// The group that holds the tenants' groups.
        parent: String,
        /// The engine's error.
        error: GroupError,
    },
    /// The session's group cannot be created.
    #[error("create a group for a session of tenant {tenant}: {error}")]
    Create {
        /// The tenant.
        tenant: String,
        /// The engine's error.
        error: GroupError,
    },
}
