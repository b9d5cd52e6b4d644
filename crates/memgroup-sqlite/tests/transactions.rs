//! What is left of a transaction in which memory ran out, and that the error tells.

#![allow(unsafe_code)]

mod process;

use std::ffi::{c_int, c_void};
use std::path::Path;

use memgroup::{Group, UNLIMITED};
use memgroup_sqlite::{TenantConnection, TenantError};
use process::{generated, hierarchy, sort, tenant};
use rusqlite::ffi;

const ROWS: &str = "SELECT count(*) FROM t";

fn count(conn: &TenantConnection) -> i64 {
    conn.query_row(ROWS, [], |row| row.get(0)).expect("a small statement")
}

/// A connection to a fresh database with a table, in a group that may hold two megabytes.
fn connect(group: &Group, path: &Path) -> TenantConnection {
    hierarchy();
    group.set_max(2 << 20).expect("a limit");
    let conn = TenantConnection::open(group, path).expect("a connection");
    conn.execute_batch(
        "PRAGMA temp_store = MEMORY; CREATE TABLE t (id INTEGER PRIMARY KEY, x UNIQUE NOT NULL)",
    )
    .expect("a table");
    conn
}

fn in_transaction(conn: &TenantConnection) -> bool {
    conn.run(|conn| Ok(!conn.is_autocommit())).expect("nothing to fail")
}

#[test]
fn a_query_over_the_limit_rolls_its_transaction_back() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("query"));
    let conn = connect(&group, &dir.path().join("a.db"));
    conn.execute_batch("BEGIN; INSERT INTO t VALUES (1, 'before')").expect("a small statement");
    let failed =
        conn.query_row(&format!("SELECT (SELECT count(*) FROM t) + ({})", sort(20_000, 500)), [], |row| {
            row.get::<_, i64>(0)
        });
    let failed = failed.expect_err("ten megabytes do not fit in two");
    assert!(failed.out_of_memory().is_some_and(|details| details.rolled_back()), "{failed}");
    assert!(
        failed.rolled_back() && failed.to_string().ends_with("the transaction was rolled back"),
        "{failed}"
    );
    assert!(!in_transaction(&conn));
    assert_eq!(count(&conn), 0);
    conn.execute("INSERT INTO t VALUES (2, 'after')", []).expect("the connection is usable");
    assert_eq!(count(&conn), 1);
}

#[test]
fn a_write_that_can_be_undone_alone_leaves_its_transaction_open() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("write"));
    let conn = connect(&group, &dir.path().join("a.db"));
    conn.execute_batch("BEGIN; INSERT INTO t VALUES (1, 'before')").expect("a small statement");
    let insert = format!("INSERT INTO t SELECT i + 1, x FROM {} ORDER BY x", generated(20_000, 500));
    let failed = conn.execute(&insert, []).expect_err("ten megabytes do not fit in two");
    assert!(failed.out_of_memory().is_some_and(|details| !details.rolled_back()), "{failed}");
    assert!(in_transaction(&conn));
    assert_eq!(count(&conn), 1, "rows of the failed statement stayed");
    conn.execute_batch("INSERT INTO t VALUES (2, 'after'); COMMIT").expect("the transaction goes on");
    drop(conn);
    let again = TenantConnection::open(&group, dir.path().join("a.db")).expect("a connection");
    assert_eq!(count(&again), 2);
}

#[test]
fn a_statement_that_cannot_be_prepared_leaves_its_transaction_open() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("prepare"));
    let conn = connect(&group, &dir.path().join("a.db"));
    conn.execute_batch("BEGIN; INSERT INTO t VALUES (1, 'before')").expect("a small statement");
    let long = format!("SELECT '{}'", "x".repeat(4 << 20));
    let failed = conn.query_row(&long, [], |_| Ok(())).expect_err("four megabytes of text do not fit in two");
    assert!(failed.out_of_memory().is_some_and(|details| !details.rolled_back()), "{failed}");
    assert!(in_transaction(&conn));
    conn.execute_batch("COMMIT").expect("the transaction goes on");
    assert_eq!(count(&conn), 1);
}

