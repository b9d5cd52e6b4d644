//! Memory runs out at every place where it can: the same work runs under limits that rise in small
//! steps, from too little to open a connection to enough for all of it. Every failure is reported
//! as out of memory, and no byte is lost.

use crate::support::{hierarchy, tenant};
use memgroup::Group;
use memgroup_sqlite::{TenantConnection, TenantError};

/// Statements of many kinds. They are small, so that the steps of the limit reach every allocation.
fn work(conn: &TenantConnection) -> Result<(), TenantError> {
    conn.execute_batch(
        "CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, x TEXT UNIQUE, y BLOB);
         CREATE INDEX IF NOT EXISTS t_y ON t (y);",
    )?;
    conn.transaction(|transaction| {
        let mut insert = transaction.prepare_cached("INSERT OR REPLACE INTO t VALUES (?1, ?2, ?3)")?;
        for id in 0..60 {
            insert.execute((id, format!("{id:0>300}"), vec![id as u8; 700]))?;
        }
        Ok(())
    })?;
    conn.run(|conn| {
        let mut select = conn.prepare_cached(
            "SELECT a.id, a.x, b.y, upper(a.x) || hex(b.y) FROM t a JOIN t b ON a.id = b.id + 1 ORDER BY b.y, a.x",
        )?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let (_, x, y): (i64, String, Vec<u8>) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let text: String = row.get(3)?;
            assert!(text.len() == x.len() + 2 * y.len());
        }
        Ok(())
    })?;
    conn.query_row("SELECT json_group_array(x), group_concat(x), count(DISTINCT y) FROM t", [], |row| {
        row.get::<_, String>(0)?;
        row.get::<_, String>(1)
    })?;
    conn.execute("DELETE FROM t WHERE id % 2 = 0", [])?;
    conn.execute("UPDATE t SET x = x || 'z', y = zeroblob(900)", [])?;
    Ok(())
}

/// The work on one connection, then small statements on it without a limit.
fn attempt(group: &Group, path: &std::path::Path, settings: &str) -> Result<(), TenantError> {
    let conn = TenantConnection::open(group, path)?;
    let outcome = conn.execute_batch(settings).and_then(|()| work(&conn));
    group.set_max(None).expect("no limit");
    let check: String = conn
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap_or_else(|error| panic!("the connection was not usable after {outcome:?}: {error}"));
    assert_eq!(check, "ok", "after {outcome:?}");
    outcome
}

fn exhaust(name: &str, settings: &str) {
    hierarchy();
    let dir = tempfile::tempdir().expect("a directory");
    let (group, mut failures, mut limit_bytes) = (tenant(name), 0, 10_000);
    loop {
        let path = dir.path().join(format!("{name}{limit_bytes}"));
        group.set_max(limit_bytes).expect("a limit");
        let outcome = attempt(&group, &path, settings);
        assert_eq!(group.usage_exact(), 0, "{name} with {limit_bytes} bytes: {outcome:?}");
        match outcome {
            Ok(()) => break,
            Err(TenantError::OutOfMemory(_)) => failures += 1,
            Err(error) => panic!("{name} with {limit_bytes} bytes failed otherwise: {error}"),
        }
        for suffix in ["", "-wal", "-shm", "-journal"] {
            let mut file = path.clone().into_os_string();
            file.push(suffix);
            // Most of these files do not exist.
            let _ = std::fs::remove_file(file);
        }
        limit_bytes += 1_511;
    }
    assert!(failures > 50, "{name} succeeded after {failures} failures with {limit_bytes} bytes");
}

#[test]
fn reports_each_refusal_with_a_rollback_journal() {
    exhaust("journal", "PRAGMA synchronous = OFF");
}

#[test]
fn reports_each_refusal_with_a_write_ahead_log() {
    exhaust("wal", "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF");
}

#[test]
fn reports_each_refusal_with_a_small_cache_that_spills() {
    exhaust("spill", "PRAGMA synchronous = OFF; PRAGMA cache_size = 10; PRAGMA temp_store = MEMORY");
}

#[test]
fn reports_each_refusal_while_text_is_converted() {
    exhaust("utf16", "PRAGMA encoding = 'UTF-16'; PRAGMA synchronous = OFF");
}
