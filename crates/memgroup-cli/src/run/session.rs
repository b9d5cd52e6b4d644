//! A tenant's connection, in either house, and why a statement on it was not done.
//!
//! - I1. Want of memory is told from every other failure: only it counts as a refusal.

#![allow(unsafe_code)]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memgroup_sqlite::{TenantConnection, TenantError};
use rusqlite::{Connection, ErrorCode, InterruptHandle, ffi};

use super::spec::{Temp, TenantSpec};

/// How long a statement that met SQLite's own limit rests before it is tried again: much less than a statement that is worth it takes.
const AGAIN_EVERY: Duration = Duration::from_millis(1);

/// What every connection of `tenant` is set to, the same in both houses. Nothing is written: the files are kept.
pub(crate) fn settings(tenant: &TenantSpec) -> String {
    let temp = match tenant.temp {
        Temp::File => "FILE",
        Temp::Memory => "MEMORY",
    };
    format!(
        "PRAGMA cache_size = -{}; PRAGMA temp_store = {temp}; PRAGMA query_only = ON;",
        tenant.cache_bytes >> 10
    )
}

/// A tenant's connection.
pub(crate) enum Session {
    Group(TenantConnection),
    Plain(Connection),
}

/// Why a statement was not done.
#[derive(Debug)]
pub(crate) enum Failure {
    /// For want of memory.
    Refused(Box<dyn std::error::Error + Send + Sync>),
    /// Stopped, because others needed the memory.
    Killed,
    /// By our own interruption.
    Interrupted,
    /// For any other reason.
    Other(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Refused(error) => error.fmt(f),
            Failure::Killed => f.write_str("stopped to free memory"),
            Failure::Interrupted => f.write_str("interrupted"),
            Failure::Other(error) => f.write_str(error),
        }
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Failure {
        let code = error.sqlite_error().map(|error| (error.code, error.extended_code));
        match code {
            Some((ErrorCode::OutOfMemory, _) | (_, ffi::SQLITE_IOERR_NOMEM)) => {
                Failure::Refused(Box::new(error))
            }
            Some((ErrorCode::OperationInterrupted, _)) => Failure::Interrupted,
            _ => Failure::Other(error.to_string()),
        }
    }
}

impl From<TenantError> for Failure {
    fn from(error: TenantError) -> Failure {
        match error {
            TenantError::Sqlite { error, .. } => Failure::from(error),
            TenantError::Killed(_) => Failure::Killed,
            refused @ TenantError::OutOfMemory(_) => Failure::Refused(Box::new(refused)),
            other => Failure::Other(other.to_string()),
        }
    }
}

impl Session {
    /// Runs `work` on the connection, at the tenant's expense.
    pub(crate) fn run<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Failure> {
        match self {
            Session::Group(connection) => connection.run(work).map_err(Failure::from),
            Session::Plain(connection) => match catch_unwind(AssertUnwindSafe(|| work(connection))) {
                Ok(answer) => answer.map_err(Failure::from),
                Err(panic) => unfetched(panic),
            },
        }
    }

