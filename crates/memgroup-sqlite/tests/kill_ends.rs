//! A kill ends with its use: nothing of it is left on the connection, and what became of the transaction is told.

#![allow(unsafe_code)]

mod process;

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr;

use memgroup::Group;
use memgroup_sqlite::rusqlite::{self, Connection, ErrorCode, ffi};
use memgroup_sqlite::{TenantConnection, TenantError};
use process::{generated, hierarchy, tenant_with_max};

/// A group with eight megabytes, in which somebody else needs five of them, and a connection with a table of three rows.
fn tenants(name: &str, path: &Path) -> (TenantConnection, Group) {
    hierarchy();
    let tenants = tenant_with_max(name, 8 << 20);
    let (group, etl) = (tenants.create("runaway").expect("a group"), tenants.create("etl").expect("a group"));
    let conn = TenantConnection::open(&group, path).expect("a connection");
    conn.execute_batch("PRAGMA temp_store = MEMORY; CREATE TABLE t (x); INSERT INTO t VALUES (1), (2), (3)")
        .expect("room");
    (conn, etl)
}

/// Needs so much that the connection's group has to stop. What it gets is given back.
fn need(etl: &Group) {
    drop(etl.try_charge(5 << 20));
}

/// Sorts four megabytes, and is told to stop after the first row; then has `meanwhile` done with the statement open, and goes on.
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
    conn.run(|conn| Ok(!conn.is_autocommit())).expect("nothing to fail")
}

fn count(conn: &TenantConnection, table: &str) -> u32 {
    conn.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).expect("a small statement")
}

/// Nothing is open, nobody is shut out, and nothing was written.
fn is_clean(conn: &TenantConnection, path: &Path) {
    assert!(!in_transaction(conn), "a transaction is open");
    let other = Connection::open(path).expect("a connection");
    other.execute("UPDATE t SET x = x", []).expect("nobody holds a lock");
    assert_eq!(count(conn, "t"), 3);
}

#[test]
fn a_transaction_whose_rollback_was_stopped_too_is_rolled_back_at_the_end_of_the_use() {
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
fn a_use_that_hides_that_it_was_stopped_and_leaves_its_transaction_open_fails() {
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
    // One that has ended its transaction has succeeded.
    let worked = conn.run(|conn| {
        conn.execute_batch("BEGIN; UPDATE t SET x = x; COMMIT")?;
        let _ = sort_killed(conn, &etl, || ());
        Ok(())
    });
    worked.expect("nothing is open");
    is_clean(&conn, &path);
}

#[test]
fn a_panic_in_a_use_that_was_stopped_leaves_no_transaction_open() {
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
fn a_transaction_that_was_begun_before_stays_and_can_be_ended() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.db");
    let (conn, etl) = tenants("before", &path);
    for end in ["ROLLBACK", "COMMIT"] {
        conn.execute_batch("BEGIN; UPDATE t SET x = x").expect("room");
        is_killed(conn.run(|conn| sort_killed(conn, &etl, || ())), false);
        assert!(in_transaction(&conn));
        conn.execute_batch(end).expect("nothing of the kill is left");
        is_clean(&conn, &path);
    }
}

#[test]
fn a_transaction_is_rolled_back_also_where_its_group_has_no_room_for_that() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.db");
    let (conn, etl) = tenants("full", &path);
    let set = conn.run(|conn| {
        // SAFETY: the handle is used at once, and the connection is open and idle.
        let handle = unsafe { conn.handle() };
        let lookaside = ptr::null_mut::<c_void>();
        // SAFETY: this option takes a pointer and two ints; no slots means no lookaside.
        let code = unsafe {
            ffi::sqlite3_db_config(handle, ffi::SQLITE_DBCONFIG_LOOKASIDE, lookaside, 0 as c_int, 0 as c_int)
        };
        assert_eq!(code, ffi::SQLITE_OK);
        Ok(())
    });
    set.expect("nothing to fail");
    let killed = conn.run(|inner| {
        inner.execute_batch("BEGIN; INSERT INTO t VALUES (4)")?;
        let stopped = sort_killed(inner, &etl, || ());
        conn.group().set_max(0).expect("no room");
        stopped
    });
    is_killed(killed, true);
    conn.group().set_max(memgroup::UNLIMITED).expect("room");
    is_clean(&conn, &path);
}

/// What the write-ahead log has after the connection was closed, if it is there.
fn log_after_closing(
    dir: &Path,
    name: &str,
    interrupt: impl FnOnce(&TenantConnection, &Group),
) -> Option<u64> {
    let path = dir.join(name);
    let (conn, etl) = tenants(name, &path);
    conn.execute_batch("PRAGMA journal_mode = WAL; INSERT INTO t SELECT x FROM t").expect("room");
    interrupt(&conn, &etl);
    conn.close().expect("nothing uses it");
    std::fs::metadata(dir.join(format!("{name}-wal"))).ok().map(|log| log.len())
}

