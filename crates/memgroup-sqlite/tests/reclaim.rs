//! An idle tenant's page cache is reclaimed for a busy tenant under their common parent, before a
//! charge is refused.
#![cfg(not(memgroup_loom))]
#![allow(unsafe_code)]

use memgroup::{Config, Freshness, Group, Hierarchy, Reach, StatKey, stats};
use memgroup_sqlite::{TenantConnection, install_unchecked};

const MIB: u64 = 1 << 20;

/// Creates a table with a row on each page.
fn fill(conn: &TenantConnection, rows: u32, cache_kib: u32) {
    conn.execute_batch(&format!(
        "PRAGMA synchronous = OFF; PRAGMA cache_size = -{cache_kib}; CREATE TABLE t (id INTEGER PRIMARY KEY, x);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
         INSERT INTO t SELECT i, randomblob(3000) FROM n"
    ))
    .unwrap();
}

fn sum(conn: &TenantConnection) -> i64 {
    conn.query_row("SELECT sum(length(x)) FROM t", [], |row| row.get(0)).unwrap()
}

fn figure(hierarchy: &Hierarchy, group: &Group, stat: StatKey) -> u64 {
    hierarchy.memory().get(group, stat, Reach::Local, Freshness::Fresh) as u64
}

#[test]
fn reclaims_pages_of_an_idle_tenant_for_a_busy_one() {
    let hierarchy = Hierarchy::new(Config::new()).unwrap();
    // SAFETY: this is the only test of its process, and the thread that runs it does not use
    // SQLite.
    unsafe { install_unchecked(&hierarchy, None) }.unwrap();
    let tenants = hierarchy.create("/tenants").unwrap();
    tenants.set_max(32 * MIB).unwrap();
    let (idle_group, busy_group) = (tenants.create("idle").unwrap(), tenants.create("busy").unwrap());
    let dir = tempfile::tempdir().unwrap();

    let idle = TenantConnection::open(&idle_group, dir.path().join("idle.db")).unwrap();
    fill(&idle, 6_000, 40_000);
    assert!(idle_group.usage_exact() > 20 * MIB, "{} bytes are cached", idle_group.usage_exact());
    let busy = TenantConnection::open(&busy_group, dir.path().join("busy.db")).unwrap();
    fill(&busy, 6_000, 40_000);
    assert_eq!(sum(&busy), 6_000 * 3_000);

    assert_eq!((tenants.refusals(), idle_group.refusals(), busy_group.refusals()), (0, 0, 0));
    assert!(busy_group.usage_exact() > 20 * MIB, "{} bytes for the busy one", busy_group.usage_exact());
    assert!(tenants.usage() <= tenants.max().expect("a limit"));
    let taken = figure(&hierarchy, &idle_group, stats::memory::RECLAIMED);
    let gained = figure(&hierarchy, &busy_group, stats::memory::GAINED);
    assert!(taken > 10 * MIB, "{taken} bytes were taken");
    assert!(gained >= taken / 2, "{gained} bytes were gained");
    assert!(hierarchy.shrinkers().iter().any(|report| report.freed_bytes > 10 * MIB));

    // The idle tenant reads its lost pages again, and reclaims pages of the busy one.
    assert_eq!(sum(&idle), 6_000 * 3_000);
    for tenant in [&idle, &busy] {
        let found: String = tenant.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(found, "ok");
    }
    assert_eq!(tenants.refusals(), 0);
    idle.close().unwrap();
    busy.close().unwrap();

    // A cache that may grow far beyond its group's limit.
    let small_group = tenants.create("small").unwrap();
    small_group.set_max(4 * MIB).unwrap();
    let small = TenantConnection::open(&small_group, dir.path().join("small.db")).unwrap();
    fill(&small, 6_000, 1_000);
    small.execute_batch("PRAGMA cache_size = -40000").unwrap();
    assert_eq!(sum(&small), 6_000 * 3_000);
    assert_eq!(small_group.refusals(), 0, "its own pages are reclaimed");
    assert!(small_group.peak() <= 4 * MIB);
    small.close().unwrap();
    assert_eq!(tenants.usage_exact(), 0);
    assert!(hierarchy.shrinkers().is_empty(), "{:?}", hierarchy.shrinkers());
}
