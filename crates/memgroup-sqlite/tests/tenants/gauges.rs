//! SQLite's figures for a tenant's memory by kind, and the memory that it releases on request.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::support::{counted, counted_during, generated, hierarchy, sort, tenant};
use memgroup::Group;
use memgroup_sqlite::{MemoryKinds, TenantConnection};
use rusqlite::ffi;

/// The gauges of a group.
fn gauges(group: &Group) -> [i64; 3] {
    let counted = counted(group);
    [counted.page_cache_bytes, counted.schema_bytes, counted.statement_bytes]
}

fn figures(kinds: MemoryKinds) -> [i64; 3] {
    [kinds.page_cache_bytes, kinds.schema_bytes, kinds.statement_bytes].map(|bytes| bytes as i64)
}

/// A database of two megabytes, in a file.
fn filled(group: &Group, dir: &tempfile::TempDir, name: &str) -> TenantConnection {
    let conn = TenantConnection::open(group, dir.path().join(name)).expect("a connection");
    conn.execute_batch(&format!(
        "PRAGMA cache_size = -8000; CREATE TABLE t AS SELECT i, x FROM {}",
        generated(2_000, 1_000)
    ))
    .expect("enough memory");
    conn
}

#[test]
fn sums_the_gauges_of_connections_and_ends_at_zero() {
    hierarchy();
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("sums"));
    let (first, second) = (filled(&group, &dir, "first.db"), filled(&group, &dir, "second.db"));
    second.execute_batch("CREATE TABLE u (a, b, c, d); CREATE INDEX ud ON u (d)").expect("enough memory");
    first.run(|conn| conn.prepare_cached("SELECT * FROM t ORDER BY x")?.exists([])).expect("rows");
    let (of_first, of_second) = (figures(first.sample()), figures(second.sample()));
    assert!(of_first[0] > 2_000_000 && of_second[0] > 2_000_000, "{of_first:?}, {of_second:?}");
    assert!(of_first[1] < of_second[1] && of_first[1] > 0, "{of_first:?}, {of_second:?}");
    assert!(of_first[2] > 500 && of_second[2] == 0, "{of_first:?}, {of_second:?}");
    let sums: Vec<i64> = of_first.iter().zip(&of_second).map(|(first, second)| first + second).collect();
    assert_eq!(gauges(&group).to_vec(), sums);
    assert!(sums.iter().sum::<i64>() <= group.usage_exact() as i64, "{sums:?} of {}", group.usage_exact());
    first.close().expect("nothing uses it");
    assert_eq!(gauges(&group), of_second);
    drop(second);
    assert_eq!(gauges(&group), [0; 3]);
    assert_eq!(group.usage_exact(), 0);
}

#[test]
fn ends_at_zero_in_a_removed_group() {
    hierarchy();
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("removed gauges"));
    let conn = filled(&group, &dir, "a.db");
    conn.sample();
    group.remove().expect("no children");
    assert!(gauges(&group)[0] > 2_000_000, "{:?}", gauges(&group));
    let closer = std::thread::spawn(move || drop(conn));
    closer.join().expect("closed on another thread");
    assert_eq!(gauges(&group), [0; 3]);
}

#[test]
fn updates_the_gauges_of_a_connection_in_use() {
    hierarchy();
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("follow"));
    let conn = filled(&group, &dir, "a.db");
    assert!(gauges(&group)[1] > 0, "the first use reports: {:?}", gauges(&group));
    let expected = figures(conn.sample())[0] + 1_000_000;
    conn.execute_batch("INSERT INTO t SELECT i, x FROM t").expect("enough memory");
    // Each round is a run. A report is due after some pauses; a slow machine takes more of them.
    let rounds = (0..3_000).take_while(|_| {
        std::thread::sleep(Duration::from_millis(10));
        conn.execute_batch("SELECT 1").expect("a row");
        gauges(&group)[0] < expected
    });
    let rounds = rounds.count();
    assert!(gauges(&group)[0] >= expected, "{:?} after {rounds} uses, not {expected}", gauges(&group));
}

