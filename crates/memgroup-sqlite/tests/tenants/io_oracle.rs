//! The bytes counted are the bytes that the system says this thread has read and written.
//!
//! `/proc/thread-self/io` counts the bytes of read and write calls on any file. SQLite makes such
//! calls only for files opened through the VFS, with two exceptions: once for random numbers, and
//! to extend the index of a write-ahead log. So these tests have no such log.

#![cfg(target_os = "linux")]
#![allow(unsafe_code)]

use std::fs::File;
use std::io::Read;

use crate::support::{counted_during, generated, hierarchy, sort, tenant};
use memgroup_sqlite::TenantConnection;
use rusqlite::{Connection, ffi};

/// Bytes and calls, as the system counts them; and the bytes read to get these figures.
#[derive(Clone, Copy, Debug)]
struct System {
    read_bytes: i64,
    written_bytes: i64,
    reads: i64,
    writes: i64,
    asked_bytes: i64,
}

fn system() -> System {
    let mut text = [0; 1024];
    let mut file = File::open("/proc/thread-self/io").expect("the system's figures");
    // One call, which the system counts after it has produced the figures.
    let length = file.read(&mut text).expect("the system's figures");
    let text = std::str::from_utf8(&text[..length]).expect("ASCII");
    let figure = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().expect("a number")
    };
    System {
        read_bytes: figure("rchar"),
        written_bytes: figure("wchar"),
        reads: figure("syscr"),
        writes: figure("syscw"),
        asked_bytes: length as i64,
    }
}

#[test]
fn counts_the_bytes_that_the_system_counts() {
    hierarchy();
    let dir = tempfile::tempdir().expect("a directory");
    let group = tenant("oracle");
    let path = |name: &str| dir.path().join(name);
    // The C library reads a setting of the system once, when it first returns memory of a thread:
    // one byte.
    drop((0..200).map(|_| vec![1_u8; 100_000]).collect::<Vec<_>>());
    // SQLite reads random numbers once.
    TenantConnection::open_in_memory(&group)
        .and_then(|conn| conn.query_row("SELECT random()", [], |row| row.get::<_, i64>(0)))
        .expect("a number");

    let conn = TenantConnection::open(&group, path("a.db")).expect("a connection");
    let batches = [
        // Rows that spill from a small cache before they are committed. Then they are changed,
        // under all journal modes.
        "PRAGMA cache_size = 10; PRAGMA temp_store = FILE; PRAGMA synchronous = OFF".to_owned(),
        format!("CREATE TABLE t AS SELECT i, x FROM {}", generated(3_000, 700)),
        "CREATE INDEX tx ON t (x)".to_owned(),
        "BEGIN; UPDATE t SET x = zeroblob(900) WHERE i % 3 = 0; ROLLBACK".to_owned(),
        "PRAGMA journal_mode = TRUNCATE; DELETE FROM t WHERE i % 5 = 0".to_owned(),
        "PRAGMA journal_mode = PERSIST; UPDATE t SET x = x || x WHERE i % 7 = 0".to_owned(),
        "PRAGMA journal_mode = DELETE".to_owned(),
        // Two files in one transaction: a super-journal.
        format!("ATTACH '{}' AS b", path("b.db").display()),
        "PRAGMA b.synchronous = OFF; BEGIN; CREATE TABLE b.u AS SELECT * FROM t; DELETE FROM t WHERE i < 1000; COMMIT".to_owned(),
        "DETACH b".to_owned(),
        "SAVEPOINT s; UPDATE t SET x = 1; ROLLBACK TO s; RELEASE s".to_owned(),
        "CREATE TEMP TABLE w AS SELECT DISTINCT x, i FROM t ORDER BY x".to_owned(),
        "VACUUM".to_owned(),
        "PRAGMA incremental_vacuum; ANALYZE; REINDEX".to_owned(),
    ];
    for sql in &batches {
        compare(&group, sql, || conn.execute_batch(sql).expect("enough memory"));
    }
    compare(&group, "a sort", || conn.query_row(&sort(20_000, 300), [], |_| Ok(())).expect("rows"));
    compare(&group, "integrity_check", || {
        let answer: String =
            conn.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("an answer");
        assert_eq!(answer, "ok");
    });
    let busiest = compare(&group, "a backup", || {
        let copy = Connection::open(path("copy.db")).expect("a plain connection");
        conn.run(|conn| {
            back_up(conn, &copy);
            Ok(())
        })
        .expect("a copy");
    });
    assert!(busiest.0 > 500_000 && busiest.1 > 500_000, "{busiest:?}: nothing much was compared");
    compare(&group, "closing", || conn.close().expect("nothing uses it"));
    compare(&group, "another use", || {
        let conn = TenantConnection::open(&group, path("b.db")).expect("a connection");
        let rows: i64 = conn.query_row("SELECT count(*) FROM u", [], |row| row.get(0)).expect("a count");
        assert_eq!(rows, 2_400);
    });
}

/// Copies a database page by page, seven at a time.
fn back_up(from: &Connection, to: &Connection) {
    // SAFETY: both handles are used at once, and the connections are open.
    let (to_db, from_db) = (unsafe { to.handle() }, unsafe { from.handle() });
    let main = c"main".as_ptr();
    // SAFETY: both are open, and not the same.
    let backup = unsafe { ffi::sqlite3_backup_init(to_db, main, from_db, main) };
    assert!(!backup.is_null(), "a backup could not be begun");
    // SAFETY: the backup has begun.
    while unsafe { ffi::sqlite3_backup_step(backup, 7) } == ffi::SQLITE_OK {}
    // SAFETY: as above; it is not used again.
    assert_eq!(unsafe { ffi::sqlite3_backup_finish(backup) }, ffi::SQLITE_OK);
}

/// Runs `work` in `group`. Returns the bytes that it read and wrote.
fn compare(group: &memgroup::Group, name: &str, work: impl FnOnce()) -> (i64, i64) {
    let (mut before, mut after) = (None, None);
    let counted = counted_during(group, || {
        let _scope = memgroup::scope::enter(group);
        before = Some(system());
        work();
        after = Some(system());
    });
    let (before, after) = (before.expect("asked"), after.expect("asked"));
    let read_bytes = after.read_bytes - before.read_bytes - before.asked_bytes;
    let written_bytes = after.written_bytes - before.written_bytes;
    assert_eq!(
        (counted.read_bytes, counted.written_bytes),
        (read_bytes, written_bytes),
        "{name}: counted by the VFS, counted by the system"
    );
    // SQLite repeats a read that ends at the end of the file, and a large write may take several
    // calls.
    assert!(counted.reads < after.reads - before.reads + 1, "{name}: {counted:?}, {before:?}, {after:?}");
    assert!(counted.writes <= after.writes - before.writes, "{name}: {counted:?}, {before:?}, {after:?}");
    (read_bytes, written_bytes)
}
