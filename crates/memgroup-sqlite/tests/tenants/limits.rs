//! Work over the limit: one statement fails, and nothing else.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{generated, hierarchy, sort, tenant, tenant_with_max};
use memgroup::{ChargeErrorKind, Group};
use memgroup_sqlite::{AllocationError, TenantConnection, TenantError};

/// A connection that sorts in memory, without spilling.
fn connect(group: &Group) -> TenantConnection {
    hierarchy();
    let conn = TenantConnection::open_in_memory(group).expect("a connection");
    conn.execute_batch("PRAGMA temp_store = MEMORY").expect("a setting");
    conn
}

/// Sorts ten megabytes.
fn sort_ten_megabytes(conn: &TenantConnection) -> Result<i64, TenantError> {
    conn.query_row(&sort(20_000, 500), [], |row| row.get(0))
}

#[test]
fn fails_only_the_statement_over_the_limit() {
    let group = tenant_with_max("sorting", 2 << 20);
    let conn = connect(&group);
    conn.execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (1), (2)").expect("memory for two rows");
    for _ in 0..3 {
        let failed = sort_ten_megabytes(&conn).expect_err("ten megabytes do not fit in two");
        let details = failed.out_of_memory().unwrap_or_else(|| panic!("{failed}"));
        assert_eq!(details.group(), "/sorting");
        assert!(!details.rolled_back());
        let Some(AllocationError::Refused(refusal)) = details.cause() else { panic!("{failed}") };
        assert_eq!(refusal.kind(), ChargeErrorKind::Refused);
        assert_eq!((refusal.group(), refusal.max()), (group.id(), Some(2 << 20)));
        assert!(refusal.asked() > 0 && refusal.usage() <= 2 << 20);
        assert!(failed.to_string().contains("/sorting: out of memory"), "{failed}");

        let sum: i64 =
            conn.query_row("SELECT sum(x) FROM t", [], |row| row.get(0)).expect("a small statement");
        assert_eq!(sum, 3);
        assert_eq!(conn.execute("UPDATE t SET x = x", []).expect("a small statement"), 2);
    }
    assert!(group.peak() <= 2 << 20, "peak {} over the limit", group.peak());
    drop(conn);
    assert_eq!(group.usage_exact(), 0);
}

#[test]
fn names_the_ancestor_that_refused() {
    let parent = tenant_with_max("family", 2 << 20);
    let child = parent.create("child").expect("a group");
    let conn = connect(&child);
    let failed = sort_ten_megabytes(&conn).expect_err("the parent has two megabytes");
    let details = failed.out_of_memory().unwrap_or_else(|| panic!("{failed}"));
    let Some(AllocationError::Refused(refusal)) = details.cause() else { panic!("{failed}") };
    assert_eq!(details.group(), "/family/child");
    assert_eq!(refusal.group(), parent.id());
    assert_eq!(refusal.path().as_deref(), Some("/family"));
}

#[test]
fn does_not_disturb_another_tenant() {
    let (runaway, neighbour) = (tenant_with_max("runaway", 2 << 20), tenant_with_max("neighbour", 2 << 20));
    let served = AtomicBool::new(false);
    let failures = std::thread::scope(|threads| {
        let failing = threads.spawn(|| {
            let conn = connect(&runaway);
            let mut failures = 0;
            // ORDERING: Relaxed; a flag that carries nothing but itself.
            while !served.load(Ordering::Relaxed) || failures < 3 {
                let failed = sort_ten_megabytes(&conn).expect_err("ten megabytes do not fit in two");
                assert!(failed.out_of_memory().is_some(), "{failed}");
                failures += 1;
            }
            failures
        });
        let conn = connect(&neighbour);
        conn.execute_batch("CREATE TABLE t (id INTEGER PRIMARY KEY, x)").expect("a table");
        for id in 0..1_000 {
            conn.execute("INSERT INTO t VALUES (?1, hex(randomblob(100)))", [id])
                .expect("the neighbour is not full");
            let rows: i64 = conn
                .query_row("SELECT count(*) FROM t ORDER BY x", [], |row| row.get(0))
                .expect("the neighbour is not full");
            assert_eq!(rows, id + 1);
        }
        // ORDERING: as above.
        served.store(true, Ordering::Relaxed);
        failing.join().expect("the runaway gets errors only")
    });
    assert!(failures >= 3);
    assert!(runaway.refusals() > 0);
    assert_eq!(neighbour.refusals(), 0);
    assert_eq!((runaway.usage_exact(), neighbour.usage_exact()), (0, 0));
}

