//! The kill hook of an idle group in a hierarchy without reclaim. It frees the asked bytes, at
//! least 64 KiB, and nothing below the group's `min`.

#![allow(unsafe_code)]

use std::path::Path;
use std::sync::OnceLock;

use memgroup::{Config, Group, Hierarchy, KillAnswer, KillHookError, KillOutcome, KillRequest};
use memgroup_sqlite::{TenantConnection, install_unchecked};

const PAGE: u64 = 8 << 10;

/// The hierarchy of this process, installed under SQLite.
fn hierarchy() -> &'static Hierarchy {
    static HIERARCHY: OnceLock<Hierarchy> = OnceLock::new();
    HIERARCHY.get_or_init(|| {
        let hierarchy = Hierarchy::new(Config::new().reclaim(false)).expect("a configuration");
        // SAFETY: each test that uses SQLite calls this function first, and the lock of `HIERARCHY`
        // makes others wait.
        unsafe { install_unchecked(&hierarchy, None) }.expect("nothing used SQLite before");
        hierarchy
    })
}

/// An idle connection that caches four megabytes.
fn idle(group: &Group, path: &Path) -> TenantConnection {
    let conn = TenantConnection::open(group, path).expect("a connection");
    conn.execute_batch(
        "PRAGMA cache_size = -6000; CREATE TABLE t (x);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4000)
         INSERT INTO t SELECT randomblob(1000) FROM n",
    )
    .expect("enough memory");
    conn
}

#[test]
fn frees_the_asked_bytes_of_idle_caches_but_not_the_min() {
    let hierarchy = hierarchy();
    let dir = tempfile::tempdir().expect("a directory");
    let tenants = hierarchy.create("/tenants").expect("a group");
    tenants.set_max(8 << 20).expect("a limit");
    let (reader, etl) = (tenants.create("reader").expect("a group"), tenants.create("etl").expect("a group"));
    let conn = idle(&reader, &dir.path().join("a.db"));
    let free = || tenants.max().expect("a limit") - tenants.usage_exact();
    let freed_for = |asked: u64| {
        let before = reader.usage_exact();
        let charge = etl.try_charge(asked);
        (before - reader.usage_exact(), charge.is_ok())
    };

    let held = etl.try_charge(free()).expect("enough memory");
    let (freed, is_made) = freed_for(4_096);
    assert!(
        is_made && (64 << 10..(64 << 10) + 2 * PAGE).contains(&freed),
        "{freed} bytes for four kilobytes"
    );
    drop(held);

    let held = etl.try_charge(free()).expect("enough memory");
    let (freed, is_made) = freed_for(1 << 20);
    assert!(is_made && (1 << 20..(1 << 20) + 2 * PAGE).contains(&freed), "{freed} bytes for a megabyte");

    // Half a megabyte is above its `min`.
    let before = reader.usage_exact();
    reader.set_min(before - (512 << 10)).expect("a minimum");
    let held_too = etl.try_charge(free()).expect("enough memory");
    let (freed, is_made) = freed_for(1 << 20);
    assert!(
        !is_made && (256 << 10..(512 << 10) + 2 * PAGE).contains(&freed),
        "{freed} bytes from above the minimum"
    );
    drop((held, held_too));

    let reports = hierarchy.kills();
    assert!(
        reports.iter().all(|report| matches!(report.outcome, Some(KillOutcome::Idle { .. }))),
        "{reports:?}"
    );
    assert_eq!(reader.events().oom_kill, 0);
    let sum: i64 =
        conn.query_row("SELECT sum(length(x)) FROM t", [], |row| row.get(0)).expect("it was not stopped");
    assert_eq!(sum, 4_000_000);
}

#[test]
fn sets_the_hook_after_the_application_removed_its_own() {
    let group = hierarchy().create("/hooks").expect("a group");
    let hook = || group.set_kill_hook(|_: &KillRequest<'_>| KillAnswer::Refused);
    let own = hook().expect("no connection has one");
    let first = TenantConnection::open_in_memory(&group).expect("a connection");
    drop(own);
    drop(hook().expect("an open connection sets none"));
    let second = TenantConnection::open_in_memory(&group).expect("a connection");
    assert!(matches!(hook(), Err(KillHookError::Exists { .. })), "the next connection sets one");
    drop((first, second));
    drop(hook().expect("the last connection removed the hook"));
}