/// Samples while another thread holds the connection's mutex for `time`.
fn sample_for(conn: &TenantConnection, time: Duration) {
    // SAFETY: the handle is used as long as the connection is open.
    let db = conn.run(|conn| Ok(unsafe { conn.handle() })).expect("a handle");
    // SAFETY: `db` is open.
    let mutex = unsafe { ffi::sqlite3_db_mutex(db) } as usize;
    let (sender, held) = mpsc::channel();
    std::thread::scope(|threads| {
        threads.spawn(move || {
            let mutex = mutex as *mut ffi::sqlite3_mutex;
            // SAFETY: the connection is open until this thread has ended, and serialized.
            unsafe { ffi::sqlite3_mutex_enter(mutex) };
            sender.send(()).expect("the other thread waits");
            std::thread::sleep(time);
            // SAFETY: as above; this thread has entered it.
            unsafe { ffi::sqlite3_mutex_leave(mutex) };
        });
        held.recv().expect("it is held");
        conn.sample();
    });
}

#[test]
fn samples_for_at_most_a_hundredth_of_the_time() {
    hierarchy();
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("rest"));
    let conn = filled(&group, &dir, "a.db");
    // Repeated if this thread sampled only after the other one had ended.
    let rests = (0..20).any(|n| {
        sample_for(&conn, Duration::from_millis(10));
        let (before, begin) = (gauges(&group), Instant::now());
        conn.execute_batch(&format!("CREATE TABLE u{n} (a, b, c)")).expect("enough memory");
        while begin.elapsed() < Duration::from_millis(500) {
            conn.execute_batch("SELECT 1").expect("a row");
        }
        gauges(&group) == before
    });
    assert!(rests, "each time the next sample came within half a second of one that took 10 ms");
    conn.sample();
    assert!(gauges(&group)[1] > 0);
}

#[test]
fn counts_pages_of_all_databases_but_no_sorter() {
    hierarchy();
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("which"));
    let conn = filled(&group, &dir, "a.db");
    let rows = generated(2_000, 1_000);
    let main_bytes = conn.sample().page_cache_bytes;
    conn.execute_batch(&format!(
        "PRAGMA temp_store = MEMORY; PRAGMA temp.cache_size = -8000; CREATE TEMP TABLE s AS SELECT x FROM {rows}"
    ))
    .expect("enough memory");
    let with_temporary_bytes = conn.sample().page_cache_bytes;
    assert!(with_temporary_bytes > main_bytes + 2_000_000, "{with_temporary_bytes} after {main_bytes}");
    conn.execute_batch(&format!(
        "ATTACH '{}' AS b; PRAGMA b.journal_mode = WAL; PRAGMA b.cache_size = -8000;
         CREATE TABLE b.u AS SELECT x FROM {rows}",
        dir.path().join("b.db").display()
    ))
    .expect("enough memory");
    let with_attached_bytes = conn.sample().page_cache_bytes;
    assert!(with_attached_bytes > with_temporary_bytes + 2_000_000, "{with_attached_bytes}");

    let (reported_before, usage_before) =
        (figures(conn.sample()).iter().sum::<i64>(), group.usage_exact() as i64);
    conn.run(|connection| {
        // SQLite returns the first row when all rows are in the sorter.
        let sql = format!("SELECT x FROM {} ORDER BY x", generated(10_000, 1_000));
        let mut statement = connection.prepare(&sql)?;
        let mut sorted = statement.query([])?;
        assert!(sorted.next()?.is_some());
        let reported = figures(conn.sample()).iter().sum::<i64>() - reported_before;
        let used = group.usage_exact() as i64 - usage_before;
        assert!(used > 10_000_000 && reported < 100_000, "{reported} of {used} bytes were reported");
        Ok(())
    })
    .expect("rows");
    assert!(conn.query_row(&sort(10, 10), [], |_| Ok(())).is_ok());
}

/// Reads the whole table, so that its pages are cached.
fn read(conn: &TenantConnection) {
    let sql = "SELECT count(*) FROM t WHERE length(x) = 1000";
    let rows: i64 = conn.query_row(sql, [], |row| row.get(0)).expect("rows");
    assert_eq!(rows, 2_000);
}