#[test]
fn a_transaction_closure_that_fails_is_rolled_back_and_says_so() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("closure"));
    let conn = connect(&group, &dir.path().join("a.db"));
    conn.transaction(|transaction| transaction.execute("INSERT INTO t VALUES (1, 'kept')", []))
        .expect("room");
    let failed = conn
        .transaction(|transaction| {
            transaction.execute("INSERT INTO t VALUES (2, 'lost')", [])?;
            transaction.execute(
                &format!("INSERT INTO t SELECT i + 2, x FROM {} ORDER BY x", generated(20_000, 500)),
                [],
            )
        })
        .expect_err("ten megabytes do not fit in two");
    assert!(failed.out_of_memory().is_some_and(|details| details.rolled_back()), "{failed}");
    assert_eq!(count(&conn), 1);

    let failed = conn
        .transaction(|transaction| {
            transaction.execute("INSERT INTO t VALUES (3, 'lost')", [])?;
            transaction.execute("INSERT INTO t VALUES (4, 'kept')", [])
        })
        .expect_err("the value is not unique");
    assert!(matches!(failed, TenantError::Sqlite { rolled_back: true, .. }), "{failed}");
    assert_eq!(count(&conn), 1);
}

#[test]
fn a_transaction_begun_in_the_same_run_is_told_too() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("same"));
    let conn = connect(&group, &dir.path().join("a.db"));
    let failed = conn
        .execute_batch(&format!(
            "BEGIN; INSERT INTO t VALUES (1, 'lost'); SELECT (SELECT count(*) FROM t) + ({})",
            sort(20_000, 500)
        ))
        .expect_err("ten megabytes do not fit in two");
    assert!(failed.out_of_memory().is_some_and(|details| details.rolled_back()), "{failed}");
    assert!(!in_transaction(&conn));
    assert_eq!(count(&conn), 0);
}

#[test]
fn a_statement_of_its_own_is_no_transaction() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("own"));
    let conn = connect(&group, &dir.path().join("a.db"));
    let insert = format!("INSERT INTO t SELECT i, x FROM {} ORDER BY x", generated(20_000, 500));
    let failed = conn.execute(&insert, []).expect_err("ten megabytes do not fit in two");
    assert!(failed.out_of_memory().is_some_and(|details| !details.rolled_back()), "{failed}");
    let failed =
        conn.query_row(&sort(20_000, 500), [], |_| Ok(())).expect_err("ten megabytes do not fit in two");
    assert!(!failed.rolled_back(), "{failed}");
    assert_eq!(count(&conn), 0);
}

#[test]
fn a_rollback_is_told_to_the_connection_it_happened_on() {
    let (dir, group, inner_group) =
        (tempfile::tempdir().expect("a directory"), tenant("outside"), tenant("inside"));
    let conn = connect(&group, &dir.path().join("a.db"));
    let inner = connect(&inner_group, &dir.path().join("b.db"));
    inner.execute_batch("BEGIN; INSERT INTO t VALUES (1, 'lost')").expect("a small statement");
    let failed = conn
        .run(|conn| {
            let sum = format!("SELECT (SELECT count(*) FROM t) + ({})", sort(20_000, 500));
            let failed = inner.query_row(&sum, [], |_| Ok(())).expect_err("ten megabytes do not fit in two");
            assert!(failed.rolled_back(), "{failed}");
            conn.execute("SELECT nothing FROM nowhere", [])
        })
        .expect_err("there is no such table");
    assert!(!failed.rolled_back(), "{failed}");
}

/// Takes the connection's lookaside away, so that every allocation asks the group.
fn without_lookaside(conn: &TenantConnection) {
    let set = conn.run(|conn| {
        // SAFETY: the handle is used at once, and the connection is open and idle.
        let handle = unsafe { conn.handle() };
        let lookaside = std::ptr::null_mut::<c_void>();
        // SAFETY: this option takes a pointer and two ints; no slots means no lookaside.
        let code = unsafe {
            ffi::sqlite3_db_config(handle, ffi::SQLITE_DBCONFIG_LOOKASIDE, lookaside, 0 as c_int, 0 as c_int)
        };
        assert_eq!(code, ffi::SQLITE_OK);
        Ok(())
    });
    set.expect("nothing to fail");
}

