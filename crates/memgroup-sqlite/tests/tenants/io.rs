//! Tests which group the reads, writes and syncs of files are counted for, and that the VFS changes
//! nothing else.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;
use std::ptr;
use std::sync::{Mutex, PoisonError};

use crate::support::{Counted, counted_during, generated, hierarchy, sort, tenant};
use memgroup::{Group, scope};
use memgroup_sqlite::{TenantConnection, installed};
use rusqlite::{Connection, OpenFlags, ffi};

const PAGE: i64 = 4096;

/// Held by tests that compare or change the I/O of the unattributed group.
static UNATTRIBUTED_IO: Mutex<()> = Mutex::new(());

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

fn open(group: &Group, path: &Path) -> TenantConnection {
    TenantConnection::open(group, path).expect("a connection")
}

fn file_bytes(path: &Path) -> i64 {
    path.metadata().expect("a file").len() as i64
}

/// A table of 200 rows, more than 50 pages, in a file of its own.
fn fill(conn: &TenantConnection) {
    conn.execute_batch(&format!("CREATE TABLE t AS SELECT i, x FROM {}", generated(200, 1_000)))
        .expect("enough memory");
}

fn count(conn: &TenantConnection) -> i64 {
    conn.query_row("SELECT count(*) FROM t WHERE length(x) = 1000", [], |row| row.get(0)).expect("a count")
}

#[test]
fn counts_reads_and_writes_for_the_current_group() {
    hierarchy();
    let _alone = UNATTRIBUTED_IO.lock().unwrap_or_else(PoisonError::into_inner);
    let (dir, group, other) = (directory(), tenant("counted"), tenant("not counted"));
    let path = dir.path().join("a.db");
    let outside = counted_during(&installed().expect("installed").unattributed().clone(), || {
        let written = counted_during(&group, || fill(&open(&group, &path)));
        assert!(written.written_bytes >= file_bytes(&path), "{written:?} for {} bytes", file_bytes(&path));
        assert!(written.writes >= file_bytes(&path) / PAGE, "{written:?} for {} bytes", file_bytes(&path));
        assert!(written.syncs >= 3, "{written:?}: a commit syncs journal and database");
        let read = counted_during(&group, || assert_eq!(count(&open(&group, &path)), 200));
        assert!(read.read_bytes >= file_bytes(&path), "{read:?} for {} bytes", file_bytes(&path));
        assert!(read.read_bytes < file_bytes(&path) + PAGE, "{read:?} for {} bytes", file_bytes(&path));
        assert_eq!((read.written_bytes, read.writes, read.syncs), (0, 0, 0));
    });
    assert_eq!(
        (outside.reads, outside.writes, outside.syncs),
        (0, 0, 0),
        "a tenant's work was counted for the unattributed group"
    );
    assert_eq!(counted_during(&other, || {}), Counted::default());
}

#[test]
fn counts_for_the_unattributed_group_without_a_scope() {
    hierarchy();
    let _alone = UNATTRIBUTED_IO.lock().unwrap_or_else(PoisonError::into_inner);
    let (dir, group) = (directory(), tenant("scope only"));
    let path = dir.path().join("a.db");
    fill(&open(&group, &path));
    let unattributed = installed().expect("installed").unattributed().clone();
    let outside = counted_during(&unattributed, || {
        let conn = Connection::open(&path).expect("a plain connection");
        let in_scope = counted_during(&group, || {
            let _scope = scope::enter(&group);
            conn.execute_batch("SELECT sum(length(x)) FROM t").expect("rows");
        });
        assert!(in_scope.read_bytes >= file_bytes(&path), "{in_scope:?}");
        conn.execute_batch("UPDATE t SET x = 1").expect("enough memory");
    });
    assert!(outside.written_bytes > file_bytes(&path) && outside.syncs >= 2, "{outside:?}");
    assert!(outside.read_bytes < PAGE, "{outside:?}: the pages were read in the group's scope");
}

