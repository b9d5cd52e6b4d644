//! The cost of counting: statements through the VFS `memgroup` and without it, and samples of
//! memory by kind.
//!
//! ```text
//! cargo run --release -p memgroup-sqlite --example counting [-- ROUNDS]
//! ```
//!
//! Both connections of a comparison are tenants of one process, one opened with `vfs=memgroup` and
//! one with `vfs=unix`. They take turns within every round, and the order turns too; a ratio is the
//! median of the rounds' ratios. The control is the same comparison with both without it: its
//! difference from 1 is the noise.

use std::path::Path;
use std::time::Instant;

use memgroup::{Config, Group, Hierarchy};
use memgroup_sqlite::{TenantConnection, install};

type Failure = Box<dyn std::error::Error>;

const ROWS: u64 = 8_000;

/// A workload: its name, the settings of its connections, its statement, and how many of them a
/// round has.
struct Workload {
    name: &'static str,
    settings: &'static str,
    sql: &'static str,
    count: u64,
}

const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "look-ups, cached",
        settings: "PRAGMA locking_mode = EXCLUSIVE",
        sql: "SELECT length(x) FROM t WHERE i = ?1",
        count: 8_000,
    },
    Workload {
        name: "look-ups, each reads a page",
        settings: "PRAGMA locking_mode = EXCLUSIVE; PRAGMA cache_size = 10",
        sql: "SELECT length(x) FROM t WHERE i = ?1",
        count: 8_000,
    },
    Workload {
        name: "updates, write-ahead log",
        settings: "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF",
        sql: "UPDATE t SET n = n + 1 WHERE i = ?1 RETURNING n",
        count: 1_500,
    },
    Workload {
        name: "updates, rollback journal",
        settings: "PRAGMA journal_mode = PERSIST; PRAGMA synchronous = OFF",
        sql: "UPDATE t SET n = n + 1 WHERE i = ?1 RETURNING n",
        count: 800,
    },
];

fn main() -> Result<(), Failure> {
    let rounds = match std::env::args().nth(1) {
        Some(given) => given.parse().map_err(|_| format!("ROUNDS is a number above 0, not {given}"))?,
        None => 101,
    };
    let hierarchy = Hierarchy::new(Config::new())?;
    install(&hierarchy)?;
    let tenant = hierarchy.create("/tenant")?;
    compare_files(&tenant, rounds)?;
    println!();
    time_samples(&tenant)
}

/// The VFS `memgroup`, the one that it is compared with, and the control.
const VARIANTS: [&str; 3] = ["memgroup", "unix", "unix"];

/// Compares every workload with and without the VFS `memgroup`.
fn compare_files(tenant: &Group, rounds: usize) -> Result<(), Failure> {
    println!("{rounds} rounds, median ns a statement; memgroup/unix, and the control unix/unix");
    println!("{:<30}{:>10}{:>10}{:>10}{:>10}", "", "memgroup", "unix", "ratio", "control");
    for workload in &WORKLOADS {
        let dir = tempfile::tempdir()?;
        for file in 0..3 {
            fill(&TenantConnection::open(tenant, dir.path().join(file.to_string()))?)?;
        }
        let mut samples = [const { Vec::new() }; 3];
        for round in 0..rounds {
            for turn in 0..3 {
                // The places of a connection's memory and its file's pages matter more than the
                // VFS: both are new each time.
                let (at, file) = ((round + turn) % 3, (round / 3 + turn) % 3);
                let conn = open(tenant, &dir.path().join(file.to_string()), VARIANTS[at], workload)?;
                samples[at].push(time(&conn, workload, round as u64)?);
            }
        }
        let [ours, theirs, control] = &samples;
        println!(
            "{:<30}{:>10.0}{:>10.0}{:>10.4}{:>10.4}",
            workload.name,
            median(ours.clone()),
            median(theirs.clone()),
            ratio(ours, theirs),
            ratio(control, theirs)
        );
    }
    Ok(())
}

/// Creates the table. Its rows have text.
fn fill(conn: &TenantConnection) -> Result<(), Failure> {
    conn.execute_batch(&format!(
        "CREATE TABLE t (i INTEGER PRIMARY KEY, n INTEGER, x TEXT);
         WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS} - 1)
         INSERT INTO t SELECT i, 1, hex(zeroblob(60 + i % 60)) FROM n"
    ))?;
    Ok(())
}

/// A connection that is warm.
fn open(tenant: &Group, path: &Path, vfs: &str, workload: &Workload) -> Result<TenantConnection, Failure> {
    let conn = TenantConnection::open(tenant, format!("file:{}?vfs={vfs}", path.display()))?;
    conn.execute_batch(workload.settings)?;
    time(&conn, workload, ROWS)?;
    Ok(conn)
}

/// Mean nanoseconds of one statement.
fn time(conn: &TenantConnection, workload: &Workload, seed: u64) -> Result<f64, Failure> {
    let mut state = seed;
    let began = Instant::now();
    for _ in 0..workload.count {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let row = (state >> 33) % ROWS;
        conn.run(|conn| {
            conn.prepare_cached(workload.sql)?.query_row([row as i64], |row| row.get::<_, i64>(0))
        })?;
    }
    Ok(began.elapsed().as_nanos() as f64 / workload.count as f64)
}

fn median(mut sample: Vec<f64>) -> f64 {
    sample.sort_by(f64::total_cmp);
    sample[sample.len() / 2]
}

fn ratio(ours: &[f64], theirs: &[f64]) -> f64 {
    median(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect())
}

/// A sample of connections with more and more prepared statements and tables.
fn time_samples(tenant: &Group) -> Result<(), Failure> {
    println!("median ns a sample of memory by kind");
    println!("{:>12}{:>12}{:>12}", "statements", "tables", "ns");
    for tables in [1, 100, 1_000] {
        for statements in [1, 10, 100] {
            let conn = TenantConnection::open_in_memory(tenant)?;
            conn.run(|conn| {
                conn.set_prepared_statement_cache_capacity(statements);
                for table in 0..tables {
                    conn.execute_batch(&format!(
                        "CREATE TABLE t{table} (a INTEGER PRIMARY KEY, b TEXT, c TEXT, d REAL);
                         CREATE INDEX t{table}b ON t{table} (b)"
                    ))?;
                }
                (0..statements).try_for_each(|statement| {
                    conn.prepare_cached(&format!("SELECT a, c, {statement} FROM t0 WHERE b = ?1")).map(drop)
                })
            })?;
            let samples = (0..301).map(|_| {
                let began = Instant::now();
                conn.sample();
                began.elapsed().as_nanos() as f64
            });
            println!("{statements:>12}{tables:>12}{:>12.0}", median(samples.collect()));
        }
    }
    Ok(())
}