#[test]
fn returns_the_bytes_that_the_group_gets_back() {
    hierarchy();
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("released"));
    let conn = filled(&group, &dir, "a.db");
    let released = counted_during(&group, || {
        let before_bytes = group.usage_exact();
        let bytes = conn.release_memory().expect("it is idle");
        assert_eq!(bytes, before_bytes - group.usage_exact());
        assert!(bytes > 2_000_000, "{bytes} of two megabytes");
        assert_eq!(counted(&group).reclaimed_bytes, bytes as i64);
        assert_eq!(conn.release_memory().expect("it is idle"), 0);
    });
    assert!(released.reclaimed_bytes > 2_000_000, "{released:?}");
    assert!(gauges(&group)[0] < 100_000, "{:?}", gauges(&group));
    read(&conn);
}

#[test]
fn does_not_count_bytes_freed_by_other_connections() {
    hierarchy();
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("beside"));
    let conn = filled(&group, &dir, "a.db");
    let alone: Vec<u64> = (0..2).map(|_| released_after_read(&conn)).collect();
    assert_eq!(alone[0], alone[1], "the same pages were cached");
    let stop = AtomicBool::new(false);
    let (sender, begun) = mpsc::channel();
    let beside: Vec<u64> = std::thread::scope(|threads| {
        threads.spawn(|| {
            let other = TenantConnection::open_in_memory(&group).expect("a connection");
            // ORDERING: Relaxed; a flag that says nothing about other memory.
            while !stop.load(Ordering::Relaxed) {
                other.query_row(&sort(500, 1_000), [], |_| Ok(())).expect("rows");
                // The receiver takes the first only.
                let _ = sender.send(());
            }
        });
        begun.recv().expect("the other connection works");
        let released = (0..20).map(|_| released_after_read(&conn)).collect();
        // ORDERING: Relaxed; as above.
        stop.store(true, Ordering::Relaxed);
        released
    });
    assert_eq!(beside, vec![alone[0]; 20]);
}

fn released_after_read(conn: &TenantConnection) -> u64 {
    conn.release_memory().expect("it is idle");
    read(conn);
    conn.release_memory().expect("it is idle")
}

#[test]
fn keeps_needed_pages_when_releasing_memory() {
    hierarchy();
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("needed"));
    let in_memory = TenantConnection::open_in_memory(&group).expect("a connection");
    in_memory
        .execute_batch(&format!("CREATE TABLE t AS SELECT i, x FROM {}", generated(500, 1_000)))
        .expect("enough memory");
    assert!(
        in_memory.release_memory().expect("it is idle") < 50_000,
        "pages that are in no file were released"
    );
    let rows: i64 = in_memory.query_row("SELECT count(x) FROM t", [], |row| row.get(0)).expect("rows");
    assert_eq!(rows, 500);

    let conn = filled(&group, &dir, "a.db");
    conn.transaction(|transaction| {
        transaction.execute("UPDATE t SET x = zeroblob(1000)", [])?;
        let bytes = conn.release_memory().expect("no error in an open transaction");
        assert!(bytes < 100_000, "{bytes} bytes of changed pages");
        Ok(())
    })
    .expect("enough memory");
    let zeros: i64 = conn
        .query_row("SELECT count(*) FROM t WHERE x = zeroblob(1000)", [], |row| row.get(0))
        .expect("rows");
    assert_eq!(zeros, 2_000);
    assert!(conn.release_memory().expect("it is idle") > 2_000_000);
}

#[test]
fn does_not_count_pages_that_another_group_paid() {
    hierarchy();
    let dir = tempfile::tempdir().expect("a directory");
    let (group, other) = (tenant("released alone"), tenant("paid"));
    let conn = filled(&group, &dir, "a.db");
    conn.release_memory().expect("it is idle");
    {
        let guest = TenantConnection::open_in_memory(&other).expect("a connection");
        guest
            .run(|_| {
                conn.run(|own| {
                    let _scope = memgroup::scope::enter(&other);
                    own.query_row("SELECT count(*) FROM t WHERE length(x) = 1000", [], |row| {
                        row.get::<_, i64>(0)
                    })
                })
                .map_err(|_| rusqlite::Error::InvalidQuery)
            })
            .expect("rows");
    }
    let before_bytes = (group.usage_exact(), other.usage_exact());
    assert!(before_bytes.1 > 1_000_000, "{before_bytes:?}: the other group owns the pages");
    let bytes = conn.release_memory().expect("it is idle");
    assert_eq!(bytes, before_bytes.0 - group.usage_exact());
    assert!(bytes < 1_000_000 && other.usage_exact() < 100_000, "{bytes}, {}", other.usage_exact());
}