    /// As `run`; if there is no memory, waits for some and tries again, until the `deadline`. SQLite's own limit tells nobody when there is room
    /// again: there it is tried every [`AGAIN_EVERY`], until the run is `ending`.
    pub(crate) fn run_until<T>(
        &self,
        deadline: Instant,
        ending: &AtomicBool,
        mut work: impl FnMut(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, Failure> {
        if let Session::Group(connection) = self {
            return connection.run_until(deadline, work).map_err(Failure::from);
        }
        loop {
            let came = self.run(&mut work);
            // ORDERING: Relaxed; the flag alone matters, and who sets it unparks this thread after.
            let is_over = Instant::now() >= deadline || ending.load(Ordering::Relaxed);
            if is_over || !matches!(came, Err(Failure::Refused(_))) {
                return came;
            }
            thread::park_timeout(AGAIN_EVERY);
        }
    }

    /// Bytes of the connection's page caches, as SQLite estimates them. A group is told of its connection's memory by
    /// kind as it is now; the use of a connection tells it only from time to time.
    pub(crate) fn page_cache_bytes(&self) -> u64 {
        match self {
            Session::Group(connection) => connection.sample().page_cache_bytes,
            Session::Plain(connection) => page_cache_bytes(connection),
        }
    }

    /// Interrupts what runs on the connection, from any thread.
    pub(crate) fn interrupter(&self) -> InterruptHandle {
        match self {
            Session::Group(connection) => connection.interrupt_handle(),
            Session::Plain(connection) => connection.get_interrupt_handle(),
        }
    }
}

fn page_cache_bytes(connection: &Connection) -> u64 {
    let (mut now, mut most) = (0, 0);
    // SAFETY: the handle is used at once, while the connection is borrowed.
    let db = unsafe { connection.handle() };
    // SAFETY: `db` is an open connection, and both numbers are there to be written.
    let code = unsafe {
        ffi::sqlite3_db_status(db, ffi::SQLITE_DBSTATUS_CACHE_USED, &raw mut now, &raw mut most, 0)
    };
    if code == ffi::SQLITE_OK { u64::try_from(now).unwrap_or(0) } else { 0 }
}

/// rusqlite panics at a value that SQLite had no memory to hand over (`TenantConnection` knows that by itself); any
/// other panic goes on.
fn unfetched<T>(panic: Box<dyn Any + Send>) -> Result<T, Failure> {
    match panic.downcast_ref::<&str>() {
        Some(text) if text.ends_with("column type with NULL data") => {
            Err(Failure::Refused("out of memory".into()))
        }
        _ => resume_unwind(panic),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use rusqlite::{Connection, ErrorCode, ffi};

    use super::{Failure, Session, settings};
    use crate::run::spec::Spec;

    fn sqlite(code: i32) -> Failure {
        Failure::from(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None))
    }

    #[test]
    fn only_want_of_memory_counts_as_a_refusal() {
        assert!(matches!(sqlite(ffi::SQLITE_NOMEM), Failure::Refused(_)));
        assert!(matches!(sqlite(ffi::SQLITE_IOERR_NOMEM), Failure::Refused(_)));
        assert!(matches!(sqlite(ffi::SQLITE_INTERRUPT), Failure::Interrupted));
        assert!(matches!(sqlite(ffi::SQLITE_IOERR_READ), Failure::Other(_)));
        assert!(matches!(sqlite(ffi::SQLITE_CORRUPT), Failure::Other(_)));
        assert!(matches!(Failure::from(rusqlite::Error::QueryReturnedNoRows), Failure::Other(_)));
    }

    #[test]
    fn below_sqlites_own_limit_a_statement_is_tried_again_until_its_deadline_or_the_end_of_the_run() {
        let session = Session::Plain(Connection::open_in_memory().expect("memory is there"));
        let tries = |patience: Duration, ending: bool, enough: u32| {
            let mut tries = 0;
            let came = session.run_until(Instant::now() + patience, &AtomicBool::new(ending), |_| {
                tries += 1;
                let code = ffi::Error::new(ffi::SQLITE_NOMEM);
                if tries == enough { Ok(()) } else { Err(rusqlite::Error::SqliteFailure(code, None)) }
            });
            (came.is_ok(), tries)
        };
        assert_eq!(tries(Duration::from_secs(3600), false, 5), (true, 5));
        assert_eq!(tries(Duration::ZERO, false, 5), (false, 1));
        assert_eq!(tries(Duration::from_secs(3600), true, 5), (false, 1));
        let (done, several) = tries(Duration::from_millis(20), false, u32::MAX);
        assert!(!done && several > 1, "{several}");
    }

    #[test]
    fn what_a_connection_has_read_is_in_its_page_cache() {
        let connection = Connection::open_in_memory().expect("memory is there");
        connection.execute_batch("CREATE TABLE a AS SELECT zeroblob(1000000)").expect("it is made");
        let bytes = Session::Plain(connection).page_cache_bytes();
        assert!((1_000_000..2_000_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn settings_are_taken_and_forbid_writing() {
        let spec = Spec::built_in().expect("the built-in scenario is sound");
        for tenant in &spec.tenants {
            let connection = Connection::open_in_memory().expect("memory is there");
            connection.execute_batch(&settings(tenant)).expect("the settings are well formed");
            let cache: i64 =
                connection.query_row("PRAGMA cache_size", [], |row| row.get(0)).expect("a number");
            assert_eq!(cache, -i64::try_from(tenant.cache_bytes >> 10).expect("a small number"));
            let error = connection.execute_batch("CREATE TABLE a (b)").expect_err("writing is forbidden");
            assert_eq!(error.sqlite_error_code(), Some(ErrorCode::ReadOnly));
        }
    }
}
