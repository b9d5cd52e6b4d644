//! A connection that works for one group.
//!
//! ```text
//!   run(|conn| ..) ──▶ pay what is owed ──▶ use_once
//!   use_once       ──▶ enter the group ──▶ statements: prepare, step, reset, drop ──▶ leave the group
//!   Drop           ──▶ enter the group ──▶ cached statements, sqlite3_close       ──▶ leave the group
//! ```
//!
//! - I1. SQLite code runs on this connection only between entering and leaving its group: the connection is lent to a
//!   closure for any lifetime, so nothing that borrows from it (a statement, a row) can leave the closure.
//! - B1. I1 does not say that the group is the one in force: inside the closure another group may be entered (a scope, or
//!   a use of another tenant's connection), and SQLite code on this connection is then charged to that one. What is
//!   used where is in the closure's hands; a check would have to sit in front of every allocation.
//! - I2. The connection is there until `Drop` or `close` takes it.
//! - I3. While SQLite closes the connection nobody stops it: it has left those of its group that can be stopped (kill.rs), and an interrupt from before is taken back.
//! - I4. A panic in the closure leaves the group on its way out, because guards do it.
//! - I5. A use that was told to stop leaves no transaction open that it began, and no interrupt. It may have failed to roll it back itself: while a statement of it is open, ROLLBACK is interrupted. What was
//!   begun before it stays as SQLite left it. Where the application's authorizer refuses ROLLBACK, or there is memory for it nowhere, the transaction stays open, and the error says that it was not rolled back.

#![allow(unsafe_code)]

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;

use memgroup::{Group, scope};
use rusqlite::{Connection, InterruptHandle, OpenFlags, Params, Row, Transaction, ffi};

use crate::error::{Killed, OutOfMemory, TenantError, is_interrupted, is_out_of_memory};
use crate::feed;
use crate::freed;
use crate::install::installed;
use crate::kill::{Member, Reason};
use crate::kinds::{Gauges, MemoryKinds};
use crate::rollback::Watch;
use crate::shortage;
use crate::throttle::Throttling;
use crate::uri;

/// A SQLite connection whose every allocation is charged to one group.
///
/// It is open in serialized mode: unlike a plain [`Connection`] with rusqlite's default flags it has a mutex of its
/// own, so other threads may look at it (interrupt it, ask for its memory) while it works. It may be sent to another
/// thread at any time between two uses; what it holds stays charged to its group, and what it frees there is credited
/// to its group.
///
/// The group may be removed while the connection is open: then it refuses further memory, and is listed among the
/// [`dying`](memgroup::Hierarchy::dying) with its bytes until the connection is closed.
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
    member: Member,
    watch: Arc<Watch>,
    gauges: Gauges,
    pub(crate) throttling: Cell<Throttling>,
    group: Group,
}

impl TenantConnection {
    /// Opens or creates the database at `path` for `group`.
    ///
    /// # Errors
    ///
    /// [`TenantError::NotInstalled`], [`TenantError::ForeignGroup`]; [`TenantError::OutOfMemory`] when the group has no
    /// room for a connection (about 60 KiB before the first page); [`TenantError::Sqlite`] when SQLite cannot open it.
    pub fn open(group: &Group, path: impl AsRef<Path>) -> Result<Self, TenantError> {
        Self::open_with_flags(group, path, OpenFlags::default())
    }

    /// Opens a private database in memory, whose pages are charged to `group` too.
    ///
    /// # Errors
    ///
    /// As for [`TenantConnection::open`].
    pub fn open_in_memory(group: &Group) -> Result<Self, TenantError> {
        Self::open_with_flags(group, ":memory:", OpenFlags::default())
    }

