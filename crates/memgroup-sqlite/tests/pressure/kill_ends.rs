//! A kill ends with its run: the connection keeps no interrupt, and the error reports the state of
//! the transaction.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr;

use crate::support::{generated, hierarchy, tenant_with_max, without_lookaside};
use memgroup::Group;
use memgroup_sqlite::rusqlite::{self, Connection, ErrorCode, ffi};
use memgroup_sqlite::{TenantConnection, TenantError};

/// A connection with a table of three rows, and another group that shares eight megabytes with it.
fn tenants(name: &str, path: &Path) -> (TenantConnection, Group) {
    hierarchy();
    let tenants = tenant_with_max(name, 8 << 20);
    let (group, etl) = (tenants.create("runaway").expect("a group"), tenants.create("etl").expect("a group"));
    let conn = TenantConnection::open(&group, path).expect("a connection");
    conn.execute_batch("PRAGMA temp_store = MEMORY; CREATE TABLE t (x); INSERT INTO t VALUES (1), (2), (3)")
        .expect("enough memory");
    (conn, etl)
}

/// Charges so much that the connection's group is killed, and uncharges it.
fn need(etl: &Group) {
    drop(etl.try_charge(5 << 20));
}

/// Sorts four megabytes and is killed after the first row. Runs `meanwhile` with the statement
/// open, then reads on.
fn sort_killed(conn: &Connection, etl: &Group, meanwhile: impl FnOnce()) -> rusqlite::Result<()> {
    let mut statement = conn.prepare(&format!("SELECT x FROM {} ORDER BY x", generated(8_000, 500)))?;
    let mut rows = statement.query([])?;
    assert!(rows.next()?.is_some());
    need(etl);
    meanwhile();
    while rows.next()?.is_some() {}
    Ok(())
}

#[track_caller]
fn is_killed<T: std::fmt::Debug>(outcome: Result<T, TenantError>, rolled_back: bool) {
    let failed = outcome.expect_err("it is stopped");
    let details = failed.killed().unwrap_or_else(|| panic!("{failed}"));
    assert_eq!(details.rolled_back(), rolled_back, "{failed}");
}

fn is_interrupted<T>(outcome: &rusqlite::Result<T>) -> bool {
    outcome.as_ref().is_err_and(|error| error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted))
}

fn in_transaction(conn: &TenantConnection) -> bool {
    conn.run(|conn| Ok(!conn.is_autocommit())).expect("no error")
}

fn count(conn: &TenantConnection, table: &str) -> u32 {
    conn.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).expect("a small statement")
}

/// Checks that no transaction is open, no lock is held, and nothing was written.
fn is_clean(conn: &TenantConnection, path: &Path) {
    assert!(!in_transaction(conn), "a transaction is open");
    let other = Connection::open(path).expect("a connection");
    other.execute("UPDATE t SET x = x", []).expect("no lock is held");
    assert_eq!(count(conn, "t"), 3);
}

#[test]
fn rolls_back_after_the_own_rollback_was_stopped() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.db");
    let (conn, etl) = tenants("own", &path);
    let killed = conn.run(|conn| {
        conn.execute_batch("BEGIN; INSERT INTO t VALUES (4)")?;
        sort_killed(conn, &etl, || {
            assert!(is_interrupted(&conn.execute("INSERT INTO t VALUES (5)", [])));
            assert!(is_interrupted(&conn.execute_batch("ROLLBACK")), "a statement is open");
            assert!(!conn.is_autocommit());
        })
    });
    is_killed(killed, true);
    is_clean(&conn, &path);
}