#[test]
fn the_checkpoint_at_closing_is_not_interrupted_by_what_was_before() {
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
fn the_next_use_knows_nothing_of_it_also_where_it_runs_no_statement() {
    let dir = tempfile::tempdir().expect("a directory");
    let (conn, etl) = tenants("next", &dir.path().join("a.db"));
    conn.execute_batch("PRAGMA journal_mode = WAL; INSERT INTO t VALUES (4)").expect("room");
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
        .expect("nothing to fail");
    assert_eq!((interrupted, code), (0, ffi::SQLITE_OK));
}

#[test]
fn a_statement_that_was_forgotten_while_open_does_not_keep_the_interrupt() {
    let dir = tempfile::tempdir().expect("a directory");
    let (conn, etl) = tenants("leaked", &dir.path().join("a.db"));
    let killed = conn.run(|conn| {
        let statement = Box::leak(Box::new(conn.prepare("SELECT x FROM t")?));
        ManuallyDrop::new(statement.query([])?).next()?;
        conn.execute_batch("BEGIN; INSERT INTO t VALUES (4)")?;
        sort_killed(conn, &etl, || ())
    });
    is_killed(killed, true);
    assert!(conn.run(|conn| Ok(conn.is_busy())).expect("nothing to fail"), "it is open");
    for _ in 0..2 {
        assert_eq!(count(&conn, "t"), 3);
        conn.execute("UPDATE t SET x = x", []).expect("the connection is usable");
        is_killed(conn.run(|conn| sort_killed(conn, &etl, || ())), false);
    }
}

/// A blob that stays open from use to use, as only SQLite's own interface can hold one.
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

    /// Its last byte. None: it has been closed by a roll-back.
    fn read(&self) -> Option<u8> {
        let mut byte = 0_u8;
        // SAFETY: it is open until it is dropped, and the place has one byte.
        let code = unsafe { ffi::sqlite3_blob_read(self.0, (&raw mut byte).cast(), 1, 1) };
        (code == ffi::SQLITE_OK).then_some(byte)
    }
}

impl Drop for Blob {
    fn drop(&mut self) {
        // SAFETY: it is open, and nobody uses it any more.
        unsafe { ffi::sqlite3_blob_close(self.0) };
    }
}

#[test]
fn an_open_blob_does_not_keep_the_interrupt_and_stays_readable() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("a.db");
    let (conn, etl) = tenants("blob", &path);
    conn.execute_batch("CREATE TABLE b (x); INSERT INTO b VALUES (x'0102')").expect("room");
    let blob = conn.run(|conn| Ok(Blob::open(conn))).expect("nothing to fail");
    is_killed(conn.run(|conn| sort_killed(conn, &etl, || ())), false);
    assert_eq!(blob.read(), Some(2));
    let killed = conn.run(|conn| {
        conn.execute_batch("BEGIN; INSERT INTO t VALUES (4)")?;
        sort_killed(conn, &etl, || ())
    });
    is_killed(killed, true);
    assert_eq!((in_transaction(&conn), count(&conn, "t")), (false, 3));
    conn.execute_batch("BEGIN; INSERT INTO t VALUES (4)").expect("room");
    is_killed(conn.run(|conn| sort_killed(conn, &etl, || ())), false);
    conn.execute_batch("ROLLBACK").expect("nothing of the kill is left");
    drop(blob);
    is_clean(&conn, &path);
}

#[test]
fn a_commit_that_was_stopped_while_a_virtual_table_wrote_has_rolled_back_and_says_so() {
    let dir = tempfile::tempdir().expect("a directory");
    for engine in ["fts4", "fts5"] {
        let (conn, etl) = tenants(engine, &dir.path().join(engine));
        conn.execute_batch(&format!("CREATE VIRTUAL TABLE f USING {engine}(x)")).expect("room");
        let group = conn.group();
        let fill = |conn: &Connection| -> rusqlite::Result<()> {
            conn.execute(&format!("INSERT INTO f SELECT hex(x) FROM {}", generated(200, 100)), [])?;
            conn.execute("INSERT INTO t VALUES (4)", [])?;
            // What the group has most to lose.
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

/// Tells a connection to stop at one call of its progress handler.
struct Telling {
    etl: Group,
    at: u32,
    calls: Cell<u32>,
}

unsafe extern "C" fn tell(telling: *mut c_void) -> c_int {
    // SAFETY: it outlives the handler.
    let telling = unsafe { &*telling.cast::<Telling>() };
    telling.calls.set(telling.calls.get() + 1);
    if telling.calls.get() == telling.at {
        need(&telling.etl);
    }
    0
}

#[test]
fn a_vacuum_that_was_stopped_has_no_transaction_to_roll_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let (conn, etl) = tenants("vacuum", &dir.path().join("a.db"));
    conn.execute_batch(&format!(
        "PRAGMA cache_size = -200; INSERT INTO t SELECT x FROM {}",
        generated(200, 100)
    ))
    .expect("room");
    let held = conn.group().try_charge(4 << 20).expect("room");
    let (mut stopped, mut at) = (0, 1);
    loop {
        let telling = Telling { etl: etl.clone(), at, calls: Cell::new(0) };
        let outcome = conn.run(|conn| {
            // SAFETY: the handle is used at once, and the connection is open.
            let handle = unsafe { conn.handle() };
            let argument = (&raw const telling).cast_mut().cast::<c_void>();
            // SAFETY: as above; the argument outlives the handler, which is taken off below.
            unsafe { ffi::sqlite3_progress_handler(handle, 5, Some(tell), argument) };
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
            Ok(()) if telling.calls.get() < at => break,
            Ok(()) => {}
        }
        assert_eq!((in_transaction(&conn), count(&conn, "t")), (false, 203), "at {at}");
        at += 1 + at / 4;
    }
    assert!(stopped > 3, "stopped {stopped} times");
    drop(held);
    // Nor has one that ran out of memory.
    let (mut failures, mut spare_bytes) = (0, 0);
    loop {
        conn.group().set_max(conn.group().usage_exact() + spare_bytes).expect("a limit");
        let outcome = conn.execute_batch("VACUUM");
        conn.group().set_max(memgroup::UNLIMITED).expect("no limit");
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