/// How a COMMIT ended under a limit that left it `spare_bytes`, with two databases in one transaction. Whatever
/// happens, error and databases must tell the same.
fn commit_with(spare_bytes: u64, journal: &str, dir: &Path) -> Result<(), TenantError> {
    let name = format!("{journal}{spare_bytes}");
    let (path, other, group) = (dir.join(&name), dir.join(format!("{name}-other")), tenant(&name));
    let conn = connect(&group, &path);
    without_lookaside(&conn);
    conn.execute("ATTACH ?1 AS other", [other.to_str().expect("a name in UTF-8")]).expect("room");
    conn.execute_batch(&format!(
        "CREATE TABLE other.u (x); PRAGMA main.journal_mode = {journal}; PRAGMA other.journal_mode = {journal}; BEGIN"
    ))
    .expect("a transaction");
    conn.execute(&format!("INSERT INTO t SELECT i, x FROM {}", generated(300, 500)), []).expect("room");
    conn.execute("INSERT INTO other.u SELECT x FROM t", []).expect("room");

    group.set_max(group.usage_exact() + spare_bytes).expect("a limit");
    let committed = conn.execute_batch("COMMIT");
    group.set_max(UNLIMITED).expect("no limit");

    let rows = "SELECT (SELECT count(*) FROM t) + (SELECT count(*) FROM other.u)";
    let count =
        |conn: &TenantConnection| -> i64 { conn.query_row(rows, [], |row| row.get(0)).expect("rows") };
    let expected = match &committed {
        Ok(()) => 600,
        Err(error) => {
            assert!(error.out_of_memory().is_some(), "{name}: {error}");
            assert_eq!(error.rolled_back(), !in_transaction(&conn), "{name}: {error}");
            if error.rolled_back() { 0 } else { 600 }
        }
    };
    assert_eq!(count(&conn), expected, "{name}: {committed:?}");
    if in_transaction(&conn) {
        conn.execute_batch("COMMIT").unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    drop(conn);
    let again = TenantConnection::open(&group, &path).expect("a connection");
    again.execute("ATTACH ?1 AS other", [other.to_str().expect("a name in UTF-8")]).expect("room");
    assert_eq!(count(&again), expected, "{name}: {committed:?}, then closed and opened");
    drop(again);
    assert_eq!(group.usage_exact(), 0, "{name}");
    committed
}

#[test]
fn a_commit_without_memory_either_happens_or_says_what_is_left() {
    let dir = tempfile::tempdir().expect("a directory");
    for journal in ["DELETE", "WAL"] {
        let (mut kept_open, mut rolled_back, mut spare_bytes) = (0, 0, 0);
        while let Err(error) = commit_with(spare_bytes, journal, dir.path()) {
            *(if error.rolled_back() { &mut rolled_back } else { &mut kept_open }) += 1;
            spare_bytes += 73;
        }
        assert!(kept_open > 0, "{journal}: COMMIT was never refused before it began");
        assert_eq!(rolled_back > 0, journal == "DELETE", "{journal}: {rolled_back} commits failed half way");
    }
}

/// A query that SQLite cannot finish in two megabytes, and rolls its transaction back for.
fn overrun(conn: &rusqlite::Connection) {
    let sum = format!("SELECT (SELECT count(*) FROM t) + ({})", sort(20_000, 500));
    conn.query_row(&sum, [], |_| Ok(())).expect_err("ten megabytes do not fit in two");
}

#[test]
fn a_transaction_closure_that_ignores_a_rollback_commits_nothing_after_it() {
    let (dir, group, other_group) =
        (tempfile::tempdir().expect("a directory"), tenant("ignoring"), tenant("bystander"));
    let conn = connect(&group, &dir.path().join("a.db"));
    let other = connect(&other_group, &dir.path().join("b.db"));
    let insert = "INSERT INTO t VALUES (2, 'after')";

    let failed = conn
        .transaction(|transaction| {
            transaction.execute("INSERT INTO t VALUES (1, 'before')", [])?;
            overrun(transaction);
            transaction.execute(insert, [])
        })
        .expect_err("the transaction is gone");
    assert!(failed.rolled_back(), "{failed}");
    assert_eq!(count(&conn), 0, "{failed}");

    // Errors ignored to the end; also in a transaction of the closure's own, and in a nested one.
    let failed = conn
        .transaction(|transaction| {
            overrun(transaction);
            transaction.execute(insert, []).expect_err("it would be committed at once");
            transaction
                .execute_batch("BEGIN; INSERT INTO t VALUES (3, 'own'); COMMIT")
                .expect_err("a commit");
            conn.transaction(|inner| inner.execute(insert, [])).expect_err("a commit");
            conn.execute(insert, []).expect_err("a commit");
            other.execute(insert, []).expect("another connection is not concerned");
            Ok(())
        })
        .expect_err("the transaction is gone");
    assert!(failed.rolled_back(), "{failed}");
    assert_eq!((count(&conn), count(&other)), (0, 1), "{failed}");

    let failed = conn
        .transaction(|transaction| transaction.execute_batch(&format!("ROLLBACK; BEGIN; {insert}")))
        .expect_err("the transaction is gone");
    assert!(failed.rolled_back(), "{failed}");
    assert_eq!(count(&conn), 0, "{failed}");

    // Within another connection's use it is this connection's rollback all the same.
    let failed = conn
        .transaction(|transaction| {
            // The group in force is the other's: two megabytes as well.
            other
                .run(|_| {
                    overrun(transaction);
                    Ok(())
                })
                .expect("the error is ignored");
            transaction.execute(insert, [])
        })
        .expect_err("the transaction is gone");
    assert!(failed.rolled_back(), "{failed}");
    assert_eq!(count(&conn), 0, "{failed}");

    conn.transaction(|transaction| transaction.execute(insert, [])).expect("the next one is free again");
    conn.execute("INSERT INTO t VALUES (3, 'alone')", []).expect("so is a statement of its own");
    assert_eq!(count(&conn), 2);
}

#[test]
fn a_transaction_that_is_still_open_was_not_rolled_back() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("again"));
    let conn = connect(&group, &dir.path().join("a.db"));
    let failed = conn
        .execute_batch(
            "BEGIN; INSERT INTO t VALUES (1, 'lost'); ROLLBACK;
             BEGIN; INSERT INTO t VALUES (2, 'kept'); INSERT INTO t VALUES (3, 'kept')",
        )
        .expect_err("the value is not unique");
    assert!(!failed.rolled_back(), "{failed}");
    assert!(in_transaction(&conn) && !failed.to_string().contains("rolled back"), "{failed}");
    conn.execute_batch("COMMIT").expect("the second transaction goes on");
    assert_eq!(count(&conn), 1);
}

