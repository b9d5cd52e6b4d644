//! Session: a tenant's connection in either backend, and the failures of its statements.
//!
//! - I1. Only a failure for lack of memory counts as a refusal.

#![allow(unsafe_code)]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use memgroup_sqlite::{TenantConnection, TenantError};
use rusqlite::{Connection, ErrorCode, InterruptHandle, ffi};

use crate::run::base::Failure;
use crate::run::spec::TenantSpec;

/// Time between two attempts of a statement under SQLite's heap limit.
const RETRY_EVERY: Duration = Duration::from_millis(1);

/// Returns the settings of every connection of `tenant`. They forbid writing, because the files are
/// reused.
pub(crate) fn settings(tenant: &TenantSpec) -> String {
    let (kib, temp) = (tenant.cache_bytes >> 10, tenant.temp);
    format!("PRAGMA cache_size = -{kib}; PRAGMA temp_store = {temp:?}; PRAGMA query_only = ON;")
}

/// A tenant's connection.
pub(crate) enum Session {
    Group(TenantConnection),
    Plain(Connection),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Failure {
        let text = error.to_string();
        match error.sqlite_error().map(|error| (error.code, error.extended_code)) {
            Some((ErrorCode::OutOfMemory, _) | (_, ffi::SQLITE_IOERR_NOMEM)) => Failure::Refused(text),
            Some((ErrorCode::OperationInterrupted, _)) => Failure::Interrupted,
            _ => Failure::Other(text),
        }
    }
}

impl From<TenantError> for Failure {
    fn from(error: TenantError) -> Failure {
        match error {
            TenantError::Sqlite { error, .. } => Failure::from(error),
            TenantError::Killed(_) => Failure::Killed,
            refused @ TenantError::OutOfMemory(_) => Failure::Refused(refused.to_string()),
            other => Failure::Other(other.to_string()),
        }
    }
}

impl Session {
    /// Runs `work` on the connection, in the tenant's scope.
    pub(crate) fn run<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, Failure> {
        match self {
            Session::Group(connection) => connection.run(work).map_err(Failure::from),
            Session::Plain(connection) => catch_unwind(AssertUnwindSafe(|| work(connection)))
                .map_or_else(refusal_or_resume, |answer| answer.map_err(Failure::from)),
        }
    }

    /// Runs `work` as `run` does. If it finds no memory, waits and retries until the `deadline`.
    /// Under SQLite's heap limit nothing can be waited for, so there it retries every
    /// [`RETRY_EVERY`], until the run is `ending`.
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
            let result = self.run(&mut work);
            // ORDERING: Relaxed, because only the flag is handed over. The watcher unparks this
            // thread after it sets the flag, so a stale value costs one retry.
            let is_over = Instant::now() >= deadline || ending.load(Ordering::Relaxed);
            if is_over || !matches!(result, Err(Failure::Refused(_))) {
                return result;
            }
            thread::park_timeout(RETRY_EVERY);
        }
    }

    /// Returns the bytes of the connection's page caches, as SQLite estimates them. With groups
    /// this also updates the statistics of memory by kind, which are otherwise updated only now
    /// and then.
    pub(crate) fn page_cache_bytes(&self) -> u64 {
        match self {
            Session::Group(connection) => connection.sample().page_cache_bytes,
            Session::Plain(connection) => page_cache_bytes(connection),
        }
    }

    /// Returns a handle that interrupts the connection from any thread.
    pub(crate) fn interrupter(&self) -> InterruptHandle {
        match self {
            Session::Group(connection) => connection.interrupt_handle(),
            Session::Plain(connection) => connection.get_interrupt_handle(),
        }
    }
}

fn page_cache_bytes(connection: &Connection) -> u64 {
    let (mut now, mut most) = (0, 0);
    // SAFETY: the handle is used only while the connection is borrowed.
    let db = unsafe { connection.handle() };
    // SAFETY: `db` is an open connection, and both pointers are valid for writes.
    let code = unsafe {
        ffi::sqlite3_db_status(db, ffi::SQLITE_DBSTATUS_CACHE_USED, &raw mut now, &raw mut most, 0)
    };
    if code == ffi::SQLITE_OK { u64::try_from(now).unwrap_or(0) } else { 0 }
}

/// Turns rusqlite's panic about a value that found no memory into a refusal, as `TenantConnection`
/// does. Resumes any other panic.
fn refusal_or_resume<T>(panic: Box<dyn Any + Send>) -> Result<T, Failure> {
    match panic.downcast_ref::<&str>() {
        Some(text) if text.ends_with("column type with NULL data") => {
            Err(Failure::Refused("out of memory".to_owned()))
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
    fn counts_only_lack_of_memory_as_a_refusal() {
        assert!(matches!(sqlite(ffi::SQLITE_NOMEM), Failure::Refused(_)));
        assert!(matches!(sqlite(ffi::SQLITE_IOERR_NOMEM), Failure::Refused(_)));
        assert!(matches!(sqlite(ffi::SQLITE_INTERRUPT), Failure::Interrupted));
        assert!(matches!(sqlite(ffi::SQLITE_IOERR_READ), Failure::Other(_)));
        assert!(matches!(sqlite(ffi::SQLITE_CORRUPT), Failure::Other(_)));
        assert!(matches!(Failure::from(rusqlite::Error::QueryReturnedNoRows), Failure::Other(_)));
    }

    #[test]
    fn retries_under_the_heap_limit_until_deadline_or_end() {
        let session = Session::Plain(Connection::open_in_memory().expect("a connection"));
        let tries = |patience: Duration, ending: bool, enough: u32| {
            let mut tries = 0;
            let result = session.run_until(Instant::now() + patience, &AtomicBool::new(ending), |_| {
                tries += 1;
                let code = ffi::Error::new(ffi::SQLITE_NOMEM);
                if tries == enough { Ok(()) } else { Err(rusqlite::Error::SqliteFailure(code, None)) }
            });
            (result.is_ok(), tries)
        };
        assert_eq!(tries(Duration::from_secs(3600), false, 5), (true, 5));
        assert_eq!(tries(Duration::ZERO, false, 5), (false, 1));
        assert_eq!(tries(Duration::from_secs(3600), true, 5), (false, 1));
        let (done, several) = tries(Duration::from_millis(20), false, u32::MAX);
        assert!(!done && several > 1, "{several}");
    }

    #[test]
    fn measures_the_page_cache_of_a_connection() {
        let connection = Connection::open_in_memory().expect("a connection");
        connection.execute_batch("CREATE TABLE a AS SELECT zeroblob(1000000)").expect("a table");
        let bytes = Session::Plain(connection).page_cache_bytes();
        assert!((1_000_000..2_000_000).contains(&bytes), "{bytes}");
    }

    #[test]
    fn applies_settings_that_forbid_writing() {
        let spec = Spec::read(None, None).expect("a valid SPEC");
        for tenant in &spec.tenants {
            let connection = Connection::open_in_memory().expect("a connection");
            connection.execute_batch(&settings(tenant)).expect("valid settings");
            let cache: i64 =
                connection.query_row("PRAGMA cache_size", [], |row| row.get(0)).expect("a number");
            assert_eq!(cache, -i64::try_from(tenant.cache_bytes >> 10).expect("a small number"));
            let error = connection.execute_batch("CREATE TABLE a (b)").expect_err("writing is forbidden");
            assert_eq!(error.sqlite_error_code(), Some(ErrorCode::ReadOnly));
        }
    }
}
