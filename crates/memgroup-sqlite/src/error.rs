//! Errors of a tenant's connection. They distinguish running out of memory and being killed to free
//! memory from all other failures.

use memgroup::ChargeErrorKind;
use rusqlite::ffi;

use crate::allocation_error::AllocationError;

/// Why work on a [`TenantConnection`](crate::TenantConnection) failed.
///
/// Its text is complete in one line, so [`source`](std::error::Error::source) returns nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TenantError {
    /// The tenant's group, or one of its ancestors, was full (SQLITE_NOMEM). Only this work failed,
    /// and the connection is usable. A removed group refuses too: [`OutOfMemory::is_removed`].
    #[error("{0}")]
    OutOfMemory(OutOfMemory),
    /// The work was stopped because another group needed its memory (SQLITE_INTERRUPT). Only this
    /// work failed, its memory is free again, and the connection is usable.
    #[error("{0}")]
    Killed(Killed),
    /// SQLite failed for another reason.
    #[error("failed to run SQL in group {group}: {error}{}", end(*rolled_back))]
    Sqlite {
        /// Path of the tenant's group.
        group: String,
        /// A transaction was rolled back; see [`OutOfMemory::rolled_back`].
        rolled_back: bool,
        /// SQLite's error.
        error: rusqlite::Error,
    },
    /// [`install`](crate::install) has not succeeded in this process.
    #[error(
        "failed to open a connection: call memgroup_sqlite::install at the beginning of main, before anything uses \
         SQLite"
    )]
    NotInstalled,
    /// The group belongs to another hierarchy than the installed one.
    #[error(
        "failed to open a connection of group {group}: it belongs to another hierarchy than the installed one"
    )]
    ForeignGroup {
        /// Its path there.
        group: String,
    },
    /// The database name asks for a page cache shared with other connections (`cache=shared` in a
    /// URI). A tenant would pay for pages that another tenant reads.
    #[error(
        "failed to open a connection of group {group}: tenants cannot share a page cache; leave out cache=shared"
    )]
    SharedCache {
        /// Path of the tenant's group.
        group: String,
    },
    /// SQLite opened the connection without a mutex, although serialized mode was asked for: it was
    /// configured single-threaded (`SQLITE_CONFIG_SINGLETHREAD`) before memgroup was installed.
    #[error(
        "failed to open a connection of group {group}: SQLite was configured single-threaded in this process"
    )]
    NotSerialized {
        /// Path of the tenant's group.
        group: String,
    },
}

/// Work that failed because a group was full.
#[derive(Debug, thiserror::Error)]
#[error(
    "failed to run SQL in group {group}: out of memory{}{}",
    cause.as_ref().map_or_else(String::new, |cause| format!(": {cause}")), end(*rolled_back)
)]
pub struct OutOfMemory {
    pub(crate) group: String,
    /// Boxed, so that a `Result` of a statement stays small.
    pub(crate) cause: Option<Box<AllocationError>>,
    /// Bytes charged to the current group when the cause was recorded.
    pub(crate) usage: u64,
    pub(crate) rolled_back: bool,
}

impl OutOfMemory {
    /// Path of the tenant's group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The last allocation that failed during this work: the group that refused it (often an
    /// ancestor of the tenant's), the bytes asked for, and usage and max there. Returns `None` if
    /// SQLite ran out of memory without an allocation, because a value is longer than SQLite
    /// allows.
    pub fn cause(&self) -> Option<AllocationError> {
        self.cause.as_deref().copied()
    }

    /// Returns whether the group was removed. A removed group refuses all further memory, whatever
    /// its limit, and the connection can only be closed. Returns `false` if a group was full, or if
    /// the system had no memory.
    pub fn is_removed(&self) -> bool {
        matches!(self.cause(), Some(AllocationError::Refused(refusal)) if refusal.kind() == ChargeErrorKind::Offline)
    }

