//! Page caches that SQLite makes, shrunk to the byte. The unit tests of this crate share one
//! process, hence one SQLite and one hierarchy. Each test creates groups of its own.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;

use memgroup::stats::io;
use memgroup::{Config, Freshness, Group, Hierarchy, KillAnswer, KillRequest, Reach, scope};

use super::cache::{Evictable, PageCache, caches_of};
use super::fetch::RECYCLED_AFTER_REFUSAL;
use crate::{TenantConnection, install_unchecked};

/// The hierarchy of this process. Charges do not reclaim, so only the tests shrink caches.
fn hierarchy() -> &'static Hierarchy {
    static HIERARCHY: OnceLock<Hierarchy> = OnceLock::new();
    HIERARCHY.get_or_init(|| {
        let hierarchy = Hierarchy::new(Config::new().reclaim(false)).expect("a configuration");
        // SAFETY: each test of this process that uses SQLite calls this function first, and the
        // lock of `HIERARCHY` makes others wait.
        unsafe { install_unchecked(&hierarchy, None) }.expect("SQLite is not used yet");
        hierarchy
    })
}

/// A new group under the root.
pub(super) fn tenant(name: &str) -> Group {
    hierarchy().root().create(name).expect("an unused name")
}

/// The cache of the group with the most evictable bytes.
fn largest(group: &Group) -> Arc<PageCache> {
    caches_of(group).into_iter().max_by_key(|cache| cache.evictable().bytes).expect("a cache")
}

pub(super) fn shrink_all(group: &Group, bytes: u64) -> u64 {
    caches_of(group).into_iter().filter_map(|cache| cache.try_shrink(bytes)).sum()
}

/// Creates rows with the keys 1, 2, .., one on each page: each `SELECT .. WHERE id = n` reads
/// another page of the table.
fn fill(conn: &TenantConnection, rows: u32) {
    conn.execute_batch(&format!(
        "PRAGMA synchronous = OFF; CREATE TABLE t (id INTEGER PRIMARY KEY, x);
         WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
         INSERT INTO t SELECT i, randomblob(3000) FROM n"
    ))
    .expect("enough memory");
}

fn open(group: &Group, dir: &Path, settings: &str) -> TenantConnection {
    let conn = TenantConnection::open(group, dir.join("a.db")).expect("a connection");
    conn.execute_batch(settings).expect("settings");
    conn
}

/// Reads rows by their keys. Returns the file reads that this took.
fn reads_of(conn: &TenantConnection, rows: impl Iterator<Item = u32>) -> i64 {
    let reads = || hierarchy().io().get(conn.group(), io::RIOS, Reach::Local, Freshness::Fresh);
    let before = reads();
    for row in rows {
        let id: u32 = conn
            .run(|conn| {
                conn.prepare_cached("SELECT id FROM t WHERE id = ?1")?.query_row([row], |row| row.get(0))
            })
            .expect("a row");
        assert_eq!(id, row);
    }
    reads() - before
}

/// File reads are reads of pages only, and the cache may have 32 megabytes.
const LARGE: &str = "PRAGMA locking_mode = EXCLUSIVE; PRAGMA cache_size = -32000";

#[test]
fn frees_the_asked_bytes_and_less_than_a_page_more() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("exact"));
    let conn = open(&group, dir.path(), LARGE);
    fill(&conn, 4_500);
    let cache = largest(&group);
    let page_bytes = cache.format.charged_bytes();
    for asked in [64 << 10, 1, page_bytes, page_bytes + 1, 3 << 20] {
        let (could, before_bytes) = (cache.evictable(), group.usage_exact());
        let freed = cache.try_shrink(asked).expect("no other thread uses it");
        assert!((asked..asked + page_bytes).contains(&freed), "{freed} bytes for {asked}");
        assert_eq!(before_bytes - group.usage_exact(), freed);
        assert_eq!(could.bytes - cache.evictable().bytes, freed);
    }
    assert_eq!(cache.try_shrink(0), Some(0));
    let rest = cache.evictable();
    assert!(rest.bytes > 10 << 20, "{rest:?}");
    assert_eq!(cache.try_shrink(u64::MAX), Some(rest.bytes));
    assert_eq!(cache.evictable(), Evictable { bytes: 0, pages: 0 });
    assert!(reads_of(&conn, 1..=10) >= 10);
}