#[test]
fn fails_a_killed_run_that_leaves_its_transaction_open() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.db");
    let (conn, etl) = tenants("hidden", &path);
    let killed = conn.run(|outer| {
        let mut open = outer.prepare("SELECT x FROM t")?;
        let mut rows = open.query([])?;
        rows.next()?;
        let inner = conn.transaction(|transaction| {
            transaction.execute("INSERT INTO t VALUES (4)", [])?;
            sort_killed(transaction, &etl, || ())
        });
        is_killed(inner, false);
        assert!(!outer.is_autocommit(), "its ROLLBACK was stopped");
        Ok(())
    });
    is_killed(killed, true);
    is_clean(&conn, &path);
    let killed = conn.run(|conn| {
        conn.execute_batch("SAVEPOINT a; INSERT INTO t VALUES (4)")?;
        let _ = sort_killed(conn, &etl, || ());
        Ok(())
    });
    is_killed(killed, true);
    is_clean(&conn, &path);
    // A run that has ended its transaction succeeds.
    let worked = conn.run(|conn| {
        conn.execute_batch("BEGIN; UPDATE t SET x = x; COMMIT")?;
        let _ = sort_killed(conn, &etl, || ());
        Ok(())
    });
    worked.expect("nothing is open");
    is_clean(&conn, &path);
}

#[test]
fn rolls_back_after_a_panic_in_a_killed_run() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.db");
    let (conn, etl) = tenants("panic", &path);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        conn.run(|conn| {
            conn.execute_batch("BEGIN; INSERT INTO t VALUES (4)")?;
            sort_killed(conn, &etl, || panic!("on purpose"))
        })
    }));
    assert!(panicked.is_err());
    is_clean(&conn, &path);
}

#[test]
fn keeps_a_transaction_that_began_before_the_run() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.db");
    let (conn, etl) = tenants("before", &path);
    for end in ["ROLLBACK", "COMMIT"] {
        conn.execute_batch("BEGIN; UPDATE t SET x = x").expect("enough memory");
        is_killed(conn.run(|conn| sort_killed(conn, &etl, || ())), false);
        assert!(in_transaction(&conn));
        conn.execute_batch(end).expect("no interrupt is left");
        is_clean(&conn, &path);
    }
}

#[test]
fn rolls_back_when_the_group_has_no_memory_for_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.db");
    let (conn, etl) = tenants("full", &path);
    without_lookaside(&conn);
    let killed = conn.run(|inner| {
        inner.execute_batch("BEGIN; INSERT INTO t VALUES (4)")?;
        let stopped = sort_killed(inner, &etl, || ());
        conn.group().set_max(0).expect("a limit");
        stopped
    });
    is_killed(killed, true);
    conn.group().set_max(None).expect("enough memory");
    is_clean(&conn, &path);
}

/// Length of the write-ahead log after the connection was closed, if there is one.
fn log_after_closing(
    dir: &Path,
    name: &str,
    interrupt: impl FnOnce(&TenantConnection, &Group),
) -> Option<u64> {
    let path = dir.join(name);
    let (conn, etl) = tenants(name, &path);
    conn.execute_batch("PRAGMA journal_mode = WAL; INSERT INTO t SELECT x FROM t").expect("enough memory");
    interrupt(&conn, &etl);
    conn.close().expect("nothing uses it");
    std::fs::metadata(dir.join(format!("{name}-wal"))).ok().map(|log| log.len())
}

#[test]
fn does_not_interrupt_the_checkpoint_at_closing() {
    let dir = tempfile::tempdir().expect("a directory");
    assert_eq!(log_after_closing(dir.path(), "none", |_, _| ()), None);
    let killed = log_after_closing(dir.path(), "killed", |conn, etl| {
        is_killed(conn.run(|conn| sort_killed(conn, etl, || ())), false);
    });
    assert_eq!(killed, None);
    let interrupted = log_after_closing(dir.path(), "idle", |conn, _| conn.interrupt_handle().interrupt());
    assert_eq!(interrupted, None);
}

#[test]
fn leaves_no_interrupt_for_the_next_run() {
    let dir = tempfile::tempdir().expect("a directory");
    let (conn, etl) = tenants("next", &dir.path().join("a.db"));
    conn.execute_batch("PRAGMA journal_mode = WAL; INSERT INTO t VALUES (4)").expect("enough memory");
    is_killed(conn.run(|conn| sort_killed(conn, &etl, || ())), false);
    let (interrupted, code) = conn
        .run(|conn| {
            // SAFETY: the handle is used at once, and the connection is open.
            let handle = unsafe { conn.handle() };
            // SAFETY: as above.
            let interrupted = unsafe { ffi::sqlite3_is_interrupted(handle) };
            let (name, out) = (ptr::null(), ptr::null_mut());
            // SAFETY: as above; null is every database, and no place for numbers.
            Ok((interrupted, unsafe { ffi::sqlite3_wal_checkpoint_v2(handle, name, 0, out, out) }))
        })
        .expect("no error");
    assert_eq!((interrupted, code), (0, ffi::SQLITE_OK));
}