    /// Returns whether a transaction was rolled back during the work, and none was open at its end.
    /// Everything since its BEGIN is undone, not only the one statement. SQLite does so when it
    /// cannot undo the statement alone.
    ///
    /// If false, a transaction that was open before the work is still open, without the effects of
    /// the failed statement, and may be continued. The exception is work that ended it itself
    /// (`COMMIT`, or `ROLLBACK` and another `BEGIN`): then the open transaction, if any, is the
    /// last one that the work began.
    /// [`Connection::is_autocommit`](rusqlite::Connection::is_autocommit) tells whether one is
    /// open.
    ///
    /// Any rollback of the connection during the work counts, including one that the work asked
    /// for. SQLite's rollback hook reports it, so if the application installs a rollback hook of
    /// its own, this stays false.
    pub fn rolled_back(&self) -> bool {
        self.rolled_back
    }
}

/// Work that was stopped to free memory for another group.
#[derive(Debug, thiserror::Error)]
#[error(
    "failed to run SQL in group {group}: stopped to free memory for group {requester}, which needed {asked} bytes in \
     {full} (usage {usage}{}){}",
    max.map_or(", no max".to_owned(), |max| format!(" of max {max}")), end(*rolled_back)
)]
pub struct Killed {
    pub(crate) group: String,
    pub(crate) requester: String,
    pub(crate) full: String,
    pub(crate) asked: u64,
    pub(crate) usage: u64,
    pub(crate) max: Option<u64>,
    pub(crate) rolled_back: bool,
}

impl Killed {
    /// Path of the stopped group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Path of the group that needed the memory.
    pub fn requester(&self) -> &str {
        &self.requester
    }

    /// Path of the full group: the requester's or one of its ancestors, and an ancestor of the
    /// stopped group or that group itself.
    pub fn full(&self) -> &str {
        &self.full
    }

    /// Bytes that the requester asked for.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// Bytes charged to the full group at that moment.
    pub fn usage(&self) -> u64 {
        self.usage
    }

    /// The limit of the full group at that moment, in bytes, or `None` if it no longer had one.
    pub fn max(&self) -> Option<u64> {
        self.max
    }

    /// Returns whether a transaction was rolled back; see [`OutOfMemory::rolled_back`].
    ///
    /// A transaction that the work began and left open is rolled back at its end. So if this is
    /// false, an open transaction was open before. Only an application's authorizer that denies
    /// ROLLBACK, or a system without memory, can keep it open. A transaction that was open before
    /// the work is rolled back if SQLite has interrupted a statement that had begun to write.
    pub fn rolled_back(&self) -> bool {
        self.rolled_back
    }
}

impl TenantError {
    /// The details, when the work was stopped.
    pub fn killed(&self) -> Option<&Killed> {
        if let TenantError::Killed(details) = self { Some(details) } else { None }
    }

    /// The details, when memory ran out.
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        if let TenantError::OutOfMemory(details) = self { Some(details) } else { None }
    }

    /// SQLite's error, when it failed for another reason than memory.
    pub fn sqlite_error(&self) -> Option<&rusqlite::Error> {
        if let TenantError::Sqlite { error, .. } = self { Some(error) } else { None }
    }

    /// Returns whether a transaction was rolled back; see [`OutOfMemory::rolled_back`].
    pub fn rolled_back(&self) -> bool {
        match self {
            TenantError::OutOfMemory(OutOfMemory { rolled_back, .. })
            | TenantError::Killed(Killed { rolled_back, .. })
            | TenantError::Sqlite { rolled_back, .. } => *rolled_back,
            _ => false,
        }
    }
}

/// SQLite's code, if the error is one of SQLite's.
fn code(error: &rusqlite::Error) -> Option<&ffi::Error> {
    match error {
        rusqlite::Error::SqliteFailure(code, _) => Some(code),
        rusqlite::Error::SqlInputError { error: code, .. } => Some(code),
        _ => None,
    }
}

/// Returns whether SQLite's error means that it got no memory.
pub(crate) fn is_out_of_memory(error: &rusqlite::Error) -> bool {
    code(error).is_some_and(|code| {
        code.code == rusqlite::ErrorCode::OutOfMemory || code.extended_code == ffi::SQLITE_IOERR_NOMEM
    })
}

/// Returns whether SQLite's error means that it was interrupted.
pub(crate) fn is_interrupted(error: &rusqlite::Error) -> bool {
    code(error).is_some_and(|code| code.code == rusqlite::ErrorCode::OperationInterrupted)
}

/// Returns the end of a message.
fn end(rolled_back: bool) -> &'static str {
    if rolled_back { "; the transaction was rolled back" } else { "" }
}