#[test]
fn counts_a_log_for_its_writer_and_for_its_reader() {
    hierarchy();
    let (dir, writes, reads) = (directory(), tenant("log writer"), tenant("log reader"));
    let (path, log) = (dir.path().join("a.db"), dir.path().join("a.db-wal"));
    let writer = open(&writes, &path);
    writer
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 0",
        )
        .expect("a log");
    let reader = open(&reads, &path);
    let written = counted_during(&writes, || {
        let read = counted_during(&reads, || fill(&writer));
        assert_eq!((read.reads, read.writes), (0, 0), "the writer's work was counted for the reader");
    });
    // The log has one transaction, written once: a header, and a frame for each page.
    let pages = (file_bytes(&log) - 32) / (24 + PAGE);
    assert_eq!(file_bytes(&log), 32 + pages * (24 + PAGE));
    assert_eq!(written.written_bytes, file_bytes(&log), "{written:?}");

    let read = counted_during(&reads, || assert_eq!(count(&reader), 200));
    assert!(read.read_bytes >= (pages - 1) * PAGE && read.written_bytes == 0, "{read:?} for {pages} pages");
    assert!(read.read_bytes <= pages * PAGE + 2 * PAGE, "{read:?} for {pages} pages");

    let moved = counted_during(&reads, || {
        let answer: (i64, i64) = reader
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| Ok((row.get(1)?, row.get(2)?)))
            .expect("no lock is held");
        assert_eq!(answer, (0, 0));
    });
    assert!(moved.written_bytes >= (pages - 1) * PAGE && moved.syncs >= 1, "{moved:?} for {pages} pages");
    assert_eq!(count(&writer), 200);
}

#[test]
fn does_not_count_reads_through_a_memory_map() {
    hierarchy();
    let (dir, group) = (directory(), tenant("map"));
    let path = dir.path().join("a.db");
    fill(&open(&group, &path));
    for (map_bytes, is_read) in [(0, true), (1 << 30, false)] {
        let conn = open(&group, &path);
        let set: i64 = conn
            .query_row(&format!("PRAGMA mmap_size = {map_bytes}"), [], |row| row.get(0))
            .expect("a setting");
        assert_eq!(set, map_bytes.min(0x7fff_0000), "SQLite asks for no map");
        let read = counted_during(&group, || assert_eq!(count(&conn), 200));
        assert_eq!(
            read.read_bytes > file_bytes(&path) / 2,
            is_read,
            "{read:?} with a map of {map_bytes} bytes"
        );
        conn.execute_batch("UPDATE t SET x = x WHERE i < 10").expect("enough memory");
        assert_eq!(count(&conn), 200);
    }
}

#[test]
fn counts_spills_to_temporary_files() {
    hierarchy();
    let group = tenant("spilling");
    let conn = TenantConnection::open_in_memory(&group).expect("a connection");
    let settings = "PRAGMA temp_store = FILE; PRAGMA cache_size = -512; PRAGMA temp.cache_size = 10";
    conn.execute_batch(settings).expect("settings");
    let sorted = counted_during(&group, || {
        let rows = conn.run(|conn| {
            let mut statement =
                conn.prepare(&format!("SELECT x FROM {} ORDER BY x", generated(20_000, 500)))?;
            let mut sorted = statement.query([])?;
            let mut rows = 0;
            while sorted.next()?.is_some() {
                rows += 1;
            }
            Ok(rows)
        });
        assert_eq!(rows.expect("a sort"), 20_000);
    });
    assert!(sorted.written_bytes > 10_000_000, "{sorted:?} for ten megabytes");
    assert_eq!(sorted.read_bytes, sorted.written_bytes, "{sorted:?}: merged once");
    assert_eq!(sorted.syncs, 0, "a temporary file needs none");

    // With a limit SQLite sorts in a temporary table.
    let limited = counted_during(&group, || {
        let rows: i64 = conn.query_row(&sort(20_000, 500), [], |row| row.get(0)).expect("a sort");
        assert_eq!(rows, 20_000);
    });
    assert!(limited.written_bytes > 10_000_000, "{limited:?} for ten megabytes");
    assert!(limited.read_bytes > 10_000_000, "{limited:?} for ten megabytes");

    let table = counted_during(&group, || {
        let sql = format!("CREATE TEMP TABLE s AS SELECT x FROM {}", generated(2_000, 1_000));
        conn.execute_batch(&sql).expect("enough memory");
        let rows: i64 = conn.query_row("SELECT count(*) FROM s", [], |row| row.get(0)).expect("a count");
        assert_eq!(rows, 2_000);
    });
    assert!(table.written_bytes > 1_000_000 && table.read_bytes > 1_000_000, "{table:?} for two megabytes");
}

#[test]
fn does_not_count_a_connection_to_another_vfs() {
    hierarchy();
    let (dir, group) = (directory(), tenant("elsewhere"));
    let path = dir.path().join("a.db");
    let uri = format!("file:{}?vfs=unix", path.display());
    let counted = counted_during(&group, || {
        let conn = TenantConnection::open(&group, uri).expect("a connection");
        fill(&conn);
        assert_eq!(vfs_name(&conn), "unix");
    });
    assert_eq!((counted.reads, counted.writes, counted.syncs), (0, 0, 0));
    let conn = open(&group, &path);
    assert_eq!(vfs_name(&conn), "memgroup/unix");
}

