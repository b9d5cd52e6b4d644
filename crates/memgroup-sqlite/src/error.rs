//! What a tenant's connection can fail with: out of memory and killed for others' memory, told apart from everything else.

use std::fmt;

use memgroup::ChargeErrorKind;
use rusqlite::ffi;

use crate::shortage::Shortage;

/// Why work on a [`TenantConnection`](crate::TenantConnection) failed.
///
/// Its text is complete in one line, so [`source`](std::error::Error::source) gives nothing more.
#[derive(Debug)]
#[non_exhaustive]
pub enum TenantError {
    /// The tenant's group, or one above it, was full (SQLITE_NOMEM). Only this work failed: the connection is usable,
    /// and nobody else noticed. A group that was removed refuses too: [`OutOfMemory::is_removed`].
    OutOfMemory(OutOfMemory),
    /// The work was stopped, because another group needed the memory that it held (SQLITE_INTERRUPT). Only this work failed, and what it held is free again:
    /// the connection is usable.
    Killed(Killed),
    /// SQLite failed for another reason.
    Sqlite {
        /// Path of the tenant's group.
        group: String,
        /// A transaction was rolled back; see [`OutOfMemory::rolled_back`].
        rolled_back: bool,
        /// SQLite's error.
        error: rusqlite::Error,
    },
    /// [`install`](crate::install) has not succeeded in this process.
    NotInstalled,
    /// The group belongs to another hierarchy than the installed one.
    ForeignGroup {
        /// Its path there.
        group: String,
    },
    /// The name of the database asks for a page cache shared with other connections (`cache=shared` in a URI), which
    /// would be paid for by whoever happens to fill it.
    SharedCache {
        /// Path of the tenant's group.
        group: String,
    },
    /// SQLite opened the connection without a mutex of its own, although serialized mode was asked for: it was
    /// configured single-threaded (`SQLITE_CONFIG_SINGLETHREAD`) before memgroup was installed.
    NotSerialized {
        /// Path of the tenant's group.
        group: String,
    },
}

/// Work that failed because a group was full.
#[derive(Debug)]
pub struct OutOfMemory {
    pub(crate) group: String,
    pub(crate) shortage: Option<Shortage>,
    /// Bytes charged to the group in force at that moment.
    pub(crate) usage: u64,
    pub(crate) rolled_back: bool,
}

impl OutOfMemory {
    /// Path of the tenant's group: the one that was to pay.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// The last charge that was refused during this work: which group refused it (often one above the tenant's), what
    /// was asked, and usage and max there. `None` when SQLite ran out of memory without asking for it here, for a value
    /// longer than SQLite can hold.
    pub fn shortage(&self) -> Option<Shortage> {
        self.shortage
    }

    /// Whether the group was removed: then it refuses all further memory, whatever its limit, and the connection can only
    /// be closed. False when a group was full, or the system had no memory.
    pub fn is_removed(&self) -> bool {
        matches!(self.shortage, Some(Shortage::Refused(refusal)) if refusal.kind() == ChargeErrorKind::Offline)
    }

    /// Whether a transaction was rolled back during the work, and none was open at its end: everything since its BEGIN is
    /// undone, not only the one statement. SQLite does so when it cannot undo the statement alone.
    ///
    /// When false and a transaction was open before the work, it is still open, without the effects of the failed
    /// statement, and may be continued; unless the work itself ended it (`COMMIT`, or `ROLLBACK` and another `BEGIN`):
    /// then what is open, if anything, is what the work began last. Whether a transaction is open is told by
    /// [`Connection::is_autocommit`](rusqlite::Connection::is_autocommit).
    ///
    /// Any rollback of the connection during the work counts, also one that the work asked for. It is known from
    /// SQLite's rollback hook: on a connection where the application installs a rollback hook of its own, this stays
    /// false.
    pub fn rolled_back(&self) -> bool {
        self.rolled_back
    }
}

/// Work that was stopped to free memory for another group.
#[derive(Debug)]
pub struct Killed {
    pub(crate) group: String,
    pub(crate) requester: String,
    pub(crate) full: String,
    pub(crate) asked: u64,
    pub(crate) usage: u64,
    pub(crate) max: u64,
    pub(crate) rolled_back: bool,
}

