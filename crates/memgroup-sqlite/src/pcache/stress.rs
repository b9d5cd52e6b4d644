//! Connections that read, write and move pages, while other threads shrink their caches.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use memgroup::Group;

use super::cache::caches_of;
use super::tests::{shrink_all, tenant};
use crate::{TenantConnection, TenantError};

/// One connection's work: reads, writes, and all that moves or drops pages. Panics if a row is
/// wrong.
fn work(group: &Group, dir: &Path, seed: u64, rounds: u32) -> Result<(), TenantError> {
    let conn = TenantConnection::open(group, dir.join(format!("{seed}.db")))?;
    let mode = if seed.is_multiple_of(2) { "WAL" } else { "DELETE" };
    conn.execute_batch(&format!(
        "PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = {mode}; PRAGMA synchronous = OFF;
         PRAGMA cache_size = {};
         CREATE TABLE t (id INTEGER PRIMARY KEY, x BLOB, y INTEGER); CREATE INDEX ty ON t (y);
         ATTACH '{}' AS b; CREATE TABLE b.u (id INTEGER PRIMARY KEY, x BLOB)",
        if seed.is_multiple_of(3) { 20 } else { 400 },
        dir.join(format!("{seed}-attached.db")).display(),
    ))?;
    let mut state = seed;
    for round in 0..rounds {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let low = (state >> 33) % 500;
        let batch = match (state >> 20) % 8 {
            0 => "PRAGMA page_size = 8192; VACUUM".to_owned(),
            1 => format!("DELETE FROM t WHERE id % 3 = {}; PRAGMA incremental_vacuum", low % 3),
            2 => format!("UPDATE t SET x = zeroblob(id % 900), y = y + 1 WHERE id > {low}"),
            3 => format!("BEGIN; DELETE FROM t WHERE id > {low}; UPDATE t SET y = 0; ROLLBACK"),
            4 => "DELETE FROM b.u; INSERT INTO b.u SELECT id, x FROM t; PRAGMA wal_checkpoint(TRUNCATE)"
                .to_owned(),
            _ => format!(
                "INSERT OR REPLACE INTO t
                     WITH RECURSIVE n(i) AS (SELECT {low} UNION ALL SELECT i + 1 FROM n WHERE i < {low} + 300)
                     SELECT i, zeroblob(i % 900), {round} FROM n"
            ),
        };
        conn.execute_batch(&batch)?;
        let wrong: i64 = conn.query_row(
            "SELECT count(*) FROM t a WHERE length(x) != id % 900 OR x != zeroblob(id % 900)
                 OR NOT EXISTS (SELECT 1 FROM t b INDEXED BY ty WHERE b.y = a.y AND b.id = a.id)",
            [],
            |row| row.get(0),
        )?;
        assert_eq!(wrong, 0, "seed {seed}, round {round}, after {batch}");
    }
    for schema in ["main", "b"] {
        let sound: String =
            conn.query_row(&format!("PRAGMA {schema}.integrity_check"), [], |row| row.get(0))?;
        assert_eq!(sound, "ok", "seed {seed}, {schema}");
    }
    Ok(())
}

#[test]
fn runs_statements_while_other_threads_shrink_the_caches() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("stress"));
    let (is_over, freed) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|threads| {
        for bytes in [1, 40_000, u64::MAX] {
            let (is_over, freed, group) = (&is_over, &freed, &group);
            threads.spawn(move || {
                // ORDERING: Relaxed; a flag and a sum that carry nothing but themselves.
                while !is_over.load(Ordering::Relaxed) {
                    freed.fetch_add(shrink_all(group, bytes), Ordering::Relaxed);
                    std::thread::yield_now();
                }
            });
        }
        let workers: Vec<_> = (1..=4)
            .map(|seed| {
                let (group, dir) = (&group, dir.path());
                threads.spawn(move || work(group, dir, seed, 60))
            })
            .collect();
        let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        // ORDERING: Relaxed; the flag only ends loops, and nothing is read because of it.
        is_over.store(true, Ordering::Relaxed);
        for outcome in outcomes {
            outcome.expect("correct rows").expect("no limit");
        }
    });
    assert!(freed.load(Ordering::Relaxed) > 1 << 20);
    assert_eq!(caches_of(&group).len(), 0);
    assert_eq!(group.usage_exact(), 0);
}