/// The name of the VFS of a connection's main database.
fn vfs_name(conn: &TenantConnection) -> String {
    conn.run(|conn| {
        let mut name: *mut c_char = ptr::null_mut();
        // SAFETY: the handle is used at once, and the connection is open.
        let db = unsafe { conn.handle() };
        // SAFETY: `db` is open, and this request takes a place for a string.
        let code = unsafe {
            ffi::sqlite3_file_control(db, c"main".as_ptr(), ffi::SQLITE_FCNTL_VFSNAME, (&raw mut name).cast())
        };
        assert_eq!((code, name.is_null()), (ffi::SQLITE_OK, false));
        // SAFETY: SQLite has left a terminated string.
        let text = unsafe { CStr::from_ptr(name) }.to_str().expect("ASCII").to_owned();
        // SAFETY: it is ours to free.
        unsafe { ffi::sqlite3_free(name.cast()) };
        Ok(text)
    })
    .expect("a name")
}

/// SQLite's extended result code and its text.
fn failure(answer: Result<i64, memgroup_sqlite::TenantError>) -> (c_int, String) {
    let error = answer.expect_err("the file is damaged");
    match error.sqlite_error().expect("an error of SQLite") {
        rusqlite::Error::SqliteFailure(code, words) => {
            (code.extended_code, words.clone().unwrap_or_default())
        }
        other => panic!("{other}"),
    }
}

#[test]
fn passes_on_the_error_of_a_truncated_file() {
    hierarchy();
    let (dir, group) = (directory(), tenant("truncated"));
    for keep_bytes in [10 * 4096 + 100, 10 * 4096, 50, 0] {
        let failures = ["memgroup", "unix"].map(|vfs| {
            let path = dir.path().join(format!("{vfs}-{keep_bytes}.db"));
            let conn = TenantConnection::open(&group, format!("file:{}?vfs={vfs}", path.display()))
                .expect("a connection");
            conn.execute_batch("PRAGMA cache_size = 5").expect("a setting");
            fill(&conn);
            assert_eq!(count(&conn), 200);
            let file = std::fs::OpenOptions::new().write(true).open(&path).expect("a file");
            file.set_len(keep_bytes).expect("a shorter file");
            failure(conn.query_row("SELECT sum(length(x)) FROM t", [], |row| row.get(0)))
        });
        assert_eq!(failures[0], failures[1], "{keep_bytes} bytes kept");
    }
}

#[test]
fn counts_a_short_read_up_to_the_end_of_the_file() {
    hierarchy();
    let (dir, group) = (directory(), tenant("short"));
    let path = dir.path().join("a.db");
    std::fs::write(&path, [0; 50]).expect("a file");
    let conn = open(&group, &path);
    let read = counted_during(&group, || {
        let read = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0));
        read.expect_err("fifty zeros are no database");
    });
    assert!(read.reads >= 1 && read.read_bytes <= 50 * read.reads && read.read_bytes > 0, "{read:?}");
}

#[test]
fn passes_on_the_error_of_a_file_that_cannot_be_opened() {
    hierarchy();
    let (dir, group) = (directory(), tenant("unopened"));
    for (name, flags) in [
        ("none/a.db", OpenFlags::default()),
        (".", OpenFlags::default()),
        ("missing.db", OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI),
    ] {
        let [ours, theirs] = ["memgroup", "unix"].map(|vfs| {
            let uri = format!("file:{}?vfs={vfs}", dir.path().join(name).display());
            TenantConnection::open_with_flags(&group, uri, flags)
                .expect_err("no such file")
                .to_string()
                .replace(vfs, "..")
        });
        assert_eq!(ours, theirs, "{name}");
    }
}

#[test]
fn counts_each_thread_for_its_own_group() {
    hierarchy();
    let dir = directory();
    let groups = ["left", "right"].map(tenant);
    let counted = std::thread::scope(|threads| {
        let spawn = |group| {
            let path = dir.path().join(format!("{}.db", Group::name(group)));
            threads.spawn(move || {
                counted_during(group, || {
                    for _ in 0..5 {
                        let conn = open(group, &path);
                        fill(&conn);
                        conn.execute_batch("DROP TABLE t").expect("enough memory");
                    }
                })
            })
        };
        let threads: [_; 2] = groups.each_ref().map(spawn);
        threads.map(|thread| thread.join().expect("a thread"))
    });
    assert_eq!(counted[0].written_bytes, counted[1].written_bytes, "{counted:?}");
    assert_eq!(counted[0].read_bytes, counted[1].read_bytes, "{counted:?}");
    assert!(counted[0].written_bytes > 5 * 200_000, "{counted:?}");
}
