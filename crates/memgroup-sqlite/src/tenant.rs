//! A connection that works for one group.
//!
//! ```text
//!   run_once ──▶ enter the group ──▶ statements: prepare, step, reset, drop ──▶ leave the group
//!   close, Drop ▶ enter the group ──▶ cached statements, sqlite3_close       ──▶ leave the group
//! ```
//!
//! - I1. SQLite code runs on this connection only between entering and leaving its group. The
//!   closure gets the connection for any lifetime, so a value that borrows from it (a statement, a
//!   row) cannot leave the closure.
//! - B1. The closure may enter another group, by a scope or by a run of another tenant's
//!   connection. SQLite code on this connection is then charged to that group. Preventing that
//!   would need a check before every allocation.
//! - I2. The connection exists until `close` or `Drop` takes it.
//! - I3. No kill stops the closing, because the connection has left its group's kill targets, and
//!   an earlier interrupt is cleared.
//! - I4. A panic in the closure leaves the group on its way out, because guards do it.
//! - I5. A killed run leaves no transaction open that it began, and no interrupt. This includes the
//!   case that its own ROLLBACK fails, because SQLite interrupts a ROLLBACK while another statement
//!   of the connection is open. A transaction that began before the run stays as SQLite left it.
//!   There is one exception: the transaction stays open if the application's authorizer denies
//!   ROLLBACK, or if neither the group nor the unattributed one has memory for it. The error then
//!   says that it was not rolled back.

#![allow(unsafe_code)]

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;

use memgroup::stats::memory;
use memgroup::{Group, scope};
use rusqlite::{Connection, InterruptHandle, OpenFlags, ffi};

use crate::account::{ACCOUNT, belongs};
use crate::allocation_error;
use crate::block;
use crate::error::{Killed, OutOfMemory, TenantError, is_interrupted, is_out_of_memory};
use crate::gauges::{Gauges, MemoryKinds};
use crate::kill::{KillReason, Registration};
use crate::rollback::RollbackWatch;
use crate::uri;

/// How a connection treats the delays of a group that [owes](memgroup::Group::owed).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Throttling {
    /// The thread sleeps at the beginning of a run, for at most 2 s. It does not sleep within a
    /// transaction of the connection, or within a run of a tenant's connection on the same thread.
    ///
    /// Don't use this for a connection that a function of the application uses while SQLite runs a
    /// statement of a plain connection, because the thread would sleep with that statement's locks.
    #[default]
    Block,
    /// The application takes the delays with [`TenantConnection::take_throttle`], and schedules its
    /// work itself.
    Manual,
}

/// A SQLite connection whose every allocation is charged to one group.
///
/// It is opened in serialized mode: unlike a plain [`Connection`] with rusqlite's default flags, it
/// has a mutex, so other threads may interrupt it or take cached pages from it while it works.
/// Between two runs it may be sent to another thread. Its memory stays charged to its group, and
/// memory that it frees on any thread is credited to its group.
///
/// The group may be removed while the connection is open. It then refuses further memory, and is
/// listed among the [`dying`](memgroup::Hierarchy::dying) groups with its bytes until the
/// connection is closed.
///
/// # Examples
///
/// ```no_run
/// use memgroup::{Config, Hierarchy};
/// use memgroup_sqlite::{TenantConnection, TenantError};
///
/// let hierarchy = Hierarchy::new(Config::new()).unwrap();
/// memgroup_sqlite::install(&hierarchy).unwrap();
/// let tenant = hierarchy.create("/tenant").unwrap();
/// tenant.set_max(4 << 20).unwrap();
///
/// let conn = TenantConnection::open(&tenant, "tenant.db").unwrap();
/// conn.execute_batch("CREATE TABLE IF NOT EXISTS t (x)").unwrap();
/// match conn.run(|conn| conn.query_row("SELECT count(*) FROM t, t, t", [], |row| row.get::<_, i64>(0))) {
///     Ok(count) => println!("{count} rows"),
///     Err(TenantError::OutOfMemory(details)) => println!("{details}"),
///     Err(error) => println!("{error}"),
/// }
/// ```
pub struct TenantConnection {
    connection: Option<Connection>,
    registration: Registration,
    pub(crate) watch: Arc<RollbackWatch>,
    gauges: Gauges,
    pub(crate) throttling: Cell<Throttling>,
    group: Group,
}

impl TenantConnection {
    /// Opens or creates the database at `path` for `group`.
    ///
    /// # Errors
    ///
    /// [`TenantError::NotInstalled`], [`TenantError::ForeignGroup`]; [`TenantError::OutOfMemory`]
    /// when the group has no memory for a connection; [`TenantError::Sqlite`] when SQLite cannot
    /// open it.
    pub fn open(group: &Group, path: impl AsRef<Path>) -> Result<Self, TenantError> {
        Self::open_with_flags(group, path, OpenFlags::default())
    }