    /// Opens the database at `path` for `group` with flags of your own, except that the connection is always
    /// serialized and never shares its page cache: `SQLITE_OPEN_FULL_MUTEX` and `SQLITE_OPEN_PRIVATE_CACHE` replace
    /// `SQLITE_OPEN_NO_MUTEX` and `SQLITE_OPEN_SHARED_CACHE`. A URI could ask for a shared cache despite the flags, so
    /// a name that begins with `file:` and has `cache=shared` among its parameters is refused. The names of databases
    /// that are attached later (`ATTACH`) are not looked at.
    ///
    /// # Errors
    ///
    /// As for [`TenantConnection::open`], and [`TenantError::SharedCache`].
    pub fn open_with_flags(
        group: &Group,
        path: impl AsRef<Path>,
        flags: OpenFlags,
    ) -> Result<Self, TenantError> {
        let installed = installed().ok_or(TenantError::NotInstalled)?;
        if !installed.holds(group) {
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
        let watch = Watch::start(&connection);
        let (gauges, member) = (Gauges::new(), Member::join(group, &connection));
        let tenant = TenantConnection {
            connection: Some(connection),
            member,
            watch,
            gauges,
            throttling: Cell::default(),
            group: group.clone(),
        };
        if tenant.is_serialized() {
            Ok(tenant)
        } else {
            Err(TenantError::NotSerialized { group: group.path() })
        }
    }

    /// The group that pays.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Runs `work` on the connection with its group in force: everything SQLite allocates in it is charged to the
    /// group. Statements that are to be kept between runs belong in the connection's cache
    /// ([`Connection::prepare_cached`]); a transaction begins with [`TenantConnection::transaction`].
    ///
    /// A value that cannot be fetched because memory ran out (a text column of a UTF-16 database has to be converted)
    /// makes rusqlite panic; that panic is turned into [`TenantError::OutOfMemory`]. Any other panic goes on.
    ///
    /// Uses nest, and the innermost group pays: inside `a.run(|conn| b.run(|_| conn.execute(..)))` the connection of `a`
    /// works on the account of `b`, keeps what it got there (pages of its cache stay charged to `b`), and a refusal is
    /// told as one of `b`. Use inside `b.run` only the connection that it lends, and the same within a
    /// [`scope`] of another group.
    ///
    /// Where the group owes, for memory taken above its `high`, the thread sleeps before `work`: never in a transaction, nor within another use ([`Throttling`]).
    ///
    /// From time to time the end of a use reports the connection's memory by kind ([`TenantConnection::sample`]).
    ///
    /// # Errors
    ///
    /// [`TenantError::OutOfMemory`] when the group, or one above it, refused memory and SQLite could not do without;
    /// [`TenantError::Killed`] when it was stopped, because another group needed the memory that it held, also where `work` succeeded but left a transaction open that it began;
    /// [`TenantError::Sqlite`] for every other error of `work`.
    pub fn run<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, TenantError> {
        self.pay(None);
        self.use_once(work)
    }

    /// A use of the connection, at once.
    #[inline]
    pub(crate) fn use_once<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, TenantError> {
        let _entered = Entered::group(&self.group);
        let _rollback = self.watch.set_aside();
        let conn = self.connection();
        let mut running = self.member.begin();
        let outcome = catch_unwind(AssertUnwindSafe(|| work(conn)));
        let was_open = running.finish() && running.quieten();
        if was_open {
            self.roll_back();
        }
        self.gauges.after_use(&self.group, conn);
        match outcome {
            Ok(Ok(_)) if was_open => Err(self.stopped()),
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.failure(error)),
            Err(panic) if is_unfetched_value(&*panic) && shortage::last().is_some() => {
                Err(TenantError::OutOfMemory(out_of_memory(&self.group, self.is_rolled_back())))
            }
            Err(panic) => resume_unwind(panic),
        }
    }

    /// Runs `work` inside a transaction, in the group as [`TenantConnection::run`] does: commits when it succeeds,
    /// rolls back when it fails. On failure [`TenantError::rolled_back`] says whether that was
    /// done: when the roll-back itself fails, the transaction is still open. Within another use of the connection that may be so when it is stopped; then the end of that one rolls back.
    ///
    /// It is all or nothing also when `work` ignores errors. Once the transaction is rolled back, by SQLite (a query that
    /// ran out of memory) or by `work`, nothing more can be committed on the connection before this returns: a
    /// statement that writes fails with `SQLITE_CONSTRAINT_COMMITHOOK` or takes part in a transaction that will, and the
    /// commit at the end fails. An application that installs a commit or rollback hook of its own on the connection
    /// takes this away.
    ///
    /// # Errors
    ///
    /// As for [`TenantConnection::run`], of `work` or of the commit.
    pub fn transaction<T>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, TenantError> {
        self.run(|conn| {
            let _guard = self.watch.guard();
            let transaction = conn.unchecked_transaction()?;
            let value = work(&transaction)?;
            transaction.commit()?;
            Ok(value)
        })
    }

