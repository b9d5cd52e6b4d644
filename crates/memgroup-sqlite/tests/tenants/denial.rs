//! Charges are denied at random, also at places that no limit would reach. Every statement succeeds
//! or reports out of memory, the database is intact afterwards, and no byte is lost.

use std::ops::Range;

use crate::support::{hierarchy, tenant};
use memgroup::Group;
use memgroup_sqlite::{AllocationError, TenantConnection, TenantError};

/// Statements of all kinds. A denial may leave any state for the next one.
const STATEMENTS: [&str; 14] = [
    "CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, x TEXT UNIQUE, y BLOB)",
    "CREATE INDEX IF NOT EXISTS t_y ON t (y)",
    "BEGIN",
    "INSERT OR REPLACE INTO t SELECT i, printf('%0300d', i), randomblob(700) FROM (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200) SELECT i FROM n)",
    "SAVEPOINT s",
    "UPDATE t SET x = x || 'z', y = zeroblob(900) WHERE id % 3 = 0",
    "ROLLBACK TO s",
    "RELEASE s",
    "COMMIT",
    "SELECT count(*) FROM (SELECT a.id, hex(b.y) FROM t a JOIN t b ON a.id = b.id + 1 ORDER BY b.y, a.x)",
    "DELETE FROM t WHERE id % 2 = 0",
    "VACUUM",
    "PRAGMA wal_checkpoint",
    "ANALYZE",
];

/// How many statements succeeded and how many were out of memory.
#[derive(Default)]
struct Outcomes {
    succeeded: u32,
    out_of_memory: u32,
}

impl Outcomes {
    /// Counts an outcome. An earlier denial may cause other errors: no such table, savepoint or
    /// transaction.
    fn note(&mut self, group: &Group, statement: &str, outcome: Result<(), TenantError>) {
        match outcome {
            Ok(()) => self.succeeded += 1,
            Err(TenantError::OutOfMemory(details)) => {
                assert_eq!(details.group(), group.path());
                let shortage = details.cause().unwrap_or_else(|| panic!("{statement}: {details}"));
                assert!(
                    matches!(shortage, AllocationError::Refused(refusal) if refusal.group() == group.id()),
                    "{shortage}"
                );
                self.out_of_memory += 1;
            }
            Err(TenantError::Sqlite { error, .. }) => {
                let text = error.to_string();
                let expected = [
                    "no such",
                    "no transaction is active",
                    "within a transaction",
                    "database table is locked",
                ];
                assert!(expected.iter().any(|part| text.contains(part)), "{statement}: {text}");
            }
            Err(failed) => panic!("{statement}: {failed}"),
        }
    }
}

/// Runs a statement, which may have rows, to its end.
fn run(conn: &TenantConnection, statement: &str) -> Result<(), TenantError> {
    conn.run(|conn| {
        let mut statement = conn.prepare(statement)?;
        let mut rows = statement.query([])?;
        while rows.next()?.is_some() {}
        Ok(())
    })
}

fn check(conn: &TenantConnection, context: &str) {
    let check: String = conn
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap_or_else(|failed| panic!("{context}: the connection is not usable: {failed}"));
    assert_eq!(check, "ok", "{context}");
}

/// The charges of one statement that are denied: the first ones that follow each other where each charge is
/// denied with this probability.
fn denied(probability: f64, seed: u64) -> Range<u64> {
    let mut state = seed;
    let mut denies = || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / ((1_u64 << 53) as f64) < probability
    };
    let first = (1..10_000).find(|_| denies()).unwrap_or(10_000);
    let end = (first + 1..first + 10_000).find(|_| !denies()).unwrap_or(u64::MAX);
    first..end
}

/// All statements twenty times on one connection and database, while charges are denied with this
/// probability.
fn deny(name: &str, probability: f64, journal: &str) -> Outcomes {
    hierarchy();
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant(name));
    let path = dir.path().join("a.db");
    let conn = TenantConnection::open(&group, &path).expect("a connection");
    conn.execute_batch(&format!("PRAGMA journal_mode = {journal}; PRAGMA cache_size = 20"))
        .expect("a setting");
    let mut outcomes = Outcomes::default();
    for round in 0..20 {
        let context = format!("{name}, round {round}");
        {
            let inject = |nth: usize| group.inject_failures_at(denied(probability, round << 8 | nth as u64));
            for (nth, statement) in STATEMENTS.into_iter().enumerate() {
                let _injection = inject(nth);
                outcomes.note(&group, statement, run(&conn, statement));
            }
            let injection = inject(STATEMENTS.len());
            let committed = conn.transaction(|transaction| {
                transaction.execute("DELETE FROM t", [])?;
                transaction.execute("INSERT INTO t VALUES (1, 'one', zeroblob(5000))", [])
            });
            outcomes.note(&group, "a transaction", committed.map(drop));
            drop(injection);
            let _injection = inject(STATEMENTS.len() + 1);
            match TenantConnection::open(&group, &path) {
                Ok(second) => outcomes.note(&group, "closing", second.close()),
                Err(failed) => outcomes.note(&group, "opening", Err(failed)),
            }
        }
        if !conn.run(|conn| Ok(conn.is_autocommit())).expect("no error") {
            conn.execute_batch("ROLLBACK").unwrap_or_else(|failed| panic!("{context}: {failed}"));
        }
        check(&conn, &context);
    }
    conn.close().expect("nothing uses it");
    let again = TenantConnection::open(&group, &path).expect("a connection");
    check(&again, name);
    drop(again);
    assert_eq!(group.usage_exact(), 0, "{name}: bytes were lost");
    outcomes
}

#[test]
fn survives_one_denial_in_ten_with_a_rollback_journal() {
    let outcomes = deny("tenth", 0.1, "delete");
    assert!(outcomes.succeeded > 0 && outcomes.out_of_memory > 0);
}

#[test]
fn survives_one_denial_in_ten_with_a_write_ahead_log() {
    let outcomes = deny("tenth_wal", 0.1, "wal");
    assert!(outcomes.succeeded > 0 && outcomes.out_of_memory > 0);
}

#[test]
fn survives_one_denial_in_a_hundred() {
    for (name, journal) in [("hundredth", "truncate"), ("hundredth_wal", "wal")] {
        let outcomes = deny(name, 0.01, journal);
        assert!(outcomes.succeeded > 0 && outcomes.out_of_memory > 0);
    }
}

#[test]
fn survives_one_denial_in_two() {
    for (name, journal) in [("half", "delete"), ("half_wal", "wal")] {
        assert!(deny(name, 0.5, journal).out_of_memory > 0);
    }
}

#[test]
fn survives_nine_denials_in_ten() {
    assert!(deny("most", 0.9, "persist").out_of_memory > 0);
}

#[test]
fn survives_the_denial_of_every_charge() {
    for (name, journal) in [("all", "delete"), ("all_wal", "wal"), ("all_memory", "memory")] {
        assert!(deny(name, 1.0, journal).out_of_memory > 0);
    }
}