#[test]
fn a_rollback_is_told_to_the_uses_it_happened_in_and_to_no_other() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("uses"));
    let conn = connect(&group, &dir.path().join("a.db"));
    let fail = "SELECT nothing FROM nowhere";
    let failed = conn
        .run(|inner| {
            inner.execute_batch("BEGIN; ROLLBACK")?;
            let failed = conn.execute(fail, []).expect_err("there is no such table");
            assert!(!failed.rolled_back(), "the inner use was told of what came before it: {failed}");
            inner.execute(fail, [])
        })
        .expect_err("there is no such table");
    assert!(failed.rolled_back(), "{failed}");

    let failed = conn.execute(fail, []).expect_err("there is no such table");
    assert!(!failed.rolled_back(), "the next use was told: {failed}");

    let failed = conn
        .run(|outer| {
            conn.execute_batch("BEGIN; ROLLBACK").expect("nothing to fail");
            outer.execute(fail, [])
        })
        .expect_err("there is no such table");
    assert!(failed.rolled_back(), "what a use within a use rolls back happens in both: {failed}");
}

#[test]
fn a_commit_that_runs_out_of_memory_while_a_virtual_table_writes_says_what_is_left() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("virtual"));
    let conn = connect(&group, &dir.path().join("a.db"));
    conn.execute_batch("CREATE VIRTUAL TABLE f USING fts5(x)").expect("room");
    let (mut rolled_back, mut spare_bytes) = (0, 0);
    loop {
        conn.execute_batch("BEGIN; INSERT INTO t VALUES (1, 'a')").expect("a small statement");
        conn.execute(&format!("INSERT INTO f SELECT hex(x) FROM {}", generated(100, 100)), []).expect("room");
        conn.release_memory().expect("nothing to fail");
        group.set_max(group.usage_exact() + spare_bytes).expect("a limit");
        let committed = conn.execute_batch("COMMIT");
        group.set_max(UNLIMITED).expect("no limit");
        let Err(failed) = committed else { break };
        assert_eq!(failed.rolled_back(), !in_transaction(&conn), "with {spare_bytes} bytes: {failed}");
        rolled_back += u32::from(failed.rolled_back());
        if in_transaction(&conn) {
            conn.execute_batch("ROLLBACK").expect("room");
        }
        assert_eq!(count(&conn), 0, "with {spare_bytes} bytes: {failed}");
        spare_bytes += 2_048;
    }
    assert!(rolled_back > 0, "COMMIT never failed half way");
    assert_eq!(count(&conn), 1);
}