    /// [`Connection::execute`] in the group.
    ///
    /// # Errors
    ///
    /// As for [`TenantConnection::run`].
    pub fn execute(&self, sql: &str, params: impl Params) -> Result<usize, TenantError> {
        self.run(|conn| conn.execute(sql, params))
    }

    /// [`Connection::execute_batch`] in the group.
    ///
    /// # Errors
    ///
    /// As for [`TenantConnection::run`].
    pub fn execute_batch(&self, sql: &str) -> Result<(), TenantError> {
        self.run(|conn| conn.execute_batch(sql))
    }

    /// [`Connection::query_row`] in the group.
    ///
    /// # Errors
    ///
    /// As for [`TenantConnection::run`]; no row at all is [`TenantError::Sqlite`] with
    /// [`rusqlite::Error::QueryReturnedNoRows`].
    pub fn query_row<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, TenantError> {
        self.run(|conn| conn.query_row(sql, params, read))
    }

    /// What SQLite tells of this connection's memory by kind, asked now, and reported to the group's gauges.
    ///
    /// The gauges follow a connection that is in use by themselves, at the end of a use, at most every tenth of a
    /// second and for at most a hundredth of the time: SQLite walks all statements and tables for a sample. Whoever
    /// wants them to be right now, or after the last use for some time, calls this. All is taken back when the
    /// connection is closed.
    pub fn sample(&self) -> MemoryKinds {
        self.gauges.sample(&self.group, self.connection())
    }

    /// Frees what pages the connection caches and does not need now: all but those in use by a statement that runs, or
    /// changed by a transaction that is open. A database in memory keeps its pages, because they are nowhere else.
    ///
    /// Answers with the bytes that the group got back: exactly the blocks that this call has freed and the group had
    /// paid for, whatever other connections do meanwhile. They are counted as reclaimed of the group, and its gauges
    /// are reported anew.
    ///
    /// # Errors
    ///
    /// [`TenantError::Sqlite`] when SQLite says it has failed.
    pub fn release_memory(&self) -> Result<u64, TenantError> {
        let _entered = Entered::group(&self.group);
        // SAFETY: the handle is used at once, and the connection it belongs to is open (I2).
        let db = unsafe { self.connection().handle() };
        let mut code = ffi::SQLITE_OK;
        // SAFETY: `db` is an open connection.
        let bytes = freed::during(self.group.id(), || code = unsafe { ffi::sqlite3_db_release_memory(db) });
        feed::reclaimed(&self.group, bytes);
        self.sample();
        if code == ffi::SQLITE_OK {
            return Ok(bytes);
        }
        Err(failure(&self.group, rusqlite::Error::SqliteFailure(ffi::Error::new(code), None), false))
    }

    /// A handle with which any thread can interrupt the statement that runs on this connection.
    pub fn interrupt_handle(&self) -> InterruptHandle {
        self.connection().get_interrupt_handle()
    }

    /// Closes the connection, as dropping it does, and says so when SQLite could not.
    ///
    /// # Errors
    ///
    /// [`TenantError::Sqlite`] when something that was leaked still uses the connection.
    pub fn close(mut self) -> Result<(), TenantError> {
        let _entered = Entered::group(&self.group);
        let Some(connection) = self.connection.take() else {
            return Ok(());
        };
        self.member.leave();
        self.member.forget_interrupt();
        Watch::stop(&connection);
        self.gauges.take_back(&self.group);
        let closed = connection.close();
        closed.map_err(|(connection, error)| {
            drop(connection);
            failure(&self.group, error, false)
        })
    }