#[test]
fn clears_the_interrupt_despite_a_leaked_statement() {
    let dir = tempfile::tempdir().expect("a directory");
    let (conn, etl) = tenants("leaked", &dir.path().join("a.db"));
    let killed = conn.run(|conn| {
        let statement = Box::leak(Box::new(conn.prepare("SELECT x FROM t")?));
        ManuallyDrop::new(statement.query([])?).next()?;
        conn.execute_batch("BEGIN; INSERT INTO t VALUES (4)")?;
        sort_killed(conn, &etl, || ())
    });
    is_killed(killed, true);
    assert!(conn.run(|conn| Ok(conn.is_busy())).expect("no error"), "it is open");
    for _ in 0..2 {
        assert_eq!(count(&conn, "t"), 3);
        conn.execute("UPDATE t SET x = x", []).expect("the connection is usable");
        is_killed(conn.run(|conn| sort_killed(conn, &etl, || ())), false);
    }
}

/// A blob that stays open from run to run. Only SQLite's C interface can hold one.
struct Blob(*mut ffi::sqlite3_blob);

impl Blob {
    fn open(conn: &Connection) -> Blob {
        // SAFETY: the handle is used at once, and the connection is open.
        let handle = unsafe { conn.handle() };
        let mut blob = ptr::null_mut();
        let (database, table, column) = (c"main".as_ptr(), c"b".as_ptr(), c"x".as_ptr());
        // SAFETY: as above; the names end, and the place is ours.
        let code = unsafe { ffi::sqlite3_blob_open(handle, database, table, column, 1, 0, &raw mut blob) };
        assert_eq!(code, ffi::SQLITE_OK);
        Blob(blob)
    }

    /// Its last byte. `None`: a roll-back has closed it.
    fn read(&self) -> Option<u8> {
        let mut byte = 0_u8;
        // SAFETY: it is open until it is dropped, and the place has one byte.
        let code = unsafe { ffi::sqlite3_blob_read(self.0, (&raw mut byte).cast(), 1, 1) };
        (code == ffi::SQLITE_OK).then_some(byte)
    }
}

impl Drop for Blob {
    fn drop(&mut self) {
        // SAFETY: it is open, and not used after this.
        unsafe { ffi::sqlite3_blob_close(self.0) };
    }
}

#[test]
fn clears_the_interrupt_despite_an_open_blob() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.db");
    let (conn, etl) = tenants("blob", &path);
    conn.execute_batch("CREATE TABLE b (x); INSERT INTO b VALUES (x'0102')").expect("enough memory");
    let blob = conn.run(|conn| Ok(Blob::open(conn))).expect("no error");
    is_killed(conn.run(|conn| sort_killed(conn, &etl, || ())), false);
    assert_eq!(blob.read(), Some(2));
    let killed = conn.run(|conn| {
        conn.execute_batch("BEGIN; INSERT INTO t VALUES (4)")?;
        sort_killed(conn, &etl, || ())
    });
    is_killed(killed, true);
    assert_eq!((in_transaction(&conn), count(&conn, "t")), (false, 3));
    conn.execute_batch("BEGIN; INSERT INTO t VALUES (4)").expect("enough memory");
    is_killed(conn.run(|conn| sort_killed(conn, &etl, || ())), false);
    conn.execute_batch("ROLLBACK").expect("no interrupt is left");
    drop(blob);
    is_clean(&conn, &path);
}