#[test]
fn frees_the_least_recently_used_pages_first() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("order"));
    let conn = open(&group, dir.path(), LARGE);
    fill(&conn, 1_000);
    conn.release_memory().expect("an idle connection");
    assert!(reads_of(&conn, 1..=1_000) >= 1_000);
    assert_eq!(reads_of(&conn, 1..=1_000), 0);
    // Used last: the first hundred rows, and every tenth of the others before them.
    assert_eq!(reads_of(&conn, (101..=1_000).step_by(10).chain(1..=100)), 0);
    let cache = largest(&group);
    let page_bytes = cache.format.charged_bytes();
    assert_eq!(cache.try_shrink(810 * page_bytes), Some(810 * page_bytes));
    assert_eq!(reads_of(&conn, (101..=1_000).step_by(10).chain(1..=100)), 0, "these were used last");
    assert_eq!(
        reads_of(&conn, (1..=1_000).filter(|row| *row > 100 && row % 10 != 1)),
        810,
        "these were used first"
    );
}

#[test]
fn keeps_pages_of_a_running_statement() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("running"));
    let conn = open(&group, dir.path(), LARGE);
    fill(&conn, 500);
    conn.run(|inner| {
        let mut statement =
            inner.prepare("SELECT a.id, b.id FROM t a JOIN t b ON b.id = a.id + 1 ORDER BY a.id")?;
        let (mut rows, mut seen) = (statement.query([])?, 0);
        while let Some(row) = rows.next()? {
            seen += 1;
            assert_eq!((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?), (seen, seen + 1));
            let freed = std::thread::scope(|threads| {
                threads.spawn(|| shrink_all(&group, u64::MAX)).join().expect("no panic")
            });
            assert!(freed > 0, "the page of the row before is evictable");
            assert_eq!(caches_of(&group).iter().map(|cache| cache.evictable().pages).sum::<u32>(), 0);
        }
        assert_eq!(seen, 499);
        Ok(())
    })
    .expect("rows");
}

#[test]
fn keeps_pages_that_are_not_written_yet() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("dirty"));
    let conn = open(&group, dir.path(), LARGE);
    fill(&conn, 1_000);
    conn.transaction(|transaction| {
        transaction.execute("UPDATE t SET x = zeroblob(3000)", [])?;
        let before_bytes = group.usage_exact();
        let freed = shrink_all(&group, u64::MAX);
        assert!(before_bytes - freed > 1_000 * 4096, "{freed} of {before_bytes} bytes");
        Ok(())
    })
    .expect("enough memory");
    assert!(shrink_all(&group, u64::MAX) > 1_000 * 4096);
    let zeros: i64 = conn
        .query_row("SELECT count(*) FROM t WHERE x = zeroblob(3000)", [], |row| row.get(0))
        .expect("rows");
    assert_eq!(zeros, 1_000);
}

#[test]
fn keeps_pages_of_databases_in_memory() {
    let group = tenant("in memory");
    let conn = TenantConnection::open_in_memory(&group).expect("a connection");
    conn.execute_batch("PRAGMA temp_store = MEMORY; CREATE TEMP TABLE s AS SELECT 1").expect("enough memory");
    fill(&conn, 500);
    assert!(caches_of(&group).iter().all(|cache| cache.evictable().pages == 0));
    assert_eq!(shrink_all(&group, u64::MAX), 0);
    assert_eq!(reads_of(&conn, 1..=500), 0);
}