#[test]
fn refuses_a_connection_that_does_not_fit() {
    hierarchy();
    let group = tenant_with_max("poor", 1_000);
    let refused = TenantConnection::open_in_memory(&group).expect_err("a connection takes more");
    let details = refused.out_of_memory().unwrap_or_else(|| panic!("{refused}"));
    assert_eq!(details.group(), "/poor");
    assert!(
        matches!(details.cause(), Some(AllocationError::Refused(refusal)) if refusal.max() == Some(1_000))
    );
    assert_eq!(group.usage_exact(), 0);
}

#[test]
fn tells_other_errors_from_out_of_memory() {
    let group = tenant("erring");
    let conn = connect(&group);
    let failed = conn.execute("SELECT nothing FROM nowhere", []).expect_err("there is no such table");
    assert!(failed.out_of_memory().is_none());
    assert!(failed.to_string().contains("/erring") && failed.to_string().contains("nowhere"), "{failed}");
    let absent =
        TenantConnection::open(&group, Path::new("/no/such/directory/a.db")).expect_err("no directory");
    assert!(matches!(absent, TenantError::Sqlite { .. }), "{absent}");
    let none = conn.query_row("SELECT 1 WHERE 0", [], |row| row.get::<_, i64>(0)).expect_err("no row");
    assert!(matches!(none.sqlite_error(), Some(rusqlite::Error::QueryReturnedNoRows)), "{none}");
}

#[test]
fn does_not_blame_memory_for_a_later_error() {
    let group = tenant_with_max("surviving", 2 << 20);
    let conn = connect(&group);
    let failed = conn
        .run(|conn| {
            conn.query_row(&sort(20_000, 500), [], |row| row.get::<_, i64>(0)).expect_err("too much");
            conn.execute("SELECT nothing FROM nowhere", [])
        })
        .expect_err("there is no such table");
    assert!(matches!(failed, TenantError::Sqlite { .. }), "{failed}");
}

#[test]
fn succeeds_after_the_limit_was_raised() {
    let group = tenant_with_max("rising", 2 << 20);
    let conn = connect(&group);
    sort_ten_megabytes(&conn).expect_err("ten megabytes do not fit in two");
    group.set_max(32 << 20).expect("a higher limit");
    assert_eq!(sort_ten_megabytes(&conn).expect("enough memory now"), 20_000);
    group.set_max(1 << 20).expect("a lower limit");
    sort_ten_megabytes(&conn).expect_err("too much again");
    assert_eq!(
        conn.query_row(&format!("SELECT count(*) FROM {}", generated(10, 10)), [], |row| row
            .get::<_, i64>(0))
            .expect("a small statement"),
        10
    );
}

#[test]
fn passes_on_a_panic_after_a_refusal() {
    let group = tenant_with_max("panicking after a refusal", 2 << 20);
    let conn = connect(&group);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        conn.run(|conn| -> rusqlite::Result<()> {
            conn.query_row(&sort(20_000, 500), [], |row| row.get::<_, i64>(0)).expect_err("too much");
            std::panic::panic_any("the work's own");
        })
    }));
    let panic = panicked.expect_err("the panic was turned into an error");
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"the work's own"));
    assert!(memgroup::scope::current().is_none());
}

#[test]
fn tells_a_removed_group_from_a_full_one() {
    let group = tenant_with_max("removed or full", 2 << 20);
    let conn = connect(&group);
    let full = sort_ten_megabytes(&conn).expect_err("ten megabytes do not fit in two");
    assert!(full.out_of_memory().is_some_and(|details| !details.is_removed()), "{full}");
    group.remove().expect("it has no children");
    let removed = sort_ten_megabytes(&conn).expect_err("a removed group gives nothing");
    assert!(removed.out_of_memory().is_some_and(|details| details.is_removed()), "{removed}");
    assert!(removed.to_string().contains("was removed"), "{removed}");
}
