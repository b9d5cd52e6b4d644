//! Each charge of a connection's life is refused in turn: while it is opened, writes, sorts, copies
//! its database, and is closed.
//!
//! A statement either reports out of memory or has the right result: SQLite continues without some
//! of the blocks that it asks for. Whatever was refused, the next statement works, the database is
//! whole, and no byte is lost. Each refusal has a process of its own, because SQLite's state is the
//! process's, and a crash would hide the others.

mod support;

use std::path::Path;

use memgroup::Group;
use memgroup_sqlite::{AllocationError, TenantConnection, TenantError, installed};
use support::{hierarchy, tenant};
use xtask::sweep::{Form, Run, sweep_in_children};

/// Rows of the table. Their keys are 0, 1, ..
const ROWS: i64 = 24;

/// A step of the scenario, and its name.
type Step = (&'static str, fn(&TenantConnection) -> Result<(), TenantError>);

const STEPS: [Step; 8] = [
    ("schema", |conn| conn.execute_batch("CREATE TABLE t (id INTEGER PRIMARY KEY, x TEXT UNIQUE, y BLOB)")),
    ("rows", |conn| {
        conn.transaction(|transaction| {
            let mut insert = transaction.prepare_cached("INSERT INTO t VALUES (?1, ?2, ?3)")?;
            (0..ROWS)
                .try_for_each(|id| insert.execute((id, format!("{id:0>200}"), vec![id as u8; 300])).map(drop))
        })
    }),
    ("an index", |conn| conn.execute_batch("CREATE INDEX t_y ON t (y, x)")),
    ("a sort", |conn| {
        let ids: Vec<i64> = conn.run(|conn| {
            let sql = "SELECT id FROM (SELECT id, hex(y) || x AS z FROM t) ORDER BY z DESC";
            let mut select = conn.prepare(sql)?;
            select.query_map([], |row| row.get(0))?.collect()
        })?;
        assert!(ids.iter().copied().eq((0..ROWS).rev()), "{ids:?}");
        Ok(())
    }),
    ("a blob", |conn| {
        conn.execute("UPDATE t SET y = zeroblob(9000) WHERE id = 7", [])?;
        let read = conn.query_row("SELECT y FROM t WHERE id = 7", [], |row| row.get::<_, Vec<u8>>(0))?;
        assert_eq!(read, vec![0; 9000]);
        Ok(())
    }),
    ("a savepoint", |conn| {
        conn.run(|conn| {
            conn.execute_batch(
                "SAVEPOINT a; DELETE FROM t WHERE id < 5; ROLLBACK TO a; DELETE FROM t WHERE id < 3",
            )?;
            let left: i64 = conn.query_row("SELECT count(*) FROM t", [], |row| row.get(0))?;
            assert_eq!(left, ROWS - 3);
            conn.execute_batch("ROLLBACK TO a; RELEASE a")
        })
    }),
    ("a join", |conn| {
        let sql =
            "SELECT count(*), group_concat(a.x) FROM t a JOIN t b ON a.id = b.id + 1 WHERE a.y IS NOT b.y";
        let (pairs, text): (i64, String) = conn.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        assert_eq!((pairs, text.len() as i64), (ROWS - 1, (ROWS - 1) * 201 - 1));
        Ok(())
    }),
    ("a copy", |conn| conn.execute_batch("VACUUM")),
];

/// Asserts that `error` is the one of a refused charge of `group`.
fn is_refusal(group: &Group, step: &str, error: &TenantError) {
    let TenantError::OutOfMemory(details) = error else { panic!("{step}: {error}") };
    assert_eq!(details.group(), group.path(), "{step}");
    assert!(matches!(details.cause(), Some(AllocationError::Refused(_))), "{step}: {details}");
}

/// Ends a transaction that a refusal has left open.
fn end_transaction(conn: &TenantConnection) {
    if !conn.run(|conn| Ok(conn.is_autocommit())).expect("no statement") {
        conn.execute_batch("ROLLBACK").expect("memory");
    }
}

/// All steps up to the first that is refused. Returns the connection, if it could be opened, and
/// whether a step was refused.
fn scenario(group: &Group, path: &Path, settings: Step) -> (Option<TenantConnection>, bool) {
    let conn = match TenantConnection::open(group, path) {
        Ok(conn) => conn,
        Err(error) => {
            is_refusal(group, "opening", &error);
            return (None, true);
        }
    };
    let mut is_refused = false;
    for (name, step) in [settings].into_iter().chain(STEPS) {
        if let Err(error) = step(&conn) {
            is_refusal(group, name, &error);
            is_refused = true;
            break;
        }
    }
    (Some(conn), is_refused)
}

fn sweep(test: &str, settings: Step) {
    sweep_in_children(test, |run: Run| {
        let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("swept"));
        let unattributed = installed().expect("installed").unattributed().clone();
        let before = unattributed.usage_exact();
        let path = dir.path().join("a.db");
        // The root's injection also covers what SQLite allocates for no tenant.
        let injection = hierarchy().root().inject_failures_at(run.refused());
        let (conn, is_refused) = scenario(&group, &path, settings);
        let is_open = conn.is_some();
        // Closing takes memory, too: to copy a write-ahead log, for instance. It succeeds without.
        // A connection that was refused once must continue by itself.
        let conn = conn.filter(|_| run.form == Form::Once);
        let (charges, failed) = (injection.drawn(), injection.failed());
        drop(injection);
        assert_eq!(failed > 0, run.refuses_any_of(charges), "{failed} of {charges} charges were refused");
        assert!(failed > 0 || (is_open && !is_refused), "a step was refused, and no charge");

        // The next operation works, on this connection or on another, and the database is whole.
        let conn = conn.unwrap_or_else(|| TenantConnection::open(&group, &path).expect("a connection"));
        end_transaction(&conn);
        let check: String = conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("memory");
        assert_eq!(check, "ok");
        conn.execute_batch("CREATE TABLE next (x); INSERT INTO next VALUES (1)").expect("memory");
        let rows: i64 = conn
            .query_row("SELECT count(*) FROM sqlite_master WHERE name = 't'", [], |row| row.get(0))
            .and_then(|tables: i64| {
                if tables == 0 {
                    Ok(0)
                } else {
                    conn.query_row("SELECT count(*) FROM t", [], |row| row.get(0))
                }
            })
            .expect("memory");
        assert!(rows == 0 || rows == ROWS, "half of a transaction: {rows} rows");
        conn.close().expect("nothing uses it");
        assert_eq!(group.usage_exact(), 0, "bytes were lost");
        assert_eq!(unattributed.usage_exact(), before, "bytes of no tenant were lost");
        charges
    });
}

#[test]
fn sweep_journal() {
    sweep("sweep_journal", ("a journal", |conn| conn.execute_batch("PRAGMA synchronous = OFF")));
}

#[test]
fn sweep_write_ahead_log() {
    sweep(
        "sweep_write_ahead_log",
        ("a write-ahead log", |conn| {
            conn.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF")
        }),
    );
}