    /// Opens a private database in memory. Its pages are charged to `group` as well.
    ///
    /// # Errors
    ///
    /// As for [`TenantConnection::open`].
    pub fn open_in_memory(group: &Group) -> Result<Self, TenantError> {
        Self::open_with_flags(group, ":memory:", OpenFlags::default())
    }

    /// Opens the database at `path` for `group` with flags of your own.
    ///
    /// The connection is always serialized and never shares its page cache:
    /// `SQLITE_OPEN_FULL_MUTEX` and `SQLITE_OPEN_PRIVATE_CACHE` replace `SQLITE_OPEN_NO_MUTEX` and
    /// `SQLITE_OPEN_SHARED_CACHE`. A URI could ask for a shared cache despite the flags. So a name
    /// that begins with `file:` and has `cache=shared` among its parameters is refused. Names that
    /// are attached later (`ATTACH`) are not checked.
    ///
    /// # Errors
    ///
    /// As for [`TenantConnection::open`], and [`TenantError::SharedCache`].
    pub fn open_with_flags(
        group: &Group,
        path: impl AsRef<Path>,
        flags: OpenFlags,
    ) -> Result<Self, TenantError> {
        let account = ACCOUNT.get().ok_or(TenantError::NotInstalled)?;
        if !belongs(&account.hierarchy, group) {
            return Err(TenantError::ForeignGroup { group: group.path() });
        }
        if uri::asks_for_shared_cache(path.as_ref().as_os_str().as_encoded_bytes()) {
            return Err(TenantError::SharedCache { group: group.path() });
        }
        let flags = flags
            .difference(OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_SHARED_CACHE)
            .union(OpenFlags::SQLITE_OPEN_FULL_MUTEX | OpenFlags::SQLITE_OPEN_PRIVATE_CACHE);
        let _entered = Entered::group(group);
        let connection =
            Connection::open_with_flags(path, flags).map_err(|error| failure(group, error, false))?;
        let tenant = TenantConnection {
            watch: RollbackWatch::start(&connection),
            registration: Registration::new(group, &connection),
            gauges: Gauges::default(),
            throttling: Cell::default(),
            group: group.clone(),
            connection: Some(connection),
        };
        // SAFETY: the connection is open (I2).
        let is_serialized = !unsafe { ffi::sqlite3_db_mutex(tenant.handle()) }.is_null();
        if is_serialized { Ok(tenant) } else { Err(TenantError::NotSerialized { group: group.path() }) }
    }