#[test]
fn reports_the_rollback_of_a_commit_killed_in_fts() {
    let dir = tempfile::tempdir().expect("a directory");
    for engine in ["fts4", "fts5"] {
        let (conn, etl) = tenants(engine, &dir.path().join(engine));
        conn.execute_batch(&format!("CREATE VIRTUAL TABLE f USING {engine}(x)")).expect("enough memory");
        let group = conn.group();
        let fill = |conn: &Connection| -> rusqlite::Result<()> {
            conn.execute(&format!("INSERT INTO f SELECT hex(x) FROM {}", generated(200, 100)), [])?;
            conn.execute("INSERT INTO t VALUES (4)", [])?;
            // It makes the group the largest.
            let held = group.try_charge(4 << 20);
            need(&etl);
            drop(held);
            Ok(())
        };
        is_killed(conn.transaction(|transaction| fill(transaction)), true);
        for commit in ["COMMIT", " /* done */ end transaction"] {
            let killed = conn.run(|conn| {
                conn.execute_batch("BEGIN")?;
                fill(conn)?;
                conn.execute_batch(commit)
            });
            is_killed(killed, true);
            assert_eq!(
                (in_transaction(&conn), count(&conn, "t"), count(&conn, "f")),
                (false, 3, 0),
                "{engine}"
            );
        }
        let killed = conn.run(|conn| {
            conn.execute_batch("SAVEPOINT a")?;
            fill(conn)?;
            conn.execute_batch("RELEASE a")
        });
        is_killed(killed, true);
    }
}

/// Kills a connection at one call of its progress handler.
struct KillAtCall {
    etl: Group,
    at: u32,
    calls: Cell<u32>,
}

unsafe extern "C" fn on_progress(kill: *mut c_void) -> c_int {
    // SAFETY: it outlives the handler.
    let kill = unsafe { &*kill.cast::<KillAtCall>() };
    kill.calls.set(kill.calls.get() + 1);
    if kill.calls.get() == kill.at {
        need(&kill.etl);
    }
    0
}

#[test]
fn reports_no_rollback_of_a_killed_vacuum() {
    let dir = tempfile::tempdir().expect("a directory");
    let (conn, etl) = tenants("vacuum", &dir.path().join("a.db"));
    conn.execute_batch(&format!(
        "PRAGMA cache_size = -200; INSERT INTO t SELECT x FROM {}",
        generated(200, 100)
    ))
    .expect("enough memory");
    let held = conn.group().try_charge(4 << 20).expect("enough memory");
    let (mut stopped, mut at) = (0, 1);
    loop {
        let kill = KillAtCall { etl: etl.clone(), at, calls: Cell::new(0) };
        let outcome = conn.run(|conn| {
            // SAFETY: the handle is used at once, and the connection is open.
            let handle = unsafe { conn.handle() };
            let argument = (&raw const kill).cast_mut().cast::<c_void>();
            // SAFETY: as above; the argument outlives the handler, which is taken off below.
            unsafe { ffi::sqlite3_progress_handler(handle, 5, Some(on_progress), argument) };
            let outcome = conn.execute_batch("VACUUM");
            // SAFETY: as above.
            unsafe { ffi::sqlite3_progress_handler(handle, 0, None, ptr::null_mut()) };
            outcome
        });
        match outcome {
            Err(TenantError::Killed(details)) => {
                assert!(!details.rolled_back(), "at {at}");
                stopped += 1;
            }
            Err(failed) => panic!("at {at}: {failed}"),
            Ok(()) if kill.calls.get() < at => break,
            Ok(()) => {}
        }
        assert_eq!((in_transaction(&conn), count(&conn, "t")), (false, 203), "at {at}");
        at += 1 + at / 4;
    }
    assert!(stopped > 3, "stopped {stopped} times");
    drop(held);
    // A VACUUM that ran out of memory has no transaction to roll back either.
    let (mut failures, mut spare_bytes) = (0, 0);
    loop {
        conn.group().set_max(conn.group().usage_exact() + spare_bytes).expect("a limit");
        let outcome = conn.execute_batch("VACUUM");
        conn.group().set_max(None).expect("no limit");
        match outcome {
            Err(TenantError::OutOfMemory(details)) => {
                assert!(!details.rolled_back(), "with {spare_bytes}");
                failures += 1;
            }
            Err(failed) => panic!("{failed}"),
            Ok(()) => break,
        }
        spare_bytes += 4_096;
    }
    assert!(failures > 0);
}
