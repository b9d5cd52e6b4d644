//! The state of a transaction in which memory ran out, and the error's report of it.

use std::path::Path;

use crate::support::{generated, hierarchy, sort, tenant, without_lookaside};
use memgroup::Group;
use memgroup_sqlite::{TenantConnection, TenantError};

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
    conn.run(|conn| Ok(!conn.is_autocommit())).expect("no error")
}

#[test]
fn rolls_back_after_a_query_over_the_limit() {
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
fn stays_open_after_a_write_that_can_be_undone_alone() {
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
fn stays_open_when_a_statement_cannot_be_prepared() {
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
fn rolls_back_when_the_closure_fails() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("closure"));
    let conn = connect(&group, &dir.path().join("a.db"));
    conn.transaction(|transaction| transaction.execute("INSERT INTO t VALUES (1, 'kept')", []))
        .expect("enough memory");
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
fn reports_the_rollback_of_a_transaction_of_the_same_run() {
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
fn reports_no_rollback_of_a_single_statement() {
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
fn reports_a_rollback_on_its_own_connection_only() {
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

/// The outcome of a COMMIT that had `spare_bytes`, with two databases in one transaction. The error
/// and the databases must agree.
fn commit_with(spare_bytes: u64, journal: &str, dir: &Path) -> Result<(), TenantError> {
    let name = format!("{journal}{spare_bytes}");
    let (path, other, group) = (dir.join(&name), dir.join(format!("{name}-other")), tenant(&name));
    let conn = connect(&group, &path);
    without_lookaside(&conn);
    conn.execute("ATTACH ?1 AS other", [other.to_str().expect("a name in UTF-8")]).expect("enough memory");
    conn.execute_batch(&format!(
        "CREATE TABLE other.u (x); PRAGMA main.journal_mode = {journal}; PRAGMA other.journal_mode = {journal}; BEGIN"
    ))
    .expect("a transaction");
    conn.execute(&format!("INSERT INTO t SELECT i, x FROM {}", generated(300, 500)), [])
        .expect("enough memory");
    conn.execute("INSERT INTO other.u SELECT x FROM t", []).expect("enough memory");

    group.set_max(group.usage_exact() + spare_bytes).expect("a limit");
    let committed = conn.execute_batch("COMMIT");
    group.set_max(None).expect("no limit");

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
    again.execute("ATTACH ?1 AS other", [other.to_str().expect("a name in UTF-8")]).expect("enough memory");
    assert_eq!(count(&again), expected, "{name}: {committed:?}, then closed and opened");
    drop(again);
    assert_eq!(group.usage_exact(), 0, "{name}");
    committed
}

#[test]
fn reports_whether_a_refused_commit_rolled_back() {
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

/// Runs a query that does not fit in two megabytes; SQLite rolls its transaction back.
fn exceed_limit(conn: &rusqlite::Connection) {
    let sum = format!("SELECT (SELECT count(*) FROM t) + ({})", sort(20_000, 500));
    conn.query_row(&sum, [], |_| Ok(())).expect_err("ten megabytes do not fit in two");
}

#[test]
fn commits_nothing_after_an_ignored_rollback() {
    let (dir, group, other_group) =
        (tempfile::tempdir().expect("a directory"), tenant("ignoring"), tenant("bystander"));
    let conn = connect(&group, &dir.path().join("a.db"));
    let other = connect(&other_group, &dir.path().join("b.db"));
    let insert = "INSERT INTO t VALUES (2, 'after')";

    let failed = conn
        .transaction(|transaction| {
            transaction.execute("INSERT INTO t VALUES (1, 'before')", [])?;
            exceed_limit(transaction);
            transaction.execute(insert, [])
        })
        .expect_err("the transaction is gone");
    assert!(failed.rolled_back(), "{failed}");
    assert_eq!(count(&conn), 0, "{failed}");

    // Errors are ignored to the end, also in a transaction that the closure begins, and in a nested
    // one.
    let failed = conn
        .transaction(|transaction| {
            exceed_limit(transaction);
            transaction.execute(insert, []).expect_err("it would be committed at once");
            transaction
                .execute_batch("BEGIN; INSERT INTO t VALUES (3, 'own'); COMMIT")
                .expect_err("a commit");
            conn.transaction(|inner| inner.execute(insert, [])).expect_err("a commit");
            conn.execute(insert, []).expect_err("a commit");
            other.execute(insert, []).expect("it is another connection");
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

    // A rollback within a run of another connection counts as well.
    let failed = conn
        .transaction(|transaction| {
            // The other's group is current: two megabytes as well.
            other
                .run(|_| {
                    exceed_limit(transaction);
                    Ok(())
                })
                .expect("the error is ignored");
            transaction.execute(insert, [])
        })
        .expect_err("the transaction is gone");
    assert!(failed.rolled_back(), "{failed}");
    assert_eq!(count(&conn), 0, "{failed}");

    conn.transaction(|transaction| transaction.execute(insert, [])).expect("the next transaction can commit");
    conn.execute("INSERT INTO t VALUES (3, 'alone')", []).expect("so can a single statement");
    assert_eq!(count(&conn), 2);
}

#[test]
fn reports_no_rollback_while_a_transaction_is_open() {
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
fn reports_a_rollback_to_the_runs_around_it_only() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("uses"));
    let conn = connect(&group, &dir.path().join("a.db"));
    let fail = "SELECT nothing FROM nowhere";
    let failed = conn
        .run(|inner| {
            inner.execute_batch("BEGIN; ROLLBACK")?;
            let failed = conn.execute(fail, []).expect_err("there is no such table");
            assert!(!failed.rolled_back(), "an earlier rollback was reported to the inner run: {failed}");
            inner.execute(fail, [])
        })
        .expect_err("there is no such table");
    assert!(failed.rolled_back(), "{failed}");

    let failed = conn.execute(fail, []).expect_err("there is no such table");
    assert!(!failed.rolled_back(), "it was reported to the next run: {failed}");

    let failed = conn
        .run(|outer| {
            conn.execute_batch("BEGIN; ROLLBACK").expect("no error");
            outer.execute(fail, [])
        })
        .expect_err("there is no such table");
    assert!(failed.rolled_back(), "it was not reported to the outer run: {failed}");
}

#[test]
fn reports_a_commit_refused_while_fts5_writes() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("virtual"));
    let conn = connect(&group, &dir.path().join("a.db"));
    conn.execute_batch("CREATE VIRTUAL TABLE f USING fts5(x)").expect("enough memory");
    let (mut rolled_back, mut spare_bytes) = (0, 0);
    loop {
        conn.execute_batch("BEGIN; INSERT INTO t VALUES (1, 'a')").expect("a small statement");
        conn.execute(&format!("INSERT INTO f SELECT hex(x) FROM {}", generated(100, 100)), [])
            .expect("enough memory");
        conn.release_memory().expect("no error");
        group.set_max(group.usage_exact() + spare_bytes).expect("a limit");
        let committed = conn.execute_batch("COMMIT");
        group.set_max(None).expect("no limit");
        let Err(failed) = committed else { break };
        assert_eq!(failed.rolled_back(), !in_transaction(&conn), "with {spare_bytes} bytes: {failed}");
        rolled_back += u32::from(failed.rolled_back());
        if in_transaction(&conn) {
            conn.execute_batch("ROLLBACK").expect("enough memory");
        }
        assert_eq!(count(&conn), 0, "with {spare_bytes} bytes: {failed}");
        spare_bytes += 2_048;
    }
    assert!(rolled_back > 0, "COMMIT never failed half way");
    assert_eq!(count(&conn), 1);
}