    /// Returns the group that pays.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Runs `work` in the group, without a delay.
    #[inline]
    pub(crate) fn run_once<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, TenantError> {
        let _entered = Entered::group(&self.group);
        let _rollback = self.watch.set_aside();
        let conn = self.connection();
        let mut running = self.registration.begin();
        let outcome = catch_unwind(AssertUnwindSafe(|| work(conn)));
        let was_left_open = running.end_work();
        if was_left_open {
            self.roll_back();
        }
        self.gauges.after_run(&self.group, conn);
        match outcome {
            Ok(Ok(_)) if was_left_open => {
                Err(self.killed(&self.registration.reason().expect("a killed run has a reason")))
            }
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.failure(error)),
            Err(panic) if is_unfetched_value(&*panic) && allocation_error::last().is_some() => {
                Err(out_of_memory(&self.group, self.is_rolled_back()))
            }
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Samples SQLite's figures for this connection's memory by kind, and reports them to the
    /// group's gauges.
    ///
    /// The gauges of a connection in use are also updated at the end of a run: at most every tenth
    /// of a second, and for at most a hundredth of the time, because SQLite walks all statements
    /// and tables. Call this to get current figures, or some time after the last run. The
    /// connection's part of the gauges is subtracted when it is closed.
    pub fn sample(&self) -> MemoryKinds {
        self.gauges.sample(&self.group, self.connection())
    }

    /// Frees the cached pages that the connection does not need now: all except those used by a
    /// running statement or changed by an open transaction. A database in memory keeps its pages,
    /// because they exist nowhere else.
    ///
    /// Returns the bytes that the group got back: exactly the blocks that this call has freed and
    /// that were charged to the group, independent of other connections. They count as reclaimed
    /// from the group, and its gauges are updated.
    ///
    /// # Errors
    ///
    /// [`TenantError::Sqlite`] when SQLite says it has failed.
    pub fn release_memory(&self) -> Result<u64, TenantError> {
        let _entered = Entered::group(&self.group);
        let mut code = ffi::SQLITE_OK;
        let bytes = block::freed_by(self.group.id(), || {
            // SAFETY: the connection is open (I2).
            code = unsafe { ffi::sqlite3_db_release_memory(self.handle()) };
        });
        if let Some(account) = ACCOUNT.get() {
            account.memory.add(&self.group, memory::RECLAIMS, 1);
            account.memory.add(&self.group, memory::RECLAIMED, bytes as i64);
        }
        self.sample();
        if code == ffi::SQLITE_OK {
            return Ok(bytes);
        }
        Err(failure(&self.group, rusqlite::Error::SqliteFailure(ffi::Error::new(code), None), false))
    }

    /// Returns a handle with which any thread can interrupt the statement that is running on this
    /// connection.
    pub fn interrupt_handle(&self) -> InterruptHandle {
        self.connection().get_interrupt_handle()
    }

    /// Closes the connection as dropping it does, and returns SQLite's error.
    ///
    /// # Errors
    ///
    /// [`TenantError::Sqlite`] when something that was leaked still uses the connection.
    pub fn close(mut self) -> Result<(), TenantError> {
        let group = self.group.clone();
        let _entered = Entered::group(&group);
        let Some(connection) = self.take_connection() else { return Ok(()) };
        connection.close().map_err(|(connection, error)| {
            drop(connection);
            failure(&group, error, false)
        })
    }

    /// Takes the connection, ready to be closed in its group (I3).
    fn take_connection(&mut self) -> Option<Connection> {
        let connection = self.connection.take()?;
        self.registration.remove();
        self.registration.clear_interrupt();
        self.watch.stop();
        self.gauges.retract(&self.group);
        Some(connection)
    }

    /// Why a run has failed.
    #[cold]
    fn failure(&self, error: rusqlite::Error) -> TenantError {
        match self.registration.reason().filter(|_| is_interrupted(&error)) {
            Some(reason) => self.killed(&reason),
            None => failure(&self.group, error, self.is_rolled_back()),
        }
    }

    #[cold]
    fn killed(&self, reason: &KillReason) -> TenantError {
        TenantError::Killed(Killed {
            group: self.group.path(),
            requester: reason.requester.path(),
            full: reason.full.path(),
            asked: reason.asked,
            usage: reason.usage,
            max: reason.max,
            rolled_back: self.is_rolled_back(),
        })
    }

    /// Rolls back the transaction that a killed run has left open. If the group has no memory for
    /// that, the unattributed one pays the few kilobytes.
    #[cold]
    fn roll_back(&self) {
        let payers = [Some(&self.group), ACCOUNT.get().map(|account| &account.unattributed)];
        let is_done = payers.into_iter().flatten().any(|payer| {
            let _entered = Entered::group(payer);
            self.connection().execute_batch("ROLLBACK").is_ok()
        });
        if is_done {
            self.watch.note();
        }
    }

    #[inline]
    pub(crate) fn connection(&self) -> &Connection {
        // I2: `close` and `Drop` own the value.
        self.connection.as_ref().expect("a connection in use is open")
    }

    fn handle(&self) -> *mut ffi::sqlite3 {
        // SAFETY: callers use the handle at once, while the connection is open (I2).
        unsafe { self.connection().handle() }
    }

    /// Returns whether a transaction was rolled back since the run began, and none is open now.
    #[cold]
    fn is_rolled_back(&self) -> bool {
        self.watch.is_noted() && self.connection().is_autocommit()
    }
}

impl Drop for TenantConnection {
    fn drop(&mut self) {
        let group = self.group.clone();
        let _entered = Entered::group(&group);
        drop(self.take_connection());
    }
}

impl fmt::Debug for TenantConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TenantConnection").field("group", &self.group.path()).finish_non_exhaustive()
    }
}

/// A group that was entered: it is current, and earlier allocation errors are set aside.
struct Entered<'g> {
    _scope: scope::Scope<'g>,
    _error: allocation_error::SetAside,
}

impl<'g> Entered<'g> {
    #[inline]
    fn group(group: &'g Group) -> Self {
        Entered { _scope: scope::enter(group), _error: allocation_error::set_aside() }
    }
}

#[cold]
fn failure(group: &Group, error: rusqlite::Error, rolled_back: bool) -> TenantError {
    if is_out_of_memory(&error) {
        out_of_memory(group, rolled_back)
    } else {
        TenantError::Sqlite { group: group.path(), rolled_back, error }
    }
}

#[cold]
fn out_of_memory(group: &Group, rolled_back: bool) -> TenantError {
    let (cause, usage) = allocation_error::last().unzip();
    TenantError::OutOfMemory(OutOfMemory {
        group: group.path(),
        cause: cause.map(Box::new),
        usage: usage.unwrap_or(0),
        rolled_back,
    })
}

/// Returns whether rusqlite panicked for a value that SQLite announced and then did not deliver.
fn is_unfetched_value(panic: &(dyn Any + Send)) -> bool {
    panic.downcast_ref::<&str>().is_some_and(|text| {
        text.starts_with("unexpected SQLITE_") && text.ends_with("column type with NULL data")
    })
}