#[test]
fn does_not_hold_the_lock_while_a_charge_is_refused() {
    thread_local! {
        static HOOK_CALLS_AND_BYTES: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    }
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("within"));
    // The engine calls the hook on the charging thread, within the fetch.
    let hook = group.set_kill_hook(|killing: &KillRequest<'_>| {
        let (calls, bytes) = HOOK_CALLS_AND_BYTES.get();
        let shrunk = caches_of(killing.group).into_iter().map(|cache| cache.try_shrink(64 << 10));
        let freed = shrunk.map(|freed| freed.expect("the lock is free")).sum();
        HOOK_CALLS_AND_BYTES.set((calls + 1, bytes + freed));
        KillAnswer::Idle { freed }
    });
    let _hook = hook.expect("the group has no connection");
    let conn = open(&group, dir.path(), LARGE);
    fill(&conn, 2_000);
    conn.release_memory().expect("an idle connection");
    group.set_max(group.usage_exact() + (2 << 20)).expect("a limit");
    let reads = reads_of(&conn, (1..=2_000).chain(1..=2_000));
    assert!(reads >= 4_000, "{reads}");
    let (calls, freed) = HOOK_CALLS_AND_BYTES.get();
    assert!(calls > 10 && freed >= calls * (64 << 10), "{freed} bytes in {calls} calls");
}

#[test]
fn recycles_at_the_limit_and_seldom_asks_the_group() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("full"));
    let conn = open(&group, dir.path(), LARGE);
    fill(&conn, 3_000);
    conn.release_memory().expect("an idle connection");
    let max = group.usage_exact() + (1 << 20);
    group.set_max(max).expect("a limit");
    let refusals = group.refusals();
    let reads = reads_of(&conn, (1..=3_000).chain(1..=3_000));
    let refused = group.refusals() - refusals;
    assert!(reads >= 6_000 && refused > 0, "{reads} reads, {refused} refusals");
    assert!(
        refused <= reads as u64 / u64::from(RECYCLED_AFTER_REFUSAL) + 4,
        "{refused} refusals in {reads} reads"
    );
    assert!(group.usage_exact() <= max);
    assert_eq!(reads_of(&conn, 2_900..=3_000), 0, "the last rows are cached");
    group.set_max(None).expect("no limit");
    reads_of(&conn, 1..=3_000);
    assert!(largest(&group).evictable().pages > 2_900, "the cache grows when memory is free again");
}

#[test]
fn charges_the_reading_group_for_recycled_pages() {
    let dir = tempfile::tempdir().expect("a directory");
    let (group, guest) = (tenant("host"), tenant("guest"));
    let conn = open(&group, dir.path(), "PRAGMA locking_mode = EXCLUSIVE; PRAGMA cache_size = 200");
    fill(&conn, 1_000);
    conn.release_memory().expect("an idle connection");
    reads_of(&conn, 1..=1);
    let total = || group.usage_exact() + guest.usage_exact();
    conn.run(|conn| {
        let _scope = scope::enter(&guest);
        conn.query_row("SELECT count(*) FROM t WHERE length(x) = 3000", [], |row| row.get::<_, i64>(0))
    })
    .expect("rows");
    let before_bytes = total();
    assert!(guest.usage_exact() > 190 * 4096, "{}", guest.usage_exact());
    assert!(reads_of(&conn, 1..=1_000) >= 800);
    assert_eq!(total(), before_bytes);
    assert!(guest.usage_exact() < 20 * 4096, "{}", guest.usage_exact());
}

#[test]
fn lists_the_caches_of_a_group_while_they_exist() {
    let (dir, group) = (tempfile::tempdir().expect("a directory"), tenant("listed"));
    let conn = open(&group, dir.path(), LARGE);
    fill(&conn, 100);
    assert_eq!(caches_of(&group).len(), 1);
    conn.execute_batch(&format!("ATTACH '{}' AS b; CREATE TABLE b.u (x)", dir.path().join("b.db").display()))
        .expect("enough memory");
    assert_eq!(caches_of(&group).len(), 2);
    let kept = caches_of(&group);
    conn.execute_batch("DETACH b").expect("it is not in use");
    assert_eq!(caches_of(&group).len(), 1);
    conn.close().expect("it is not in use");
    assert_eq!(caches_of(&group).len(), 0);
    assert!(kept.iter().all(|cache| cache.try_shrink(u64::MAX) == Some(0)));
    drop(kept);
    assert_eq!(group.usage_exact(), 0);
}