impl Killed {
    /// Path of the group whose work was stopped.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Path of the group that needed the memory.
    pub fn requester(&self) -> &str {
        &self.requester
    }

    /// Path of the group that was full: the requester's, or one above it, and the stopped one's too.
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

    /// The limit of the full group at that moment, in bytes.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Whether a transaction was rolled back; see [`OutOfMemory::rolled_back`]. One that the work began is, if it is open at its end: when this is false, what is open was open before. (Only an authorizer of the
    /// application's that denies ROLLBACK, or a system without memory, can keep it open.) One that was open before is where SQLite has interrupted a statement that had begun to write.
    pub fn rolled_back(&self) -> bool {
        self.rolled_back
    }
}

impl TenantError {
    /// The details, when the work was stopped.
    pub fn killed(&self) -> Option<&Killed> {
        match self {
            TenantError::Killed(details) => Some(details),
            _ => None,
        }
    }

    /// The details, when memory ran out.
    pub fn out_of_memory(&self) -> Option<&OutOfMemory> {
        match self {
            TenantError::OutOfMemory(details) => Some(details),
            _ => None,
        }
    }

    /// Whether a transaction was rolled back; see [`OutOfMemory::rolled_back`].
    pub fn rolled_back(&self) -> bool {
        match self {
            TenantError::OutOfMemory(details) => details.rolled_back,
            TenantError::Killed(details) => details.rolled_back,
            TenantError::Sqlite { rolled_back, .. } => *rolled_back,
            _ => false,
        }
    }

    /// SQLite's error, when it failed for another reason than memory.
    pub fn sqlite_error(&self) -> Option<&rusqlite::Error> {
        match self {
            TenantError::Sqlite { error, .. } => Some(error),
            _ => None,
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

/// Whether SQLite's answer means that it got no memory.
pub(crate) fn is_out_of_memory(error: &rusqlite::Error) -> bool {
    code(error).is_some_and(|code| {
        code.code == rusqlite::ErrorCode::OutOfMemory || code.extended_code == ffi::SQLITE_IOERR_NOMEM
    })
}

/// Whether SQLite's answer means that somebody has interrupted it.
pub(crate) fn is_interrupted(error: &rusqlite::Error) -> bool {
    code(error).is_some_and(|code| code.code == rusqlite::ErrorCode::OperationInterrupted)
}

impl fmt::Display for Killed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Killed { group, requester, full, asked, usage, max, rolled_back } = self;
        write!(
            f,
            "failed to run SQL in group {group}: stopped to free memory for group {requester}, which needed {asked} bytes in \
             {full} (usage {usage} of max {max})"
        )?;
        if *rolled_back {
            f.write_str("; the transaction was rolled back")?;
        }
        Ok(())
    }
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failed to run SQL in group {}: out of memory", self.group)?;
        if let Some(shortage) = self.shortage {
            write!(f, ": {shortage}")?;
        }
        if self.rolled_back {
            f.write_str("; the transaction was rolled back")?;
        }
        Ok(())
    }
}

impl fmt::Display for TenantError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TenantError::OutOfMemory(details) => details.fmt(f),
            TenantError::Killed(details) => details.fmt(f),
            TenantError::Sqlite { group, rolled_back, error } => {
                write!(f, "failed to run SQL in group {group}: {error}")?;
                if *rolled_back {
                    f.write_str("; the transaction was rolled back")?;
                }
                Ok(())
            }
            TenantError::NotInstalled => f.write_str(
                "failed to open a tenant's connection: memgroup is not installed under SQLite; \
                 call memgroup_sqlite::install before anything uses SQLite",
            ),
            TenantError::ForeignGroup { group } => write!(
                f,
                "failed to open a tenant's connection: the group {group} belongs to another hierarchy than the one \
                 installed under SQLite"
            ),
            TenantError::SharedCache { group } => write!(
                f,
                "failed to open a connection of group {group}: its name asks for a shared page cache, which tenants \
                 cannot share; leave cache=shared out of the URI"
            ),
            TenantError::NotSerialized { group } => write!(
                f,
                "failed to open a connection of group {group} in serialized mode: SQLite was configured \
                 single-threaded in this process"
            ),
        }
    }
}

impl std::error::Error for TenantError {}