    /// Why a use that is on has failed.
    #[cold]
    fn failure(&self, error: rusqlite::Error) -> TenantError {
        match self.member.reason().filter(|_| is_interrupted(&error)) {
            Some(reason) => TenantError::Killed(self.killed(&reason)),
            None => failure(&self.group, error, self.is_rolled_back()),
        }
    }

    /// Why a use that is on has failed although its work has not: it left a transaction open when it was told to stop.
    #[cold]
    fn stopped(&self) -> TenantError {
        let reason = self.member.reason().expect("a use that was told to stop was told why");
        TenantError::Killed(self.killed(&reason))
    }

    fn killed(&self, reason: &Reason) -> Killed {
        Killed {
            group: self.group.path(),
            requester: reason.requester.path(),
            full: reason.full.path(),
            asked: reason.asked,
            usage: reason.usage,
            max: reason.max,
            rolled_back: self.is_rolled_back(),
        }
    }

    /// Rolls back what the work of a use has left open that was told to stop. Where the group has no room for that, the unattributed one pays the few kilobytes.
    #[cold]
    fn roll_back(&self) {
        let rolled_back = || self.connection().execute_batch("ROLLBACK").is_ok();
        let is_done = {
            let _shortage = shortage::set_aside();
            rolled_back()
        };
        if is_done
            || installed().is_some_and(|installed| {
                let _entered = Entered::group(installed.unattributed());
                rolled_back()
            })
        {
            self.watch.note();
        }
    }

    #[inline]
    pub(crate) fn connection(&self) -> &Connection {
        // I2: only `close` and `Drop` take it, and both have the connection for themselves.
        self.connection.as_ref().expect("a connection that is in use is open")
    }

    /// Whether, since the use began, a transaction was rolled back, and none is open now.
    #[cold]
    fn is_rolled_back(&self) -> bool {
        self.watch.is_noted() && self.connection().is_autocommit()
    }

    fn is_serialized(&self) -> bool {
        // SAFETY: the handle is used at once, and the connection it belongs to is open (I2).
        let handle = unsafe { self.connection().handle() };
        // SAFETY: `handle` is an open connection.
        !unsafe { ffi::sqlite3_db_mutex(handle) }.is_null()
    }
}

impl Drop for TenantConnection {
    fn drop(&mut self) {
        let _entered = Entered::group(&self.group);
        let connection = self.connection.take();
        if let Some(open) = &connection {
            self.member.leave();
            self.member.forget_interrupt();
            Watch::stop(open);
            self.gauges.take_back(&self.group);
        }
        drop(connection);
    }
}

impl fmt::Debug for TenantConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TenantConnection").field("group", &self.group.path()).finish_non_exhaustive()
    }
}

/// A use of a connection: its group is in force, and what was noted before is set aside.
struct Entered<'g> {
    _scope: scope::Scope<'g>,
    _shortage: shortage::SetAside,
}

impl<'g> Entered<'g> {
    #[inline]
    fn group(group: &'g Group) -> Self {
        Entered { _scope: scope::enter(group), _shortage: shortage::set_aside() }
    }
}

#[cold]
fn failure(group: &Group, error: rusqlite::Error, rolled_back: bool) -> TenantError {
    if is_out_of_memory(&error) {
        TenantError::OutOfMemory(out_of_memory(group, rolled_back))
    } else {
        TenantError::Sqlite { group: group.path(), rolled_back, error }
    }
}

#[cold]
fn out_of_memory(group: &Group, rolled_back: bool) -> OutOfMemory {
    OutOfMemory { group: group.path(), shortage: shortage::last(), usage: shortage::usage(), rolled_back }
}

/// Whether rusqlite gave up on a value that SQLite said was there and then did not deliver.
fn is_unfetched_value(panic: &(dyn Any + Send)) -> bool {
    panic.downcast_ref::<&str>().is_some_and(|text| {
        text.starts_with("unexpected SQLITE_") && text.ends_with("column type with NULL data")
    })
}
